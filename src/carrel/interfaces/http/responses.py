"""Answers that are streamed at the pace of the client: bytes that are read in worker threads,
files and parts of them, and server-sent events.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from carrel.domain.errors import AccessError, CarrelError, PathNotFound
from carrel.interfaces.http.access import still_allowed
from carrel.interfaces.http.answers import (
    BrokenOff,
    RangeNotSatisfiable,
    bytes_answer,
    encode,
    problem_response,
)
from carrel.interfaces.http.lifetime import REASON, BackgroundTasks, Shutdown, gone
from carrel.service.files import Copy

Read = Callable[[], bytes]
"""The next piece; empty at the end. Blocking."""


class ByteSource:
    """What is read, and how it is closed; both blocking."""

    def __init__(self, first: bytes, read: Read, close: Callable[[], None]) -> None:
        self.first = first
        self._read = read
        self._close = close
        self._step: asyncio.Future[bytes] | None = None

    async def next(self) -> bytes:
        """A thread that reads is not to be stopped: it is waited for before the end."""
        self._step = asyncio.ensure_future(asyncio.to_thread(self._read))
        return await asyncio.shield(self._step)

    async def close(self) -> None:
        if self._step is not None:
            await asyncio.wait({self._step})
            self._step.exception()
        await asyncio.to_thread(self._close)


async def begun(pieces: Iterator[bytes]) -> ByteSource:
    """What is wrong is known with the first piece, when it can still be told."""
    first = await asyncio.to_thread(next, pieces, b"")
    return ByteSource(first, lambda: next(pieces, b""), lambda: _close(pieces))


def _close(pieces: Iterator[bytes]) -> None:
    close = getattr(pieces, "close", None)
    if close is not None:
        with contextlib.suppress(CarrelError):
            close()


class HeldResponse(Response):
    """An answer for which something is held until its client has read it."""

    def __init__(self, answer: Response, held: contextlib.AsyncExitStack) -> None:
        super().__init__()
        self._answer = answer
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer
        head = {"type": "http.response.start", "status": answer.status_code}
        async with self._held:
            await send({**head, "headers": answer.raw_headers})
            await _send_pieces(send, bytes(answer.body))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        if answer.background is not None:
            await answer.background()


async def _send_pieces(send: Send, body: bytes) -> None:
    """At the pace of the client: a large body that is sent at once waits in the memory of its
    connection, and counts as read."""
    for begins in range(0, len(body), PIECE):
        piece = body[begins : begins + PIECE]
        await send({"type": "http.response.body", "body": piece, "more_body": True})


class ByteStream(Response):
    """No thread is held while the client reads; `held` is given back when it has done so."""

    def __init__(
        self,
        source: ByteSource,
        background: BackgroundTasks,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str = "application/octet-stream",
        held: contextlib.AsyncExitStack | None = None,
    ) -> None:
        super().__init__(None, status, headers, media_type)
        self._held = held or contextlib.AsyncExitStack()
        if "content-length" not in (name.lower() for name in headers or ()):
            del self.headers["content-length"]
        self._source = source
        self._closer = background

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(gone(receive))
        try:
            head = {"type": "http.response.start", "status": self.status_code}
            await send({**head, "headers": self.raw_headers})
            piece = self._source.first
            while piece and not leaving.done():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                piece = await self._source.next()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except CarrelError as error:
            # It is too late to tell: the client sees that the answer is not whole.
            raise BrokenOff(str(error)) from error
        finally:
            leaving.cancel()
            self._closer.spawn(self._end())

    async def _end(self) -> None:
        async with self._held:
            await self._source.close()


# One file, or a part of it

PIECE = 256 * 1024
COPY = "Carrel-Copy"
"""The header with the ticket of a copy that counts when its client says that it has it."""


@dataclass(frozen=True)
class OpenedFile:
    """A file, or a part of it, of which the beginning was read."""

    file: BinaryIO
    size: int
    part: tuple[int, int] | None
    first: bytes
    copy: Copy | None = None
    """What the whole file becomes, if it is to be copied out."""

    @property
    def length(self) -> int:
        return self.size if self.part is None else self.part[1] - self.part[0]


def begin(file: BinaryIO, range_header: str | None, copy: Copy | None = None) -> OpenedFile:
    """In a worker thread. Most files are done with the first piece, and closed then. Raises
    `RangeNotSatisfiable`."""
    try:
        size = os.fstat(file.fileno()).st_size
        part = part_of(range_header, size)
        begins, ends = part or (0, size)
        file.seek(begins)
        first = file.read(min(PIECE, ends - begins))
        if part is not None:
            copy = None
        elif copy is not None and len(first) == size:
            copy.sent()
    except BaseException:
        file.close()
        raise
    if len(first) == ends - begins:
        file.close()
    return OpenedFile(file, size, part, first, copy)


async def file_answer(beginning: Awaitable[OpenedFile], background: BackgroundTasks) -> Response:
    try:
        reading = await beginning
    except RangeNotSatisfiable as error:
        return problem_response(error, {"Content-Range": f"bytes */{error.details['size']}"})
    headers = {"Accept-Ranges": "bytes", "Content-Length": str(reading.length)}
    if reading.part is not None:
        begins, ends = reading.part
        headers["Content-Range"] = f"bytes {begins}-{ends - 1}/{reading.size}"
    if reading.copy is not None:
        headers[COPY] = reading.copy.ticket
    status = 200 if reading.part is None else 206
    if len(reading.first) == reading.length:
        return bytes_answer(reading.first, headers, status)
    headers["X-Content-Type-Options"] = "nosniff"
    return ByteStream(_source(reading), background, status=status, headers=headers)


def _source(reading: OpenedFile) -> ByteSource:
    left = reading.length - len(reading.first)

    def read() -> bytes:
        nonlocal left
        piece = reading.file.read(min(PIECE, left))
        if left and not piece:
            # Somebody cut it short while it was sent.
            raise PathNotFound("The file became shorter.")
        left -= len(piece)
        if piece and not left and reading.copy is not None:
            reading.copy.sent()
        return piece

    return ByteSource(reading.first, read, reading.file.close)


# The parts that a `Range` header asks for

_RANGE = re.compile(r"bytes=(\d*)-(\d*)", re.ASCII)


def part_of(header: str | None, size: int) -> tuple[int, int] | None:
    """First byte and the one after the last; None for the whole. What is not understood, and
    several ranges at once, are answered with the whole, as RFC 9110 allows.
    Raises `RangeNotSatisfiable`."""
    match = None if header is None else _RANGE.fullmatch(header.strip())
    if match is None or match[0] == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        begin, end = max(0, size - int(last[:20])), size
    else:
        begin = int(first[:20])
        end = min(size, int(last[:20]) + 1) if last else size
        if last and int(last[:20]) < begin:
            return None
    if begin >= size or begin >= end:
        raise RangeNotSatisfiable(
            f"The file has {size} bytes.", hint="Ask for a part that is there.", size=size
        )
    return begin, end


# Server-sent events

KEEP_ALIVE_S = 15.0
"""Middlemen end what is silent for half a minute; and the caller's token is looked at again."""
MEDIA_TYPE = "text/event-stream"

Told = AsyncGenerator[bytes, None]
_Piece = Callable[[bytes], Awaitable[None]]


def told(event: str, data: object, number: int | None = None) -> bytes:
    """One event as it goes over the wire. The encoder leaves no newline in the data."""
    name = b"" if number is None else b"id: %d\n" % number
    return b"%sevent: %s\ndata: %s\n\n" % (name, event.encode(), encode(data))


def comment(text: str) -> bytes:
    return f": {text}\n\n".encode()


class EventStream(Response):
    """Sends what `events` gives, at the pace of the reader: nothing is queued. Ends with it,
    with the client, with the caller's token, or with the daemon, which says so."""

    def __init__(self, events: Told, closing: Shutdown, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        self.status_code = 200
        self.background = None
        self.raw_headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        self._events = events
        self._closing = closing
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def piece(data: bytes) -> None:
            await _send_pieces(send, data)

        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(head)
        tasks = [
            asyncio.create_task(self._tell(piece)),
            asyncio.create_task(self._keep_alive(piece, scope)),
            asyncio.create_task(gone(receive)),
            asyncio.create_task(self._closing.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await self._events.aclose()
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, CarrelError):
                raise result
        last = b"" if not self._closing.begun else comment(REASON)
        with contextlib.suppress(OSError):
            await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _tell(self, piece: _Piece) -> None:
        async for data in self._events:
            await piece(data)

    async def _keep_alive(self, piece: _Piece, scope: Scope) -> None:
        while True:
            await asyncio.sleep(self._keep_alive_s)
            try:
                await still_allowed(scope)
            except AccessError:
                return
            await piece(comment("here"))
