"""The log stays within its bounds, and tells of what somebody would have missed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from carrel.domain.hub import OWNED, Keep
from carrel.hub.log import MOST_NAMED, compact
from tests.hub.rig import OTHER, SPACE, HubRig, Peer, open_rig, options

NOTE = "buffer_custom_note"
NO_BOUND = Keep(0, 0, 0)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[HubRig]:
    async with open_rig(tmp_path, "unix") as opened:
        yield opened


async def fill(rig: HubRig, count: int, space: str = SPACE) -> None:
    speaker = await rig.join()
    for number in range(count):
        await speaker.ask(NOTE, {"number": number}, space=space)


async def compacted(rig: HubRig, keep: Keep, later_s: float = 0.0) -> None:
    now = time.time() + later_s
    await compact(rig.hub.log, rig.hub.keeper, rig.spaces, keep, now)


async def consumer(rig: HubRig) -> Peer:
    return await rig.join(types=("buffer_*",), spaces=(SPACE,), consumer="c")


async def test_within_bounds_nothing_goes(rig: HubRig) -> None:
    await fill(rig, 10)
    for keep in (NO_BOUND, Keep(10, 1 << 20, 3600.0)):
        await compacted(rig, keep)
    span = (await rig.hub.log.spans())[SPACE]
    assert (span.first, span.last) == (1, 10)


@pytest.mark.parametrize("keep", [Keep(4, 0, 0), Keep(0, 0, 0.001), Keep(0, 1000, 0)])
async def test_what_is_beyond_goes_without_a_word_when_nobody_waits(
    rig: HubRig, keep: Keep
) -> None:
    await fill(rig, 10)
    await compacted(rig, keep, later_s=1.0)
    span = (await rig.hub.log.spans())[SPACE]
    assert 1 < span.first <= span.last == 10
    await fill(rig, 1)
    assert rig.hub.keeper.last(SPACE) == 11


async def test_what_a_consumer_misses_is_told_first(rig: HubRig) -> None:
    peer = await consumer(rig)
    await fill(rig, 10)
    for _ in range(10):
        await peer.receive()
    await peer.ask("buffer_acknowledge", {"space": SPACE, "seq": 3})
    await compacted(rig, Keep(4, 0, 0))
    told = await peer.receive()
    assert (told["type"], told["sender"]["kind"], told["seq"]) == ("buffer_dropped", "system", 11)
    assert told["payload"] == {"first": 1, "last": 6, "consumers": {"c": 3}}
    again = await consumer(rig)
    seqs = [(await again.receive())["seq"] for _ in range(4)]
    assert seqs == [8, 9, 10, 11]
    await again.ask("buffer_acknowledge", {"space": SPACE, "seq": 11})
    await fill(rig, 3)
    await compacted(rig, Keep(4, 0, 0))
    assert (await rig.hub.log.spans())[SPACE].last == 14, "nothing was missed, nothing is told"


async def test_of_many_that_miss_something_some_are_named(rig: HubRig) -> None:
    """Whoever hears of it could not take a message of any size."""
    await fill(rig, 10)
    for number in range(MOST_NAMED + 7):
        await rig.hub.log.acknowledge(f"tk_{number}{OWNED}c{number}", SPACE, number % 7)
    peer = await consumer(rig)
    for _ in range(10):
        await peer.receive()
    await compacted(rig, Keep(1, 0, 0))
    told = (await peer.receive())["payload"]
    assert (told["first"], told["last"], told["others"]) == (1, 9, 7)
    assert len(told["consumers"]) == MOST_NAMED
    assert sorted(told["consumers"].values()) == sorted(n % 7 for n in range(107))[:MOST_NAMED]


async def test_a_removed_space_is_forgotten_when_its_time_is_over(rig: HubRig) -> None:
    await fill(rig, 3)
    await fill(rig, 2, OTHER)
    del rig.spaces.labels[OTHER]
    keep = Keep(0, 0, 60.0)
    await compacted(rig, keep)
    assert set(await rig.hub.log.spans()) == {SPACE, OTHER}
    await compacted(rig, keep, later_s=120.0)
    assert set(await rig.hub.log.spans()) == {SPACE}
    assert (await rig.hub.log.spans())[SPACE].first == 3


async def test_who_says_too_much_does_not_wait_for_the_next_look(tmp_path: Path) -> None:
    """So that a space cannot fill the disk in the minute between two of them."""
    bound = options(keep=Keep(0, 20_000, 0))
    async with open_rig(tmp_path, "unix", bound) as rig:
        speaker = await rig.join()
        for _ in range(10):
            await speaker.ask(NOTE, {"text": "x" * 5000}, space=SPACE)
        async with asyncio.timeout(30):
            while (await rig.hub.log.spans())[SPACE].first == 1:
                await asyncio.sleep(0.01)
