"""What brings work about on a full disk: each is as before or as after, and goes on when there is
room. The disk has the project and all that is kept, and fills up at different points of the work.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.checkpoints import START
from carrel.domain.errors import CarrelError, InsufficientDisk, LandingHalfDone, TreeUnavailable
from carrel.domain.landing import LandRequest
from carrel.domain.queue import QueueState
from carrel.domain.review import ExportFormat, ExportRequest
from carrel.domain.spaces import Space
from carrel.linux.reserve import Reserve
from carrel.review.landing import GitLander
from carrel.review.takes import TreeTaker
from carrel.service.checkpoints import ForkRequest
from carrel.service.takes import TakeRequest
from carrel.trees.states import SpaceStates
from tests.faults.disks import make_room, take_room
from tests.faults.rig import ending, everything, needs_root, serving
from tests.launcher.disks import small_disk
from tests.review.conftest import Repository, land, work
from tests.sampling import beyond
from tests.service.rig import RUN_S, make, run
from tests.volumes import volume

pytestmark = [needs_root, pytest.mark.xdist_group("disk")]
SIZE = 144 << 20
MIB = 1 << 20
COUNT = 6
"""Files of a mebibyte, which nothing makes smaller: more than the reserve can give."""
LEFTS = (3, *beyond(0, 1, 2, 4, 6, 8, 11, 13, 15))
"""Mebibytes that are left on the disk …"""
ENOUGH = 10
"""With so many, not all of these are refused."""
MOMENTS = ("at once", "meanwhile")
"""… before anything is done, or when all is prepared and the files are to be written."""
WRITES = ((GitLander, "move"), (TreeTaker, "apply"), (SpaceStates, "put_back"))
LOOK = "find . -path ./.git -prune -o -type f -exec md5sum {} + | sort -k 2"
Act = Callable[[], Awaitable[None]]


@dataclass
class Stage:
    folder: Path
    """The disk."""
    services: Services
    repository: Repository
    desk: Space
    other: Space
    rewound: str = field(default="", init=False)
    """The last rewind, by which it is taken back."""

    async def work(self) -> None:
        """Other bytes each time, so that nothing of it is kept already."""
        script = "for n in 0 1 2 3 4; do head -c {0} /dev/urandom > f$n; done; rm -f f5;"
        script += " for n in 0 1 2 3 4; do head -c {0} /dev/urandom > new$n; done"
        await work(self.services, self.desk, script.format(MIB))

    async def state(self) -> dict[str, str]:
        """The files of all spaces, and what there is of the project."""
        found = {}
        for space in await everything(self.services):
            found[space.name] = (await run(self.services, space, LOOK))[1]
        place = self.repository.path
        look = subprocess.run(["sh", "-c", LOOK], cwd=place, capture_output=True, text=True)
        refs = self.repository.git("for-each-ref", "--format=%(refname) %(tree)")
        status = self.repository.git("status", "--porcelain")
        return found | {"project": look.stdout, "refs": refs, "status": status}

    def kept(self) -> list[str]:
        """Of checkpoints; and what a landing or an export has begun."""
        data = self.services.settings.data
        drafts = [*(data / "review").glob("*"), *(data / "exports").glob("*")]
        states = data / "spaces" / self.desk.space_id / "checkpoints"
        # The head says which of the files it knows already.
        known = (one for one in states.glob("**/*") if one.name not in ("files", "stamp", "head"))
        return sorted(map(str, [*drafts, *known]))

    async def full(self, act: Act, when: str, left: int) -> CarrelError | None:
        """What it raises while so much is left."""
        Reserve(self.services.settings.data / "reserve").take_back()
        with pytest.MonkeyPatch.context() as patch:
            if when == "at once":
                self.fill(left)
            else:
                for owner, name in WRITES:
                    patch.setattr(owner, name, self.filling(getattr(owner, name), left))
            try:
                await act()
            except CarrelError as error:
                return error
            finally:
                make_room(self.folder)
        return None

    def fill(self, left: int) -> None:
        take_room(self.folder)
        large = self.folder / "large"
        os.truncate(large, large.stat().st_size - left * MIB)

    def filling(self, real: Callable[..., Any], left: int) -> Callable[..., Any]:
        def late(*told: Any, **named: Any) -> Any:
            if not (self.folder / "large").exists():
                self.fill(left)
            return real(*told, **named)

        return late

    async def tried(self, act: Act, when: str, left: int) -> bool:
        """Whether it was done although the disk is full. If not, all is as before, or is so when
        there is room."""
        before = await self.state()
        error = await self.full(act, when, left)
        if error is None:
            return True
        if isinstance(error, LandingHalfDone):
            await self.services.landings.take_up()
            await self.services.takes.take_up()
            return await self.state() != before
        if isinstance(error, TreeUnavailable):
            await self.services.checkpoints.undo(error.hint.split()[-1])
            return act == self.unrewind
        assert isinstance(error, InsufficientDisk), error
        assert await self.state() == before, error
        return False

    # What is done, and taken back

    async def land(self) -> None:
        await land(self.services, self.desk, branch="main")

    async def queue(self) -> None:
        request = LandRequest(branch="main")
        [made] = await self.services.queue.add(LOCAL, [self.desk.space_id], request)
        async with asyncio.timeout(RUN_S):
            while True:
                known = {one.entry_id: one for one in await self.services.queue.list(LOCAL, 100)}
                if (found := known[made.entry_id]).ended:
                    break
                await asyncio.sleep(0.01)
        if found.state is not QueueState.LANDED:
            assert found.code == InsufficientDisk.code, found
            raise InsufficientDisk(found.reason)

    async def unland(self) -> None:
        await self.services.landings.undo(LOCAL, "")

    async def take(self) -> None:
        request = TakeRequest(self.desk.space_id, self.other.space_id, (".",))
        await self.services.takes.take(LOCAL, request)

    async def untake(self) -> None:
        known = await self.services.takes.list(10)
        await self.services.takes.undo(next(one.undo_id for one in known if one.undone_at is None))

    async def rewind(self) -> None:
        checkpoints = self.services.checkpoints
        self.rewound = (await checkpoints.rewind(LOCAL, self.desk.space_id, START)).checkpoint_id

    async def unrewind(self) -> None:
        await self.services.checkpoints.undo(self.rewound)

    async def fork(self) -> None:
        await self.services.checkpoints.fork(LOCAL, self.desk.space_id, ForkRequest())

    async def checkpoint(self) -> None:
        await self.services.checkpoints.take(LOCAL, self.desk.space_id, "")

    async def export(self, format: ExportFormat) -> None:
        exports = self.services.operations.review._exports
        request = ExportRequest(format)
        _, pieces = await exports.export(LOCAL, self.desk.space_id, request)
        assert await asyncio.to_thread(lambda: sum(map(len, pieces))) >= 10 * MIB


@asynccontextmanager
async def staged(kind: str) -> AsyncIterator[Stage]:
    with small_disk(SIZE) if kind == "tmpfs" else volume(kind) as folder:
        data, place = folder / "data", folder / "project"
        data.mkdir(mode=0o711)
        place.mkdir()
        repository = Repository(place)
        repository.git("init", "-q", "-b", "main")
        for number in range(COUNT):
            (place / f"f{number}").write_bytes(os.urandom(MIB))
        repository.commit("first")
        async with ending(data), serving(data) as services:
            desk, other = [await make(services, place, name=name) for name in ("desk", "other")]
            yield Stage(folder, services, repository, desk, other)


ALIKE = {
    **{"land": ("project", "desk"), "queue": ("project", "desk")},
    **{"take": ("other", "desk"), "rewind": ("desk", "other")},
}
"""Which have the same files afterwards."""


@pytest.mark.parametrize("kind", ["tmpfs", *beyond("xfs", "ext4")])
@pytest.mark.parametrize("left", LEFTS)
@pytest.mark.parametrize("what", ["queue", "take", "rewind", *beyond("land")])
async def test_there_and_back(what: str, left: int, kind: str) -> None:
    failed = set()
    async with staged(kind) as stage:
        do, back = getattr(stage, what), getattr(stage, f"un{what}".replace("queue", "land"))
        first, second = ALIKE[what]
        for when in MOMENTS:
            await stage.work()
            before = await stage.state()
            assert before[first] != before[second]
            if not await stage.tried(do, when, left):
                failed.add(when)
                await do()
            after = await stage.state()
            assert after[first] == after[second]
            if not await stage.tried(back, when, left):
                await back()
            assert await stage.state() == before
    assert "at once" in failed or left > ENOUGH


@pytest.mark.parametrize("what", ["fork", "patch", *beyond("checkpoint", "bundle", "tar")])
async def test_what_changes_no_file(what: str) -> None:
    """What is made is whole or is not there, and nothing of it is left."""
    async with staged("tmpfs") as stage:
        act = getattr(stage, what, None) or partial(stage.export, ExportFormat(what))
        for left in (1, *beyond(0, 3, 7)):
            await stage.work()
            kept, names = stage.kept(), sorted(await stage.state())
            before = await stage.services.store.checkpoints(stage.desk.space_id)
            assert not await stage.tried(act, "at once", left)
            found = await stage.services.store.checkpoints(stage.desk.space_id)
            # What a fork began with may be there, whole.
            assert stage.kept() == kept or len(found) > len(before)
            await act()
            now = await stage.state()
            assert sorted(now) == sorted([*names, *(["desk-2"] if what == "fork" else [])])
            if what == "fork":
                assert now.pop("desk-2") == now["desk"]
                await stage.services.spaces.remove(LOCAL, "desk-2", force=True)
