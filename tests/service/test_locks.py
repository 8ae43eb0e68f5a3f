"""Many may share a space; one may have it for itself, and is not kept waiting for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import UnexportedChanges
from carrel.domain.runs import RunState, Stream
from carrel.domain.runtimes import Command
from carrel.domain.spaces import Space, SpaceState
from carrel.service import shared
from carrel.service.access import OTHERS_GRACE_S
from carrel.service.shared import Locks
from tests.service.rig import RUN_S, make

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


async def arriving(
    until: asyncio.Event, *gives: Callable[[], None]
) -> AsyncGenerator[list[str], None]:
    """One that shares it until then, one that wants it alone, and one that comes later to share it;
    gives their order when all have come, and when all have had it."""
    locks, order = Locks(), list[str]()

    async def first() -> None:
        async with locks.shared("a", *gives):
            await until.wait()
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
        yield order
    yield order


async def test_who_wants_it_alone_goes_before_later_sharers() -> None:
    release = asyncio.Event()
    coming = arriving(release)
    assert await anext(coming) == []
    release.set()
    assert await anext(coming) == ["first", "alone", "later"]
    await coming.aclose()


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


async def test_who_has_it_hears_of_a_rush_that_came_before_or_comes_later() -> None:
    locks, order = Locks(), list[str]()

    async def slow(name: str) -> None:
        async with locks.alone("a"):
            await locks.rushed("a")
            order.append(name)

    async def rushing() -> None:
        async with locks.alone("a", rush=True):
            order.append("rushing")

    async with asyncio.timeout(WAIT_S):
        async with asyncio.TaskGroup() as group:
            for work in (slow("first"), slow("second"), rushing()):
                group.create_task(work)
                await asyncio.sleep(0)
        async with locks.alone("a"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await locks.rushed("a")
    assert order == ["first", "second", "rushing"]


async def test_who_lasts_gives_way_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """To whoever wants it alone: else who comes later waits behind that one for as long."""
    monkeypatch.setattr(shared, "PATIENCE_S", 0.05)
    over = asyncio.Event()
    coming = arriving(over, over.set)
    assert await anext(coming) == [] and not over.is_set()
    assert await anext(coming) == ["first", "alone", "later"]
    await coming.aclose()


async def being_stopped(services: Services, script: str) -> tuple[Space, str, asyncio.Task[Space]]:
    """By a token, with all the time that it may give, for a command that does not end by itself."""
    space = await make(services)
    command = Command(("sh", "-c", f"trap '' TERM; {script}; echo up; while :; do sleep 1; done"))
    record = await services.runs.start(space.space_id, command)
    token = Caller("tok_x", Scope(ScopeKind.SPACE, space.space_id))
    async with asyncio.timeout(RUN_S):
        async with aclosing(services.runs.follow(record, Stream.STDOUT, 0)) as pieces:
            await anext(pieces)
        stopping = services.spaces.stop(token, space.space_id, OTHERS_GRACE_S)
        task = asyncio.create_task(stopping)
        while services.journal.current(space.space_id).state is not SpaceState.STOPPING:
            await asyncio.sleep(0.01)
    return space, record.run_id, task


@pytest.mark.parametrize("force", [False, True])
async def test_a_removal_does_not_wait_for_what_others_give_time(
    services: Services, force: bool
) -> None:
    space, _, stopping = await being_stopped(services, ":")
    async with asyncio.timeout(OTHERS_GRACE_S / 2):
        await services.spaces.remove(LOCAL, space.space_id, force=force)
    assert (await stopping).state is SpaceState.STOPPED


async def test_a_removal_that_is_refused_takes_no_time_from_a_stop(services: Services) -> None:
    space, run_id, stopping = await being_stopped(services, "echo work > work.txt")
    with pytest.raises(UnexportedChanges):
        await services.spaces.remove(LOCAL, space.space_id)
    assert services.journal.current(space.space_id).state is SpaceState.STOPPING
    assert (await services.runs.get(run_id)).state is RunState.RUNNING
    await services.spaces.remove(LOCAL, space.space_id, force=True)
    await stopping
