"""What goes because its time is over, or because there is too much of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from carrel.domain.access import LOCAL, Caller
from carrel.domain.cleaning import Action, Report
from carrel.domain.collaborators import Bases, TrashCan
from carrel.domain.errors import BaseInUse, CarrelError, UnexportedChanges
from carrel.domain.spaces import Space
from carrel.domain.storing import Store
from carrel.domain.trees import Base
from carrel.service.access import require_admin
from carrel.service.journal import Journal
from carrel.service.reconciling import Reconciler
from carrel.service.spaces import Spaces

Due = Callable[[Space, float], tuple[str, str] | None]
"""The verb (`stop` or `remove`) and why, or nothing; from the retention's rules."""


class Collector:
    def __init__(
        self,
        spaces: Spaces,
        journal: Journal,
        store: Store,
        bases: Bases,
        trash: TrashCan,
        reconciler: Reconciler,
        due: Due,
    ) -> None:
        self._spaces = spaces
        self._journal = journal
        self._store = store
        self._bases = bases
        self._trash = trash
        self._reconciler = reconciler
        self._due = due
        self.base_budget_bytes = 0
        """0: unused bases are only removed when a newer one of the same project is there."""

    async def run(self, caller: Caller, *, dry_run: bool = False) -> Report:
        require_admin(caller)
        actions = [] if dry_run else await self._reconciler.settle()
        actions += await self.retire(dry_run=dry_run)
        actions += await self._expire_trash(dry_run)
        actions += await self._drop_bases(dry_run)
        actions += await self._reconciler.sweep(dry_run=dry_run)
        return Report(dry_run, tuple(actions))

    async def retire(self, *, dry_run: bool = False) -> list[Action]:
        """Spaces whose time is over. Also done now and then by itself."""
        now = self._journal.clock()
        actions = []
        for space in self._journal.all():
            due = self._due(space, now)
            if due is not None:
                actions.append(await self._retire(space, due, dry_run))
        return actions

    async def _retire(self, space: Space, due: tuple[str, str], dry_run: bool) -> Action:
        verb, why = due
        if verb == "stop":
            return await _tried(
                Action(verb, space.space_id, why),
                dry_run,
                lambda: self._spaces.stop(LOCAL, space.space_id),
            )
        force = space.retention.discard
        if dry_run and not force and await self._spaces.unexported(space):
            return Action(verb, space.space_id, "it has unexported changes", done=False)
        return await _tried(
            Action(verb, space.space_id, why),
            dry_run,
            lambda: self._spaces.remove(LOCAL, space.space_id, force=force),
        )

    async def _expire_trash(self, dry_run: bool) -> list[Action]:
        entries = await self._store.trash()
        actions = []
        for entry in self._trash.expire(entries, self._journal.clock()):
            action = Action(
                "purge",
                entry.space.space_id,
                "too old, or beyond the trash's budget",
                bytes_freed=entry.bytes_kept,
            )
            actions.append(await _tried(action, dry_run, partial(self._spaces.purge, entry)))
        if not dry_run:
            why = "an interrupted removal left it"
            strays = await self._spaces.discard_strays()
            actions += [Action("remove", path, why) for path in strays]
        return actions

    async def _drop_bases(self, dry_run: bool) -> list[Action]:
        bases = await asyncio.to_thread(self._bases.list)
        used = {space.base_id for space in self._journal.all()}
        used |= {entry.space.base_id for entry in await self._store.trash()}
        actions = []
        for base in _superseded(bases, self.base_budget_bytes):
            if base.base_id in used:
                continue
            action = Action(
                "remove base", base.base_id, "nothing uses it", bytes_freed=base.size_bytes
            )
            done = await _tried(
                action, dry_run, partial(asyncio.to_thread, self._bases.remove, base.base_id)
            )
            actions.append(done)
        return [action for action in actions if action.why != _STANDING]


_STANDING = "another base stands on it"


async def _tried(action: Action, dry_run: bool, work: Callable[[], Awaitable[object]]) -> Action:
    if dry_run:
        return action
    try:
        await work()
    except UnexportedChanges:
        return Action(action.verb, action.target, "it has unexported changes", done=False)
    except BaseInUse:
        return Action(action.verb, action.target, _STANDING, done=False)
    except CarrelError as error:
        return Action(action.verb, action.target, str(error), done=False)
    return action


def _superseded(bases: list[Base], budget: int) -> list[Base]:
    """Oldest first: those of a project that has a newer one; with a budget, the rest too
    until it is met. The newest of a project makes its next one cheap."""
    ordered = sorted(bases, key=lambda base: base.created_at)
    newest = {base.project: base.base_id for base in ordered}
    old = [base for base in ordered if newest[base.project] != base.base_id]
    if not budget:
        return old
    excess = sum(base.size_bytes for base in ordered) - sum(base.size_bytes for base in old)
    for base in ordered:
        if excess <= budget:
            break
        if base not in old:
            old.append(base)
            excess -= base.size_bytes
    return old
