"""What ends an instance by itself, what starts one again, and who shares one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.domain.access import ADMIN, LOCAL, Caller
from carrel.domain.errors import InstanceFailed, TooManyInstances
from carrel.domain.events import EventQuery
from carrel.domain.instances import (
    Instance,
    InstanceRequest,
    InstanceState,
    Released,
    Restart,
    Share,
)
from carrel.domain.limits import Limits
from carrel.domain.server_adapter import NotReady
from tests.instances.rig import (
    WAIT_S,
    call,
    leftovers,
    processes,
    server,
    serving,
    start,
    until,
)
from tests.sampling import examples

OVER = (InstanceState.ENDED, InstanceState.FAILED)
OK = server("ok")
LEASE_S, IDLE_S = 2.0, 2.0
"""In which a busy machine comes to what takes it milliseconds otherwise."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path


def why(instance: Instance) -> str:
    return instance.problem.code if instance.problem is not None else ""


async def test_a_time_to_live(data: Path, services: Services, project: Path) -> None:
    instance = (await start(services, OK, project, ttl_s=0.2)).instance
    ended = await until(services, instance.instance_id, *OVER)
    assert (ended.state, why(ended)) == (InstanceState.ENDED, "ttl_over")
    assert leftovers(data, instance.instance_id) == []


async def test_a_lease_is_kept_by_heartbeats(services: Services, project: Path) -> None:
    instance = (await start(services, OK, project, lease_s=LEASE_S)).instance
    until_s = time.monotonic() + 1.2 * LEASE_S
    while time.monotonic() < until_s:
        await asyncio.sleep(LEASE_S / 10)
        beaten = await services.instances.heartbeat(LOCAL, instance.instance_id)
        assert beaten.state is InstanceState.READY
    ended = await until(services, instance.instance_id, *OVER)
    assert why(ended) == "lease_over"


async def test_one_that_is_idle(services: Services, project: Path) -> None:
    handed = await start(services, OK, project, idle_s=IDLE_S)
    reader, writer = await asyncio.open_connection("127.0.0.1", handed.instance.port)
    await asyncio.sleep(1.5 * IDLE_S)
    connected = await services.instances.get(LOCAL, handed.instance.instance_id)
    assert connected.state is InstanceState.READY
    writer.close()
    await writer.wait_closed()
    ended = await until(services, handed.instance.instance_id, *OVER)
    assert why(ended) == "idle"
    del reader


async def test_it_ends_with_its_owner(data: Path, services: Services, project: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        instance = (await start(services, OK, project, owner_pid=owner.pid)).instance
        owner.kill()
        owner.wait()
        ended = await until(services, instance.instance_id, *OVER)
    finally:
        owner.kill()
        owner.communicate()
    assert why(ended) == "owner_gone"
    assert leftovers(data, instance.instance_id) == []


async def test_a_crash_is_told(data: Path, services: Services, project: Path) -> None:
    instance = (await start(services, server("crash", "--seconds", "0.2"), project)).instance
    ended = await until(services, instance.instance_id, *OVER)
    assert (ended.state, why(ended)) == (InstanceState.FAILED, "instance_failed")
    assert ended.problem is not None and "with code 7" in ended.problem.message
    assert leftovers(data, instance.instance_id) == []


async def test_it_is_started_again_under_the_same_id(services: Services, project: Path) -> None:
    handed = await start(services, OK, project, restart=Restart.ON_FAILURE)
    before = handed.instance
    os.kill(before.pid, signal.SIGKILL)
    await until(services, before.instance_id, InstanceState.RESTARTING)
    after = await until(services, before.instance_id, InstanceState.READY)
    assert after.restarts == 1
    assert after.pid != before.pid
    assert (after.port, after.url) == (before.port, before.url)
    await call(handed, "echo", text="again")
    # Its state is known before it is written down.
    moves: list[object] = []
    async with asyncio.timeout(WAIT_S):
        while len(moves) < 4:
            events = await services.store.events(EventQuery(types=frozenset({"instance.state"})))
            ours = [one for one in events if one.data["instance_id"] == before.instance_id]
            moves = [one.data["to"] for one in ours]
    assert moves == ["starting", "ready", "restarting", "ready"]


async def test_one_that_keeps_failing_is_given_up(
    services: Services, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carrel.service.instances.restart.FIRST_S", 0.01)
    wanted = server("crash", "--seconds", "0.2")
    handed = await start(services, wanted, project, restart=Restart.ON_FAILURE)
    ended = await until(services, handed.instance.instance_id, *OVER)
    # The fifth failure in a row is the last.
    assert (ended.state, ended.restarts) == (InstanceState.FAILED, 4)


async def test_memory_has_a_limit(data: Path, services: Services, project: Path) -> None:
    """The client is told why."""
    limits = Limits(memory_bytes=200 << 20)
    handed = await start(services, OK, project, limits=limits)
    with pytest.raises((NotReady, TimeoutError)):
        await call(handed, "eat", bytes=1 << 30)
    ended = await until(services, handed.instance.instance_id, *OVER)
    assert (ended.state, why(ended)) == (InstanceState.FAILED, "memory_limit")
    assert leftovers(data, handed.instance.instance_id) == []


async def test_nothing_is_shared_unless_asked_for(services: Services, project: Path) -> None:
    one, two = await asyncio.gather(start(services, OK, project), start(services, OK, project))
    assert one.instance.instance_id != two.instance.instance_id
    assert one.instance.port != two.instance.port


async def test_sharing_on_purpose(
    services: Services, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    share = {"share": Share.PROJECT}
    three = await asyncio.gather(*(start(services, OK, project, **share) for _ in range(3)))
    ids = {handed.instance.instance_id for handed in three}
    assert len(ids) == 1
    other = await start(services, OK, tmp_path_factory.mktemp("other"), **share)
    assert other.instance.instance_id not in ids
    instance_id = ids.pop()
    release = services.instances.release
    assert await release(LOCAL, instance_id) is Released.SHARED
    assert await release(LOCAL, instance_id) is Released.SHARED
    await call(three[0], "echo", text="still")
    assert await release(LOCAL, instance_id) is Released.TERMINATED


async def test_a_shared_one_outlives_one_owner(services: Services, project: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        share = {"share": Share.PROJECT}
        first = await start(services, OK, project, owner_pid=owner.pid, **share)
        await start(services, OK, project, **share)
    finally:
        owner.kill()
        owner.communicate()
    async with asyncio.timeout(30):
        while (await services.instances.get(LOCAL, first.instance.instance_id)).clients > 1:
            await asyncio.sleep(0.01)
    await call(first, "echo", text="still")


async def test_those_of_others_do_not_keep_the_owner_out(data: Path, project: Path) -> None:
    guest = Caller("tk_guest", ADMIN)
    wanted = InstanceRequest(server=OK, project_path=str(project))
    async with serving(data, instances_max=1) as services:
        async with asyncio.timeout(WAIT_S):
            await services.instances.start(guest, wanted)
            with pytest.raises(TooManyInstances):
                await services.instances.start(guest, wanted)
        await start(services, OK, project)


async def test_there_may_be_so_many(data: Path, project: Path) -> None:
    async with serving(data, instances_max=2) as services:
        await asyncio.gather(*(start(services, OK, project) for _ in range(2)))
        with pytest.raises(TooManyInstances, match="the most that are allowed"):
            await start(services, OK, project)
    assert leftovers(data) == []


async def test_many_at_once(data: Path, project: Path) -> None:
    async with serving(data) as services:
        count = examples(10, exhaustive=50)
        handed = await asyncio.gather(*(start(services, OK, project) for _ in range(count)))
        ids = [one.instance.instance_id for one in handed]
        assert len({one.instance.port for one in handed}) == count
        released = await asyncio.gather(
            *(services.instances.release(LOCAL, instance_id) for instance_id in ids)
        )
        assert set(released) == {Released.TERMINATED}
        assert leftovers(data, *ids) == []


async def test_released_twice_at_once(services: Services, project: Path) -> None:
    instance = (await start(services, OK, project)).instance
    said = await asyncio.gather(
        *(services.instances.release(LOCAL, instance.instance_id) for _ in range(3))
    )
    assert sorted(said) == ["already_gone", "already_gone", "terminated"]


async def test_released_while_it_starts(data: Path, services: Services, project: Path) -> None:
    starting = asyncio.create_task(start(services, server("never-binds"), project))
    async with asyncio.timeout(30):
        while not (found := await services.instances.list(LOCAL)) or not found[0].pid:
            await asyncio.sleep(0.01)
    assert await services.instances.release(LOCAL, found[0].instance_id) is Released.TERMINATED
    with pytest.raises(InstanceFailed, match="released while it started"):
        await starting
    assert leftovers(data, found[0].instance_id) == []


async def test_who_asked_has_gone(data: Path, services: Services, project: Path) -> None:
    starting = asyncio.create_task(start(services, server("never-binds"), project))
    async with asyncio.timeout(30):
        while not (found := await services.instances.list(LOCAL)) or not found[0].pid:
            await asyncio.sleep(0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    ended = await until(services, found[0].instance_id, *OVER)
    assert why(ended) == "abandoned"
    assert leftovers(data, found[0].instance_id) == []


async def test_an_orderly_stop_ends_what_was_not_to_survive(data: Path, project: Path) -> None:
    async with serving(data) as services:
        gone = (await start(services, OK, project)).instance
        kept = await start(services, OK, project, survive=True)
    assert processes(gone.instance_id) == []
    assert processes(kept.instance.instance_id)
    async with serving(data) as services:
        listed = await services.instances.list(LOCAL)
        assert [one.instance_id for one in listed] == [kept.instance.instance_id]
        await call(kept, "echo", text="hello")
        assert await services.instances.release(LOCAL, kept.instance.instance_id) == "terminated"
    assert leftovers(data, kept.instance.instance_id) == []
