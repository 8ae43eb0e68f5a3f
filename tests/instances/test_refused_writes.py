"""Whoever asks goes away while something is written down, or the disk refuses it: nobody's server
is left, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import InstanceFailed, InsufficientDisk
from carrel.domain.instances import (
    Handed,
    Instance,
    InstanceState,
    Released,
    Restart,
    Share,
    Warmth,
)
from carrel.service.instances.book import LiveInstance
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
from tests.instances.writes import Writes

OVER = (InstanceState.ENDED, InstanceState.FAILED)
OK = server("ok")
WARM = dataclasses.replace(OK, name="test-warm", warm=1)
SHARED = {"share": Share.PROJECT}


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    return Writes(monkeypatch)


@pytest.fixture
async def services(data: Path, writes: Writes) -> AsyncIterator[Services]:
    async with serving(data) as services:
        yield services
        writes.refused = None
        writes.go_on()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path


async def spare_for(services: Services, project: Path) -> LiveInstance:
    """It stands ready; the first for this project was started cold, and is gone."""
    first = (await start(services, WARM, project)).instance
    async with asyncio.timeout(WAIT_S):
        await services.instances.settled()
    await services.instances.release(LOCAL, first.instance_id)
    (spare,) = [live for live in services.instances._book.all() if live.spare]
    return spare


def handed_over(instance: Instance) -> bool:
    ready = instance.state is InstanceState.READY and not instance.leaving
    return ready and instance.warmth is Warmth.STARTED


# Who asks, and what stands ready


async def test_who_asked_has_gone_while_one_is_handed_over(
    data: Path, services: Services, project: Path, writes: Writes
) -> None:
    spare = await spare_for(services, project)
    writes.hold(handed_over)
    starting = asyncio.create_task(start(services, WARM, project, ttl_s=600.0))
    await writes.met()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    writes.go_on()
    ended = await until(services, spare.instance_id, *OVER)
    assert ended.problem is not None and ended.problem.code == "abandoned"
    assert processes(spare.instance_id) == []
    assert await services.instances.list(LOCAL) == []


async def test_one_that_cannot_be_handed_over_ends(
    services: Services, project: Path, writes: Writes
) -> None:
    spare = await spare_for(services, project)
    writes.refused = handed_over
    with pytest.raises(InsufficientDisk):
        await start(services, WARM, project)
    ended = await until(services, spare.instance_id, *OVER)
    assert ended.problem is not None and ended.problem.code == "insufficient_disk"
    assert processes(spare.instance_id) == []


async def test_one_that_ends_while_it_is_handed_over(
    services: Services, project: Path, writes: Writes
) -> None:
    """Whoever asked gets another one."""
    spare = await spare_for(services, project)
    writes.hold(handed_over)
    starting = asyncio.create_task(start(services, WARM, project))
    await writes.met()
    os.kill(spare.instance.pid, signal.SIGKILL)
    await until(services, spare.instance_id, *OVER)
    writes.go_on()
    handed = await starting
    assert handed.instance.instance_id != spare.instance_id
    await call(handed, "echo", text="hello")


async def test_one_that_is_not_needed_is_not_taken(
    services: Services, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its end has begun when somebody else asks in the same moment, but has not come far."""
    spare = await spare_for(services, project)
    other = str(tmp_path_factory.mktemp("other"))
    spares = services.instances._spares
    spares.refill(LiveInstance(dataclasses.replace(spare.instance, project_path=other)))
    assert spares.take(LiveInstance(spare.instance)) is None
    ended = await until(services, spare.instance_id, *OVER)
    assert ended.problem is not None and ended.problem.code == "not_needed"


async def test_a_start_whose_last_word_is_refused(
    data: Path, services: Services, project: Path, writes: Writes
) -> None:
    writes.refused = lambda instance: instance.state is InstanceState.READY
    with pytest.raises(InsufficientDisk):
        await start(services, OK, project, restart=Restart.ON_FAILURE)
    assert await services.instances.list(LOCAL) == []
    assert leftovers(data) == []


# Who shares


def joined(instance: Instance) -> bool:
    return len(instance.holds) == 2 and not instance.leaving


async def _one_is_left(services: Services, first: Handed) -> None:
    instance_id = first.instance.instance_id
    async with asyncio.timeout(WAIT_S):
        while (await services.instances.get(LOCAL, instance_id)).clients > 1:
            await asyncio.sleep(0.01)
    assert await services.instances.release(LOCAL, instance_id) is Released.TERMINATED


async def test_who_wanted_to_share_has_gone(
    services: Services, project: Path, writes: Writes
) -> None:
    first = await start(services, OK, project, **SHARED)
    writes.hold(joined)
    joining = asyncio.create_task(start(services, OK, project, **SHARED))
    await writes.met()
    joining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await joining
    writes.go_on()
    await _one_is_left(services, first)


async def test_who_wanted_to_share_is_not_written_down(
    services: Services, project: Path, writes: Writes
) -> None:
    first = await start(services, OK, project, **SHARED)
    writes.refused = joined
    with pytest.raises(InsufficientDisk):
        await start(services, OK, project, **SHARED)
    await _one_is_left(services, first)


async def test_one_that_ends_while_it_is_shared(
    services: Services, project: Path, writes: Writes
) -> None:
    first = await start(services, OK, project, **SHARED)
    writes.hold(joined)
    joining = asyncio.create_task(start(services, OK, project, **SHARED))
    await writes.met()
    os.kill(first.instance.pid, signal.SIGKILL)
    await until(services, first.instance.instance_id, *OVER)
    writes.go_on()
    second = await joining
    assert second.instance.instance_id != first.instance.instance_id
    await call(second, "echo", text="hello")


# A full disk


async def _stored(services: Services, instance_id: str, state: InstanceState) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await services.store.instance(instance_id)
            if found is not None and found.state is state:
                return
            await asyncio.sleep(0.01)


async def test_one_is_released_on_a_full_disk(
    data: Path, services: Services, project: Path, writes: Writes
) -> None:
    instance_id = (await start(services, OK, project)).instance.instance_id
    writes.refused = lambda _: True
    async with asyncio.timeout(WAIT_S):
        assert await services.instances.release(LOCAL, instance_id) is Released.TERMINATED
        assert await services.instances.release(LOCAL, instance_id) is Released.ALREADY_GONE
    assert leftovers(data, instance_id) == []
    assert (await services.instances.get(LOCAL, instance_id)).state is InstanceState.ENDED
    ended = await services.instances.list(LOCAL, ended=True)
    assert [one.instance_id for one in ended] == [instance_id]
    writes.refused = None
    await _stored(services, instance_id, InstanceState.ENDED)


async def test_a_start_fails_on_a_full_disk(
    data: Path, services: Services, project: Path, writes: Writes
) -> None:
    writes.refused = lambda instance: instance.state is InstanceState.FAILED
    with pytest.raises(InstanceFailed, match="with code 3"):
        await start(services, server("exits"), project)
    (failed,) = await services.instances.list(LOCAL, ended=True)
    assert leftovers(data, failed.instance_id) == []
    writes.refused = None
    await _stored(services, failed.instance_id, InstanceState.FAILED)


async def test_the_daemon_stops_on_a_full_disk(data: Path, project: Path, writes: Writes) -> None:
    """The next one closes what is still written down as if it lived, and starts nothing again."""
    async with asyncio.timeout(2 * WAIT_S):
        async with serving(data) as services:
            more = {"restart": Restart.ON_FAILURE}
            released, stopped = [
                (await start(services, OK, project, **more)).instance.instance_id for _ in "12"
            ]
            writes.refused = lambda _: True
            await services.instances.release(LOCAL, released)
        assert leftovers(data, released, stopped) == []
        writes.refused = None
        async with serving(data) as services:
            for instance_id in (released, stopped):
                found = await services.store.instance(instance_id)
                assert found is not None and found.state is InstanceState.ENDED
            assert await services.instances.list(LOCAL) == []
    assert leftovers(data, released, stopped) == []
