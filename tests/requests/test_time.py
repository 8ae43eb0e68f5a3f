"""What is kept for a while goes when that is over, and not before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import WorkspaceGone
from carrel.domain.requests import DAY_S, Generate, Keeping, Policy, Workspace
from tests.requests.rig import heard, made

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(services: Services) -> Iterator[Clock]:
    before = services.journal.clock
    clock = Clock(before())
    services.journal.clock = clock
    yield clock
    services.journal.clock = before


async def test_retained(services: Services, clock: Clock, place: Path) -> None:
    keeping = Keeping(Policy.RETAIN)
    request, frames = await made(services, Generate("write a b", keeping=keeping))
    assert frames[-1].data["retained_until"] == request.retained_until == clock.now + DAY_S
    clock.now += DAY_S - 1
    await services.requests.tidy()
    assert (await services.requests.files(LOCAL, request.key)).total == 1
    extended = await services.requests.extend(LOCAL, request.key, DAY_S)
    assert extended.retained_until == clock.now + DAY_S
    clock.now += DAY_S - 1
    await services.requests.tidy()
    assert (await services.requests.files(LOCAL, request.key)).total == 1
    clock.now += 2
    await services.requests.tidy()
    gone = await services.requests.get(LOCAL, request.key)
    assert gone.workspace is Workspace.GONE and gone.result is not None
    assert not (place / "spaces" / request.space_id).exists()
    with pytest.raises(WorkspaceGone):
        await services.requests.files(LOCAL, request.key)


async def test_held(services: Services, clock: Clock) -> None:
    """For whoever fetches files after the result: until then, or until they were fetched."""
    keeping = Keeping(hold_s=60.0)
    request, _ = await made(services, Generate("write a b", keeping=keeping))
    clock.now += 59
    await services.requests.tidy()
    with await services.requests.open(LOCAL, request.key, "a") as file:
        assert file.read() == b"b\n"
    clock.now += 2
    await services.requests.tidy()
    assert (await services.requests.get(LOCAL, request.key)).workspace is Workspace.GONE
    request = await services.requests.submit(LOCAL, Generate("write a b", keeping=keeping))
    await heard(services, request.key)
    await services.requests.delivered(LOCAL, request.key)
    assert (await services.requests.done(LOCAL, request.key)).workspace is Workspace.GONE
