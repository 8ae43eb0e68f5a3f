"""Spaces that go by themselves, while others cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from carrel.app.service import Services
from carrel.domain.access import Caller, Scope, ScopeKind
from carrel.domain.spaces import Space
from tests.service.rig import RUN_S, make, request, run

BLUE = Caller("tk_blue", Scope(ScopeKind.LABEL, "team=blue"))


def let_go(services: Services, patch: pytest.MonkeyPatch, *spaces: Space) -> None:
    """From now on, and not when the daemon happens to look."""
    ids = {one.space_id for one in spaces}

    def due(space: Space, _now: float) -> tuple[str, str] | None:
        return ("remove", "its time is over") if space.space_id in ids else None

    patch.setattr(services.collector, "_due", due)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(RUN_S):
        while not condition():
            await asyncio.sleep(0.01)


async def test_one_that_takes_long_keeps_no_other_from_going(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another account's, that is; and it is not begun a second time meanwhile."""
    slow = await services.spaces.create(BLUE, request())
    quick = await make(services)
    get = services.journal.get
    async with services.shared.locks.alone(slow.space_id):
        let_go(services, monkeypatch, slow, quick)
        for _ in range(3):
            services.collector.begin_retiring()
        await until(lambda: get(quick.space_id) is None)
        assert get(slow.space_id) is not None
    await until(lambda: get(slow.space_id) is None)


async def test_one_with_changes_is_not_compared_again_and_again(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await make(services)
    await run(services, space, "echo x > new")
    let_go(services, monkeypatch, space)
    compared: list[str] = []
    remove = services.spaces.remove

    async def noting(*args: object, **options: object) -> object:
        compared.append(space.space_id)
        return await remove(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(services.spaces, "remove", noting)
    for _ in range(3):
        services.collector.begin_retiring()
        await services.collector.settled()
    assert len(compared) == 1 and services.journal.get(space.space_id) is not None
    # Who asks for it has it tried at once.
    found = await services.collector.retire()
    assert [(one.target, one.done) for one in found] == [(space.space_id, False)]
