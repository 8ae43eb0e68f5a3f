"""Many may share a space; one may have it for itself, and is not kept waiting for ever."""

from __future__ import annotations

import asyncio

from carrel.service.shared import Locks

WAIT_S = 10.0
"""Nothing here waits but for other tasks of the same loop."""


async def test_one_at_a_time_for_itself() -> None:
    locks, inside, most = Locks(), 0, 0

    async def work() -> None:
        nonlocal inside, most
        async with locks.alone("a"):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(work() for _ in range(20)))
    assert most == 1
    assert len(locks) == 0


async def test_many_share() -> None:
    locks, inside, most = Locks(), 0, 0
    together = asyncio.Barrier(5)

    async def work() -> None:
        nonlocal inside, most
        async with locks.shared("a"):
            inside += 1
            most = max(most, inside)
            await together.wait()
            inside -= 1

    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(work() for _ in range(5)))
    assert most == 5
    assert len(locks) == 0


async def test_other_keys_do_not_wait() -> None:
    locks = Locks()
    async with asyncio.timeout(WAIT_S), locks.alone("a"), locks.alone("b"), locks.shared("c"):
        assert len(locks) == 3
    assert len(locks) == 0


async def test_who_wants_it_alone_goes_before_later_sharers() -> None:
    locks, order = Locks(), list[str]()
    release = asyncio.Event()

    async def first() -> None:
        async with locks.shared("a"):
            await release.wait()
            order.append("first")

    async def alone() -> None:
        async with locks.alone("a"):
            order.append("alone")

    async def later() -> None:
        async with locks.shared("a"):
            order.append("later")

    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        for work in (first, alone, later):
            group.create_task(work())
            await asyncio.sleep(0)
        release.set()
    assert order == ["first", "alone", "later"]


async def test_a_cancelled_wait_leaves_nothing() -> None:
    locks = Locks()
    async with locks.alone("a"):
        waiting = [asyncio.create_task(_take(locks, way)) for way in ("alone", "shared")]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert len(locks) == 1
    assert len(locks) == 0
    async with asyncio.timeout(WAIT_S), locks.shared("a"):
        pass


async def test_a_cancelled_wish_lets_sharers_in() -> None:
    locks = Locks()
    release = asyncio.Event()

    async def hold() -> None:
        async with locks.shared("a"):
            await release.wait()

    holding = asyncio.create_task(hold())
    await asyncio.sleep(0)
    wish = asyncio.create_task(_take(locks, "alone"))
    await asyncio.sleep(0)
    sharer = asyncio.create_task(_take(locks, "shared"))
    await asyncio.sleep(0)
    wish.cancel()
    async with asyncio.timeout(WAIT_S):
        await sharer
    release.set()
    await holding


async def _take(locks: Locks, way: str) -> None:
    async with locks.alone("a") if way == "alone" else locks.shared("a"):
        pass
