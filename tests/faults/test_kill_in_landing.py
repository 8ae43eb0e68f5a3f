"""The daemon is killed at every step of landings that are in line; its successor goes on with them.

A step is a write of a record, a branch that moves, or a file that is written in the checkout.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from carrel.app.service import Services, open_service
from carrel.config import Settings
from carrel.domain.access import LOCAL
from carrel.domain.landing import LandingCheck, LandRequest
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.queue import QueueState
from carrel.domain.runtimes import Command
from carrel.domain.spaces import SpaceQuery, SpaceRequest
from carrel.review.checkout import CheckoutWriter
from carrel.review.project import ProjectRepository
from tests.etc import share_etc
from tests.faults.child import Killer
from tests.forking import forked
from tests.launchers import fork_launchers, nursery
from tests.load.clearing import end_everything
from tests.review.conftest import Repository
from tests.sampling import EXHAUSTIVE, every
from tests.service.rig import RUN_S

CHILD_S = 90.0
MOST_STEPS = 90
"""Two landings have about sixty."""
NAMES = ("first", "second")


class StepKiller(Killer):
    """Also at what is done in the project."""

    def install(self) -> None:
        super().install()
        for kind, name in ((ProjectRepository, "move"), (CheckoutWriter, "bring")):
            setattr(kind, name, self._counted(getattr(kind, name)))

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*told: Any) -> Any:
            self.count += self.armed
            mine = self.armed and self.count == self.number
            if mine and self.moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*told)
            if mine:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return counted


async def ended(services: Services) -> list[QueueState]:
    async with asyncio.timeout(RUN_S):
        while True:
            found = await services.queue.list(LOCAL, 10)
            if all(one.ended for one in found):
                return [one.state for one in found]
            await asyncio.sleep(0.01)


async def land_both(data: Path, project: Path, killer: StepKiller) -> None:
    async with asyncio.timeout(CHILD_S), open_service(Settings(data=data)) as services:
        for name in NAMES:
            request = SpaceRequest(Project(ProjectKind.FOLDER, str(project)), name=name)
            space = await services.spaces.create(LOCAL, request)
            script = f"echo {name} | tee -a a.txt > {name}"
            script = script if name == NAMES[0] else f"echo {name} > {name}"
            run = await services.runs.start(space.space_id, Command(("sh", "-c", script)))
            await services.runs.wait(run.run_id)
        killer.armed = True
        asked = LandRequest(branch="main", check=LandingCheck("test -e a.txt", 60.0))
        await services.queue.add(LOCAL, NAMES, asked)
        await ended(services)
        killer.armed = False


def play(nursery: str, data: str, project: str, moment: str, number: int) -> None:
    fork_launchers(nursery)
    killer = StepKiller(moment, number)
    killer.install()
    asyncio.run(land_both(Path(data), Path(project), killer))


async def check(data: Path, repository: Repository, first: str) -> None:
    """All as before, when it was killed before the line was written down, or all as after."""
    async with open_service(Settings(data=data)) as services:
        states = await ended(services)
        async with asyncio.timeout(RUN_S):
            await services.reconciler.cleared()
        page = await services.spaces.list(LOCAL, SpaceQuery(limit=100))
        assert sorted(one.name for one in page.spaces) == list(NAMES), "no check is left"
        assert states in ([], [QueueState.LANDED] * 2), await services.queue.list(LOCAL, 10)
        assert repository.git("status", "--porcelain") == ""
        count = repository.git("rev-list", "--count", f"{first}..main")
        assert int(count) == len(states)
        assert (repository.path / "second").exists() == bool(states)
        for space in page.spaces:
            await services.spaces.remove(LOCAL, space.space_id, force=True)
    repository.git("fsck", "--strict")


@pytest.mark.timeout(1800 if EXHAUSTIVE else 300)
async def test_killed_while_two_land(data: Path, tmp_path: Path) -> None:
    share_etc(data)
    repository = Repository(tmp_path / "greet")
    repository.path.mkdir()
    repository.git("init", "-q", "-b", "main")
    first = repository.commit("first", a_txt="a\n")
    try:
        for number in every(13, range(1, MOST_STEPS)):
            moment = ("before", "after")[number % 2]
            args = (nursery(), str(data), str(repository.path), moment, number)
            process = forked.Process(target=play, args=args)
            process.start()
            await asyncio.to_thread(process.join, CHILD_S)
            assert process.exitcode in (0, -9)
            await check(data, repository, first)
            (data / "carrel.db").unlink()
            for rest in data.glob("carrel.db-*"):
                rest.unlink()
            repository.git("reset", "-q", "--hard", first)
            if process.exitcode == 0:
                assert number > 20
                return
        raise AssertionError("the landings never end")
    finally:
        await asyncio.to_thread(end_everything, data)
