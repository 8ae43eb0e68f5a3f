"""The program itself: it begins without the server, which takes over at the first request that
needs it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from carrel import AsyncClient, AsyncHub
from carrel.client.aio_spaces import AsyncSpace
from carrel.client.hub_places import find_hub
from carrel.domain.hub import HUB_SOCKET
from carrel.mcp.desk import open_desk
from carrel.mcp.server import CarrelServer
from tests.cli.program import PROGRAM
from tests.daemon.rig import Daemon
from tests.mcp.dialogue import MODERN, Message, encoded, envelope, initialize, opening, request
from tests.mcp.rig import STEP_S, call, heard, person
from tests.mcp.test_front import INITIALIZED

LONGEST = 2**22
SLOW = "/pydantic_core/"
"""In the memory of a process that has loaded the SDK."""


def hub_of(daemon: Daemon, space: str) -> Path:
    return daemon.data / "spaces" / space / "hub" / HUB_SOCKET


@contextlib.asynccontextmanager
async def program(hub: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Ends it, if a test has not."""
    server = await asyncio.create_subprocess_exec(
        str(PROGRAM),
        "mcp",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        limit=LONGEST,
        env={**os.environ, "CARREL_HUB": str(hub)},
    )
    try:
        async with asyncio.timeout(STEP_S):
            yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            server.kill()
        await server.communicate()


def say(server: asyncio.subprocess.Process, *messages: Message) -> None:
    assert server.stdin is not None
    server.stdin.write(encoded(messages))


async def hear(server: asyncio.subprocess.Process, count: int) -> dict[Any, Message]:
    assert server.stdout is not None
    found: dict[Any, Message] = {}
    for _ in range(count):
        message = json.loads(await server.stdout.readline())
        assert message["id"] not in found
        found[message["id"]] = message
    return found


def is_loaded(server: asyncio.subprocess.Process) -> bool:
    return SLOW in Path(f"/proc/{server.pid}/maps").read_text()


def calling(id: Any, name: str, modern: bool = False, **arguments: Any) -> Message:
    params = envelope() if modern else {}
    return request(id, "tools/call", {**params, "name": name, "arguments": arguments})


@pytest.mark.parametrize("version", ["2025-06-18", MODERN])
async def test_the_first_tool_loads_the_server(
    daemon: Daemon, plain: AsyncSpace, version: str
) -> None:
    modern = version == MODERN
    async with program(hub_of(daemon, plain.id)) as server:
        say(server, opening(version), INITIALIZED)
        say(server, request(1, "tools/list", envelope() if modern else None))
        assert len((await hear(server, 2))[1]["result"]["tools"]) == 14
        assert not is_loaded(server)
        # All at once, while it loads; then nothing more.
        say(server, calling(2, "space_state", modern), opening(version, "again"))
        say(server, calling(3, "log_progress", modern, message="x" * 200_000))
        found = await hear(server, 3)
        assert is_loaded(server) and found.keys() == {2, 3, "again"}
        assert found[2]["result"]["structuredContent"]["id"] == plain.id
        out, err = await server.communicate(b"")
        assert (server.returncode, out, err) == (0, b"", b"")


async def test_the_server_knows_what_was_agreed(daemon: Daemon, plain: AsyncSpace) -> None:
    """By how it answers: progress is told to who asked for it, in the agreed version."""
    async with program(hub_of(daemon, plain.id)) as server:
        say(server, initialize("a", "2025-03-26"), INITIALIZED)
        # It waits, so that there is something to tell.
        wanted = calling(1, "wait_for_space", space=plain.id, states=["stopped"], timeout_s=0.5)
        wanted["params"]["_meta"] = {"progressToken": "mine"}
        say(server, wanted)
        assert server.stdout is not None
        lines = [json.loads(await server.stdout.readline()) for _ in range(3)]
        assert lines[0]["result"]["protocolVersion"] == "2025-03-26"
        assert lines[1]["params"]["progressToken"] == "mine"
        assert lines[2]["result"]["structuredContent"]["reached"] is False


async def test_a_call_that_is_cancelled(daemon: Daemon, plain: AsyncSpace) -> None:
    """Before the server is there; nobody gets an answer to it."""
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    async with program(hub_of(daemon, plain.id)) as server:
        say(server, initialize(), INITIALIZED, calling(1, "ask_user", question="Well?"))
        say(server, cancel, request(2, "ping"))
        assert (await hear(server, 2)).keys() == {0, 2}
        out, err = await server.communicate(b"")
        assert (server.returncode, out, err) == (0, b"", b"")


@pytest.mark.parametrize("said", [[], [initialize()], [initialize(), calling(1, "list_spaces")]])
async def test_the_end_of_its_input(daemon: Daemon, plain: AsyncSpace, said: list[Message]) -> None:
    """Also while the server loads."""
    async with program(hub_of(daemon, plain.id)) as server:
        out, err = await server.communicate(encoded(said))
        assert (server.returncode, err) == (0, b"")
        lines = [json.loads(line) for line in out.splitlines()]
        assert [one["id"] for one in lines][:1] == [one["id"] for one in said][:1]


async def test_nobody_reads_its_output(daemon: Daemon, plain: AsyncSpace) -> None:
    read, write = os.pipe()
    os.close(read)
    server = await asyncio.create_subprocess_exec(
        str(PROGRAM),
        "mcp",
        stdin=subprocess.PIPE,
        stdout=write,
        stderr=subprocess.PIPE,
        env={**os.environ, "CARREL_HUB": str(hub_of(daemon, plain.id))},
    )
    os.close(write)
    say(server, initialize())
    async with asyncio.timeout(STEP_S):
        assert server.stderr is not None
        assert await server.stderr.read() == b""
        assert await server.wait() == 0


async def test_a_hub_that_is_no_spaces(daemon: Daemon) -> None:
    """It is not known before a tool is called."""
    async with program(Path(find_hub(data=str(daemon.data)).place.socket)) as server:
        say(server, initialize(), INITIALIZED, calling(1, "space_state"))
        found = await hear(server, 2)
        assert found[1]["result"]["structuredContent"]["code"] == "forbidden"


async def test_no_connection_before_it_is_needed(daemon: Daemon, plain: AsyncSpace) -> None:
    async with person(daemon, plain.id) as user, program(hub_of(daemon, plain.id)) as server:
        say(server, initialize(), INITIALIZED, request(1, "tools/list"))
        await hear(server, 2)
        assert not [one for one in await user.clients(plain.id) if one.kind == "agent"]
        say(server, calling(2, "log_progress", message="now"))
        assert (await heard(user, "buffer_taskspace_progress")).payload["message"] == "now"


async def test_a_daemon_that_comes_later(own_daemon: Daemon) -> None:
    async with AsyncClient(data=own_daemon.data, autostart=False) as client:
        space = await client.create()
    await asyncio.to_thread(own_daemon.stop)
    open_hub = functools.partial(AsyncHub, socket=hub_of(own_daemon, space.id), kind="agent")
    async with (
        open_desk(open_hub, inside=True) as desk,
        Client(CarrelServer(desk)) as tools,
    ):
        said = asyncio.create_task(call(tools, "log_progress", message="at last"))
        await asyncio.to_thread(own_daemon.start)
        assert (await said).good["seq"]
        assert (await call(tools, "space_state")).good["id"] == space.id
