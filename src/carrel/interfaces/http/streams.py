"""Server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from carrel.domain.errors import AccessError, CarrelError
from carrel.interfaces.http.access import still_allowed
from carrel.interfaces.http.closing import REASON, Closing, gone
from carrel.interfaces.http.encoding import encode

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

    def __init__(self, events: Told, closing: Closing, keep_alive_s: float = KEEP_ALIVE_S) -> None:
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
        async def piece(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

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
            await piece(last, more=False)

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
