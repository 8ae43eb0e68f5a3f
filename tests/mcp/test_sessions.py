"""Sessions of `carrel mcp`: each is a process of its own, forked from one that has the SDK."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from mcp import Client

from carrel import AsyncClient, AsyncHub
from carrel.client.aio_spaces import AsyncSpace
from carrel.domain.hub import HUB_SOCKET, MCP_SOCKET, McpSession
from carrel.mcp.hub import ToolHub
from carrel.mcp.server import CarrelServer
from carrel.mcp.sessions import LONGEST as TOO_LONG
from carrel.mcp.sessions import MORE_BYTES, MOST
from tests.cli.program import PROGRAM
from tests.daemon.rig import Daemon
from tests.mcp.dialogue import (
    INITIALIZED,
    MODERN,
    Message,
    encoded,
    envelope,
    initialize,
    opening,
    request,
)
from tests.mcp.rig import STEP_S, call, heard, person

LONGEST = 2**22


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


def calling(id: Any, name: str, modern: bool = False, **arguments: Any) -> Message:
    params = envelope() if modern else {}
    return request(id, "tools/call", {**params, "name": name, "arguments": arguments})


@pytest.mark.parametrize("version", ["2025-06-18", MODERN])
async def test_a_whole_session(daemon: Daemon, plain: AsyncSpace, version: str) -> None:
    modern = version == MODERN
    async with program(hub_of(daemon, plain.id)) as server:
        say(server, opening(version), INITIALIZED)
        say(server, request(1, "tools/list", envelope() if modern else None))
        assert len((await hear(server, 2))[1]["result"]["tools"]) == 19
        say(server, calling(2, "space_state", modern), opening(version, "again"))
        say(server, calling(3, "log_progress", modern, message="x" * 200_000))
        found = await hear(server, 3)
        assert found.keys() == {2, 3, "again"}
        assert found[2]["result"]["structuredContent"]["id"] == plain.id
        out, err = await server.communicate(b"")
        assert (server.returncode, out, err) == (0, b"", b"")


async def test_tools_are_listed_to_who_has_begun(daemon: Daemon, plain: AsyncSpace) -> None:
    """Always the same, and not because of what other clients have begun."""
    with Talk(daemon, plain.id) as talk:
        assert talk.ask(request(1, "tools/list"))["error"]["code"] == -32602
        talk.begin()
        first, *others = (
            talk.ask(request(n, "tools/list", params))["result"]
            for n, params in enumerate((None, None, {}, {"cursor": ""}))
        )
        assert others == [first] * 3 and len(first["tools"]) == 19


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
    """Nobody gets an answer to it."""
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    async with program(hub_of(daemon, plain.id)) as server:
        say(server, initialize(), INITIALIZED, calling(1, "ask_user", question="Well?"))
        say(server, cancel, request(2, "ping"))
        assert (await hear(server, 2)).keys() == {0, 2}
        out, err = await server.communicate(b"")
        assert (server.returncode, out, err) == (0, b"", b"")


@pytest.mark.parametrize("said", [[], [initialize()], [initialize(), calling(1, "list_spaces")]])
async def test_the_end_of_its_input(daemon: Daemon, plain: AsyncSpace, said: list[Message]) -> None:
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


def mcp_processes(daemon: Daemon) -> tuple[psutil.Process | None, list[psutil.Process]]:
    """The one that the daemon started, and its sessions; the one that waits for a session is in
    no folder yet."""
    for one in psutil.Process(daemon.pid).children():
        if "carrel.mcp" in " ".join(one.cmdline()):
            return one, [each for each in one.children() if each.cwd() != "/"]
    return None, []


class Talk:
    """A client without the program: what it sends is what comes through the socket."""

    def __init__(self, daemon: Daemon, space: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(STEP_S)
        self.sock.connect(str(hub_of(daemon, space).with_name(MCP_SOCKET)))
        self._lines = self.sock.makefile("rb")

    def ask(self, message: Message) -> Message:
        self.sock.sendall(encoded([message]))
        line = self._lines.readline()
        assert line, "the connection was closed"
        found: Message = json.loads(line)
        return found

    def begin(self) -> Talk:
        assert self.ask(initialize())["id"] == 0
        return self

    def ended(self) -> bool:
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self.sock.close()


async def test_sessions_go_on_when_the_daemon_does_not(own_daemon: Daemon) -> None:
    """Nor do they need it to come back by the same process."""
    async with AsyncClient(data=own_daemon.data, autostart=False) as client:
        space = await client.create()
    async with program(hub_of(own_daemon, space.id)) as server:
        say(server, initialize(), INITIALIZED, calling(1, "space_state"))
        await hear(server, 2)
        say(server, calling(2, "wait_for_space", space=space.id, timeout_s=2))
        await asyncio.to_thread(own_daemon.kill)
        await asyncio.to_thread(own_daemon.start)
        say(server, calling(3, "log_progress", message="on it"))
        found = await hear(server, 2)
        assert not any(one["result"].get("isError") for one in found.values())


async def test_each_is_confined_as_its_space(daemon: Daemon, plain: AsyncSpace) -> None:
    # One after the other: when the second is served, the first has its groups.
    with Talk(daemon, plain.id).begin(), Talk(daemon, plain.id).begin():
        server, sessions = mcp_processes(daemon)
        assert server is not None
        first, _ = sorted(one.pid for one in sessions if space_of(one) == plain.id)
        session, status = psutil.Process(first), Path(f"/proc/{first}/status")
        limits = Path(f"/proc/{first}/limits").read_text()
        (most,) = re.findall(r"Max data size +(\d+) +\1 ", limits)
        assert int(most) < 2 * MORE_BYTES
        assert "NoNewPrivs:\t1" in status.read_text()
        if os.geteuid() == 0:
            owner = hub_of(daemon, plain.id).stat()
            assert session.uids().real == session.uids().effective == owner.st_uid != 0
            assert status.stat().st_uid == 0, "others of this user can trace it"
            for group in Path("/sys/fs/cgroup").glob(f"*/carrel/{plain.id}/cgroup.procs"):
                assert str(first) in group.read_text().split(), group


def space_of(session: psutil.Process) -> str:
    return Path(session.cwd()).parent.name


async def test_one_space_has_so_many_and_keeps_no_other_out(
    daemon: Daemon, plain: AsyncSpace, client: AsyncClient
) -> None:
    async with client.space() as other:
        with contextlib.ExitStack() as stack:
            for _ in range(MOST):
                stack.enter_context(Talk(daemon, plain.id).begin())
            assert stack.enter_context(Talk(daemon, plain.id)).ended()
            async with program(hub_of(daemon, plain.id)) as server:
                out, err = await server.communicate(encoded([initialize()]))
                assert server.returncode and b"no more MCP sessions" in err and not out
            stack.enter_context(Talk(daemon, other.id).begin())


async def test_what_is_too_long_ends_that_session_only(daemon: Daemon, plain: AsyncSpace) -> None:
    with Talk(daemon, plain.id).begin() as good_one, Talk(daemon, plain.id) as bad:
        with contextlib.suppress(OSError):
            bad.sock.sendall(b"x" * (TOO_LONG + 1))
        assert bad.ended()
        assert good_one.ask(request(5, "ping"))["id"] == 5


async def test_another_process_serves_when_one_was_killed(
    daemon: Daemon, plain: AsyncSpace
) -> None:
    with Talk(daemon, plain.id).begin() as before:
        server, _ = mcp_processes(daemon)
        assert server is not None
        server.kill()
        await asyncio.to_thread(psutil.wait_procs, [server], STEP_S)
        with Talk(daemon, plain.id).begin():
            assert before.ask(request(5, "ping"))["id"] == 5


STRICT = """
import signal, sys
from carrel.mcp import sessions

has_room = sessions._has_room

def counted(session, living):
    assert signal.SIGCHLD in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return has_room(session, living)

sessions._has_room = counted
sessions.main()
"""


def test_nobody_ends_while_sessions_are_counted(tmp_path: Path) -> None:
    """It would end the process, and all that is known of how many there are."""
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with control, subprocess.Popen([sys.executable, "-c", STRICT], stdin=theirs.fileno()) as server:
        theirs.close()
        ours, given = socket.socketpair()
        session = McpSession("sp_one", str(tmp_path), "", inside=True)
        with ours, given:
            socket.send_fds(control, [msgspec.json.encode(session)], [given.fileno()])
            given.close()
            ours.settimeout(STEP_S)
            ours.sendall(encoded([initialize()]))
            assert b"result" in ours.recv(1 << 16)
        control.close()
        assert server.wait(STEP_S) == 0


async def test_what_a_space_has_said_is_not_logged(daemon: Daemon, plain: AsyncSpace) -> None:
    """It could be said without an end, and no limit of the space counts the daemon's log."""
    broken = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": {}}}
    before = daemon.log()
    with Talk(daemon, plain.id).begin() as talk:
        talk.sock.sendall(encoded([INITIALIZED, broken]))
        assert talk.ask(request(5, "ping"))["id"] == 5
    assert "notifications/cancelled" not in daemon.log().removeprefix(before)


GIVING = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
socket.send_fds(socket.socket(fileno=0), [b"x"], [connection.fileno()])
"""


async def test_it_ends_with_the_process_that_connected(daemon: Daemon, plain: AsyncSpace) -> None:
    """Also while somebody else has its connection: a space that is stopped leaves none behind."""
    path = str(hub_of(daemon, plain.id).with_name(MCP_SOCKET))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        subprocess.run([sys.executable, "-c", GIVING, path], stdin=theirs.fileno(), check=True)
        _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
    with socket.socket(fileno=descriptor) as connection:
        connection.settimeout(STEP_S)
        assert await asyncio.to_thread(connection.recv, 1) == b""


async def test_a_process_that_waits_for_a_session_and_dies(own_daemon: Daemon) -> None:
    space = await _created(own_daemon)
    with Talk(own_daemon, space).begin():
        server, sessions = mcp_processes(own_daemon)
        assert server is not None
        async with asyncio.timeout(STEP_S):
            while not (waiting := [one for one in server.children() if one not in sessions]):
                await asyncio.sleep(0.01)
        waiting[0].kill()
        await asyncio.to_thread(psutil.wait_procs, waiting, STEP_S)
        with Talk(own_daemon, space).begin() as talk:
            assert talk.ask(request(5, "ping"))["id"] == 5


async def test_nothing_is_left(own_daemon: Daemon) -> None:
    with Talk(own_daemon, await _created(own_daemon)).begin() as talk:
        server, sessions = mcp_processes(own_daemon)
        assert server is not None and len(sessions) == 1
        waiting = [one for one in server.children() if one not in sessions]
        await asyncio.to_thread(own_daemon.stop)
        await asyncio.to_thread(psutil.wait_procs, waiting, STEP_S)
        assert not any(one.is_running() for one in waiting)
        assert not server.is_running()
        assert sessions[0].is_running() and talk.ask(request(5, "ping"))["id"] == 5
    await asyncio.to_thread(psutil.wait_procs, sessions, STEP_S)
    assert not sessions[0].is_running()


async def _created(daemon: Daemon) -> str:
    async with AsyncClient(data=daemon.data, autostart=False) as client:
        return (await client.create()).id


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
    hub = ToolHub(inside=True)
    async with (
        hub.connected(open_hub),
        Client(CarrelServer(hub)) as tools,
    ):
        said = asyncio.create_task(call(tools, "log_progress", message="at last"))
        await asyncio.to_thread(own_daemon.start)
        assert (await said).good["seq"]
        assert (await call(tools, "space_state")).good["id"] == space.id
