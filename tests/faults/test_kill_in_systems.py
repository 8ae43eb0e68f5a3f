"""The daemon is killed at every step of what keeps the system of a space, puts it back or gives it
to another; its successor finds tree and system as before, or makes both as after."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from carrel.app.service import Services, open_service
from carrel.cleanup.trash import Trash
from carrel.config import Settings
from carrel.domain.access import LOCAL
from carrel.domain.checkpoints import START
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.runtimes import Command
from carrel.domain.spaces import Space, SpaceRequest
from carrel.domain.systems import CommandPlace
from carrel.service.checkpoints import ForkRequest
from carrel.trees.shared_layers import SharedLayers
from carrel.trees.state_files import FileKeeping, Restoring
from carrel.trees.states import SpaceStates
from tests.busybox import busybox_image
from tests.daemon.test_kept_systems import LOOK, MUCH, OWNERS
from tests.etc import share_etc
from tests.faults.rig import everything
from tests.faults.test_kill_in_landing import CHILD_S, StepKiller
from tests.forking import forked
from tests.launchers import fork_launchers, nursery
from tests.load.clearing import end_everything
from tests.sampling import EXHAUSTIVE, every
from tests.service.rig import RUN_S, leftovers, output

SEEN = LOOK.replace(" %Y", "")
"""Each life of the daemon does the work anew."""
MOST_STEPS = 120
"""No operation has so many."""
WORK = MUCH + (OWNERS if os.geteuid() == 0 else "") + "echo work > /workspace/w"
STEPS = (
    *((SpaceStates, "_write"), (SpaceStates, "_fill_layer"), (SpaceStates, "keep_only")),
    *((Restoring, "_make"), (FileKeeping, "_file"), (SharedLayers, "lend"), (SharedLayers, "tidy")),
    *((SpaceStates, "pack_parts"), (SpaceStates, "unpack_parts"), (Trash, "purge")),
)


class SystemKiller(StepKiller):
    def install(self) -> None:
        super(StepKiller, self).install()
        for kind, name in STEPS:
            setattr(kind, name, self._counted(getattr(kind, name)))


async def said(services: Services, space: Space, script: str) -> str:
    command = Command(("sh", "-c", script), timeout_s=RUN_S)
    record = await services.runs.start(space.space_id, command, place=CommandPlace.DEV)
    async with asyncio.timeout(RUN_S):
        record = await services.runs.wait(record.run_id)
    return await output(services, record)


@dataclass
class Play:
    services: Services

    async def checkpoint(self) -> None:
        await self.services.checkpoints.take(LOCAL, "desk", "")

    async def rewind(self) -> None:
        await self.services.checkpoints.rewind(LOCAL, "desk", START)

    async def unrewind(self) -> None:
        [rewind] = await self.services.checkpoints.rewinds()
        await self.services.checkpoints.undo(rewind.checkpoint_id)

    async def fork(self) -> None:
        await self.services.checkpoints.fork(LOCAL, "desk", ForkRequest(name="fork"))

    async def remove(self) -> None:
        await self.services.spaces.remove(LOCAL, "desk", force=True)

    async def unremove(self) -> None:
        await self.services.spaces.undelete(LOCAL, "desk")

    def act(self, name: str) -> Callable[[], Awaitable[None]]:
        found: Callable[[], Awaitable[None]] = getattr(self, name)
        return found

    async def state(self) -> dict[str, str]:
        found = {}
        for space in await everything(self.services):
            found[space.name] = await said(self.services, space, f"cat w 2>&1; {SEEN}")
        for entry in await self.services.spaces.trashed(LOCAL):
            found[f"trash {entry.space.name}"] = f"{entry.changes} {entry.system}"
        return found


async def play_until(told: Path, data: Path, image: Path, what: str, killer: StepKiller) -> None:
    async with asyncio.timeout(CHILD_S), open_service(Settings(data=data)) as services:
        play = Play(services)
        request = SpaceRequest(Project(ProjectKind.EMPTY), image=str(image), name="desk")
        await said(services, await services.spaces.create(LOCAL, request), WORK)
        if what.startswith("un"):
            await play.act(what.removeprefix("un"))()
        before = await play.state()
        killer.armed = True
        await play.act(what)()
        killer.armed = False
        told.write_text(json.dumps([before, await play.state(), killer.count]))


def child(
    nursery: str, told: str, data: str, image: str, what: str, moment: str, number: int
) -> None:
    fork_launchers(nursery)
    killer = SystemKiller(moment, number)
    killer.install()
    asyncio.run(play_until(Path(told), Path(data), Path(image), what, killer))


async def check(data: Path, what: str, before: dict[str, str], after: dict[str, str]) -> None:
    """Also that what was not done can be done now."""
    async with open_service(Settings(data=data)) as services:
        async with asyncio.timeout(RUN_S):
            await services.reconciler.cleared()
        play = Play(services)
        found = await play.state()
        assert found in (before, after)
        if found != after:
            await play.act(what)()
            assert await play.state() == after
        if what == "remove":
            await play.unremove()
            assert await play.state() == before
        for space in await everything(services):
            await services.spaces.remove(LOCAL, space.space_id, force=True)
        for entry in await services.spaces.trashed(LOCAL):
            await services.spaces.purge(entry)
        assert leftovers(data) == []
        layers = data / "layers"
        assert not layers.exists() or {path.name for path in layers.iterdir()} <= {".lock"}
        assert str(data) + "/spaces" not in Path("/proc/mounts").read_text()


@pytest.mark.timeout(1800 if EXHAUSTIVE else 300)
@pytest.mark.parametrize("what", ["checkpoint", "rewind", "unrewind", "fork", "remove", "unremove"])
async def test_killed_at_its_steps(what: str, data: Path, tmp_path: Path) -> None:
    share_etc(data)
    image, told = busybox_image(data.parent if os.geteuid() else tmp_path), tmp_path / "told"

    async def until(moment: str, number: int) -> int:
        given = (str(told), str(data), str(image), what, moment, number)
        process = forked.Process(target=child, args=(nursery(), *given))
        process.start()
        await asyncio.to_thread(process.join, CHILD_S)
        assert process.exitcode in (0, -9)
        return int(process.exitcode)

    try:
        assert await until("", 0) == 0
        before, after, count = json.loads(told.read_text())
        assert 0 < count < MOST_STEPS
        await check(data, what, before, after)
        for number in every(23, range(1, count + 1), count // 3):
            for moment in ("before", "after") if EXHAUSTIVE else (("before", "after")[number % 2],):
                for name in ("carrel.db", "carrel.db-wal", "carrel.db-shm"):
                    (data / name).unlink(missing_ok=True)
                assert await until(moment, number) == -9
                await check(data, what, before, after)
    finally:
        await asyncio.to_thread(end_everything, data)
