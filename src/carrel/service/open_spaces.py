"""One space at work: its tree and its sandbox, put together from its record."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.agents import AgentFolders
from carrel.domain.collaborators import Machine
from carrel.domain.errors import StateConflict, TreeDamaged
from carrel.domain.limits import Limits
from carrel.domain.projects import ProjectKind
from carrel.domain.runtimes import Bind, Command, Run, Runtime, Sandbox, SandboxSpec
from carrel.domain.spaces import Space
from carrel.domain.trees import Owner, Tree, TreeDriver, TreeMount


@dataclass(frozen=True)
class OpenSpace:
    """Live handles of one space, for one use."""

    space: Space
    driver: TreeDriver
    runtime: Runtime
    tree: Tree
    sandbox: Sandbox


@dataclass(frozen=True)
class OwnProgram:
    """This program, as every space has it."""

    command: tuple[str, ...] = ()
    binds: tuple[Bind, ...] = ()
    """What a sandbox has to show for it."""


class OpenSpaces:
    def __init__(
        self,
        folder: Path,
        machine: Machine,
        agent_folders: AgentFolders | None = None,
        program: OwnProgram | None = None,
    ) -> None:
        """`folder` holds a folder for each space."""
        self._program = program or OwnProgram()
        self._folder = folder
        self._machine = machine
        self._agent_folders = agent_folders
        self._usable: set[str] = set()

    def folder(self, space_id: str) -> Path:
        return self._folder / space_id

    async def of(self, space: Space) -> OpenSpace:
        """Raises `StateConflict` for a space that never got so far."""
        if space.owner is None or not space.base_id:
            raise StateConflict(
                f"{space.space_id} was never completed.", hint="Remove it.", state=str(space.state)
            )
        runtime = await self._machine.runtime(space.runtime)
        driver = await self._machine.driver(space.driver, runtime)
        tree = tree_of(space, self.folder(space.space_id))
        sandbox = Sandbox(runtime.name, self.spec(space), space.enforced)
        return OpenSpace(space, driver, runtime, tree, sandbox)

    def spec(self, space: Space) -> SandboxSpec:
        assert space.owner is not None
        folder = self.folder(space.space_id)
        return SandboxSpec(
            sandbox_id=space.space_id,
            folder=folder,
            tree=Path(space.place) if space.place else folder / "project",
            owner=space.owner,
            network=space.network,
            limits=limits_of(space),
            family=space.family or space.space_id,
            binds=self.binds(space),
            carrel=self._program.command,
            env=space.env,
            account=space.counts_for,
            also_at=_own_path(space),
        )

    def binds(self, space: Space) -> tuple[Bind, ...]:
        """What its sandbox shows: its agent's, its servers', and this program."""
        # A server that was taken off the machine must not keep a space from starting.
        there = [path for path in space.shows if os.path.exists(path)]
        shows = (*self._program.binds, *(Bind(Path(path), path) for path in there))
        seen: tuple[Bind, ...] = ()
        if space.agent and self._agent_folders is not None:
            seen = self._agent_folders.binds(self.folder(space.space_id), space.agent)
        found: dict[str, Bind] = {}
        for bind in (*seen, *shows):
            found.setdefault(bind.target, bind)
        return tuple(found.values())

    def make_agent_folders(self, space_id: str, owner: Owner) -> None:
        """Makes the folders that a sandbox with an agent shows."""
        if self._agent_folders is not None:
            self._agent_folders.make(self.folder(space_id), owner)

    @asynccontextmanager
    async def mounted(self, opened: OpenSpace) -> AsyncIterator[TreeMount]:
        """The tree for a runtime. One that lost its mount, after a reboot or by somebody's
        hand, gets it again."""
        await self.ensure(opened)
        try:
            context = opened.driver.mount(opened.tree)
            mount = context.__enter__()
        except TreeDamaged:
            await self.mend(opened)
            context = opened.driver.mount(opened.tree)
            mount = context.__enter__()
        try:
            yield mount
        except TreeDamaged:
            # The launcher that held the mount is gone: to be looked at by the next who comes.
            self.forget(opened.space.space_id)
            raise
        finally:
            context.__exit__(None, None, None)

    async def run(self, opened: OpenSpace, command: Command) -> Run:
        """A command in its sandbox. A tree that turns out to be without its mount gets it again:
        nothing has run then."""
        try:
            async with self.mounted(opened) as mount:
                return await opened.runtime.run(opened.sandbox, mount, command)
        except TreeDamaged:
            async with self.mounted(opened) as mount:
                return await opened.runtime.run(opened.sandbox, mount, command)

    async def ensure(self, opened: OpenSpace) -> None:
        """Once in a daemon's life, unless it is found damaged."""
        if opened.space.space_id not in self._usable:
            await asyncio.to_thread(opened.driver.ensure, opened.tree)
            self._usable.add(opened.space.space_id)

    async def mend(self, opened: OpenSpace) -> None:
        """Looks at it again: its mount may have gone with what held it."""
        self._usable.discard(opened.space.space_id)
        await self.ensure(opened)

    def made(self, space_id: str) -> None:
        """A new tree needs no look."""
        self._usable.add(space_id)

    def forget(self, space_id: str) -> None:
        self._usable.discard(space_id)


def _own_path(space: Space) -> str:
    """Where its project is on the host. What names it by that path, in scripts of a virtual
    environment say, finds the tree there."""
    if space.guest:
        # Who knows it by a name in `project_roots` need not know where that is.
        return ""
    if space.place:
        return space.place
    return space.project.location if space.project.kind is ProjectKind.FOLDER else ""


def limits_of(space: Space) -> Limits:
    """What was asked for, and the disk limit of those who asked for none."""
    if space.limits.disk_bytes is not None or not space.default_disk_bytes:
        return space.limits
    return dataclasses.replace(space.limits, disk_bytes=space.default_disk_bytes)


def tree_of(space: Space, folder: Path) -> Tree:
    assert space.owner is not None
    return Tree(
        tree_id=space.space_id,
        driver=space.driver,
        base_id=space.base_id,
        folder=folder,
        owner=space.owner,
        created_ns=space.tree_created_ns,
    )
