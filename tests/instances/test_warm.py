"""Servers that are kept warm: loaded processes to fork from, and ready ones for a project."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.instances import Handed, Instance, InstanceState, Released, Warmth
from tests.instances.installed import require
from tests.instances.rig import (
    WAIT_S,
    call,
    leftovers,
    loaded_process,
    private_memory,
    processes,
    server,
    serving,
    start,
    until,
)

SERENA: dict[str, Any] = {"servers": {"serena": {"warm": 1}}}
FILES: dict[str, Any] = {"servers": {"filesystem": {"warm": 1}}}
SMALL = replace(server("ok"), name="test-warm", warm=1)


async def settled(services: Services) -> None:
    async with asyncio.timeout(WAIT_S):
        await services.instances.settled()


async def handed_out_at_once(services: Services, first: Handed, tool: str) -> Handed:
    """The second for a project: it was started after the first."""
    await call(first, tool)
    await settled(services)
    listed = await services.instances.list(LOCAL)
    assert [one.instance_id for one in listed] == [first.instance.instance_id]
    second = await start(services, first.instance.server.name, Path(first.instance.project_path))
    assert second.instance.warmth is Warmth.STARTED
    assert second.token != first.token
    await call(second, tool)
    return second


async def ends(services: Services, *handed: Handed) -> None:
    for one in handed:
        instance_id = one.instance.instance_id
        assert await services.instances.release(LOCAL, instance_id) is Released.TERMINATED
        assert processes(instance_id) == []


async def test_forked_then_handed_out_at_once(data: Path, tmp_path: Path) -> None:
    """In one service: to load Serena takes seconds."""
    require("serena")
    project, other = tmp_path / "project", tmp_path / "other"
    for folder in (project, other):
        folder.mkdir()
    async with serving(data, **SERENA) as services:
        await settled(services)
        first = await start(services, "serena", project)
        assert first.instance.warmth is Warmth.FORKED
        second = await handed_out_at_once(services, first, "list_memories")
        is_confined_and_shares_what_was_loaded(first.instance, second.instance)
        await ends(services, first, second)
        warm = loaded_process(data, "warm-serena")
        assert warm is not None
        warm.kill()
        cold = await start(services, "serena", other)
        assert cold.instance.warmth is Warmth.COLD
        await call(cold, "list_memories")


def is_confined_and_shares_what_was_loaded(forked: Instance, other: Instance) -> None:
    status = Path(f"/proc/{forked.pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
    assert "CapEff:\t0000000000000000" in status
    for kind in ("mnt", "net", "pid"):
        own = os.readlink(f"/proc/{forked.pid}/ns/{kind}")
        assert own != os.readlink(f"/proc/self/ns/{kind}")
        assert own != os.readlink(f"/proc/{other.pid}/ns/{kind}")
    assert private_memory(forked.pid) < 60 << 20


async def test_one_on_streams_is_handed_out_at_once(data: Path, tmp_path: Path) -> None:
    require("filesystem")
    async with serving(data, warm_bridge=True, **FILES) as services:
        first = await start(services, "filesystem", tmp_path)
        # Only the bridge is loaded beforehand.
        assert first.instance.warmth is Warmth.COLD
        second = await handed_out_at_once(services, first, "list_allowed_directories")
        await ends(services, first, second)


async def test_a_spare_of_a_killed_daemon_is_nobodys(data: Path, tmp_path: Path) -> None:
    """The record of one that stood ready is found without a client, and ended."""
    async with serving(data) as services:
        handed = await start(services, SMALL, tmp_path, survive=True)
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
