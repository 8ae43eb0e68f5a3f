"""What happened, as it happens, from any point of the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from weakref import WeakValueDictionary

from carrel.domain.access import LOCAL, Caller, ScopeKind
from carrel.domain.events import Event, EventQuery, EventType
from carrel.domain.hub import HubLog, LogEnd, Placed, PlaceQuery, envelope_in
from carrel.domain.store import Store
from carrel.service.access import may_see
from carrel.service.journal import Journal

BATCH = 500
READ_S, EVENT_S = 0.0005, 0.0001
"""What it costs to read, and to tell one event that was found."""
REST = 3
"""So many times that long nothing more is read for the same account: hundreds of readers of one
have no more than a part of our time."""


class Feed:
    """Readers pull from the log at their own pace, so a slow one holds up nobody and needs
    no queue; a bell wakes those who have read everything."""

    def __init__(self, log: HubLog, end: LogEnd, store: Store, journal: Journal) -> None:
        self._log = log
        self._end = end
        self._store = store
        self._journal = journal
        self._bells: set[asyncio.Event] = set()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By account: one reads at a time. The owner waits for nobody."""

    def ring(self, _spaces: object = None) -> None:
        """Called when there is something new in the log."""
        for bell in self._bells:
            bell.set()

    async def read(self, caller: Caller, query: EventQuery) -> tuple[Sequence[Event], int]:
        """One batch, and where the next one begins: where this one did, at the end."""
        if caller.account == LOCAL.name:
            return await self._read(caller, query)
        turns = self._turns.get(caller.account)
        if turns is None:
            turns = self._turns[caller.account] = asyncio.Lock()
        await turns.acquire()
        cost_s = READ_S
        try:
            found, after = await self._read(caller, query)
            cost_s += EVENT_S * len(found)
        finally:
            asyncio.get_running_loop().call_later(REST * cost_s, turns.release)
        return found, after

    async def _read(self, caller: Caller, query: EventQuery) -> tuple[Sequence[Event], int]:
        # Asked before: what comes meanwhile is not passed over. Behind a filter the end of
        # the log may be far from the last event that fits.
        last = await self.last()
        asked = PlaceQuery(query.after, query.space_ids, query.types, query.limit)
        placed = await self._log.read(asked)
        after = placed[-1].place if placed else max(last, query.after)
        return [_event(one) for one in placed if await self._sees(caller, one.space_id)], after

    async def follow(self, caller: Caller, query: EventQuery) -> AsyncIterator[Event]:
        """Everything after `query.after`, without an end."""
        bell = asyncio.Event()
        self._bells.add(bell)
        self._end.listening(1)
        after = query.after
        try:
            while True:
                bell.clear()
                asked = EventQuery(after, query.space_ids, query.types, BATCH)
                events, reached = await self.read(caller, asked)
                for event in events:
                    yield event
                if reached == after:
                    await bell.wait()
                after = reached
        finally:
            self._bells.discard(bell)
            self._end.listening(-1)

    async def last(self) -> int:
        """The end of the log now, for those who only want what comes."""
        await self._end.settled()
        return await self._log.last_place()

    async def _sees(self, caller: Caller, space_id: str) -> bool:
        if caller.scope.kind is ScopeKind.ADMIN:
            return True
        if not space_id:
            return False
        if caller.scope.kind is ScopeKind.SPACE:
            return space_id == caller.scope.value
        space = self._journal.get(space_id) or await self._store.space(space_id)
        return space is not None and may_see(caller, space)


def _event(placed: Placed) -> Event:
    """The kind stays with the place: who asked for this type is told that one was there."""
    envelope = envelope_in(placed.body)
    if envelope is None or not isinstance(envelope.get("payload"), dict):
        about = {"type": placed.type, "space_seq": placed.seq, "bytes": len(placed.body)}
        return Event(placed.place, EventType.UNREADABLE, placed.space_id, about, placed.at)
    return Event(placed.place, placed.type, placed.space_id, envelope["payload"], placed.at)
