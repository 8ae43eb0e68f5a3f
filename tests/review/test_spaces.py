"""Differences of spaces: who may ask, in which state, and what is left when somebody goes."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from carrel.app.service import Services, open_service
from carrel.config import Settings
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import SpaceNotFound, StateConflict
from carrel.domain.review import TreeDiffQuery
from carrel.domain.spaces import Space, SpaceState
from carrel.domain.trees import DIRECT
from carrel.review.diff import TreeDiffs
from carrel.service.diffs import DiffRequest, SpaceDiffs
from tests.service.conftest import project, services
from tests.service.rig import make, run

__all__ = ["project", "services"]

WAIT_S = 60.0


@pytest.fixture
def diffs(services: Services) -> SpaceDiffs:
    return services.operations.review._diffs


@pytest.fixture
def work(services: Services) -> Path:
    return services.settings.data / "review"


def whole(pieces: Iterator[bytes]) -> str:
    return b"".join(pieces).decode()


async def gone(work: Path) -> None:
    """Until nothing is left there."""
    async with asyncio.timeout(WAIT_S):
        while list(work.glob("*")):
            await asyncio.sleep(0.01)


async def told(diffs: SpaceDiffs, space: Space, to: str = "") -> str:
    return whole(await diffs.text(LOCAL, DiffRequest(space.space_id, to)))


async def test_a_space_in_every_state(
    services: Services, diffs: SpaceDiffs, work: Path, project: Path
) -> None:
    git = ("git", "-C", str(project))
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "first")):
        subprocess.run([*git, *words], check=True, timeout=WAIT_S)
    (project / "greet.py").write_text("print('mine')\n")
    space, other = await make(services, project), await make(services, project)
    assert await told(diffs, space) == ""
    await run(services, space, "echo \"print('yours')\" > greet.py; rm notes/a.txt; exec sleep 0")
    text = await told(diffs, space)
    assert "-print('mine')\n+print('yours')\n" in text and "deleted file" in text
    await services.spaces.stop(LOCAL, space.space_id)
    assert await told(diffs, space) == text
    turned = await told(diffs, space, other.name)
    assert "-print('yours')\n+print('mine')\n" in turned
    assert await told(diffs, space, space.name) == ""
    pieces = await diffs.text(LOCAL, DiffRequest(space.name))
    await services.spaces.remove(LOCAL, space.space_id, force=True)
    assert whole(pieces) == text, "it was read before"
    with pytest.raises(SpaceNotFound):
        await told(diffs, space)
    with pytest.raises(SpaceNotFound):
        await diffs.files(LOCAL, DiffRequest(other.space_id, "no-such"), 10)
    assert list(work.iterdir()) == []
    bound = Caller("bound", Scope(ScopeKind.LABEL, "team=blue"))
    own = await make(services, project, labels={"team": "blue"})
    assert (await diffs.files(bound, DiffRequest(own.space_id), 10)).total == 0
    with pytest.raises(SpaceNotFound):
        await diffs.files(bound, DiffRequest(own.space_id, other.space_id), 10)


async def test_a_space_that_works_in_a_folder_itself(
    services: Services, diffs: SpaceDiffs, project: Path
) -> None:
    space = await make(services, driver=DIRECT, place=str(project))
    other = await make(services, project)
    with pytest.raises(StateConflict, match="works in a folder itself"):
        await told(diffs, space)
    (project / "greet.py").write_text("moved on\n")
    assert "+moved on\n" in await told(diffs, other, space.space_id)
    await services.spaces.remove(LOCAL, space.space_id, force=True)


class Slow:
    """A differ that waits in the middle until it is told."""

    def __init__(self, differ: TreeDiffs) -> None:
        self._differ = differ
        self.begun, self.go_on = threading.Event(), threading.Event()

    def text(self, query: TreeDiffQuery) -> Generator[bytes, None, None]:
        def check() -> None:
            self.begun.set()
            assert self.go_on.wait(WAIT_S)
            query.check()

        yield from self._differ.text(dataclasses.replace(query, check=check))


async def test_who_stops_or_goes_ends_it(
    services: Services,
    diffs: SpaceDiffs,
    work: Path,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A space is removed at once, and the comparison says why it ended."""
    space = await make(services, project)
    await run(services, space, "seq 1 50 | xargs touch; seq 1 9 | tee 1 > 2")
    differ = diffs._differ
    assert isinstance(differ, TreeDiffs)
    for leave in (True, False):
        slow = Slow(differ)
        monkeypatch.setattr(diffs, "_differ", slow)
        asking = asyncio.create_task(told(diffs, space))
        await asyncio.to_thread(slow.begun.wait, WAIT_S)
        assert len(list(work.iterdir())) == 1
        if leave:
            asking.cancel()
            await asyncio.wait({asking})
            slow.go_on.set()
            await gone(work)
            continue
        removing = asyncio.create_task(services.spaces.remove(LOCAL, space.space_id, force=True))
        async with asyncio.timeout(WAIT_S):
            while not services.shared.locks._locks[space.space_id].wanted:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        slow.go_on.set()
        with pytest.raises(StateConflict, match="being stopped"):
            await asking
        await removing
    assert list(work.iterdir()) == []
    assert services.journal.get(space.space_id) is None or (
        services.journal.current(space.space_id).state is SpaceState.REMOVED
    )


async def test_what_a_killed_daemon_left_is_swept(data: Path) -> None:
    left = data / "review" / ".diff-0123" / "objects"
    left.mkdir(parents=True)
    async with open_service(Settings(data=data)):
        assert list((data / "review").iterdir()) == []
