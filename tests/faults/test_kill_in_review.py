"""The daemon is killed at every step of what changes files of spaces, or takes that back; its
successor finds all as before or makes it as after.

A step is a write of a record, a state that is kept, or a file that is put in its place.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from carrel.app.service import Services, open_service
from carrel.config import Settings
from carrel.domain.access import LOCAL
from carrel.domain.checkpoints import START
from carrel.domain.landing import LandRequest
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.spaces import SpaceRequest
from carrel.review.checkout import CheckoutWriter
from carrel.review.project import ProjectRepository
from carrel.review.work import WorkRepositories
from carrel.service.checkpoints import ForkRequest
from carrel.service.takes import TakeRequest
from carrel.trees.state_files import Restoring
from carrel.trees.states import SpaceStates
from tests.etc import share_etc
from tests.faults.rig import everything
from tests.faults.test_kill_in_landing import CHILD_S, StepKiller
from tests.forking import forked
from tests.launchers import fork_launchers, nursery
from tests.load.clearing import end_everything
from tests.review.conftest import Repository
from tests.sampling import EXHAUSTIVE, every
from tests.service.rig import RUN_S, leftovers, run

MOST_STEPS = 60
"""No operation has so many."""
WORK = "echo more >> a.txt; rm old.txt; mkdir d; echo new > d/new.txt; ln -s a.txt link"
LOOK = (
    "find . -path ./.git -prune -o -type f -exec md5sum {} + -o -type l -printf '%l %P\\n' | sort"
)
STEPS = (
    *((SpaceStates, "_write"), (SpaceStates, "_fill_layer"), (SpaceStates, "keep_only")),
    *((Restoring, "_make"), (WorkRepositories, "keep"), (WorkRepositories, "forget")),
    *((ProjectRepository, "move"), (CheckoutWriter, "bring")),
)


class ReviewKiller(StepKiller):
    def install(self) -> None:
        super(StepKiller, self).install()
        for kind, name in STEPS:
            setattr(kind, name, self._counted(getattr(kind, name)))


@dataclass
class Play:
    services: Services
    repository: Repository

    async def checkpoint(self) -> None:
        await self.services.checkpoints.take(LOCAL, "desk", "")

    async def rewind(self) -> None:
        await self.services.checkpoints.rewind(LOCAL, "desk", START)

    async def unrewind(self) -> None:
        [rewind] = await self.services.checkpoints.rewinds()
        await self.services.checkpoints.undo(rewind.checkpoint_id)

    async def fork(self) -> None:
        await self.services.checkpoints.fork(LOCAL, "desk", ForkRequest(name="fork"))

    async def take(self) -> None:
        await self.services.takes.take(LOCAL, TakeRequest("desk", "other", (".",)))

    async def untake(self) -> None:
        [take, *_] = await self.services.takes.list(10)
        await self.services.takes.undo(take.undo_id)

    async def remove(self) -> None:
        await self.services.spaces.remove(LOCAL, "desk", force=True)

    async def unremove(self) -> None:
        [trashed] = await self.services.spaces.trashed(LOCAL)
        await self.services.spaces.undelete(LOCAL, trashed.space.space_id)

    async def land(self) -> None:
        await self.services.landings.land(LOCAL, "desk", LandRequest(branch="main"))

    async def unland(self) -> None:
        await self.services.landings.undo(LOCAL, "")

    def act(self, name: str) -> Callable[[], Awaitable[None]]:
        found: Callable[[], Awaitable[None]] = getattr(self, name)
        return found

    async def state(self) -> dict[str, str]:
        found = {}
        for space in await everything(self.services):
            found[space.name] = (await run(self.services, space, LOOK))[1]
        place = self.repository.path
        look = subprocess.run(["sh", "-c", LOOK], cwd=place, capture_output=True, text=True)
        refs = self.repository.git("for-each-ref", "--format=%(refname) %(tree)")
        status = self.repository.git("status", "--porcelain")
        return found | {"": look.stdout, "refs": refs, "status": status}


async def play_until(told: Path, data: Path, project: Path, what: str, killer: StepKiller) -> None:
    async with asyncio.timeout(CHILD_S), open_service(Settings(data=data)) as services:
        play = Play(services, Repository(project))
        for name, script in (("desk", WORK), ("other", "echo mine > mine.txt")):
            request = SpaceRequest(Project(ProjectKind.FOLDER, str(project)), name=name)
            await run(services, await services.spaces.create(LOCAL, request), script)
        if what.startswith("un"):
            await play.act(what.removeprefix("un"))()
        before = await play.state()
        killer.armed = True
        await play.act(what)()
        killer.armed = False
        told.write_text(json.dumps([before, await play.state(), killer.count]))


def child(
    nursery: str, told: str, data: str, project: str, what: str, moment: str, number: int
) -> None:
    fork_launchers(nursery)
    killer = ReviewKiller(moment, number)
    killer.install()
    asyncio.run(play_until(Path(told), Path(data), Path(project), what, killer))


async def check(
    data: Path, repository: Repository, what: str, before: dict[str, str], after: dict[str, str]
) -> None:
    """Also that what was not done can be done now."""
    async with open_service(Settings(data=data)) as services:
        async with asyncio.timeout(RUN_S):
            await services.reconciler.cleared()
        play = Play(services, repository)
        found = await play.state()
        assert found in (before, after)
        if found != after:
            await play.act(what)()
            assert await play.state() == after
        for space in await everything(services):
            await services.spaces.remove(LOCAL, space.space_id, force=True)
        for entry in await services.spaces.trashed(LOCAL):
            await services.spaces.purge(entry)
        assert leftovers(data) == []
    repository.git("fsck", "--strict")


def clear(data: Path, repository: Repository, first: str) -> None:
    for name in ("carrel.db", "carrel.db-wal", "carrel.db-shm"):
        (data / name).unlink(missing_ok=True)
    repository.git("reset", "-q", "--hard", first)
    repository.git("clean", "-qfd")


@pytest.mark.timeout(1800 if EXHAUSTIVE else 300)
@pytest.mark.parametrize(
    "what",
    [
        *("checkpoint", "rewind", "unrewind", "fork", "take", "untake", "unremove"),
        *("land", "unland"),
    ],
)
async def test_killed_at_its_steps(what: str, data: Path, tmp_path: Path) -> None:
    share_etc(data)
    repository, told = Repository(tmp_path / "greet"), tmp_path / "told"
    repository.path.mkdir()
    repository.git("init", "-q", "-b", "main")
    first = repository.commit("first", a_txt="a\n", old_txt="old\n", src__b_py="b\n")

    async def until(moment: str, number: int) -> int:
        given = (str(told), str(data), str(repository.path), what, moment, number)
        process = forked.Process(target=child, args=(nursery(), *given))
        process.start()
        await asyncio.to_thread(process.join, CHILD_S)
        assert process.exitcode in (0, -9)
        return int(process.exitcode)

    try:
        assert await until("", 0) == 0
        before, after, count = json.loads(told.read_text())
        assert count < MOST_STEPS
        await check(data, repository, what, before, after)
        for number in every(5, range(1, count + 1), count // 2):
            for moment in ("before", "after") if EXHAUSTIVE else (("before", "after")[number % 2],):
                clear(data, repository, first)
                assert await until(moment, number) == -9
                await check(data, repository, what, before, after)
    finally:
        await asyncio.to_thread(end_everything, data)
