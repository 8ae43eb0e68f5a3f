"""Where an instance runs: in a sandbox of its own, or in that of a space."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from carrel.domain.collaborators import Machine, Users
from carrel.domain.errors import CarrelError, ProjectInvalid, SandboxUnavailable, StateConflict
from carrel.domain.ids import is_id
from carrel.domain.instances import Instance
from carrel.domain.runtimes import Bind, Command, Network, Runtime, Sandbox, SandboxSpec
from carrel.domain.server_adapter import Surroundings
from carrel.domain.trees import Owner, TreeMount
from carrel.lifecycle.table import LIVE
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpaces

STATE = ".instance"
"""A server's own folder, in its home."""
GRACE_S = 1.0
"""From asking a server to end to the kill: an idle one ends in a fifth of it, and one that is in
the middle of a call may never."""
INSIDE_HOME, WORKSPACE = "/home/user", "/workspace"


class Projects(Protocol):
    """Plain folders as sandboxes see them. Blocking."""

    def owner(self, path: Path) -> Owner:
        """Raises `ProjectError`s for what cannot be a project."""
        ...

    def mount(self, path: Path, owner: Owner) -> TreeMount:
        """Shows every entry of its owner's as this owner's. Raises `TreeUnavailable`."""
        ...


@dataclass(frozen=True)
class Place:
    """Live handles, for one use."""

    runtime: Runtime
    sandbox: Sandbox
    mounted: Callable[[], AbstractAsyncContextManager[TreeMount]]
    around: Surroundings

    @property
    def folder(self) -> Path:
        return self.sandbox.spec.folder


class Places:
    def __init__(
        self,
        folder: Path,
        machine: Machine,
        users: Users,
        projects: Projects,
        open_spaces: OpenSpaces,
        journal: Journal,
        remove: Callable[[Path], None],
    ) -> None:
        """`folder` holds a folder for each instance; `remove` takes one away, blocking."""
        self._folder = folder
        self._machine = machine
        self._users = users
        self._projects = projects
        self._open_spaces = open_spaces
        self._journal = journal
        self._remove = remove

    def folder(self, instance_id: str) -> Path:
        return self._folder / instance_id

    def left(self) -> list[str]:
        """Of which instances there is anything on the disk."""
        try:
            return [name for name in os.listdir(self._folder) if is_id(name)]
        except FileNotFoundError:
            return []

    def owner(self, instance: Instance) -> Owner:
        """Of its sandbox; forks of one warm process have that one's."""
        if not instance.confined:
            assert instance.project_owner is not None
            return instance.project_owner
        return self._users.take(instance.instance_id)

    def expect(self) -> None:
        """One is about to be started."""
        self._machine.expect()

    async def runtime(self, instance: Instance) -> Runtime:
        if instance.space_id:
            return (await self._open_spaces.of(self._journal.current(instance.space_id))).runtime
        return await self._machine.runtime(instance.runtime)

    async def of(self, instance: Instance, *, streams: bool = False) -> Place:
        """Of one whose record says where it is."""
        if instance.space_id:
            return await self._in_space(instance, streams)
        runtime = await self._machine.runtime(instance.runtime)
        sandbox = Sandbox(runtime.name, self._spec(instance), instance.enforced)
        return self._own(instance, runtime, sandbox, streams)

    async def make(self, instance: Instance, *, streams: bool = False) -> Place:
        """Sets its sandbox up. Raises what runtimes and trees raise."""
        if instance.space_id:
            return await self._in_space(instance, streams)
        place = await self.of(instance, streams=streams)
        if instance.state_at:
            await asyncio.to_thread(self._make_state, place)
        async with place.mounted() as mount:
            sandbox = await place.runtime.start(place.sandbox.spec, mount, wait=False)
        if not instance.state_at:
            await asyncio.to_thread(self._make_state, place)
        return self._own(instance, place.runtime, sandbox, streams)

    def make_folder(self, instance_id: str) -> None:
        """Nobody else's; a runtime whose sandboxes' users walk there lets each pass."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self.folder(instance_id).mkdir(mode=0o700)

    def _make_state(self, place: Place) -> None:
        """Before anything runs there that could have put something in its place."""
        state = place.around.state_path
        owner = place.sandbox.spec.owner
        with contextlib.suppress(FileExistsError):
            state.mkdir(mode=0o700)
            if os.geteuid() == 0:
                os.chown(state, owner.uid, owner.gid)

    def _spec(self, instance: Instance) -> SandboxSpec:
        assert instance.owner is not None
        path = Path(instance.project_path)
        return SandboxSpec(
            sandbox_id=instance.instance_id,
            folder=self.folder(instance.instance_id),
            tree=path,
            owner=instance.owner,
            network=instance.network,
            limits=instance.limits,
            binds=self._binds(instance),
            also_at=instance.project_path,
            account=instance.account,
        )

    def _binds(self, instance: Instance) -> tuple[Bind, ...]:
        # The project shows what is in it; a mount below its place would keep it from being there.
        project = instance.project_path
        outside = (one for one in instance.binds if not project or not _is_in(one, project))
        shown = tuple(Bind(Path(path), path) for path in outside)
        if not instance.state_at:
            return shown
        own = self.folder(instance.instance_id) / STATE
        return (*shown, Bind(own, instance.state_at, writable=True))

    def _own(self, instance: Instance, runtime: Runtime, sandbox: Sandbox, streams: bool) -> Place:
        spec, can = sandbox.spec, runtime.capabilities
        home = INSIDE_HOME if can.own_paths else str(spec.folder / "home")
        forked = bool(instance.state_at)

        @asynccontextmanager
        async def mounted() -> AsyncIterator[TreeMount]:
            yield await asyncio.to_thread(
                self._projects.mount, Path(instance.project_path), spec.owner
            )

        around = Surroundings(
            project=instance.project_path,
            state=instance.state_at or f"{home}/{STATE}",
            state_path=spec.folder / STATE if forked else spec.folder / "home" / STATE,
            private_network=can.private_network and instance.network is Network.NONE,
            alone=True,
            streams=streams,
            preloaded=forked,
        )
        return Place(runtime, sandbox, mounted, around)

    def is_open(self, instance: Instance) -> bool:
        """It can run there; not in a space that is stopped or gone."""
        if not instance.space_id:
            return True
        space = self._journal.get(instance.space_id)
        return space is not None and space.state in LIVE

    async def _in_space(self, instance: Instance, streams: bool) -> Place:
        space = self._journal.current(instance.space_id)
        if space.state not in LIVE:
            raise StateConflict(
                f"{space.name} is {space.state}; servers run in a space that is ready.",
                hint=f"Start it: carrel start {space.name}",
                state=str(space.state),
            )
        opened = await self._open_spaces.of(space)
        can = opened.runtime.capabilities
        home = INSIDE_HOME if can.own_paths else str(opened.sandbox.spec.folder / "home")
        own = f"{STATE}s/{instance.instance_id}"
        around = Surroundings(
            project=WORKSPACE if can.own_paths else str(opened.sandbox.spec.tree),
            state=f"{home}/{own}",
            state_path=opened.sandbox.spec.folder / "home" / own,
            private_network=can.private_network and space.network is Network.NONE,
            alone=False,
            streams=streams,
        )
        return Place(
            opened.runtime, opened.sandbox, lambda: self._open_spaces.at_work(opened), around
        )

    async def end(self, instance: Instance, runs: tuple[str, ...]) -> None:
        """Nothing of it is left afterwards; idempotent. In a space only these runs end, and
        what they left in its home goes."""
        if instance.space_id:
            await self._end_in_space(instance, runs)
        elif instance.owner is not None:
            place = await self.of(instance)
            await place.runtime.stop(place.sandbox, GRACE_S)
        await asyncio.to_thread(self._remove, self.folder(instance.instance_id))
        if instance.confined and not instance.space_id and not instance.state_at:
            # Looked for, too: a daemon may have ended before it wrote down whom it took.
            owner = instance.owner or self._users.find(instance.instance_id)
            if owner is not None:
                self._users.give_back(instance.instance_id, owner)

    async def stop(self, instance: Instance, runs: tuple[str, ...]) -> None:
        """Its processes; what it keeps stays."""
        place = await self.of(instance)
        if not instance.space_id:
            await place.runtime.stop(place.sandbox, GRACE_S)
            return
        for run_id in runs:
            await place.runtime.kill(place.sandbox, run_id)

    async def clear(self, instance: Instance) -> None:
        """The folders of its sandbox, which nothing runs in: where a mount was, one may lie."""
        for name in ("home", "tmp"):
            await asyncio.to_thread(self._remove, self.folder(instance.instance_id) / name)

    async def forget(self, instance_id: str) -> None:
        """The folder of one that has no record."""
        await asyncio.to_thread(self._remove, self.folder(instance_id))

    async def _end_in_space(self, instance: Instance, runs: tuple[str, ...]) -> None:
        space = self._journal.get(instance.space_id)
        if space is None or space.state not in LIVE:
            return
        place = await self._in_space(instance, streams=False)
        for run_id in runs:
            await place.runtime.kill(place.sandbox, run_id)
        state = place.around.state
        with contextlib.suppress(CarrelError):
            await self.within(place, ("rm", "-rf", "--", state))

    async def within(self, place: Place, argv: tuple[str, ...]) -> None:
        """A short command in its sandbox, where links lead nowhere else."""
        async with place.mounted() as mount:
            run = await place.runtime.run(
                place.sandbox, mount, Command(argv, cwd="/", timeout_s=GRACE_S * 10)
            )
        try:
            ended = await run.wait()
        finally:
            run.close()
        if ended.code != 0:
            raise SandboxUnavailable(f"`{argv[0]}` failed in the sandbox: {ended.reason}.")

    async def look(self, path: str) -> tuple[str, Owner]:
        """A project's real path and its owner. Raises `ProjectError`s."""
        if not os.path.isabs(path) or "\0" in path:
            raise ProjectInvalid("A project is named by an absolute path.", hint="Begin it with /.")
        return await asyncio.to_thread(self._look, path)

    def _look(self, path: str) -> tuple[str, Owner]:
        real = os.path.realpath(path)
        return real, self._projects.owner(Path(real))


def _is_in(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)
