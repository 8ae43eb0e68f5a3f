"""A space far above its disk limit, where no quota keeps it below."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

from carrel.api.types.runs import RunBody
from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import InsufficientDisk
from carrel.domain.limits import Limits
from carrel.domain.runtimes import ExitReason
from carrel.runtimes.limits import watch
from carrel.service.family import Child
from tests.service.rig import RUN_S, family_of, make, run

pytestmark = pytest.mark.xdist_group("disk")


async def test_who_is_far_above_the_disk_limit_makes_room_first(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The space and its children: commands of the owner may still begin."""
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    monkeypatch.setattr(watch, "FAR_BYTES", 0)
    monkeypatch.setattr(watch, "REST_S", 0.1)
    blue = Caller("tk_1", Scope(ScopeKind.LABEL, "team=blue"))
    limits = Limits(disk_bytes=8 << 20)
    space = await make(services, labels={"team": "blue"}, limits=limits)
    child = await family_of(services).spawn(space.space_id, Child())
    await run(services, space, "true")
    runs = services.operations.runs
    waiting = await runs.begin(LOCAL, space.space_id, RunBody(argv=("sleep", "60")))
    opened = await services.spaces.opened(LOCAL, space.space_id)
    with (opened.sandbox.spec.tree / "big").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 40_000_000)
    record = await services.runs.wait(waiting.run_id)
    assert record.exit is not None and record.exit.reason is ExitReason.DISK
    for one in (space, child):
        with pytest.raises(InsufficientDisk, match="far above"):
            await runs.begin(blue, one.space_id, RunBody(argv=("true",)))
    removed = await runs.begin(LOCAL, space.space_id, RunBody(argv=("rm", "big")))
    async with asyncio.timeout(RUN_S):
        await services.runs.wait(removed.run_id)
        while True:
            with contextlib.suppress(InsufficientDisk):
                await runs.begin(blue, space.space_id, RunBody(argv=("true",)))
                break
