"""Landings, as the contract has them."""

from __future__ import annotations

from carrel.api.types import landings as types
from carrel.api.types.common import moment, moment_or_none, shared
from carrel.api.types.landings import QueueBody, QueueEntryInfo, QueueList, QueueQuery
from carrel.domain.access import Caller
from carrel.domain.checkpoints import Checkpoint
from carrel.domain.landing import LandedFile, Landing, LandingCheck, LandingState, LandRequest
from carrel.domain.queue import QueueEntry
from carrel.domain.spaces import Trashed
from carrel.domain.takes import UndoRecord, UndoState
from carrel.service.access import require_admin
from carrel.service.checkpoints import Checkpoints
from carrel.service.landing import Landings
from carrel.service.queue import LandingQueue
from carrel.service.spaces import Spaces
from carrel.service.takes import TakeRequest, Takes


class LandingOperations:
    """Landings, and all else that can be taken back in the same way: what was taken from one space
    into another, rewinds, and removals."""

    def __init__(
        self, landings: Landings, takes: Takes, checkpoints: Checkpoints, spaces: Spaces
    ) -> None:
        self._landings = landings
        self._takes = takes
        self._checkpoints = checkpoints
        self._spaces = spaces

    async def land(self, caller: Caller, space: str, body: types.LandBody) -> types.LandingInfo:
        landing, prepared = await self._landings.land(caller, space, _request(body))
        return _info(landing, prepared.files[: types.MOST_LISTED])

    async def list(self, caller: Caller, asked: types.LandingsQuery) -> types.LandingList:
        landed = await self._landings.list(caller, asked.limit)
        taken = await self._takes.list(asked.limit)
        told = [*map(_info, landed), *map(_undoable, taken)]
        told += map(_rewind, await self._checkpoints.rewinds())
        told += map(_removal, await self._spaces.trashed(caller))
        told.sort(key=lambda one: one.created_at, reverse=True)
        return types.LandingList(landings=tuple(told)[: asked.limit])

    async def undo(self, caller: Caller, body: types.UndoBody) -> types.LandingInfo:
        require_admin(caller)
        word = body.landing or await self._last(caller)
        if word.startswith(_TAKE):
            return _undoable(await self._takes.undo(word))
        if word.startswith(_REWIND):
            return _rewind(await self._checkpoints.undo(word))
        trashed = [one for one in await self._spaces.trashed(caller) if one.space.space_id == word]
        if trashed:
            restored = await self._spaces.undelete(caller, word)
            return _removal(trashed[0], restored.space_id)
        return _info(await self._landings.undo(caller, word))

    async def _last(self, caller: Caller) -> str:
        """What was done last and not taken back, if anything was."""
        done = (LandingState.LANDED, LandingState.UNDOING)
        landed = (one for one in await self._landings.list(caller, _MOST) if one.state in done)
        taken = filter(self._takes.is_open, await self._takes.list(_MOST))
        found = [(one.created_at, one.landing_id) for one in landed]
        found += [(one.created_at, one.undo_id) for one in taken]
        found += [(one.created_at, one.checkpoint_id) for one in await self._checkpoints.rewinds()]
        found += [
            (one.trashed_at, one.space.space_id) for one in await self._spaces.trashed(caller)
        ]
        return max(found, default=(0.0, ""))[1]

    async def take(self, caller: Caller, space: str, body: types.TakeBody) -> types.TakeInfo:
        """Brings files of the space's work into another space."""
        request = TakeRequest(space, body.into, body.paths, body.force)
        record, change = await self._takes.take(caller, request)
        return types.TakeInfo(
            id=record.undo_id,
            space=record.details["source"],
            into=record.space_id,
            name=record.name,
            created_at=moment(record.created_at),
            files=record.files,
            listed=change.files[: types.MOST_LISTED],
        )


_TAKE, _REWIND = "tk_", "ck_"
_MOST = 1000
"""That the last one is looked for among."""
_STATES = {
    UndoState.BEGUN: LandingState.BEGUN,
    UndoState.DONE: LandingState.LANDED,
    UndoState.UNDOING: LandingState.UNDOING,
    UndoState.UNDONE: LandingState.UNDONE,
}


def _undoable(record: UndoRecord) -> types.LandingInfo:
    return types.LandingInfo(
        id=record.undo_id,
        kind="take",
        space=record.space_id,
        name=record.name,
        project="",
        branch="",
        before=record.details["before"],
        after=record.details["after"],
        state=_STATES[record.state],
        created_at=moment(record.created_at),
        undone_at=moment_or_none(record.undone_at),
        files=record.files,
    )


def _rewind(before: Checkpoint) -> types.LandingInfo:
    return types.LandingInfo(
        id=before.checkpoint_id,
        kind="rewind",
        space=before.space_id,
        name=before.name,
        project="",
        branch="",
        before=before.checkpoint_id,
        after=before.to,
        state=LandingState.UNDONE if before.undone else LandingState.LANDED,
        created_at=moment(before.created_at),
    )


def _removal(trashed: Trashed, restored: str = "") -> types.LandingInfo:
    """`restored`: the space that has its changes again."""
    return types.LandingInfo(
        id=trashed.space.space_id,
        kind="removal",
        space=restored or trashed.space.space_id,
        name=trashed.space.name,
        project="",
        branch="",
        before="",
        after="",
        state=LandingState.UNDONE if restored else LandingState.LANDED,
        created_at=moment(trashed.trashed_at),
        files=trashed.changes,
    )


class QueueOperations:
    def __init__(self, queue: LandingQueue) -> None:
        self._queue = queue

    async def add(self, caller: Caller, body: QueueBody) -> QueueList:
        made = await self._queue.add(caller, body.spaces, _request(body))
        return QueueList(entries=tuple(map(_entry, made)))

    async def list(self, caller: Caller, asked: QueueQuery) -> QueueList:
        found = await self._queue.list(caller, asked.limit)
        return QueueList(entries=tuple(map(_entry, found)))

    async def cancel(self, caller: Caller, entry: str) -> QueueEntryInfo:
        return _entry(await self._queue.cancel(caller, entry))


def _entry(entry: QueueEntry) -> QueueEntryInfo:
    told = {
        "id": entry.entry_id,
        "space": entry.space_id,
        "branch": entry.branch,
        "check": entry.request.check.command if entry.request.check else "",
        "landing": entry.landing_id,
        "created_at": moment(entry.created_at),
        "ended_at": moment_or_none(entry.ended_at),
    }
    return QueueEntryInfo(**{**shared(entry, QueueEntryInfo), **told})


def _request(body: types.LandBody) -> LandRequest:
    check = LandingCheck(body.check, body.check_s) if body.check else None
    return LandRequest(**{**shared(body, LandRequest), "check": check})


def _info(landing: Landing, listed: tuple[LandedFile, ...] = ()) -> types.LandingInfo:
    told = {
        "id": landing.landing_id,
        "space": landing.space_id,
        "created_at": moment(landing.created_at),
        "undone_at": moment_or_none(landing.undone_at),
        "listed": listed,
    }
    return types.LandingInfo(**{**shared(landing, types.LandingInfo), **told})
