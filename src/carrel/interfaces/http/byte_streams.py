"""Bytes out, read in worker threads at the pace of the client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from carrel.domain.errors import CarrelError
from carrel.interfaces.http.background import Background
from carrel.interfaces.http.closing import gone
from carrel.interfaces.http.guard import BrokenOff

Read = Callable[[], bytes]
"""The next piece; empty at the end. Blocking."""


class Source:
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


async def begun(pieces: Iterator[bytes]) -> Source:
    """What is wrong is known with the first piece, when it can still be told."""
    first = await asyncio.to_thread(next, pieces, b"")
    return Source(first, lambda: next(pieces, b""), lambda: _close(pieces))


def _close(pieces: Iterator[bytes]) -> None:
    close = getattr(pieces, "close", None)
    if close is not None:
        with contextlib.suppress(CarrelError):
            close()


class ByteStream(Response):
    """No thread is held while the client reads."""

    def __init__(
        self,
        source: Source,
        background: Background,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str = "application/octet-stream",
    ) -> None:
        super().__init__(None, status, headers, media_type)
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
            self._closer.spawn(self._source.close())
