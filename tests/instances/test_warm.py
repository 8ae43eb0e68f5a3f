"""Servers that are kept warm: loaded processes to fork from, and ready ones for a project."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.instances import InstanceState, Released, Warmth
from tests.instances.installed import require
from tests.instances.rig import WAIT_S, call, leftovers, processes, serving, start, until

Servers = dict[str, dict[str, int]]
SERVERS: Servers = {"serena": {"warm": 1}, "filesystem": {"warm": 1}}
TOOLS: dict[str, tuple[str, dict[str, str]]] = {
    "serena": ("list_memories", {}),
    "filesystem": ("list_allowed_directories", {}),
}


@pytest.fixture
def kept() -> Servers:
    return SERVERS


@pytest.fixture
async def services(data: Path, kept: Servers) -> AsyncIterator[Services]:
    for name in kept:
        require(name)
    async with serving(data, servers=kept) as services:
        await settled(services)
        yield services


async def settled(services: Services) -> None:
    async with asyncio.timeout(WAIT_S):
        await services.instances.settled()


def private(pid: int) -> int:
    """Memory of its own."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(row.split()[1]) << 10 for row in rows if row.startswith("Private_"))


def zygotes(data: Path) -> list[int]:
    """Of this data folder: children of its launcher."""
    launcher = psutil.Process(int((data / "launcher" / "lock").read_text()))
    return [one.pid for one in launcher.children() if _is_zygote(one)]


def _is_zygote(process: psutil.Process) -> bool:
    try:
        return any(word.endswith("launcher/zygote.py") for word in process.cmdline())
    except psutil.Error:
        return False


@pytest.mark.parametrize(
    ("name", "kept"), [(name, {name: one}) for name, one in SERVERS.items()], ids=list(SERVERS)
)
async def test_forked_then_handed_out_at_once(
    data: Path, services: Services, tmp_path: Path, name: str
) -> None:
    first = await start(services, name, tmp_path)
    # Of a server on streams only the bridge is loaded beforehand.
    assert first.instance.warmth is (Warmth.FORKED if name == "serena" else Warmth.COLD)
    tool, arguments = TOOLS[name]
    await call(first, tool, **arguments)
    await settled(services)
    assert [one.instance_id for one in await services.instances.list(LOCAL)] == [
        first.instance.instance_id
    ]
    second = await start(services, name, tmp_path)
    assert second.instance.warmth is Warmth.STARTED
    assert second.token != first.token
    await call(second, tool, **arguments)
    ids = [one.instance.instance_id for one in (first, second)]
    for instance_id in ids:
        assert await services.instances.release(LOCAL, instance_id) is Released.TERMINATED
        assert processes(instance_id) == []


async def test_a_fork_is_confined_and_shares_what_was_loaded(
    data: Path, services: Services, tmp_path: Path
) -> None:
    forked = (await start(services, "serena", tmp_path)).instance
    other = (await start(services, "everything", tmp_path)).instance
    status = Path(f"/proc/{forked.pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
    assert "CapEff:\t0000000000000000" in status
    for kind in ("mnt", "net", "pid"):
        own = os.readlink(f"/proc/{forked.pid}/ns/{kind}")
        assert own != os.readlink(f"/proc/self/ns/{kind}")
        assert own != os.readlink(f"/proc/{other.pid}/ns/{kind}")
    assert private(forked.pid) < 60 << 20


async def test_what_is_not_there_any_more_is_started_cold(
    data: Path, services: Services, tmp_path: Path
) -> None:
    (warm,) = zygotes(data)
    os.kill(warm, signal.SIGKILL)
    handed = await start(services, "serena", tmp_path)
    assert handed.instance.warmth is Warmth.COLD
    await call(handed, "list_memories")


async def test_a_spare_of_a_killed_daemon_is_nobodys(data: Path, tmp_path: Path) -> None:
    """The record of one that stood ready is found without a client, and ended."""
    require("filesystem")
    async with serving(data, servers={"filesystem": {"warm": 1}}) as services:
        await settled(services)
        handed = await start(services, "filesystem", tmp_path, survive=True)
        await settled(services)
        book = services.instances._book
        spare = next(live for live in book.all() if live.spare)
        # As after a kill: nobody ends it.
        spare.instance = await book.change(spare, survive=True)
    async with serving(data) as services:
        ended = await until(services, spare.instance_id, InstanceState.ENDED)
        assert ended.holds == ()
        assert processes(spare.instance_id) == []
        await services.instances.release(LOCAL, handed.instance.instance_id)
    assert leftovers(data, handed.instance.instance_id, spare.instance_id) == []
