"""The bridge that is loaded once, and forked for every server on streams."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from mcp_types import TextContent

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.instances import (
    Handed,
    Instance,
    InstanceState,
    Released,
    Restart,
    Server,
    Transport,
    Warmth,
)
from carrel.instances import inside
from carrel.linux.processes import start_time
from carrel.service.instances import warm
from tests.daemon.rig import LOOK_S, Daemon, good
from tests.instances.inside.serving import connected, served
from tests.instances.rig import (
    PYTHON,
    SCRIPT,
    WAIT_S,
    call,
    leftovers,
    loaded_process,
    private_memory,
    processes,
    server,
    serving,
    start,
)
from tests.instances.rig import until as until_state
from tests.sampling import whole_only

# They share a service, and the bridge that it keeps loaded.
pytestmark = pytest.mark.xdist_group("warm bridges")
shared = pytest.mark.asyncio(loop_scope="module")
STDIO = server("stdio", transport=Transport.STDIO)
FILE = "curious.py"
CURIOUS = """\
import json, os, sys

def tried(pid):
    try:
        os.kill(pid, 0)
        return "signalled"
    except OSError as error:
        return type(error).__name__

def look(asked):
    return {
        "there": [path for path in asked["paths"] if os.path.exists(path)],
        "pids": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
        "signals": [tried(pid) for pid in asked["pids"]],
        "env": dict(os.environ),
        "fds": [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{name}")],
    }

for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "initialize":
        result = {"protocolVersion": asked["params"]["protocolVersion"],
                  "capabilities": {"tools": {}}, "serverInfo": {"name": "curious", "version": "0"}}
    elif asked["method"] == "tools/call":
        said = json.dumps(look(asked["params"]["arguments"]))
        result = {"content": [{"type": "text", "text": said}]}
    else:
        result = {"tools": []}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


async def loaded(services: Services, project: Path) -> Handed:
    """Since this one was started, the bridge is loaded, if it was not before."""
    handed = await start(services, STDIO, project)
    async with asyncio.timeout(WAIT_S):
        await services.instances.settled()
    return handed


@pytest.fixture
def services(bridging: Services) -> Services:
    return bridging


@pytest.fixture
async def own_services(data: Path) -> AsyncIterator[Services]:
    """In which none is loaded yet."""
    async with serving(data, warm_bridge=True) as services:
        yield services


def bridge(data: Path) -> psutil.Process | None:
    return loaded_process(data, warm.NAME)


def is_forked(instance: Instance) -> bool:
    """It was not executed: its command line is that of the loaded one."""
    return b"launcher/zygote.py" in Path(f"/proc/{instance.pid}/cmdline").read_bytes()


async def gone(pid: int, started: int | None) -> None:
    async with asyncio.timeout(WAIT_S):
        while start_time(pid) == started:
            await asyncio.sleep(0.01)


async def look(handed: Handed, paths: list[str], pids: list[int]) -> dict[str, Any]:
    async with connected(handed.instance.url, handed.token, mode="legacy") as client:
        result = await client.call_tool("look", {"paths": paths, "pids": pids})
    assert isinstance(result.content[0], TextContent)
    found: dict[str, Any] = json.loads(result.content[0].text)
    return found


async def test_the_first_loads_it_for_the_others(
    data: Path, own_services: Services, tmp_path: Path
) -> None:
    services = own_services
    await start(services, server("ok"), tmp_path)
    async with asyncio.timeout(WAIT_S):
        await services.instances.settled()
    assert bridge(data) is None, "nobody pays for it who has no server on streams"
    first = await loaded(services, tmp_path)
    assert not is_forked(first.instance)
    found = bridge(data)
    assert found is not None
    if os.geteuid() == 0:
        assert found.uids().effective not in (0, first.instance.owner and first.instance.owner.uid)
    second, third = [await start(services, STDIO, tmp_path) for _ in range(2)]
    for handed in (second, third):
        assert is_forked(handed.instance)
        # What started cold is the server.
        assert handed.instance.warmth is Warmth.COLD
        await call(handed, "echo", text="hello")
    assert private_memory(second.instance.pid) < private_memory(first.instance.pid) / 2
    _has_no_more_rights(second.instance, first.instance)
    for one in await services.instances.list(LOCAL):
        released = await services.instances.release(LOCAL, one.instance_id)
        assert released is Released.TERMINATED
    assert leftovers(data, *(one.instance.instance_id for one in (first, second, third))) == []
    assert found.is_running()


def _has_no_more_rights(forked: Instance, executed: Instance) -> None:
    wanted = ("NoNewPrivs", "Seccomp", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "Groups")
    seen = []
    for instance in (executed, forked):
        rows = Path(f"/proc/{instance.pid}/status").read_text().splitlines()
        status = dict(row.split(":", 1) for row in rows)
        seen.append({name: status[name].strip() for name in wanted})
    assert seen[0] == seen[1]
    assert seen[1]["NoNewPrivs"] == "1" and seen[1]["Seccomp"] == "2"
    assert int(seen[1]["CapEff"], 16) == int(seen[1]["CapBnd"], 16) == 0


@shared
async def test_a_fork_sees_nothing_of_another(services: Services, tmp_path: Path) -> None:
    await loaded(services, tmp_path)
    curious = Server("curious", (PYTHON, "-I", f"{{project}}/{FILE}"), transport=Transport.STDIO)
    both = []
    for name in ("one", "two"):
        project = tmp_path / name
        project.mkdir()
        (project / FILE).write_text(CURIOUS)
        (project / "secret").write_text(name)
        both.append(await start(services, curious, project, env={"PLANTED": name}))
    one, two = both
    assert is_forked(one.instance) and is_forked(two.instance)
    warm = bridge(services.settings.data)
    assert warm is not None
    paths = [str(tmp_path / name / "secret") for name in ("one", "two")]
    paths += [
        str(services.settings.data),
        str(services.settings.data / "instances" / two.instance.instance_id / "home"),
    ]
    found = await look(one, paths, [two.instance.pid, warm.pid])
    assert found["there"] == [paths[0]]
    # Those of its own sandbox only: two that hold it, the bridge, and itself.
    assert max(found["pids"]) < 50 and len(found["pids"]) <= 6
    assert found["signals"] == ["ProcessLookupError"] * 2
    assert found["env"]["PLANTED"] == "one" and "CARREL_TOKEN" not in found["env"]
    assert not any("socket" in name for name in found["fds"])
    for kind in ("mnt", "net", "pid", "user", "ipc"):
        seen = {
            os.readlink(f"/proc/{pid}/ns/{kind}")
            for pid in ("self", one.instance.pid, two.instance.pid)
        }
        assert len(seen) == 3, kind


@shared
async def test_one_that_was_killed_is_done_without_and_loaded_anew(
    services: Services, tmp_path: Path
) -> None:
    await loaded(services, tmp_path)
    found = bridge(services.settings.data)
    assert found is not None
    before = await start(services, STDIO, tmp_path)
    os.kill(found.pid, signal.SIGKILL)
    cold = await start(services, STDIO, tmp_path)
    assert not is_forked(cold.instance)
    for handed in (before, cold):
        await call(handed, "echo", text="hello")
    async with asyncio.timeout(WAIT_S):
        await services.instances.settled()
    again = await start(services, STDIO, tmp_path)
    assert is_forked(again.instance)
    await call(again, "echo", text="hello")


async def test_it_goes_when_nobody_needs_it(
    data: Path, own_services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the daemon still believes."""
    services = own_services
    monkeypatch.setattr(warm, "IDLE_S", 0.3)
    monkeypatch.setattr(warm, "MARGIN_S", -WAIT_S)
    first = await loaded(services, tmp_path)
    found = bridge(data)
    if found is not None:
        await gone(found.pid, start_time(found.pid))
    handed = await start(services, STDIO, tmp_path)
    assert not is_forked(handed.instance)
    for one in (first, handed):
        await call(one, "echo", text="hello")


@shared
async def test_a_fork_that_crashes_is_started_again(services: Services, tmp_path: Path) -> None:
    """Be the loaded one there or not."""
    await loaded(services, tmp_path)
    handed = await start(services, STDIO, tmp_path, restart=Restart.ON_FAILURE)
    instance_id, pid = handed.instance.instance_id, handed.instance.pid
    found = bridge(services.settings.data)
    assert found is not None
    for times in (1, 2):
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(WAIT_S):
            while (await services.instances.get(LOCAL, instance_id)).restarts < times:
                await asyncio.sleep(0.01)
        instance = await until_state(services, instance_id, InstanceState.READY)
        assert is_forked(instance) is (times == 1)
        await call(Handed(instance, handed.token), "echo", text="hello")
        pid = instance.pid
        if times == 1:
            found.kill()
            await asyncio.to_thread(psutil.wait_procs, [found], WAIT_S)


async def test_a_fork_outlives_the_daemon_and_the_loaded_one(data: Path, tmp_path: Path) -> None:
    async with serving(data, warm_bridge=True) as services:
        await loaded(services, tmp_path)
        kept = await start(services, STDIO, tmp_path, survive=True)
        assert is_forked(kept.instance)
    assert bridge(data) is None
    await call(kept, "echo", text="meanwhile")
    async with serving(data) as services:
        found = await services.instances.get(LOCAL, kept.instance.instance_id)
        assert found.state is InstanceState.READY and found.pid == kept.instance.pid
        await call(kept, "echo", text="afterwards")
        # The user that it has is not given to what is loaded, or forked, by others.
        other = await start(services, server("ok"), tmp_path)
        if os.geteuid() == 0:
            assert other.instance.owner != found.owner
        assert (
            await services.instances.release(LOCAL, kept.instance.instance_id)
            is Released.TERMINATED
        )
        assert processes(kept.instance.instance_id) == []


# In a sample the service that ends leaves them to the next.
@whole_only
def test_a_daemon_that_is_killed_leaves_them_to_the_next(data: Path, tmp_path: Path) -> None:
    daemon = Daemon(data / "data")
    try:
        client = daemon.start().local()
        both = [_forked(client, daemon.data, tmp_path) for _ in range(2)]
        daemon.kill()
        client = daemon.start().local()
        for one in both:
            path = f"/v1/instances/{one['instance_id']}"
            found = good(client.get(path))
            assert (found["state"], found["pid"]) == ("ready", one["pid"])
            assert good(client.delete(path))["status"] == "terminated"
        # What was loaded still serves.
        good(
            client.delete(f"/v1/instances/{_forked(client, daemon.data, tmp_path)['instance_id']}")
        )
    finally:
        daemon.close()


def _forked(client: httpx.Client, data: Path, project: Path) -> dict[str, Any]:
    """The first of all is not: it has the bridge loaded."""
    command = [PYTHON, "-I", "-S", SCRIPT, "stdio"]
    kind = {"command": command, "binds": [SCRIPT], "transport": "stdio"}
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        asked = {"server": kind, "project_path": str(project)}
        found: dict[str, Any] = good(client.post("/v1/instances", json=asked))
        if b"bridge_warm.py" in Path(f"/proc/{found['pid']}/cmdline").read_bytes():
            return found
        good(client.delete(f"/v1/instances/{found['instance_id']}"))
        while bridge(data) is None and time.monotonic() < until:
            time.sleep(LOOK_S)
    raise AssertionError("none is forked")


# The server is started before its first client has come


BEGINS = """\
import os, runpy, sys
script, path = sys.argv[1:]
with open(path, "a") as file:
    file.write(f"{os.getpid()} ")
sys.argv = [script, "stdio"]
runpy.run_path(script, run_name="__main__")
"""
BRIDGE = [sys.executable, "-I", str(inside.BRIDGE)]


def noted(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


async def until_noted(path: Path, count: int) -> list[int]:
    async with asyncio.timeout(WAIT_S):
        while len(noted(path)) < count:
            await asyncio.sleep(0.01)
    return noted(path)


def begins(folder: Path) -> list[str]:
    """A command that notes each of its processes."""
    (folder / "begins.py").write_text(BEGINS)
    return [PYTHON, "-I", str(folder / "begins.py"), SCRIPT, str(folder / "pids")]


async def test_the_first_two_find_theirs_begun(tmp_path: Path) -> None:
    """The one who looks whether it answers, and the one it is for. Others have theirs begun when
    they come: nobody knows whether there are any."""
    pids = tmp_path / "pids"
    with served(tmp_path, BRIDGE, begins(tmp_path)) as bridged:
        for begun, count in ((1, 1), (2, 2), (2, 3), (3, 4)):
            before = await until_noted(pids, begun)
            assert len(before) == begun
            async with connected(bridged.url, mode="legacy") as client:
                result = await client.call_tool("about", {})
                assert isinstance(result.content[0], TextContent)
                pid = json.loads(result.content[0].text)["pid"]
            assert noted(pids)[count - 1] == pid


@pytest.mark.parametrize("clients", [0, 1])
async def test_one_that_nobody_came_to_ends_with_the_bridge(tmp_path: Path, clients: int) -> None:
    with served(tmp_path, BRIDGE, begins(tmp_path)) as bridged:
        for _ in range(clients):
            async with connected(bridged.url, mode="legacy") as client:
                await client.call_tool("echo", {"text": "hello"})
        pid = (await until_noted(tmp_path / "pids", clients + 1))[-1]
        started = start_time(pid)
        assert started is not None
        bridged.process.terminate()
        await gone(pid, started)


async def test_one_that_died_before_its_client_is_replaced(tmp_path: Path) -> None:
    with served(tmp_path, BRIDGE, begins(tmp_path)) as bridged:
        (pid,) = await until_noted(tmp_path / "pids", 1)
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(WAIT_S):
            while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                await asyncio.sleep(0.01)
        async with connected(bridged.url, mode="legacy") as client:
            await client.call_tool("echo", {"text": "hello"})
        assert len(noted(tmp_path / "pids")) == 2
