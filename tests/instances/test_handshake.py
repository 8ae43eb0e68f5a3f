"""Whether a server truly answers: the official SDK's server, both transports, both ways of
beginning; and what is no server at all."""

from __future__ import annotations

import asyncio
import inspect
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

import httpx
import pytest

from carrel.domain.instances import ToolCall
from carrel.domain.server_adapter import NotReady
from carrel.instances.handshake import HANDSHAKE, STATELESS, greet, greet_sse

# They share two servers.
pytestmark = pytest.mark.xdist_group("handshakes")

WAIT_S = 60.0
SERVER = """\
import sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("probe")

@server.tool()
def double(number: int) -> int:
    return 2 * number

server.run(sys.argv[1], port=0)
"""
DOUBLE = ToolCall("double", {"number": 4})


def started(transport: str) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, transport],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"running on (http://\S+)", line):
                yield found[1]
                break
        else:
            raise AssertionError("the server did not start")
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S)


@pytest.fixture(scope="module")
def http_server() -> Iterator[str]:
    yield from started("streamable-http")


@pytest.fixture(scope="module")
def sse_server() -> Iterator[str]:
    yield from started("sse")


@pytest.fixture
async def silent() -> AsyncIterator[str]:
    """Takes what is said, and says something else."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("tool", [None, DOUBLE], ids=["none", "double"])
async def test_streamable_http(http_server: str, tool: ToolCall | None) -> None:
    async with asyncio.timeout(WAIT_S):
        greeting = await greet(f"{http_server}/mcp", {}, tool)
    assert (greeting.name, greeting.version, greeting.stateless) == ("probe", HANDSHAKE, False)


async def test_the_goodbye_can_be_left_to_somebody(http_server: str) -> None:
    """With a tool it cannot: that is called in the session."""
    left: list[Coroutine[Any, Any, None]] = []
    async with asyncio.timeout(WAIT_S):
        await greet(f"{http_server}/mcp", {}, DOUBLE, left.append)
        assert left == []
        await greet(f"{http_server}/mcp", {}, None, left.append)
        (goodbye,) = left
        session = {
            "Mcp-Session-Id": inspect.getcoroutinelocals(goodbye)["headers"]["Mcp-Session-Id"]
        }
        assert await _status(http_server, session) == 200
        await goodbye
        assert await _status(http_server, session) == 404


async def _status(server: str, session: dict[str, str]) -> int:
    """Of a ping in it."""
    both = "application/json, text/event-stream"
    async with httpx.AsyncClient() as client:
        ping = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
        answer = await client.post(
            f"{server}/mcp", json=ping, headers={**session, "Accept": both}, timeout=WAIT_S
        )
    return answer.status_code


async def test_a_goodbye_to_one_that_has_gone() -> None:
    """Its session went with it."""
    from carrel.instances import handshake

    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/mcp"
    async with asyncio.timeout(WAIT_S):
        await handshake._goodbye(url, {"Mcp-Session-Id": "one"})


async def test_the_older_transport(sse_server: str) -> None:
    async with asyncio.timeout(WAIT_S):
        greeting = await greet_sse(f"{sse_server}/sse", {}, DOUBLE)
    assert (greeting.name, greeting.version) == ("probe", HANDSHAKE)


@pytest.mark.parametrize("place", ["http://{other}/", "//{other}/", "http://{own}@{other}/"])
async def test_one_that_has_us_call_others(place: str) -> None:
    """What is not reached from its sandbox is not reached through us."""
    called = False

    async def be_called(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal called
        called = True
        writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        said = place.format(other=f"127.0.0.1:{_port(other)}", own=f"127.0.0.1:{_port(server)}")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        writer.write(head + f"event: endpoint\ndata: {said}\n\n".encode())
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(be_called, "127.0.0.1", 0)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with asyncio.timeout(WAIT_S), other, server:
        with pytest.raises(NotReady, match="another server"):
            await greet_sse(f"http://127.0.0.1:{_port(server)}/sse", {"Authorization": "Bearer t"})
    assert not called


def _port(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


async def test_one_that_knows_no_handshake(http_server: str) -> None:
    """As a server of the newest protocol may: it is found out by being refused."""
    from carrel.instances import handshake

    async with asyncio.timeout(WAIT_S):
        greeting = await handshake._stateless(f"{http_server}/mcp", {}, DOUBLE)
    assert (greeting.version, greeting.stateless) == (STATELESS, True)


@pytest.mark.parametrize(
    ("path", "why"), [("/", "404"), ("/mcp/other", "404"), ("/messages", "404")]
)
async def test_a_web_server_that_is_none(http_server: str, path: str, why: str) -> None:
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(NotReady, match=why):
            await greet(f"{http_server}{path}", {})


@pytest.mark.parametrize(
    "tool", [ToolCall("nothing"), ToolCall("double", {"number": "four"})], ids=["unknown", "fails"]
)
async def test_a_tool_that_does_not_work(http_server: str, tool: ToolCall) -> None:
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(NotReady, match=tool.name):
            await greet(f"{http_server}/mcp", {}, tool)


async def test_no_web_server(silent: str) -> None:
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(NotReady, match="HTTP"):
            await greet(f"{silent}/mcp", {})
        with pytest.raises(NotReady, match="HTTP"):
            await greet_sse(f"{silent}/sse", {})


async def test_nobody() -> None:
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(NotReady, match="nobody listens"):
            await greet("http://127.0.0.1:1/mcp", {})
