"""Files of a space, and whole folders as tar: bytes in, bytes out.

A small body is read as a whole before anything else is done, so that a slow client holds nothing.
A large one is handed to the worker thread that writes it piece by piece, one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from typing_extensions import Buffer

from carrel.api.types.runs import ArchiveQuery, Done, FolderQuery, ReadQuery, WriteQuery
from carrel.domain.errors import RequestError, StateConflict, TooLarge
from carrel.interfaces.http.answers import answer, bytes_answer
from carrel.interfaces.http.operations import query_of
from carrel.interfaces.http.responses import COPY, ByteStream, begin, begun, file_answer
from carrel.interfaces.http.services import caller, serving

ARCHIVE, PLAIN_ARCHIVE = "application/zstd", "application/x-tar"
BUFFER = 256 * 1024
MAX_CONTEXT = 16 << 20


async def read(request: Request) -> Response:
    here, asked = serving(request), query_of(request, ReadQuery)
    wanted = request.headers.get("Range")
    reading = here.services.files.read(
        caller(request),
        request.path_params["space"],
        asked.path,
        lambda file, copy: begin(file, wanted, copy if asked.take else None),
    )
    return await file_answer(reading, here.background)


async def write(request: Request) -> Response:
    here, who, space = serving(request), caller(request), request.path_params["space"]
    asked = query_of(request, WriteQuery)
    # Whoever may not write is told before the body is read.
    await here.services.spaces.existing(who, space)
    store = here.services.operations.files.write
    with here.body(who, _small(request)):
        first, rest = await whole_or_rest(request)
        if rest is None:
            return answer(await store(who, space, asked, first))
    async with here.stream(who):
        with contextlib.closing(Pieces(first, rest)) as pieces:
            return answer(await store(who, space, asked, pieces))


async def read_archive(request: Request) -> Response:
    here, who, asked = serving(request), caller(request), query_of(request, ArchiveQuery)
    space, zstd = request.path_params["space"], not asked.plain
    media_type = ARCHIVE if zstd else PLAIN_ARCHIVE
    async with contextlib.AsyncExitStack() as turn:
        await turn.enter_async_context(here.archives.of(who.account))
        archive = here.services.files.archive(who, space, asked.path, zstd=zstd)
        ticket, pieces = await archive
        return ByteStream(
            await begun(pieces),
            here.background,
            headers={COPY: ticket},
            media_type=media_type,
            held=turn.pop_all(),
        )


async def write_archive(request: Request) -> Response:
    here, who, space = serving(request), caller(request), request.path_params["space"]
    path = query_of(request, FolderQuery).path
    await here.services.spaces.existing(who, space)
    unpack = here.services.files.unpack
    with here.body(who, _small(request, ARCHIVE_WHOLE)):
        first, rest = await whole_or_rest(request, ARCHIVE_WHOLE)
        if rest is None:
            await unpack(who, space, io.BytesIO(first), path)
            return answer(Done())
    async with here.stream(who):
        with contextlib.closing(Pieces(first, rest)) as pieces:
            reader = io.BufferedReader(PieceReader(pieces), BUFFER)
            await unpack(who, space, reader, path, pieces)
    return answer(Done())


# What the agent of a space is given to read, beside its tree


async def read_context(request: Request) -> Response:
    space, name = request.path_params["space"], request.path_params["name"]
    context = serving(request).services.context
    return bytes_answer(await context.read(caller(request), space, name), {})


async def put_context(request: Request) -> Response:
    """Instead of what had that name; agents see it at once."""
    here, who = serving(request), caller(request)
    space, name = request.path_params["space"], request.path_params["name"]
    await here.services.spaces.existing(who, space)
    with here.body(who, _small(request)):
        await here.services.context.put(who, space, name, await _whole(request))
    return answer(await here.services.operations.context.list(who, space))


async def _whole(request: Request) -> bytes:
    kept = bytearray()
    async for piece in request.stream():
        kept += piece
        if len(kept) > MAX_CONTEXT:
            raise TooLarge(
                f"A context file has at most {MAX_CONTEXT} bytes.", hint="Put it into the tree."
            )
    return bytes(kept)


# Large bodies, between the event loop and worker threads

WHOLE, ARCHIVE_WHOLE = 4 << 20, 1 << 20
"""Up to here a body is kept in memory. What unpacks an archive is slower than what packs it, and
begins earlier."""
PIECE_S = 45.0
"""For the thread to wait for the next piece: the connection gives up after 30 seconds."""
LEAST_RATE = 4 * 1024
RATE_AFTER_S = 60.0
"""A body that keeps a space from being stopped comes at so many bytes a second at least."""


class BodyTooSlow(RequestError):
    code = "request_timeout"


class BodyEnded(RequestError):
    """The client went away before its end."""

    code = "message_invalid"


def _small(request: Request, most: int = WHOLE) -> int:
    """How much of its body will be in memory at most."""
    announced = request.headers.get("content-length", "")
    return min(int(announced), most) if announced.isdecimal() else most


async def whole_or_rest(
    request: Request, most: int = WHOLE
) -> tuple[bytes, AsyncIterator[bytes] | None]:
    """The body; or its beginning, and what is to come."""
    kept = bytearray()
    stream = request.stream()
    async for piece in stream:
        kept += piece
        if len(kept) > most:
            return bytes(kept), stream
    return bytes(kept), None


class Pieces(Iterator[bytes]):
    """The rest of a body, for a worker thread; made and closed on the event loop. The next piece
    comes while the thread works on the one before. A `Coming`."""

    def __init__(self, first: bytes, rest: AsyncIterator[bytes]) -> None:
        self._first: bytes | None = first
        self._rest = rest
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()
        self._size = len(first)
        self._given_up = asyncio.Event()
        self._coming: Future[bytes | None] | None = None

    def give_up(self) -> None:
        self._given_up.set()

    def close(self) -> None:
        if self._coming is not None:
            self._coming.cancel()

    def __next__(self) -> bytes:
        if self._first is not None:
            first, self._first = self._first, None
            self._coming = self._ask()
            return first
        coming = self._coming or self._ask()
        try:
            piece = coming.result(PIECE_S)
        except (TimeoutError, FutureCancelled, ClientDisconnect):
            coming.cancel()
            raise BodyEnded("The body ended too early.", hint="Send it again.") from None
        self._coming = coming if piece is None else self._ask()
        if piece is None:
            raise StopIteration
        return piece

    def _ask(self) -> Future[bytes | None]:
        return asyncio.run_coroutine_threadsafe(self._next_or_none(), self._loop)

    async def _next_or_none(self) -> bytes | None:
        """Raises `StateConflict` as soon as it is given up."""
        given_up = asyncio.ensure_future(self._given_up.wait())
        piece = asyncio.ensure_future(self._next())
        try:
            await asyncio.wait({given_up, piece}, return_when=asyncio.FIRST_COMPLETED)
            if self._given_up.is_set():
                raise StateConflict(
                    "The space is being stopped or removed.", hint="Send it again afterwards."
                )
            return await piece
        finally:
            for task in (given_up, piece):
                task.cancel()

    async def _next(self) -> bytes | None:
        async for piece in self._rest:
            if piece:
                self._check_rate(len(piece))
                return piece
        return None

    def _check_rate(self, size: int) -> None:
        self._size += size
        elapsed = self._loop.time() - self._begun
        if elapsed > RATE_AFTER_S and self._size < elapsed * LEAST_RATE:
            raise BodyTooSlow("The body comes too slowly.", hint="Send it over a faster line.")


class PieceReader(io.RawIOBase):
    """The same as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        target = memoryview(buffer)
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        size = min(len(target), len(self._left))
        target[:size] = self._left[:size]
        self._left = self._left[size:]
        return size
