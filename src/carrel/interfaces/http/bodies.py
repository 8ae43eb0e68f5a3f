"""Large bodies, between the event loop and the worker threads that read and write files.

A small body is read as a whole before anything else is done, so that a slow client holds
nothing. A large one is handed to the thread piece by piece, one at a time.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError as FutureCancelled

from starlette.requests import ClientDisconnect, Request
from typing_extensions import Buffer

from carrel.domain.errors import RequestError

WHOLE = 4 << 20
"""Up to here a body is kept in memory."""
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


async def whole_or_rest(request: Request) -> tuple[bytes, AsyncIterator[bytes] | None]:
    """The body; or its beginning, and what is to come."""
    kept = bytearray()
    stream = request.stream()
    async for piece in stream:
        kept += piece
        if len(kept) > WHOLE:
            return bytes(kept), stream
    return bytes(kept), None


class Pieces(Iterator[bytes]):
    """The rest of a body, for a worker thread; made on the event loop."""

    def __init__(self, first: bytes, rest: AsyncIterator[bytes]) -> None:
        self._first: bytes | None = first
        self._rest = rest
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()
        self._size = len(first)

    def __next__(self) -> bytes:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        coming = asyncio.run_coroutine_threadsafe(self._next(), self._loop)
        try:
            piece = coming.result(PIECE_S)
        except (TimeoutError, FutureCancelled, ClientDisconnect):
            coming.cancel()
            raise BodyEnded("The body ended before its end.", hint="Send it again.") from None
        if piece is None:
            raise StopIteration
        return piece

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
