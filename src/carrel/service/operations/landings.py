"""Landings, as the contract has them."""

from __future__ import annotations

from carrel.api.types import landings as types
from carrel.api.types.common import moment, moment_or_none, shared
from carrel.api.types.queue import QueueBody, QueueEntryInfo, QueueList, QueueQuery
from carrel.domain.access import Caller
from carrel.domain.landing import LandedFile, Landing, LandingCheck, LandRequest
from carrel.domain.queue import QueueEntry
from carrel.service.landing import Landings
from carrel.service.queue import LandingQueue


class LandingOperations:
    def __init__(self, landings: Landings) -> None:
        self._landings = landings

    async def land(self, caller: Caller, space: str, body: types.LandBody) -> types.LandingInfo:
        landing, prepared = await self._landings.land(caller, space, _request(body))
        return _info(landing, prepared.files[: types.MOST_LISTED])

    async def list(self, caller: Caller, asked: types.LandingsQuery) -> types.LandingList:
        found = await self._landings.list(caller, asked.limit)
        return types.LandingList(landings=tuple(map(_info, found)))

    async def undo(self, caller: Caller, body: types.UndoBody) -> types.LandingInfo:
        return _info(await self._landings.undo(caller, body.landing))


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
