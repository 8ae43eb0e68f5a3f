"""Speaking with an MCP server just enough to know that it is there: both ways of beginning, and
one tool. No SDK: that takes a second to load, and a server may be asked many times before it is
up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

from carrel import __version__
from carrel.domain.instances import ToolCall
from carrel.domain.reception import Later, NotReady
from carrel.domain.sse import EventParser
from carrel.instances.http import Answer, HttpError, Request, asked

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
_BOTH = "application/json, text/event-stream"
_JSON = {"Content-Type": "application/json", "Accept": _BOTH}

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Greeting:
    """What it said of itself. `version` is the protocol's that was agreed on."""

    name: str
    version: str
    stateless: bool


async def greet(
    url: str,
    headers: Mapping[str, str],
    tool: ToolCall | None = None,
    later: Later | None = None,
) -> Greeting:
    """Over streamable HTTP, and the tool if there is one. What it noted of us it is asked to
    forget: before this returns, or by `later`. Raises `NotReady`."""
    with _plain():
        try:
            return await _handshake(url, headers, tool, later)
        except Refused as refused:
            with contextlib.suppress(Refused):
                return await _stateless(url, headers, tool)
            raise NotReady(str(refused)) from refused


async def greet_sse(url: str, headers: Mapping[str, str], tool: ToolCall | None = None) -> Greeting:
    """Over the older transport, where answers come on a stream of their own."""
    with _plain():
        async with asked(Request("GET", url, {**headers, "Accept": "text/event-stream"})) as stream:
            if stream.status != 200:
                raise NotReady(f"it answered {stream.status}")
            events = _events(stream)
            place = await anext(events, None)
            if place is None:
                raise NotReady("its stream ended")
            talk = _SseTalk(urljoin(url, str(place)), headers, events)
            try:
                result = await talk.ask("initialize", _initialize())
                await talk.tell("notifications/initialized")
                if tool is not None:
                    _worked(await talk.ask("tools/call", _call(tool)))
            except Refused as refused:
                raise NotReady(str(refused)) from refused
            return _greeting(result, stateless=False)


@contextlib.contextmanager
def _plain() -> Iterator[None]:
    try:
        yield
    except (HttpError, ValueError) as error:
        raise NotReady(str(error)) from error


class Refused(Exception):
    """It answered, and not with what was asked for."""


async def _handshake(
    url: str, headers: Mapping[str, str], tool: ToolCall | None, later: Later | None
) -> Greeting:
    own = {**headers, **_JSON}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _initialize()}
    async with asked(Request("POST", url, own, json.dumps(message).encode())) as answer:
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
    async with asked(Request("POST", url, headers, told)) as answer:
        await answer.body()


async def _leave(url: str, headers: Mapping[str, str]) -> None:
    if _SESSION in headers:
        with contextlib.suppress(HttpError):
            async with asked(Request("DELETE", url, headers)):
                pass


async def _stateless(url: str, headers: Mapping[str, str], tool: ToolCall | None) -> Greeting:
    own = {**headers, **_JSON, "MCP-Protocol-Version": STATELESS}
    method = {"Mcp-Method": "server/discover"}
    result = await _ask(url, {**own, **method}, "server/discover", {"_meta": _META})
    if tool is not None:
        method = {"Mcp-Method": "tools/call", "Mcp-Name": tool.name}
        called = {**_call(tool), "_meta": _META}
        _worked(await _ask(url, {**own, **method}, "tools/call", called))
    return _greeting(result, stateless=True)


async def _ask(url: str, headers: Mapping[str, str], method: str, params: Message) -> Message:
    body = json.dumps({"jsonrpc": "2.0", "id": 2, "method": method, "params": params})
    async with asked(Request("POST", url, headers, body.encode())) as answer:
        return await _result(answer, 2)


async def _result(answer: Answer, number: int) -> Message:
    """As one JSON object, or among events."""
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if answer.status != 200:
        said = (await answer.body())[:200].decode("utf-8", "replace")
        raise Refused(f"it answered {answer.status}: {said}")
    if kind == "text/event-stream":
        async for text in _events(answer):
            if (found := _answered(text, number)) is not None:
                return found
        raise Refused("its stream ended without an answer")
    found = _answered((await answer.body()).decode("utf-8", "replace"), number)
    if found is None:
        raise Refused("it answered something else")
    return found


def _answered(text: str, number: int) -> Message | None:
    """The result with that number; None when it is something else. Raises `Refused`."""
    try:
        message = json.loads(text)
    except ValueError:
        raise Refused("its answer is no JSON") from None
    if not isinstance(message, dict) or message.get("id") != number:
        return None
    if "error" in message:
        raise Refused(f"it answered {json.dumps(message['error'])[:200]}")
    result = message.get("result")
    if not isinstance(result, dict):
        raise Refused("its answer has no result")
    return result


async def _events(answer: Answer) -> AsyncIterator[str]:
    parser = EventParser()
    async for piece in answer.parts():
        for event in parser.receive(piece):
            # A server that lets streams be resumed begins with an empty one.
            if event.data:
                yield event.data


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
        raise Refused("its stream ended without an answer")

    async def tell(self, method: str) -> None:
        await self._post({"method": method})

    async def _post(self, message: Message) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        async with asked(Request("POST", self._url, self._headers, body)) as answer:
            if answer.status >= 300:
                raise Refused(f"it answered {answer.status}")
            await answer.body()


def _initialize() -> Message:
    return {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": _ABOUT}


def _call(tool: ToolCall) -> Message:
    return {"name": tool.name, "arguments": dict(tool.arguments)}


def _worked(result: Message) -> None:
    """A tool that fails is not ready for work."""
    if result.get("isError"):
        raise Refused(f"its tool failed: {json.dumps(result.get('content'))[:500]}")


def _greeting(result: Message, *, stateless: bool) -> Greeting:
    about = result.get("serverInfo")
    name = about.get("name") if isinstance(about, dict) else None
    version = STATELESS if stateless else result.get("protocolVersion")
    if not stateless and not isinstance(version, str):
        raise Refused("it agreed on no version of the protocol")
    return Greeting(str(name or ""), str(version), stateless)
