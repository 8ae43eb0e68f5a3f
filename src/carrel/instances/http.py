"""One HTTP request, its answer read as it comes. Loopback and no more: no TLS, no redirects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

PIECE = 65_536
"""Bytes that are read at a time."""
MAX_HEAD = 65_536
"""Bytes before a head is complete, and bytes in a row of which none is of the body: what follows
it is no shorter if nobody counts."""
MAX_BODY = 16 << 20
"""Of an answer that is read to its end."""


class HttpError(Exception):
    """The other side is not there, or speaks something else."""


@dataclass(frozen=True)
class Request:
    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class Answer:
    """Collected by the parser; `parts` come while the connection is read."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        from httptools import HttpResponseParser

        self.headers: dict[str, str] = {}
        self._reader = reader
        self._parts: list[bytes] = []
        self._headed = False
        self._complete = False
        self._beside = 0
        """Bytes since the head, or since the last part."""
        self._parser = HttpResponseParser(self)

    @property
    def status(self) -> int:
        return int(self._parser.get_status_code())

    # What the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._headed:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._headed = True
        self._beside = 0

    def on_body(self, body: bytes) -> None:
        self._beside = 0
        self._parts.append(body)

    def on_message_complete(self) -> None:
        self._complete = True

    # What its reader calls

    async def head(self) -> Answer:
        while not self._headed:
            if not await self._more():
                raise HttpError("it closed the connection before it answered")
        return self

    async def parts(self) -> AsyncIterator[bytes]:
        while True:
            while self._parts:
                yield self._parts.pop(0)
            if self._complete or not await self._more():
                return

    async def body(self) -> bytes:
        found = bytearray()
        async for part in self.parts():
            found += part
            if len(found) > MAX_BODY:
                raise HttpError("its answer is too long")
        return bytes(found)

    async def _more(self) -> bool:
        from httptools import HttpParserError

        data = await self._reader.read(PIECE)
        if not data:
            return False
        self._beside += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            raise HttpError(f"it does not speak HTTP: {error}") from error
        if self._beside > MAX_HEAD:
            raise HttpError("its headers are too long")
        return True


@contextlib.asynccontextmanager
async def asked(request: Request) -> AsyncIterator[Answer]:
    """The answer, from its head on. A connection of its own, closed with the block. Raises
    `HttpError`."""
    url = urlsplit(request.url)
    host, port = url.hostname or "", url.port or 80
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        raise HttpError(f"nobody listens at {host}:{port}: {error.strerror}") from error
    try:
        writer.write(_head(request, url.netloc, url.path, url.query) + request.body)
        await writer.drain()
        yield await Answer(reader).head()
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        raise HttpError(f"the connection broke: {error}") from error
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _head(request: Request, netloc: str, path: str, query: str) -> bytes:
    where = (path or "/") + (f"?{query}" if query else "")
    headers = {
        "Host": netloc,
        "Connection": "close",
        "Content-Length": str(len(request.body)),
        **request.headers,
    }
    lines = [f"{request.method} {where} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
