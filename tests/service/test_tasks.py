"""Work that nobody waits for, and work that waits for its turn."""

from __future__ import annotations

import asyncio
import gc

from carrel.domain.access import LOCAL
from carrel.service.shared import CallerSlots, Errands


async def test_one_that_is_given_up_before_its_first_step() -> None:
    """A coroutine that is never awaited warns, and here a warning is an error."""
    begun: list[str] = []

    async def work() -> None:
        begun.append("work")

    errands = Errands(lambda error: begun.append(repr(error)))
    errands.begin(work())
    await errands.close()
    errands.begin(work())
    gc.collect()
    assert begun == []


async def test_one_that_is_given_up_under_way() -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    errands = Errands(lambda error: ended.append(repr(error)))
    errands.begin(work())
    await begun.wait()
    await errands.close()
    assert ended == ["work"]


async def test_a_failure_is_told() -> None:
    told: list[str] = []

    async def work() -> None:
        raise OSError("no disk")

    errands = Errands(lambda error: told.append(str(error)))
    errands.begin(work())
    await errands.settled()
    assert told == ["no disk"]


async def test_the_owner_waits_for_nobody_elses_turn() -> None:
    slots = CallerSlots(2)
    async with slots.of("tk_one"), slots.of("tk_two"):
        late = asyncio.ensure_future(slots.of("tk_three").__aenter__())
        async with asyncio.timeout(10), slots.of(LOCAL.name), slots.of(LOCAL.name):
            assert not late.done()
    await late
