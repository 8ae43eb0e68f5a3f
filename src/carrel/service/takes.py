"""Takes: people bring files of one space's work into another space, and take that back.

A take is written down before the other space's files are touched and after. What a daemon that died
in between had begun is finished, or is taken back where somebody changed the files since.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from carrel.domain.access import Caller
from carrel.domain.errors import (
    CarrelError,
    MessageInvalid,
    NotUndoable,
    SpaceNotFound,
    StateConflict,
    TakeRefused,
    TooLarge,
)
from carrel.domain.events import EventType, NewEvent
from carrel.domain.ids import new_id
from carrel.domain.spaces import Space
from carrel.domain.store import Store
from carrel.domain.takes import TakeChange, Taker, TakeSide, UndoKind, UndoRecord, UndoState
from carrel.domain.trees import Change, ReviewQuery, Skipped
from carrel.lifecycle.table import LEAVING, SETTLED
from carrel.service.files import WriteRoom
from carrel.service.helpers import MOST, wanted_changes
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpace, OpenSpaces
from carrel.service.shared import Shared, files_key
from carrel.service.spaces import Spaces
from carrel.service.undo import Undoables

MOST_BYTES = 1 << 30
"""Of one take: both states of its files are kept."""
MOST_KEPT = 50
"""Takes that can be taken back."""
_LOOKED_AT = 1000
_BEGUN = (UndoState.BEGUN, UndoState.UNDOING)


@dataclass(frozen=True)
class TakeRequest:
    """Spaces by their names or ids."""

    source: str
    target: str
    paths: tuple[str, ...]
    force: bool = False


class Takes(Undoables[UndoRecord]):
    done_name = UndoState.DONE.name
    refusal = TakeRefused

    def __init__(
        self,
        store: Store,
        journal: Journal,
        spaces: Spaces,
        open_spaces: OpenSpaces,
        shared: Shared,
        taker: Taker,
    ) -> None:
        super().__init__(store)
        self._journal = journal
        self._spaces = spaces
        self._open_spaces = open_spaces
        self._locks = shared.locks
        self._tasks = shared.tasks
        self._taker = taker

    async def take(self, caller: Caller, request: TakeRequest) -> tuple[UndoRecord, TakeChange]:
        """Who may see both spaces may. Raises `TakeRefused`, `PathNotFound` for what the source has
        not changed, `TooLarge`."""
        source = await self._spaces.existing(caller, request.source)
        target = await self._spaces.existing(caller, request.target)
        if source.space_id == target.space_id:
            raise MessageInvalid("Both are the same space.", hint="Name another one: --into SPACE")
        if not request.paths:
            raise MessageInvalid("No file is named.", hint="Name files or folders.")
        return await self._tasks.see_through(self._take(caller, source, target, request))

    async def _take(
        self, caller: Caller, source: Space, target: Space, request: TakeRequest
    ) -> tuple[UndoRecord, TakeChange]:
        async with self._alone(target, source) as (theirs, ours):
            if ours.driver.capabilities.stays:
                raise StateConflict(
                    f"{source.name} works in a folder itself, and there is no copy of how it was.",
                    hint="Copy files out of that folder: carrel cp",
                    state=str(source.state),
                )
            changes = await self._wanted(caller, source, request.paths)
            room = WriteRoom(caller)
            await room.enter(theirs)
            taking = await self._spaces.taking(caller, ours, "")
            taking.skips(Skipped(".git", "commits are not taken"))
            change = await self._open_spaces.look(
                ours,
                lambda: self._taker.prepare(
                    _side(ours), _side(theirs), changes, taking.sends, force=request.force
                ),
                theirs,
            )
            made = UndoRecord(
                *(new_id("tk"), UndoKind.TAKE, target.space_id, target.name),
                created_at=self._journal.clock(),
                files=len(change.files),
                details={
                    **{"source": source.space_id, "kept": change.kept},
                    **{"before": change.before, "after": change.after},
                },
            )
            try:
                await asyncio.to_thread(room.take, sum(one.size for one in changes))
                await self._store.write(made)
            except BaseException:
                await asyncio.to_thread(self._taker.forget, change.kept)
                raise
            done = await self._do(made)
            await asyncio.to_thread(self._spaces.took, ours, taking.done())
            await self._note_active(target)
        await self._forget_old()
        return done, change

    async def _wanted(
        self, caller: Caller, source: Space, paths: Sequence[str]
    ) -> Sequence[Change]:
        """What git ignores is taken where it is named itself, not with the folder that it is in."""
        found = await self._spaces.review(caller, source.space_id, ReviewQuery(most=MOST))
        every = await self._spaces.review(
            caller, source.space_id, ReviewQuery(most=MOST, ignored=True)
        )
        if found.total > MOST or every.total > MOST:
            raise TooLarge(
                f"{source.name} has {every.total:,} changes; up to {MOST:,} can be looked through.",
                hint="Copy what is wanted: carrel cp",
            )
        named = {path.removeprefix("./").rstrip("/") for path in paths}
        known = {one.path for one in found.listed}
        extra = [one for one in every.listed if one.path in named and one.path not in known]
        hint = f"`carrel changes {source.name}` lists what it has."
        changes = wanted_changes([*found.listed, *extra], paths, hint)
        if sum(one.size for one in changes) > MOST_BYTES:
            raise TooLarge(
                f"These files have more than {MOST_BYTES >> 30} GiB.", hint="Take fewer at once."
            )
        return changes

    async def _to(self, one: UndoRecord, *, back: bool) -> None:
        target = await self._side_of(one)
        await asyncio.to_thread(self._taker.apply, target, _change(one, back))

    async def _settled(self, one: UndoRecord, *, back: bool) -> bool:
        target = await self._side_of(one)
        return await asyncio.to_thread(self._taker.settle, target, _change(one, back))

    async def _side_of(self, one: UndoRecord) -> TakeSide:
        return _side(await self._open(one.space_id))

    async def _forget(self, one: UndoRecord) -> None:
        await asyncio.to_thread(self._taker.forget, one.details["kept"])

    async def _done(self, one: UndoRecord) -> UndoRecord:
        done = dataclasses.replace(one, state=UndoState.DONE)
        told = {
            "take_id": done.undo_id,
            "from": done.details["source"],
            "files": done.files,
        }
        await self._store.write(done, NewEvent(EventType.TAKEN, done.space_id, told))
        return done

    async def list(self, limit: int) -> Sequence[UndoRecord]:
        """The newest first. Who may see them is the caller's matter."""
        return await self._store.undo_records(limit=limit)

    def is_open(self, record: UndoRecord) -> bool:
        """Whether it is not taken back, and its space is there."""
        done = record.state in (UndoState.DONE, UndoState.UNDOING)
        return done and self._journal.staying(record.space_id) is not None

    async def undo(self, undo_id: str) -> UndoRecord:
        """Raises `NotUndoable`, `LandingHalfDone`. Who may is the caller's matter."""
        return await self._tasks.see_through(self._undo(await self._found(undo_id)))

    async def _undo(self, record: UndoRecord) -> UndoRecord:
        space = self._journal.get(record.space_id)
        if space is None or self._journal.staying(record.space_id) is None:
            raise NotUndoable(f"{record.name} is gone.", hint="`carrel undo --list` lists others.")
        async with self._alone(space):
            # Another undo may have been first.
            record = await self._found(record.undo_id)
            await self._spaces.forget_taken(record.details["source"])
            undone = await self._take_back(record)
            await self._note_active(space)
            return undone

    def _in_the_way(self, one: UndoRecord, error: CarrelError) -> CarrelError:
        return NotUndoable(
            f"The take into {one.name} cannot be taken back: {error.message}", hint=error.hint
        )

    async def _undone(self, one: UndoRecord) -> UndoRecord:
        now = self._journal.clock()
        undone = dataclasses.replace(one, state=UndoState.UNDONE, undone_at=now)
        told = {"take_id": one.undo_id}
        await self._store.write(undone, NewEvent(EventType.TAKE_UNDONE, one.space_id, told))
        await self._forget(one)
        return undone

    async def _found(self, undo_id: str) -> UndoRecord:
        for one in await self._store.undo_records(limit=_LOOKED_AT):
            if one.undo_id != undo_id:
                continue
            if one.state in (UndoState.DONE, UndoState.UNDOING):
                return one
            raise NotUndoable(
                f"The take {undo_id} was taken back already.",
                hint="`carrel undo --list` lists them.",
            )
        raise NotUndoable(
            f"There is no take {undo_id[:64]!r}.", hint="`carrel undo --list` lists them."
        )

    async def take_up(self) -> None:
        """What a daemon that died was about to do is done, or is not."""
        known = await self._store.undo_records(limit=_LOOKED_AT)
        begun = [one for one in known if one.state in _BEGUN]
        kept = {one.details["kept"] for one in (*known[:MOST_KEPT], *begun)}
        await asyncio.to_thread(self._taker.sweep, kept)
        for one in begun:
            space = self._journal.get(one.space_id)
            # Its disk may be full; who takes or undoes there next looks again.
            with contextlib.suppress(CarrelError, OSError):
                if space is None or self._journal.staying(one.space_id) is None:
                    await self._store.write(dataclasses.replace(one, state=UndoState.UNDONE))
                    continue
                async with self._alone(space):
                    pass

    @contextlib.asynccontextmanager
    async def _alone(self, target: Space, *sources: Space) -> AsyncIterator[Sequence[OpenSpace]]:
        """One take into a space at a time; none of the spaces is stopped, removed or rewound
        meanwhile, and nothing is half done in the target."""
        async with contextlib.AsyncExitStack() as held:
            space_ids = sorted({one.space_id for one in (target, *sources)})
            for space_id in space_ids:
                await held.enter_async_context(self._locks.shared(space_id))
            await held.enter_async_context(self._locks.alone(f"take\0{target.space_id}"))
            for space_id in space_ids:
                await held.enter_async_context(self._locks.alone(files_key(space_id)))
            opened = [await self._open(one.space_id) for one in (target, *sources)]
            for one in await self._store.undo_records(limit=_LOOKED_AT):
                if one.state in _BEGUN and one.space_id == target.space_id:
                    await self._settle(one)
            yield opened

    async def _open(self, space_id: str) -> OpenSpace:
        space = self._journal.get(space_id)
        if space is None:
            raise SpaceNotFound(f"{space_id} was removed.", hint="`carrel ls` lists spaces.")
        if space.state not in SETTLED - LEAVING:
            raise StateConflict(
                f"{space.name} is {space.state}.", hint="Try again soon.", state=str(space.state)
            )
        opened = await self._open_spaces.of(space)
        await self._open_spaces.ensure(opened)
        return opened

    async def _note_active(self, space: Space) -> None:
        now = self._journal.clock()
        await self._journal.write(self._journal.amend(space.space_id, active_at=now))

    async def _forget_old(self) -> None:
        for one in (await self._store.undo_records(limit=MOST_KEPT * 2))[MOST_KEPT:]:
            if one.state not in _BEGUN:
                await self._forget(one)


def _side(opened: OpenSpace) -> TakeSide:
    return TakeSide(opened.space.name, opened.driver, opened.tree)


def _change(record: UndoRecord, back: bool) -> TakeChange:
    told = record.details
    change = TakeChange(told["kept"], told["before"], told["after"])
    return change.back if back else change
