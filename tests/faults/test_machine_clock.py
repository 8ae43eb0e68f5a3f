"""A clock that jumps: nothing goes that should not, and no time runs backwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.cli.values import age_of
from carrel.domain.access import LOCAL
from carrel.domain.events import EventQuery
from carrel.domain.spaces import Retention, SpaceQuery, SpaceState
from tests.faults.rig import assert_works, ending, everything, remove_all, serving
from tests.service.rig import make, run

DAY = 86400.0
YEAR = 366 * DAY


class Clock:
    """The service's own; 2026 at first."""

    def __init__(self) -> None:
        self.now = 1_780_000_000.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def services(data: Path, clock: Clock) -> AsyncIterator[Services]:
    async with ending(data), serving(data) as opened:
        opened.journal.clock = clock
        yield opened
        await remove_all(opened, data)


async def test_back(services: Services, clock: Clock) -> None:
    """By a year, as after a battery ran empty."""
    short = Retention(ttl_s=DAY, idle_s=3600.0, keep_s=3600.0, discard=True)
    space = await make(services, retention=short)
    stopped = await make(services, retention=short)
    await services.spaces.stop(LOCAL, stopped.space_id, 0.2)
    clock.now -= YEAR
    assert await services.collector.retire() == []
    await run(services, space, "echo work > work.txt")
    assert await services.collector.retire() == []
    states = {one.space_id: one.state for one in await everything(services)}
    assert states == {space.space_id: SpaceState.READY, stopped.space_id: SpaceState.STOPPED}
    await assert_works(services, space, "cat work.txt", "work\n")


async def test_back_and_forth(services: Services, clock: Clock) -> None:
    """What was used a moment ago is not idle because the clock was put right since."""
    space = await make(services, retention=Retention(idle_s=3600.0))
    clock.now -= YEAR
    await run(services, space, "echo work > work.txt")
    clock.now += YEAR
    assert await services.collector.retire() == []
    assert (await services.spaces.get(LOCAL, space.space_id)).state is SpaceState.READY


async def test_forth(services: Services, clock: Clock) -> None:
    """By a year: whoever set no time keeps everything; work is not lost to a wrong date."""
    for_ever = await make(services)
    short = await make(services, retention=Retention(ttl_s=DAY))
    await run(services, short, "echo work > work.txt")
    clock.now += YEAR
    await services.collector.retire()
    there = {one.space_id for one in await everything(services)}
    assert there == {for_ever.space_id, short.space_id}
    clock.now -= YEAR
    if (await services.spaces.get(LOCAL, short.space_id)).state is SpaceState.STOPPED:
        await services.spaces.start(LOCAL, short.space_id)
    await assert_works(services, short, "cat work.txt", "work\n")


async def test_what_was_kept_of_removed_spaces_stays(services: Services, clock: Clock) -> None:
    space = await make(services)
    await run(services, space, "echo work > work.txt")
    await services.spaces.remove(LOCAL, space.space_id, force=True)
    clock.now -= YEAR
    await services.collector.run(LOCAL)
    back = await services.spaces.undelete(LOCAL, space.space_id)
    await assert_works(services, back, "cat work.txt", "work\n")


async def test_lists_and_logs_stay_whole(services: Services, clock: Clock) -> None:
    """Spaces made while the clock jumps are all listed, each once, page by page; events keep
    their order."""
    made = []
    for jump in (0.0, -YEAR, YEAR, -DAY, DAY):
        clock.now += jump
        made.append((await make(services)).space_id)
    seen: list[str] = []
    after = ""
    while True:
        page = await services.spaces.list(LOCAL, SpaceQuery(limit=2, after=after))
        seen += [space.space_id for space in page.spaces]
        after = page.next
        if not after:
            break
    assert sorted(seen) == sorted(made)
    events = await services.store.events(EventQuery(limit=1000))
    numbers = [event.seq for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_no_age_is_negative(services: Services, clock: Clock) -> None:
    """A space from the future is as if it was new."""
    clock.now += YEAR
    space = await make(services)
    record, _ = await run(services, space, "true")
    assert record.exit is not None
    assert 0 <= record.exit.ended_at - record.exit.started_at < DAY
    assert not age_of("2999-01-01T00:00:00.000Z").startswith("-")
    clock.now -= YEAR
    stopped = await services.spaces.stop(LOCAL, space.space_id, 0.2)
    assert stopped.stopped_at is not None
    await services.spaces.start(LOCAL, space.space_id)
    await assert_works(services, space, "echo hello", "hello\n")
