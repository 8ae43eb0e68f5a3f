"""Disk limits by looking: when, how often, and who is told."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import traceback
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from carrel.domain.errors import LauncherUnavailable
from carrel.domain.limits import Limits
from carrel.domain.runtimes import LimitHit, Sandbox, SandboxSpec
from carrel.domain.trees import Owner
from carrel.linux.reserve import Free
from carrel.runtimes.limits import disk_watch
from carrel.runtimes.limits import watch as limit_watch
from carrel.runtimes.limits.disk import (
    TOO_DEEP,
    ProjectQuotas,
    Use,
)
from carrel.runtimes.limits.disk_watch import (
    CALM_S,
    QUICKEST_S,
    REST_S,
    DiskWatch,
    Remembered,
)
from carrel.runtimes.limits.enforcement import Enforcement
from carrel.runtimes.limits.watch import Inhabitants, LimitWatch
from tests.runtimes.test_limits import no_groups

MIB = 1 << 20
WAIT_S = 30.0
PLENTY = 1 << 40


class Stage:
    """Time and disk for a watch: every pause is written down and ends at once."""

    def __init__(self, sizes: list[int], walk_s: float = 0.0, free: int = PLENTY) -> None:
        self.sizes = sizes
        self.walk_s = walk_s
        self.now = 0.0
        self.pauses: list[float] = []
        self.hits: list[int] = []
        self.walks = 0
        self.free = free
        self.limit = Use(10 * MIB, 1000)
        self.pauses_at: list[float] = []
        """When the space had to stand still."""
        self.real: int | None = 0
        """What is found when it does."""
        self.others = 0
        """What others write during a walk."""

    async def measure(self, still: bool) -> Use | None:
        self.walks += 1
        self.free -= self.others * MIB
        self.now += self.walk_s
        if still:
            self.pauses_at.append(self.now)
            return None if self.real is None else Use(self.real * MIB, 1)
        return Use(self.sizes.pop(0) * MIB, 1)

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    async def needed(self) -> bool:
        return bool(self.sizes)

    def watch(self, before: Remembered | None = None) -> DiskWatch:
        return DiskWatch(
            self.measure,
            lambda: Free(self.free, PLENTY),
            self.limit,
            lambda used, _why: self.hits.append(used.bytes // MIB),
            before=before,
            pause=self.pause,
            clock=lambda: self.now,
        )

    async def run(self) -> None:
        await self.watch().run(self.needed)


async def test_going_over_is_told_and_then_only_what_grows() -> None:
    """Who is over the limit may make room, and is ended when it takes more."""
    stage = Stage([5, 10, 11, 12, 14, 13, 13, 15, 9, 30, 31])
    stage.limit = Use(10 * MIB, 1)
    await stage.run()
    assert stage.hits == [11, 14, 15, 30]
    assert sum(stage.pauses) == pytest.approx(11.0)


@pytest.mark.parametrize(("lost", "hits"), [(0, []), (5, [20])])
async def test_what_was_over_before_is_told_when_the_disk_has_lost_room(
    lost: int, hits: list[int]
) -> None:
    stage = Stage([20])
    watch = stage.watch()
    stage.free -= lost * MIB
    await watch.look()
    assert stage.hits == hits


async def test_who_was_ended_does_not_pay_for_what_others_write() -> None:
    """What it has when all of it has ended is what it may keep, and take no more."""
    stage = Stage([5, 20])
    stage.real = 20
    watch = stage.watch()
    await watch.look()
    stage.free -= 15 * MIB
    await watch.look()
    assert stage.hits == [20]
    stage.others = 5
    stage.sizes = [20, 20, 22]
    for _ in range(3):
        await watch.look()
    assert stage.hits == [20, 22]


@pytest.mark.parametrize("again", [False, True])
async def test_a_command_does_not_pay_for_what_one_wrote_that_is_gone(again: bool) -> None:
    """It was too quick to be looked at. The next one, which makes room, may be the first of a new
    watch, and may not take more."""
    stage = Stage([5])
    watch = stage.watch()
    await watch.look()
    stage.free -= 15 * MIB
    assert watch.may_be_over
    if again:
        watch = stage.watch(watch.remembered)
    else:
        watch.rest(None)
    stage.sizes = [20, 20, 12, 14]
    for expected in ([], [], [], [14]):
        await watch.look()
        assert stage.hits == expected


@pytest.mark.parametrize("ended", [False, True])
async def test_a_command_of_who_is_over_is_not_forgiven_what_it_writes_before_a_look(
    ended: bool,
) -> None:
    """Whether its predecessor was ended for it, or was too quick for that."""
    stage = Stage([20 if ended else 5])
    watch = stage.watch()
    stage.free -= 15 * MIB
    await watch.look()
    stage.free -= 0 if ended else 15 * MIB
    assert stage.hits == ([20] if ended else []) and watch.may_be_over
    stage.sizes = [20, 200, 190, 20]
    used = await watch.at_rest()
    assert used == Use(20 * MIB, 1)
    watch.rest(used)
    for expected in ([200], [200]):
        await watch.look()
        assert stage.hits[ended:] == expected


async def test_who_is_below_its_limit_is_not_walked_through_for_a_command() -> None:
    stage = Stage([5])
    watch = stage.watch()
    await watch.look()
    assert not watch.may_be_over and await watch.at_rest() is None and stage.walks == 1


async def test_a_new_sandbox_is_walked_through_when_its_first_command_lasts() -> None:
    stage = Stage([5, 20])
    made = Remembered(free=Free(stage.free, PLENTY), is_new=True)
    watch = stage.watch(made)
    await watch.look()
    assert stage.walks == 0
    stage.now += 1.0
    await watch.look()
    assert stage.walks == 1 and stage.hits == []
    stage.free -= 15 * MIB
    stage.real = 20
    await watch.look()
    assert stage.hits == [20]


@pytest.mark.parametrize("lost", [5, 15])
async def test_a_new_sandbox_that_may_be_large_is_walked_through_at_once(lost: int) -> None:
    """Somebody has copied much into it, or others have written: what is there is no growth."""
    stage = Stage([20, 20, 23])
    made = Remembered(free=Free(stage.free, PLENTY), is_new=True)
    stage.free -= lost * MIB
    watch = stage.watch(made)
    await watch.look()
    assert stage.walks == 1 and stage.hits == []


async def test_files_are_walked_through_when_the_disk_has_lost_enough() -> None:
    stage = Stage([1, 2, 3, 4])
    watch = stage.watch()
    await watch.look()
    await watch.look()
    assert stage.walks == 1
    stage.free -= 2 * MIB
    await watch.look()
    assert stage.walks == 1
    stage.free -= 5 * MIB
    await watch.look()
    assert stage.walks == 2
    stage.now += disk_watch.REST_S
    await watch.look()
    assert stage.walks == 3


async def test_who_goes_on_to_write_on_a_full_disk_is_told() -> None:
    stage = Stage([1, 1, 3, 3], free=0)
    await stage.run()
    assert stage.hits == [3]


async def test_who_takes_little_at_once_of_a_full_disk_is_told_too() -> None:
    """Else it would get all of the reserve, which is given up in pieces."""
    stage = Stage([1, 2, 3, 3], free=0)
    await stage.run()
    assert stage.hits == [3]


async def test_what_cannot_be_measured_may_not_grow() -> None:
    deep = TOO_DEEP // MIB + 1
    stage = Stage([1, deep, deep, deep, deep])
    watch = stage.watch()
    for lost in (0, 0, 0, 5, 0):
        stage.now += disk_watch.REST_S
        stage.free -= lost * MIB
        await watch.look()
    assert len(stage.hits) == 2


class Hiding(Stage):
    """A space that shows one MiB to whoever walks through it, whatever it has, and a disk whose
    every change somebody may have made."""

    def __init__(self, real: int | None, walk_s: float = 0.0) -> None:
        super().__init__([], walk_s)
        self.real = real

    async def measure(self, still: bool) -> Use | None:
        self.sizes = [1]
        return await super().measure(still)

    async def loses(self, watch: DiskWatch, *lost: int) -> None:
        """A walk after each."""
        for one in lost:
            self.free -= one * MIB
            self.now += disk_watch.REST_S
            await watch.look()


@pytest.mark.parametrize(("real", "hits"), [(9, []), (11, [11]), (None, [1])])
async def test_who_may_hide_more_than_its_limit_has_to_stand_still(
    real: int | None, hits: list[int]
) -> None:
    """And is judged by what was found then; one that does not do so is over its limit."""
    stage = Hiding(real)
    watch = stage.watch()
    await stage.loses(watch, 0, 6)
    assert stage.pauses_at == []
    await stage.loses(watch, 6)
    assert len(stage.pauses_at) == 1 and stage.hits == hits


async def test_it_adds_up_and_what_others_remove_takes_nothing_from_it() -> None:
    stage = Hiding(2)
    watch = stage.watch()
    await stage.loses(watch, 0, 4, -100, 3, -100)
    assert stage.pauses_at == []
    assert watch.remembered is not None and watch.remembered.most == Use(8 * MIB, 1)
    await stage.loses(watch, 4, 0, 0, 6)
    assert len(stage.pauses_at) == 1
    assert stage.hits == []
    await stage.loses(watch, 2)
    assert len(stage.pauses_at) == 2


async def test_who_writes_what_is_found_never_stands_still() -> None:
    """Nor when it removes and writes again."""
    stage = Stage([1, 4, 9, 2, 9, 9, 3, 9])
    watch = stage.watch()
    before = 1
    for size in list(stage.sizes):
        stage.free -= (size - before) * MIB
        before = size
        stage.now += disk_watch.REST_S
        await watch.look()
    assert stage.walks == 8 and stage.pauses_at == [] and stage.hits == []
    assert watch.remembered is None


async def test_nobody_stands_still_for_long() -> None:
    """Where others write without an end: for a twentieth of the time."""
    stage = Hiding(1, walk_s=5.0)
    watch = stage.watch()
    await stage.loses(watch, *[20] * 100)
    for one, next_one in zip(stage.pauses_at, stage.pauses_at[1:], strict=False):
        assert next_one - one >= 5.0 * disk_watch.STILL_SHARE
    assert (
        10 < len(stage.pauses_at) <= 100 * (disk_watch.REST_S + 10) / (5.0 * disk_watch.STILL_SHARE)
    )


async def test_who_was_over_its_limit_stands_still_next_time() -> None:
    """What it had then may be hidden now. The same goes for what was remembered of it."""
    stage = Hiding(12)
    watch = stage.watch()
    await stage.loses(watch, 12)
    assert stage.hits == [12]
    await stage.loses(watch, 0)
    assert len(stage.pauses_at) == 2
    remembered = DiskWatch(
        *(stage.measure, lambda: Free(PLENTY, PLENTY), stage.limit),
        lambda used, _why: stage.hits.append(used.bytes // MIB),
        before=Remembered(Use(10 * MIB, 1)),
    )
    await remembered.look()
    assert len(stage.pauses_at) == 3


async def test_what_comes_from_outside_counts_though_others_free_as_much() -> None:
    stage = Stage([0])
    watch = stage.watch()
    stage.now = disk_watch.REST_S
    for written in (0, 4, 4):
        assert await watch.excess(far=False, written=written * MIB) is None
    assert await watch.excess(far=False, written=4 * MIB) == Use(12 * MIB, 1)
    assert stage.walks == 1


async def test_who_hides_on_a_full_disk_stands_still() -> None:
    stage = Hiding(4)
    watch = stage.watch()
    await stage.loses(watch, 0)
    stage.free = 4 * MIB
    await stage.loses(watch, 0)
    stage.real = 8
    stage.free = 0
    await stage.loses(watch, 0)
    assert stage.hits == [8]


async def test_who_waited_for_its_turn_is_not_looked_at_later_for_it() -> None:
    stage = Stage([5, 5])

    @contextlib.asynccontextmanager
    async def turn() -> AsyncIterator[None]:
        stage.now += 15.0
        yield

    watch = DiskWatch(
        *(stage.measure, lambda: Free(stage.free, PLENTY), stage.limit, lambda _used, _why: None),
        turn=turn,
        pause=stage.pause,
        clock=lambda: stage.now,
    )
    await watch.run(stage.needed)
    assert sum(stage.pauses) == pytest.approx(REST_S + 1.0)


async def test_a_long_walk_is_followed_by_a_long_pause() -> None:
    quick = Stage([1], walk_s=0.1)
    await quick.run()
    assert sum(quick.pauses) == pytest.approx(0.9)
    slow = Stage([1], walk_s=3.0)
    await slow.run()
    assert sum(slow.pauses) == pytest.approx(12.0)


async def test_who_writes_in_a_long_pause_is_looked_at() -> None:
    """A space can make looks take long, and would have four times as long to itself."""
    stage = Stage([5, 20], walk_s=3.0)

    async def pause(seconds: float) -> None:
        await stage.pause(seconds)
        if len(stage.pauses) == 2:
            stage.free -= 15 * MIB

    watch = DiskWatch(
        *(stage.measure, lambda: Free(stage.free, PLENTY), stage.limit),
        lambda used, _why: stage.hits.append(used.bytes // MIB),
        pause=pause,
        clock=lambda: stage.now,
    )
    await watch.run(stage.needed)
    assert stage.hits == [20] and stage.walks == 2
    # As long as the look took, and all of it after the next.
    assert sum(stage.pauses) == pytest.approx(3.0 + 12.0, abs=2 * CALM_S)


async def test_who_has_little_room_left_is_looked_at_soon() -> None:
    """And nobody all the time: neither who writes nothing, nor many at once."""
    near, far, many = Stage([5, 20]), Stage([5]), Stage([5])
    near.limit, far.limit, many.limit = (Use(room * MIB, 1000) for room in (10, 10_000, 10))

    async def pause(seconds: float) -> None:
        await near.pause(seconds)
        near.free -= 3 * MIB

    def watch(stage: Stage, watched: int = 1) -> DiskWatch:
        free, over = lambda: Free(stage.free, PLENTY), lambda _used, _why: stage.hits.append(1)
        paused = pause if stage is near else stage.pause
        return DiskWatch(
            *(stage.measure, free, stage.limit, over),
            watched=lambda: watched,
            pause=paused,
            clock=lambda: stage.now,
        )

    await watch(near).run(near.needed)
    assert near.hits == [1] and near.pauses[:3] == [QUICKEST_S] * 3
    await watch(far).run(far.needed)
    assert far.pauses == [1.0]
    await watch(many, 50).run(many.needed)
    assert many.pauses == [0.5, 0.5]


async def test_walks_of_one_account_keep_no_other_waiting(tmp_path: Path) -> None:
    enforcement = Enforcement(no_groups(), ProjectQuotas())
    spec = SandboxSpec("sp_1", tmp_path, tmp_path, Owner(1, 1), account="team=blue")
    same = replace(spec, sandbox_id="sp_2")
    other = replace(spec, sandbox_id="sp_3", account="team=red")
    async with enforcement.measuring(spec):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), enforcement.measuring(same):
                pass
        async with asyncio.timeout(WAIT_S), enforcement.measuring(other):
            pass
    async with asyncio.timeout(WAIT_S), enforcement.measuring(same):
        pass


async def test_a_walk_that_nobody_waits_for_ends_and_has_its_turn_until_then(data: Path) -> None:
    """Else commands that are started and stopped have one walk more each time."""
    walking, let_go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def family(_name: str) -> list[Path]:
        loop.call_soon_threadsafe(walking.set)
        let_go.wait(WAIT_S)
        # A walk through these takes longer than it may.
        return [data / "other"] * 1_000_000

    async def nobody() -> list[int]:
        return []

    async def yes() -> bool:
        return True

    async def end(_reason: str) -> None:
        pass

    (data / "other").mkdir()
    enforcement = Enforcement(no_groups(), ProjectQuotas())
    enforcement.folders_of = family
    spec = SandboxSpec(
        *("sp_1", data, data, Owner(1, 1)), family="sp_1", limits=Limits(disk_bytes=MIB)
    )
    inhabitants = Inhabitants(nobody, nobody, nobody, end, yes, yes)
    watch = LimitWatch(Sandbox("any", spec), enforcement, lambda _hit: None, inhabitants)
    watch.started("ru_1")
    async with asyncio.timeout(WAIT_S):
        await walking.wait()
    assert "disk_use" in _functions()
    watch.close()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), enforcement.measuring(spec):
            pass
    let_go.set()
    async with asyncio.timeout(limit_watch.WALK_S / 2), enforcement.measuring(spec):
        while "disk_use" in _functions():
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "problem", [LauncherUnavailable("It does not answer."), OSError("full"), RuntimeError("thread")]
)
async def test_a_look_that_fails_is_made_again(
    data: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    """What runs may be the reason: it has its limit all the same."""
    monkeypatch.setattr(limit_watch, "AGAIN_S", 0.0)
    free = iter(range(PLENTY, 0, -8 * MIB))
    monkeypatch.setattr(limit_watch, "free_room", lambda _path: Free(next(free), PLENTY))
    (data / "large").write_bytes(b"x" * 2 * MIB)
    problems = [problem, problem]
    ended = asyncio.Event()

    async def find() -> list[int]:
        if problems:
            raise problems.pop()
        return []

    async def yes() -> bool:
        return True

    async def end(_reason: str) -> None:
        ended.set()

    hits: list[LimitHit] = []
    limits = Limits(disk_bytes=MIB)
    spec = SandboxSpec("sp_1", data, data, Owner(1, 1), limits=limits)
    enforcement = Enforcement(no_groups(), ProjectQuotas())
    inhabitants = Inhabitants(find, find, find, end, yes, yes)
    watch = LimitWatch(Sandbox("any", spec), enforcement, hits.append, inhabitants)
    try:
        watch.started("ru_1")
        async with asyncio.timeout(WAIT_S):
            await ended.wait()
    finally:
        watch.close()
    assert hits and not problems


def _functions() -> set[str]:
    """What all threads are in."""
    found = set()
    for frame in sys._current_frames().values():
        found |= {one.name for one in traceback.extract_stack(frame)}
    return found
