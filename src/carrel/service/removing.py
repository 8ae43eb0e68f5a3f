"""The end of a space: stopped, its changes kept for a while, everything of it gone.

Every step copes with a space that is half made, or half gone, so the same steps serve a
removal, an undone creation, and what a crash has left.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path

from carrel.domain.collaborators import TrashCan, Users
from carrel.domain.errors import (
    CarrelError,
    StateConflict,
    TooLarge,
    TreeDamaged,
    TreeNotFound,
    UnexportedChanges,
)
from carrel.domain.spaces import AUTO, Removal, Space, SpaceState
from carrel.domain.storing import Forget
from carrel.domain.trees import Change, Owner
from carrel.service.bookkeeping import is_bookkeeping
from carrel.service.desk import Desk, Desks
from carrel.service.journal import Journal, Operation, problem_of

OPERATION = "remove"
STOP, KEEP, TREE, FOLDER = "stop", "keep", "tree", "folder"
STEPS = (STOP, KEEP, TREE, FOLDER)
UNDO_GRACE_S = 0.5
"""For what runs in a space that goes anyway; those who stop it with care ask for more."""
SHOWN_CHANGES = 20
"""In the answer that refuses a removal; `carrel show` has no more room either."""

RemoveFolder = Callable[[Path], None]


@dataclasses.dataclass(frozen=True)
class Remover:
    users: Users
    desks: Desks
    journal: Journal
    trash: TrashCan
    remove_folder: RemoveFolder
    """Blocking, idempotent, follows no symlink."""

    async def stop(self, space_id: str, grace_s: float, operation: Operation) -> Space:
        """Ready or running → stopped."""
        space, event = self.journal.moved(space_id, SpaceState.STOPPING)
        await operation.begin(STOP, space, event)
        return await self.carry_on_stop(space_id, grace_s, operation)

    async def carry_on_stop(self, space_id: str, grace_s: float, operation: Operation) -> Space:
        try:
            desk = await self.desks.of(self.journal.current(space_id))
            await desk.runtime.stop(desk.sandbox, grace_s)
        except Exception as error:
            problem = problem_of(STOP, error)
            records = self.journal.moved(space_id, SpaceState.FAILED, problem=problem)
            await operation.fail(error, *records)
            raise
        now = self.journal.clock()
        stopped, event = self.journal.moved(space_id, SpaceState.STOPPED, stopped_at=now)
        await operation.end(stopped, event)
        return stopped

    async def check_unexported(self, space: Space) -> None:
        """Raises `UnexportedChanges` when something would be lost."""
        changes = await self.changes(space)
        if changes:
            shown = [f"{change.kind} {change.path}" for change in changes[:SHOWN_CHANGES]]
            raise UnexportedChanges(
                f"{space.name} has {_count(len(changes))} that nobody took out.",
                hint="Copy out what you need, or remove it with --force; "
                "`carrel undelete` brings it back for a while.",
                changes=len(changes),
                first=shown,
            )

    async def changes(self, space: Space) -> list[Change]:
        """What somebody would miss: git's own bookkeeping is not among it."""
        try:
            desk = await self.desks.of(space)
        except StateConflict:
            return []
        try:
            await self.desks.ensure(desk)
            return await asyncio.to_thread(_missed, desk)
        except (TreeNotFound, TreeDamaged):
            # Somebody took it away already; there is nothing left to lose.
            return []

    async def remove(self, space_id: str, operation: Operation) -> Removal:
        """A space that is stopped, failed or was never completed."""
        await operation.begin(KEEP, *self.journal.moved(space_id, SpaceState.REMOVING))
        return await self.carry_on_remove(space_id, operation)

    async def carry_on_remove(
        self, space_id: str, operation: Operation, *, kept: bool = False
    ) -> Removal:
        """`kept`: the changes are in the trash already, and the tree may be half gone."""
        space = self.journal.current(space_id)
        removal = Removal(space_id, 0)
        try:
            if not kept:
                removal = await self._keep(space)
            await operation.begin(TREE, *([removal.kept] if removal.kept is not None else []))
            await self._drop(space)
            await operation.begin(FOLDER)
            await asyncio.to_thread(self._clear, space)
        except Exception as error:
            problem = problem_of(operation.step, error)
            records = self.journal.moved(space_id, SpaceState.FAILED, problem=problem)
            await operation.fail(error, *records)
            raise
        await self._gone(space_id, operation)
        return removal

    async def undo(self, space_id: str, operation: Operation, error: BaseException) -> None:
        """A creation that failed: everything goes, whatever happens to the caller."""
        await asyncio.shield(self._undo(space_id, operation, error))

    async def _undo(self, space_id: str, operation: Operation, error: BaseException) -> None:
        problem = problem_of(operation.step, error)
        space, event = self.journal.moved(space_id, SpaceState.REMOVING, problem=problem)
        await operation.fail(error, space, event)
        await self.carry_on_undo(space)

    async def carry_on_undo(self, space: Space) -> None:
        undoing = self.journal.operation(space.space_id, "undo")
        await undoing.begin(TREE)
        try:
            await self._drop(space)
            await undoing.begin(FOLDER)
            await asyncio.to_thread(self._clear, space)
        except Exception as second:
            await undoing.fail(second, *self.journal.moved(space.space_id, SpaceState.FAILED))
            return
        await self._gone(space.space_id, undoing)

    async def _keep(self, space: Space) -> Removal:
        """What `undelete` needs. A removal goes on when nothing can be kept, and says so."""
        if space.owner is None or not space.base_id or space.transient:
            return Removal(space.space_id, 0)
        desk = await self.desks.of(space)
        try:
            await self.desks.ensure(desk)
            changes = await asyncio.to_thread(_missed, desk)
            if not changes:
                return Removal(space.space_id, 0)
            kept = await asyncio.to_thread(self.trash.keep, space, desk.tree, desk.driver)
        except TooLarge as error:
            return Removal(space.space_id, len(changes), lost=error.message)
        except CarrelError as error:
            # A tree that cannot be read any more has nothing to keep, and must be removable.
            return Removal(space.space_id, 0, lost=f"The changes could not be read: {error}")
        return Removal(space.space_id, len(changes), kept)

    async def _drop(self, space: Space) -> None:
        """The sandbox and the tree, as far as they were made."""
        self.desks.forget(space.space_id)
        if not space.base_id or AUTO in (space.driver, space.runtime):
            return
        owner = await asyncio.to_thread(self._owner, space)
        if owner is None:
            # Whatever is made is made for somebody.
            return
        desk = await self.desks.of(dataclasses.replace(space, owner=owner))
        await desk.runtime.stop(desk.sandbox, UNDO_GRACE_S)
        await asyncio.to_thread(desk.driver.drop, desk.tree)

    def _clear(self, space: Space) -> None:
        """The user is given back last: until then nobody else gets it."""
        self.remove_folder(self.desks.folder(space.space_id))
        owner = self._owner(space)
        if owner is not None:
            self.users.give_back(space.space_id, owner)

    def _owner(self, space: Space) -> Owner | None:
        """Also when a daemon ended before it wrote down whom it took. A full disk has no room
        for taking one only to give it back. Blocking."""
        return space.owner or self.users.find(space.space_id)

    async def _gone(self, space_id: str, operation: Operation) -> None:
        now = self.journal.clock()
        space, event = self.journal.moved(space_id, SpaceState.REMOVED, removed_at=now)
        gone = (space_id,) if space.transient else ()
        forgotten = Forget(steps_of=space_id, claims_of=space_id, runs_of=space_id, spaces=gone)
        await operation.end(space, event, forgotten)


def _missed(desk: Desk) -> list[Change]:
    if desk.driver.capabilities.stays:
        return []
    return [one for one in desk.driver.changes(desk.tree) if not is_bookkeeping(one.path)]


def _count(changes: int) -> str:
    return "1 change" if changes == 1 else f"{changes} changes"
