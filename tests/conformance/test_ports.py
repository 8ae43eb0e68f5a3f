"""What listens in a sandbox, and connections into it, on every runtime."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys

import pytest

from carrel.domain.errors import PortUnavailable
from carrel.domain.runtimes import Listening, Network, Output, ReachableRuntime, Sandbox
from tests.conformance.runtime_rig import RUNTIMES, WAIT_S, Grounds, Rig
from tests.container_engines import missing

PYTHON = "/usr/bin/python3"
SERVER = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family, backlog=1024)
print(listener.getsockname()[1], flush=True)
while True:
    client, _ = listener.accept()
    client.sendall(sys.argv[3].encode())
    client.close()
"""
PLACES = [(name, Network.OPEN) for name in RUNTIMES] + [("bubblewrap", Network.NONE)]


async def _serve(rig: Rig, sandbox: Sandbox, host: str, port: int, word: str) -> int:
    """The port that it listens on."""
    argv = (PYTHON, "-I", "-c", SERVER, host, str(port), word)
    run = await rig.begin(sandbox, *argv, output=Output.PIPES)
    assert isinstance(run.stdout, int)
    said = await asyncio.to_thread(os.read, run.stdout, 100)
    run.close()
    return int(said)


async def _said(rig: Rig, sandbox: Sandbox, port: int) -> str:
    assert isinstance(rig.runtime, ReachableRuntime)
    async with asyncio.timeout(WAIT_S):
        with await rig.runtime.connect(sandbox, port) as connection:
            return (await asyncio.get_running_loop().sock_recv(connection, 100)).decode()


@pytest.mark.parametrize(("name", "network"), PLACES)
async def test_what_listens_is_told_and_can_be_reached(
    grounds: Grounds, name: str, network: Network
) -> None:
    async with grounds.rig(name) as rig:
        assert isinstance(rig.runtime, ReachableRuntime)
        sandbox = await rig.start(network=network)
        port = await _serve(rig, sandbox, "127.0.0.1", 0, "four")
        six = await _serve(rig, sandbox, "::1", 0, "six")

        found = await rig.runtime.listening(sandbox)
        assert {(one.port, one.host) for one in found.ports} == {(port, "127.0.0.1"), (six, "::1")}
        assert all(one.pid and one.program.startswith("python3") for one in found.ports)
        assert bool(found.caution) == (network is Network.OPEN)

        assert await _said(rig, sandbox, port) == "four"
        assert await _said(rig, sandbox, six) == "six"
        assert "".join(await asyncio.gather(*(_said(rig, sandbox, port) for _ in range(60)))) == (
            "four" * 60
        )
        # What listens on the host is not taken for the space's.
        with socket.create_server(("127.0.0.1", 0)) as others, pytest.raises(PortUnavailable):
            await rig.runtime.connect(sandbox, others.getsockname()[1])


async def test_two_sandboxes_have_the_same_port(grounds: Grounds) -> None:
    async with grounds.rig("bubblewrap") as rig:
        first, second = [await rig.start() for _ in range(2)]
        port = await _serve(rig, first, "0.0.0.0", 3000, "first")
        assert port == await _serve(rig, second, "127.0.0.1", 3000, "second")
        assert await _said(rig, first, port) == "first"
        assert await _said(rig, second, port) == "second"


async def test_a_look_costs_nothing_while_nothing_changes(grounds: Grounds) -> None:
    async with grounds.rig("bubblewrap") as rig:
        assert isinstance(rig.runtime, ReachableRuntime)
        sandbox = await rig.start()
        before = await _settled(rig.runtime, sandbox)
        assert before.ports == ()
        await _serve(rig, sandbox, "127.0.0.1", 3000, "word")
        after = await rig.runtime.listening(sandbox, before)
        assert [one.port for one in after.ports] == [3000]
        assert (await _settled(rig.runtime, sandbox, after)).ports == after.ports


async def _settled(
    runtime: ReachableRuntime, sandbox: Sandbox, before: Listening | None = None
) -> Listening:
    """A look that the next one finds to be good still: who helped to set a sandbox up ends soon."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await runtime.listening(sandbox, before)
            if found is before:
                return found
            before = found


async def test_nothing_is_started_to_look_or_to_connect(grounds: Grounds) -> None:
    async with grounds.rig("bubblewrap") as rig:
        assert isinstance(rig.runtime, ReachableRuntime)
        sandbox = await rig.start()
        await rig.runtime.stop(sandbox, grace_s=0)
        assert (await rig.runtime.listening(sandbox)).ports == ()
        with pytest.raises(PortUnavailable, match="Nothing listens on port 3000"):
            await rig.runtime.connect(sandbox, 3000)
        assert (await rig.launcher.ask("hello", {}, []))[0]["sandboxes"] == 0


async def test_what_is_given_up_leaves_no_descriptor(grounds: Grounds) -> None:
    async with grounds.rig("bubblewrap") as rig:
        assert isinstance(rig.runtime, ReachableRuntime)
        sandbox = await rig.start()
        port = await _serve(rig, sandbox, "127.0.0.1", 0, "word")
        await _said(rig, sandbox, port)
        before = len(os.listdir("/proc/self/fd"))
        tasks = [asyncio.create_task(rig.runtime.connect(sandbox, port)) for _ in range(30)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await _said(rig, sandbox, port)
        # That of who spoke last is closed when the loop comes to it, before as well as now.
        async with asyncio.timeout(WAIT_S):
            while len(os.listdir("/proc/self/fd")) > before:
                await asyncio.sleep(0.01)


async def test_the_host_is_not_reached_from_inside(grounds: Grounds) -> None:
    """A socket that was made there for us is no way out."""
    async with grounds.rig("bubblewrap") as rig:
        sandbox = await rig.start()
        port = await _serve(rig, sandbox, "127.0.0.1", 0, "word")
        assert await _said(rig, sandbox, port) == "word"
        with socket.create_server(("127.0.0.1", 0)) as host:
            number = host.getsockname()[1]
            code = f"import socket; socket.create_connection(('127.0.0.1', {number}), 2)"
            assert subprocess.run([sys.executable, "-c", code]).returncode == 0
            done = await rig.run(sandbox, PYTHON, "-c", code)
            assert "ConnectionRefusedError" in done.err


@pytest.mark.skipif(bool(missing("podman")), reason=missing("podman"))
async def test_a_container_in_a_pod_is_looked_at_in_the_network_of_that(grounds: Grounds) -> None:
    """Its first process is in another."""
    async with grounds.rig("podman") as rig:
        assert isinstance(rig.runtime, ReachableRuntime)
        sandbox = await rig.start(pod="sp_pod")
        port = await _serve(rig, sandbox, "127.0.0.1", 0, "word")
        found = await rig.runtime.listening(sandbox)
        assert [one.port for one in found.ports] == [port]
