"""What goes because its time is over, or because there is too much of it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial

from carrel.domain.access import LOCAL, Caller, begin_for
from carrel.domain.cleanup import Action, Report
from carrel.domain.collaborators import Bases, Disk, Downloads, TrashCan
from carrel.domain.errors import BaseInUse, CarrelError, UnexportedChanges
from carrel.domain.events import EventType
from carrel.domain.images import Images
from carrel.domain.runtimes import LimitHit, LimitsChanged
from carrel.domain.spaces import Space
from carrel.domain.store import Record, Store
from carrel.domain.trees import Base
from carrel.service.access import require_admin
from carrel.service.journal import Journal
from carrel.service.reconciler import Reconciler
from carrel.service.shared import Shared
from carrel.service.spaces import Spaces

Why = tuple[str, str]
"""The verb (`stop` or `remove`) and why."""
Due = Callable[[Space, float], Why | None]
"""From the retention's rules."""
RARELY, LONGEST_S = 50, 3600.0
"""A space that could not go is tried again after so many times what that took, an hour at most:
all of its files are compared each time."""
_log = logging.getLogger("carrel")


class Collector:
    def __init__(
        self,
        spaces: Spaces,
        journal: Journal,
        store: Store,
        bases: Bases,
        trash: TrashCan,
        downloads: Downloads,
        reconciler: Reconciler,
        due: Due,
        shared: Shared,
    ) -> None:
        self._spaces = spaces
        self._journal = journal
        self._store = store
        self._bases = bases
        self._trash = trash
        self._downloads = downloads
        self._reconciler = reconciler
        self._due = due
        self._going = shared.bases_going
        self._retiring: dict[str, asyncio.Task[None]] = {}
        """By account: one task at a time for each."""
        self._refused: dict[str, float] = {}
        """Spaces that could not go, for unexported changes as a rule, and when to try again."""
        self.base_budget_bytes = 0
        """0: no bound for unused bases."""
        self.base_age_s = 0.0
        """Unused bases go so long after a space was last made from them; 0: never by age."""
        self.images: Images | None = None
        self.image_budget_bytes = 0
        """0: no bound for unused images."""

    async def run(
        self, caller: Caller, *, dry_run: bool = False, all_bases: bool = False
    ) -> Report:
        """With `all_bases`, every base and every download goes that nothing uses, whatever its
        age."""
        require_admin(caller)
        actions = [] if dry_run else await self._reconciler.settle()
        actions += await self.retire(dry_run=dry_run)
        actions += await self._expire_trash(dry_run)
        actions += await self._drop_bases(dry_run, all_bases)
        actions += await self._drop_images(dry_run)
        actions += await self._drop_downloads(dry_run, all_bases)
        actions += await self._reconciler.sweep(dry_run=dry_run)
        return Report(dry_run, tuple(actions))

    async def retire(self, *, dry_run: bool = False) -> list[Action]:
        """Spaces whose time is over."""
        now = self._journal.clock()
        due = [(one, why) for one in self._journal.all() if (why := self._due(one, now))]
        return [await self._retire(space, why, dry_run) for space, why in due]

    def begin_retiring(self) -> None:
        """The same, now and then and by itself. Spaces of one account go one after the other, in
        its share: comparing a million files keeps nobody else's from going."""
        now, clock = self._journal.clock(), time.monotonic()
        due: defaultdict[str, list[tuple[Space, Why]]] = defaultdict(list)
        self._refused = {key: at for key, at in self._refused.items() if at > clock}
        for space in self._journal.all():
            why = self._due(space, now)
            if why is not None and space.space_id not in self._refused:
                due[space.counts_for].append((space, why))
        for whose, spaces in due.items():
            if whose not in self._retiring:
                account = spaces[0][0].account or LOCAL.name
                task = self._retiring[whose] = begin_for(account, self._retire_each(spaces))
                task.add_done_callback(partial(self._retired, whose))

    async def _retire_each(self, spaces: list[tuple[Space, Why]]) -> None:
        for space, why in spaces:
            await self._try_to_retire(space, why)

    def _retired(self, whose: str, _task: asyncio.Task[None]) -> None:
        del self._retiring[whose]

    async def _try_to_retire(self, space: Space, why: Why) -> None:
        began, action = time.monotonic(), None
        try:
            action = await self._retire(space, why, dry_run=False)
        except Exception:
            _log.exception("the space %s could not go by itself", space.space_id)
        if action is None or not action.done:
            now = time.monotonic()
            pause_s = min(LONGEST_S, max(EVERY_S, RARELY * (now - began)))
            self._refused[space.space_id] = now + pause_s

    async def settled(self) -> None:
        """What goes by itself now is gone, or could not go."""
        while self._retiring:
            await asyncio.wait(list(self._retiring.values()))

    async def close(self) -> None:
        for task in self._retiring.values():
            task.cancel()
        await self.settled()

    async def tidy(self) -> list[Action]:
        """What is too old, or too much: trash, bases, downloads. Done by itself every hour."""
        done = await self._expire_trash(dry_run=False) + await self._drop_bases(dry_run=False)
        done += await self._drop_images(dry_run=False)
        return done + await self._drop_downloads(dry_run=False)

    async def _retire(self, space: Space, due: Why, dry_run: bool) -> Action:
        verb, why = due
        if verb == "stop":
            return await _tried(
                Action(verb, space.space_id, why),
                dry_run,
                lambda: self._spaces.stop(LOCAL, space.space_id),
            )
        force = space.retention.discard
        try:
            if dry_run and not force and await self._spaces.unexported(space):
                return Action(verb, space.space_id, "it has unexported changes", done=False)
        except CarrelError as error:
            return Action(verb, space.space_id, str(error), done=False)
        return await _tried(
            Action(verb, space.space_id, why),
            dry_run,
            lambda: self._spaces.remove(LOCAL, space.space_id, force=force),
        )

    async def _expire_trash(self, dry_run: bool) -> list[Action]:
        if not dry_run:
            await self._spaces.lighten_trash()
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

    async def _drop_bases(self, dry_run: bool, everything: bool = False) -> list[Action]:
        bases = await asyncio.to_thread(self._bases.list)
        actions = []
        for base in await self._dispensable(bases, everything):
            if base.base_id in await self._used(bases):
                continue
            action = Action(
                "remove base", base.base_id, "nothing uses it", bytes_freed=base.size_bytes
            )
            # From here on, whoever makes a space looks for another.
            self._going.add(base.base_id)
            try:
                work = partial(asyncio.to_thread, self._bases.remove, base.base_id)
                actions.append(await _tried(action, dry_run, work))
            finally:
                self._going.discard(base.base_id)
        return [action for action in actions if action.why != _STANDING]

    async def _drop_images(self, dry_run: bool) -> list[Action]:
        if self.images is None or not self.image_budget_bytes:
            return []
        budget = self.image_budget_bytes
        gone = await asyncio.to_thread(self.images.prune, budget, pretend=dry_run)
        why = "nothing uses it, and images take too much"
        return [
            Action(
                "remove image",
                (*image.names, image.image_id)[0],
                why,
                bytes_freed=image.size_bytes,
            )
            for image in gone
        ]

    async def _drop_downloads(self, dry_run: bool, everything: bool = False) -> list[Action]:
        used = {space.downloads for space in self._journal.all()}
        return await asyncio.to_thread(
            self._downloads.tidy, used, everything=everything, dry_run=dry_run
        )

    async def _used(self, bases: list[Base]) -> set[str]:
        """By spaces, or by what is in the trash; with the bases that those stand on."""
        used = {space.base_id for space in self._journal.all()}
        used |= {entry.space.base_id for entry in await self._store.trash()}
        used |= {space.base_id for space in self._journal.all()}
        below = [base.layers for base in bases if base.base_id in used]
        return used | {layer.parent.name for layers in below for layer in layers}

    async def _dispensable(self, bases: list[Base], everything: bool) -> list[Base]:
        """Those that may go if nothing uses them. The newest first: none of them stands on one
        that is newer."""
        chosen = {base.base_id for base in _superseded(bases, self.base_budget_bytes)}
        if self.base_age_s:
            before = self._journal.clock() - self.base_age_s
            ages = await asyncio.to_thread(_last_used, self._bases, bases)
            chosen |= {base_id for base_id, used_at in ages.items() if used_at < before}
        found = [base for base in bases if everything or base.base_id in chosen]
        return sorted(found, key=lambda base: base.created_at, reverse=True)


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


def _last_used(store: Bases, bases: list[Base]) -> dict[str, float]:
    """Blocking."""
    return {base.base_id: store.used_at(base) for base in bases}


# What the daemon does by itself, now and then.

EVERY_S = 30.0
"""The health of all spaces is looked at so often."""
TIDY_S = 3600.0
"""Trash and unused bases are looked through so often: that reads them all."""


class Watch:
    """One task for all spaces. What goes wrong in it is told, and tried again next time."""

    def __init__(
        self, journal: Journal, collector: Collector, reconciler: Reconciler, disk: Disk
    ) -> None:
        self._journal = journal
        self._collector = collector
        self._reconciler = reconciler
        self._disk = disk
        self._tidied = time.monotonic()
        self._writes: set[asyncio.Task[None]] = set()

    def limit_hit(self, hit: LimitHit) -> None:
        """Becomes an event of the space; called on the event loop."""
        data = {"kind": str(hit.kind), "figure": hit.figure, "message": hit.message}
        if hit.run_id is not None:
            data["run_id"] = hit.run_id
        self._write(self._journal.event(EventType.LIMIT_HIT, hit.sandbox_id, **data))

    def limits_changed(self, change: LimitsChanged) -> None:
        """The record says how limits are enforced now, and an event that they changed. An
        instance's record says it with every start."""
        before = self._journal.get(change.sandbox_id)
        if before is None or before.enforced == change.limits:
            return
        space = self._journal.amend(change.sandbox_id, enforced=change.limits)
        enforced = [dataclasses.asdict(one) for one in change.limits]
        self._write(
            space,
            self._journal.event(EventType.SPACE_UPDATED, space.space_id, enforced=enforced),
        )

    def _write(self, *records: Record) -> None:
        task = asyncio.create_task(self._journal.write(*records))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _take_back(self) -> None:
        """A daemon that ends leaves nothing that is still writing."""
        work = asyncio.ensure_future(asyncio.to_thread(self._disk.take_back))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            raise

    async def _tidy(self) -> None:
        now = time.monotonic()
        if now - self._tidied >= TIDY_S:
            self._tidied = now
            await self._collector.tidy()

    async def run(self, every_s: float = EVERY_S) -> None:
        """Until it is cancelled. Begins with a look for what a crash has left."""
        first = True
        while True:
            try:
                await self._take_back()
                if first:
                    await self._reconciler.sweep()
                    await self._reconciler.watch()
                await self._reconciler.settle(wait=False)
                await self._reconciler.check()
                self._collector.begin_retiring()
                await self._tidy()
            except Exception:
                _log.exception("the regular look at all spaces failed")
            first = False
            await asyncio.sleep(every_s)
