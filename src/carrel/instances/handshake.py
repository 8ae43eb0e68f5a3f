"""Asks an MCP server just enough to know that it answers: both ways of beginning, and one tool.

The SDK is not used: it takes a second to load, and a server may be asked many times before it is
up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin, urlsplit

from carrel import __version__
from carrel.domain.instances import ToolCall
from carrel.domain.server_adapter import Later, NeverReady, NotReady
from carrel.domain.sse import EventParser

HANDSHAKE = "2025-11-25"
GOODBYE_S = 5.0
STATELESS = "2026-07-28"
_ABOUT = {"name": "carrel", "version": __version__}
_META = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientInfo": _ABOUT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
_SESSION = "Mcp-Session-Id"
_MISCALLED = re.compile(r'"code": -3260[12]|unknown tool|validation error', re.IGNORECASE)
"""Beside the codes of the protocol, what the SDKs say in an answer."""
_BOTH = "application/json, text/event-stream"
_JSON = {"Content-Type": "application/json", "Accept": _BOTH}

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Greeting:
    """What a server said of itself. `version` is the protocol's that was agreed on."""

    name: str
    version: str
    stateless: bool


async def greet(
    url: str,
    headers: Mapping[str, str],
    tool: ToolCall | None = None,
    later: Later | None = None,
) -> Greeting:
    """Shakes hands over streamable HTTP, and calls the tool if there is one. The session is ended
    before this returns, or by `later`. Raises `NotReady`."""
    with _plain():
        try:
            return await _handshake(url, headers, tool, later)
        except McpRefused as refused:
            with contextlib.suppress(McpRefused):
                return await _stateless(url, headers, tool)
            raise NotReady(str(refused)) from refused


async def greet_sse(url: str, headers: Mapping[str, str], tool: ToolCall | None = None) -> Greeting:
    """Shakes hands over the older transport, where answers come on a stream of their own."""
    with _plain():
        async with asked(
            HandshakeRequest("GET", url, {**headers, "Accept": "text/event-stream"})
        ) as stream:
            if stream.status != 200:
                raise NotReady(f"it answered {stream.status}")
            events = _events(stream)
            place = await anext(events, None)
            if place is None:
                raise NotReady("its stream ended")
            talk = _SseTalk(_beside(url, place), headers, events)
            try:
                result = await talk.ask("initialize", _initialize())
                await talk.tell("notifications/initialized")
                if tool is not None:
                    with _called():
                        _worked(await talk.ask("tools/call", _call(tool)))
            except McpRefused as refused:
                raise NotReady(str(refused)) from refused
            return _greeting(result, stateless=False)


@contextlib.contextmanager
def _plain() -> Iterator[None]:
    try:
        yield
    except (HttpError, ValueError) as error:
        raise NotReady(str(error)) from error


class McpRefused(Exception):
    """It answered, and not with what was asked for."""


async def _handshake(
    url: str, headers: Mapping[str, str], tool: ToolCall | None, later: Later | None
) -> Greeting:
    own = {**headers, **_JSON}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _initialize()}
    async with asked(HandshakeRequest("POST", url, own, json.dumps(message).encode())) as answer:
        result = await _result(answer, 1)
        session = answer.headers.get("mcp-session-id", "")
    greeting = _greeting(result, stateless=False)
    own["MCP-Protocol-Version"] = greeting.version
    if session:
        own[_SESSION] = session
    if tool is None and later is not None:
        later(_goodbye(url, own))
        return greeting
    try:
        await _initialized(url, own)
        if tool is not None:
            with _called():
                _worked(await _ask(url, own, "tools/call", _call(tool)))
    finally:
        await _leave(url, own)
    return greeting


async def _goodbye(url: str, headers: Mapping[str, str]) -> None:
    """The end of a handshake, and of the session; it may have ended already."""
    with contextlib.suppress(HttpError, TimeoutError):
        async with asyncio.timeout(GOODBYE_S):
            await _initialized(url, headers)
            await _leave(url, headers)


async def _initialized(url: str, headers: Mapping[str, str]) -> None:
    told = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
    async with asked(HandshakeRequest("POST", url, headers, told)) as answer:
        await answer.body()


async def _leave(url: str, headers: Mapping[str, str]) -> None:
    if _SESSION in headers:
        with contextlib.suppress(HttpError):
            async with asked(HandshakeRequest("DELETE", url, headers)):
                pass


async def _stateless(url: str, headers: Mapping[str, str], tool: ToolCall | None) -> Greeting:
    own = {**headers, **_JSON, "MCP-Protocol-Version": STATELESS}
    method = {"Mcp-Method": "server/discover"}
    result = await _ask(url, {**own, **method}, "server/discover", {"_meta": _META})
    if tool is not None:
        method = {"Mcp-Method": "tools/call", "Mcp-Name": tool.name}
        called = {**_call(tool), "_meta": _META}
        with _called():
            _worked(await _ask(url, {**own, **method}, "tools/call", called))
    return _greeting(result, stateless=True)


async def _ask(url: str, headers: Mapping[str, str], method: str, params: Message) -> Message:
    body = json.dumps({"jsonrpc": "2.0", "id": 2, "method": method, "params": params})
    async with asked(HandshakeRequest("POST", url, headers, body.encode())) as answer:
        return await _result(answer, 2)


async def _result(answer: HandshakeAnswer, number: int) -> Message:
    """As one JSON object, or among events."""
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if answer.status != 200:
        said = (await answer.body())[:200].decode("utf-8", "replace")
        raise McpRefused(f"it answered {answer.status}: {said}")
    if kind == "text/event-stream":
        async for text in _events(answer):
            if (found := _answered(text, number)) is not None:
                return found
        raise McpRefused("its stream ended without an answer")
    found = _answered((await answer.body()).decode("utf-8", "replace"), number)
    if found is None:
        raise McpRefused("it answered something else")
    return found


def _answered(text: str, number: int) -> Message | None:
    """The result with that number; None when it is something else. Raises `McpRefused`."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        raise McpRefused("its answer is no JSON") from None
    if not isinstance(message, dict) or message.get("id") != number:
        return None
    if "error" in message:
        raise McpRefused(f"it answered {json.dumps(message['error'])[:200]}")
    result = message.get("result")
    if not isinstance(result, dict):
        raise McpRefused("its answer has no result")
    return result


async def _events(answer: HandshakeAnswer) -> AsyncIterator[str]:
    parser = EventParser()
    async for piece in answer.parts():
        for event in parser.receive(piece):
            # A server that lets streams be resumed begins with an empty one.
            if event.data:
                yield event.data


def _beside(url: str, place: str) -> str:
    """Where a server says that it is spoken to. In its sandbox it may reach nobody, and is not
    to have us call others for it, with its token."""
    found = urljoin(url, place)
    if urlsplit(found)[:2] != urlsplit(url)[:2]:
        raise NotReady("it named another server's address as its own")
    return found


class _SseTalk:
    def __init__(self, url: str, headers: Mapping[str, str], events: AsyncIterator[str]) -> None:
        self._url = url
        self._headers = {**headers, "Content-Type": "application/json"}
        self._events = events
        self._number = 0

    async def ask(self, method: str, params: Message) -> Message:
        self._number += 1
        await self._post({"id": self._number, "method": method, "params": params})
        async for text in self._events:
            if (found := _answered(text, self._number)) is not None:
                return found
        raise McpRefused("its stream ended without an answer")

    async def tell(self, method: str) -> None:
        await self._post({"method": method})

    async def _post(self, message: Message) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        async with asked(HandshakeRequest("POST", self._url, self._headers, body)) as answer:
            if answer.status >= 300:
                raise McpRefused(f"it answered {answer.status}")
            await answer.body()


def _initialize() -> Message:
    return {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": _ABOUT}


def _call(tool: ToolCall) -> Message:
    return {"name": tool.name, "arguments": dict(tool.arguments)}


@contextlib.contextmanager
def _called() -> Iterator[None]:
    """A call that the server does not know, or not with these arguments, never works."""
    try:
        yield
    except McpRefused as refused:
        if _MISCALLED.search(str(refused)):
            raise NeverReady(f"the call cannot work: {refused}") from refused
        raise


def _worked(result: Message) -> None:
    """A tool that fails is not ready for work."""
    if result.get("isError"):
        raise McpRefused(f"its tool failed: {json.dumps(result.get('content'))[:500]}")


def _greeting(result: Message, *, stateless: bool) -> Greeting:
    about = result.get("serverInfo")
    name = about.get("name") if isinstance(about, dict) else None
    version = STATELESS if stateless else result.get("protocolVersion")
    if not stateless and not isinstance(version, str):
        raise McpRefused("it agreed on no version of the protocol")
    return Greeting(str(name or ""), str(version), stateless)


# One HTTP request at a time. Loopback only: no TLS, no redirects.

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
class HandshakeRequest:
    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class HandshakeAnswer:
    """The answer as the parser collects it; `parts` come while the connection is read."""

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

    async def head(self) -> HandshakeAnswer:
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
async def asked(request: HandshakeRequest) -> AsyncIterator[HandshakeAnswer]:
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
        yield await HandshakeAnswer(reader).head()
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        raise HttpError(f"the connection broke: {error}") from error
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _head(request: HandshakeRequest, netloc: str, path: str, query: str) -> bytes:
    where = (path or "/") + (f"?{query}" if query else "")
    headers = {
        "Host": netloc,
        "Connection": "close",
        "Content-Length": str(len(request.body)),
        **request.headers,
    }
    lines = [f"{request.method} {where} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
