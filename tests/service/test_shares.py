"""What one caller may have of the daemon, however often it asks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from carrel.app.service import Services, open_service
from carrel.config import Settings
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import TooManySpaces
from carrel.domain.spaces import Space
from carrel.service.checkpoints import ForkRequest
from tests.etc import share_etc
from tests.launchers import forked_launchers
from tests.load.clearing import end_everything
from tests.service.rig import make, request


def of(label: str, number: int = 1) -> Caller:
    return Caller(f"tk_{label}_{number}", Scope(ScopeKind.LABEL, f"team={label}"))


async def test_spaces(data: Path) -> None:
    """Each takes descriptors of the daemon, and the owner is to have some left."""
    share_etc(data)
    try:
        with forked_launchers():
            async with open_service(Settings(data=data, spaces_per_caller=2)) as services:
                await _try_spaces(services)
    finally:
        await asyncio.to_thread(end_everything, data)


async def _try_spaces(services: Services) -> None:
    asked = [services.spaces.create(of("blue", number), request()) for number in (1, 2, 1, 2)]
    found = await asyncio.gather(*asked, return_exceptions=True)
    made = [one for one in found if isinstance(one, Space)]
    assert len(made) == 2
    assert all(isinstance(one, TooManySpaces) for one in found if one not in made), found
    with pytest.raises(TooManySpaces):
        await services.checkpoints.fork(of("blue"), made[0].space_id, ForkRequest())
    own = [await make(services) for _ in range(3)]
    other = await services.spaces.create(of("red"), request())
    await services.spaces.remove(of("blue"), made.pop().space_id, force=True)
    fork = await services.checkpoints.fork(of("blue"), made[0].space_id, ForkRequest())
    for space in (*made, *own, other, *fork.spaces):
        await services.spaces.remove(LOCAL, space.space_id, force=True)
