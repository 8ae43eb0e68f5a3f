"""Lines of JSON-RPC: what the real server answers to them, and what the front and it together do.
In this process, and without a hub."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence, Set
from typing import Any

from anyio import wrap_file
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from carrel import AsyncHub
from carrel.mcp.desk import open_desk
from carrel.mcp.front import Begun, begin
from carrel.mcp.handshake import CAPABILITIES, CLIENT, VERSION
from carrel.mcp.server import CarrelServer

LIMIT_S = 30.0
"""For all answers of one dialogue, on a busy machine."""
LONGEST = 2**22
"""Of an answer."""
INFO = {"name": "test", "version": "1"}
MODERN = MODERN_PROTOCOL_VERSIONS[-1]
NOWHERE = "/nonexistent/hub.sock"

Message = dict[str, Any]
Answers = dict[str, Message]
"""By id, as JSON: ids have types."""


def request(id: Any, method: str, params: Any = None) -> Message:
    given = {} if params is None else {"params": params}
    return {"jsonrpc": "2.0", "id": id, "method": method, **given}


def envelope(version: str = MODERN, **more: Any) -> Message:
    return {"_meta": {VERSION: version, CLIENT: INFO, CAPABILITIES: {}}, **more}


def initialize(id: Any = 0, version: str = "2025-11-25", **more: Any) -> Message:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": INFO, **more}
    return request(id, "initialize", params)


def opening(version: str, id: Any = 0) -> Message:
    """As clients of that version begin."""
    if version in MODERN_PROTOCOL_VERSIONS:
        return request(id, "server/discover", envelope(version))
    return initialize(id, version)


def encoded(messages: Iterable[Message | bytes]) -> bytes:
    texts = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in messages]
    return b"".join(text + b"\n" for text in texts)


def by_id(lines: Iterable[str | bytes]) -> Answers:
    found: Answers = {}
    for line in lines:
        message = json.loads(line)
        number = json.dumps(message.get("id"))
        assert "method" not in message and number not in found, message
        found[number] = message
    return found


async def server_answers(inside: bool, said: bytes, wanted: Set[str]) -> Answers:
    """Until those ids are answered."""
    found: Answers = {}
    async with asyncio.timeout(LIMIT_S), _serving(inside) as (answers, client):
        client.write(said)
        while not wanted <= found.keys():
            found |= by_id([await answers.readline()])
    return found


async def front_answers(inside: bool, said: bytes, wanted: Set[str]) -> Answers:
    """The same by the front, and by the server after it."""
    lines, begun, rest = await asyncio.to_thread(_begin, inside, said)
    found = by_id(lines)
    if begun is None:
        return found
    missing = {one for one in wanted if one not in found}
    unsaid = {json.dumps(begun.unsaid)} if begun.unsaid else set()
    more = await server_answers(inside, begun.first + rest, missing | unsaid)
    assert found.keys().isdisjoint(more), "answered twice"
    return {**found, **{id: one for id, one in more.items() if id not in unsaid}}


def front_alone(inside: bool, said: bytes) -> Answers:
    return by_id(_begin(inside, said)[0])


def _begin(inside: bool, said: bytes) -> tuple[list[bytes], Begun | None, bytes]:
    """What the front answered, what it handed over, and what it had not read then."""
    with tempfile.TemporaryFile() as heard, tempfile.TemporaryFile() as answers:
        heard.write(said)
        heard.seek(0)
        begun = begin(inside, heard.fileno(), answers.fileno())
        rest = os.read(heard.fileno(), len(said))
        answers.seek(0)
        return answers.readlines(), begun, rest


@contextlib.asynccontextmanager
async def _serving(
    inside: bool,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    ours, theirs = socket.socketpair()
    answers, client = await asyncio.open_connection(sock=ours, limit=LONGEST)
    open_hub = functools.partial(AsyncHub, socket=NOWHERE)
    async with open_desk(open_hub, inside=inside) as desk:
        task = asyncio.create_task(_serve(CarrelServer(desk), theirs))
        try:
            yield answers, client
            client.write_eof()
            await answers.read()
        finally:
            client.close()
            await asyncio.gather(task, client.wait_closed())


async def _serve(server: CarrelServer, ours: socket.socket) -> None:
    hearing = ours.makefile("r", encoding="utf-8", errors="replace")
    with ours, hearing as stdin, ours.makefile("w", encoding="utf-8") as stdout:
        await server.serve_lines(wrap_file(stdin), wrap_file(stdout))


async def entries(inside: bool, versions: Sequence[str], methods: Sequence[str]) -> list[Message]:
    """What is kept in a file: equal answers once. Methods that the server does not have in a
    version are left out."""
    found: list[Message] = []
    for version in versions:
        first = opening(version)
        params = envelope(version) if version == MODERN else None
        asked = [first, *(request(id, one, params) for id, one in enumerate(methods, 1))]
        ids = {str(one["id"]) for one in asked}
        answers = await server_answers(inside, encoded(asked), ids)
        for one in asked:
            result = answers[str(one["id"])].get("result")
            if result is not None:
                _add(found, one["method"], version, result)
    return found


def _add(found: list[Message], method: str, version: str, result: Message) -> None:
    for entry in found:
        if entry["method"] == method and entry["result"] == result:
            entry["versions"].append(version)
            return
    found.append({"method": method, "versions": [version], "result": result})
