"""The SDK's own server with the tool of `carrel codesmith`, which does nothing: what it answers is
what ours has to."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from typing import Any

from anyio import wrap_file
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS

from carrel import __version__
from carrel.mcp.codesmith.session import CodesmithSession
from carrel.mcp.codesmith.tool import INSTRUCTIONS, SERVER, TOOL
from tests.mcp.dialogue import (
    LIMIT_S,
    LONGEST,
    MODERN,
    Answers,
    Message,
    by_id,
    encoded,
    envelope,
    opening,
    request,
)

METHODS = ("ping", "tools/list")


def make() -> Server[Any]:
    async def list_tools(_: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[Tool.model_validate(TOOL)])

    async def call_tool(_: Any, params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[])

    return Server(
        SERVER,
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def answers_of(said: Sequence[Message | bytes]) -> Answers:
    """To all of these, by id. One more is asked at the end: what is answered is answered then."""
    ours, theirs = socket.socketpair()
    answers, client = await asyncio.open_connection(sock=ours, limit=LONGEST)
    task = asyncio.create_task(_serve(theirs))
    lines: list[bytes] = []
    try:
        async with asyncio.timeout(LIMIT_S):
            client.write(encoded([*said, request("last", "ping")]))
            while b'"id":"last"' not in (line := await answers.readline()):
                lines.append(line)
            client.write_eof()
            lines += (await answers.read()).splitlines()
    finally:
        client.close()
        await asyncio.gather(task, client.wait_closed())
    return by_id(lines)


async def _serve(ours: socket.socket) -> None:
    server = make()
    hearing = ours.makefile("r", encoding="utf-8", errors="replace")
    with ours, hearing as stdin, ours.makefile("w", encoding="utf-8") as stdout:
        async with stdio_server(wrap_file(stdin), wrap_file(stdout)) as (heard, said):
            await server.run(heard, said, server.create_initialization_options())


def answers_of_session(said: Sequence[Message | bytes]) -> Answers:
    """The same by ours; calls of the tool are left out."""
    session = CodesmithSession()
    taken = [session.take(line) for line in encoded(said).splitlines()]
    return by_id(json.dumps(one) for one in taken if isinstance(one, dict))


async def answers() -> dict[str, Message]:
    """What is always the same, by version and method."""
    found: dict[str, Message] = {}
    for version in KNOWN_PROTOCOL_VERSIONS:
        params = envelope(version) if version == MODERN else None
        asked = [
            opening(version),
            *(request(id, one, params) for id, one in enumerate(METHODS, 1)),
        ]
        told = await answers_of(asked)
        results = {one["method"]: told[str(one["id"])].get("result") for one in asked}
        found[version] = {name: result for name, result in results.items() if result is not None}
    return found
