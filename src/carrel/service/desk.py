"""One space at work: its tree and its sandbox, put together from its record."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.agents import Seats
from carrel.domain.collaborators import Machine
from carrel.domain.errors import StateConflict, TreeDamaged
from carrel.domain.runtimes import Bind, Runtime, Sandbox, SandboxSpec
from carrel.domain.spaces import Space
from carrel.domain.trees import Owner, Tree, TreeDriver, TreeMount


@dataclass(frozen=True)
class Desk:
    """Live handles of one space, for one use."""

    space: Space
    driver: TreeDriver
    runtime: Runtime
    tree: Tree
    sandbox: Sandbox


class Desks:
    def __init__(self, folder: Path, machine: Machine, seats: Seats | None = None) -> None:
        """`folder` holds a folder for each space."""
        self._folder = folder
        self._machine = machine
        self._seats = seats
        self._usable: set[str] = set()

    def folder(self, space_id: str) -> Path:
        return self._folder / space_id

    async def of(self, space: Space) -> Desk:
        """Raises `StateConflict` for a space that never got so far."""
        if space.owner is None or not space.base_id:
            raise StateConflict(
                f"{space.space_id} was never completed.", hint="Remove it.", state=str(space.state)
            )
        runtime = await self._machine.runtime(space.runtime)
        driver = await self._machine.driver(space.driver, runtime)
        tree = tree_of(space, self.folder(space.space_id))
        sandbox = Sandbox(runtime.name, self.spec(space), space.enforced)
        return Desk(space, driver, runtime, tree, sandbox)

    def spec(self, space: Space) -> SandboxSpec:
        assert space.owner is not None
        folder = self.folder(space.space_id)
        return SandboxSpec(
            sandbox_id=space.space_id,
            folder=folder,
            tree=Path(space.place) if space.place else folder / "project",
            owner=space.owner,
            network=space.network,
            limits=space.limits,
            binds=self.binds(space),
            env=space.env,
        )

    def binds(self, space: Space) -> tuple[Bind, ...]:
        """What its sandbox shows: its agent's, and its servers'."""
        # A server that was taken off the machine must not keep a space from starting.
        there = [path for path in space.shows if os.path.exists(path)]
        shows = tuple(Bind(Path(path), path) for path in there)
        if not space.agent or self._seats is None:
            return shows
        seen = self._seats.binds(self.folder(space.space_id), space.agent)
        targets = {bind.target for bind in seen}
        return (*seen, *(bind for bind in shows if bind.target not in targets))

    def seat(self, space_id: str, owner: Owner) -> None:
        """Makes the folders that a sandbox with an agent shows."""
        if self._seats is not None:
            self._seats.make(self.folder(space_id), owner)

    @asynccontextmanager
    async def mounted(self, desk: Desk) -> AsyncIterator[TreeMount]:
        """The tree for a runtime. One that lost its mount, after a reboot or by somebody's
        hand, gets it again."""
        await self.ensure(desk)
        try:
            context = desk.driver.mount(desk.tree)
            mount = context.__enter__()
        except TreeDamaged:
            await self.mend(desk)
            context = desk.driver.mount(desk.tree)
            mount = context.__enter__()
        try:
            yield mount
        finally:
            context.__exit__(None, None, None)

    async def ensure(self, desk: Desk) -> None:
        """Once in a daemon's life, unless it is found damaged."""
        if desk.space.space_id not in self._usable:
            await asyncio.to_thread(desk.driver.ensure, desk.tree)
            self._usable.add(desk.space.space_id)

    async def mend(self, desk: Desk) -> None:
        self._usable.discard(desk.space.space_id)
        await self.ensure(desk)

    def made(self, space_id: str) -> None:
        """A new tree needs no look."""
        self._usable.add(space_id)

    def forget(self, space_id: str) -> None:
        self._usable.discard(space_id)


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
