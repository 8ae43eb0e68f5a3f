"""Who shares an instance gives up its own share of it, and nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.instances import Handed, InstanceState, Released, Share
from tests.instances.rig import WAIT_S, call, leftovers, processes, server, serving, start

OK = server("ok")
SHARED = {"share": Share.PROJECT}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path


@contextlib.contextmanager
def owner() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def watched(pid: int) -> bool:
    """Whether we wait for the end of that process."""
    for entry in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            if f"Pid:\t{pid}" in entry.read_text().split("\n"):
                return True
    return False


async def release(services: Services, handed: Handed) -> Released:
    async with asyncio.timeout(WAIT_S):
        return await services.instances.release(LOCAL, handed.instance.instance_id, handed.hold)


async def clients(services: Services, handed: Handed) -> int:
    return (await services.instances.get(LOCAL, handed.instance.instance_id)).clients


async def test_the_first_to_leave_ends_nothing_of_the_second(
    data: Path, services: Services, project: Path
) -> None:
    with owner() as one, owner() as other:
        first = await start(services, OK, project, owner_pid=one.pid, **SHARED)
        second = await start(services, OK, project, owner_pid=other.pid, **SHARED)
        instance_id = first.instance.instance_id
        assert second.instance.instance_id == instance_id
        assert first.hold and second.hold and first.hold != second.hold
        for _ in "12":
            # Asked again when no answer came.
            assert await release(services, first) is Released.SHARED
            assert await clients(services, second) == 1
        # Whoever comes and goes leaves nothing.
        assert not watched(one.pid) and watched(other.pid)
        one.kill()
        one.wait()
        found = await services.instances.get(LOCAL, instance_id)
        assert (found.state, found.clients) == (InstanceState.READY, 1)
        await call(second, "echo", text="still")
        assert await release(services, second) is Released.TERMINATED
        assert await release(services, second) is Released.ALREADY_GONE
    assert leftovers(data, instance_id) == []


async def test_who_names_no_hold_takes_none_that_goes_by_itself(
    services: Services, project: Path
) -> None:
    """As older clients release."""
    with owner() as process:
        owned = await start(services, OK, project, owner_pid=process.pid, **SHARED)
        instance_id = owned.instance.instance_id
        for _ in "12":
            await start(services, OK, project, **SHARED)
        for left in (2, 1):
            assert await services.instances.release(LOCAL, instance_id) is Released.SHARED
            assert await clients(services, owned) == left
        found = await services.instances.get(LOCAL, instance_id)
        assert [hold.owner_pid for hold in found.holds] == [process.pid]
        assert await services.instances.release(LOCAL, instance_id) is Released.TERMINATED


async def test_only_what_was_asked_for_in_the_same_way_is_shared(
    services: Services, project: Path
) -> None:
    asked: list[dict[str, Any]] = [{}, {"lease_s": 600.0}, {"idle_s": 600.0}, {"survive": True}]
    found = [await start(services, OK, project, **more, **SHARED) for more in asked]
    assert len({one.instance.instance_id for one in found}) == len(asked)
    again = [await start(services, OK, project, **more, **SHARED) for more in asked]
    assert [one.instance.clients for one in again] == [2] * len(asked)
    for one in (*found, *again):
        await release(services, one)
    assert await services.instances.list(LOCAL) == []


async def test_holds_that_were_written_down_without_ids(data: Path, project: Path) -> None:
    """By an older version: they are let go one after the other, as it did."""
    async with serving(data) as services:
        for _ in "12":
            handed = await start(services, OK, project, survive=True, **SHARED)
    instance_id = handed.instance.instance_id
    with contextlib.closing(sqlite3.connect(data / "carrel.db")) as store, store:
        ((text,),) = store.execute("SELECT document FROM instances WHERE live").fetchall()
        document = json.loads(text)
        for hold in document["holds"]:
            del hold["hold_id"]
        store.execute("UPDATE instances SET document = ? WHERE live", (json.dumps(document),))
    async with serving(data) as services:
        assert await clients(services, handed) == 2
        assert await services.instances.release(LOCAL, instance_id) is Released.SHARED
        assert await clients(services, handed) == 1
        assert await services.instances.release(LOCAL, instance_id) is Released.TERMINATED
    assert processes(instance_id) == []
