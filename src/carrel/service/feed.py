"""Events as they happen, from any point of the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from carrel.domain.access import Caller, ScopeKind
from carrel.domain.events import Event, EventQuery
from carrel.domain.storing import Store
from carrel.service.access import may_see
from carrel.service.journal import Journal

BATCH = 500


class Feed:
    """Readers pull from the log at their own pace, so a slow one holds up nobody and needs
    no queue; a bell wakes those who have read everything."""

    def __init__(self, store: Store, journal: Journal) -> None:
        self._store = store
        self._journal = journal
        self._bells: set[asyncio.Event] = set()

    def ring(self, _events: Sequence[Event]) -> None:
        """Called by the store after every write of events."""
        for bell in self._bells:
            bell.set()

    async def read(self, caller: Caller, query: EventQuery) -> tuple[Sequence[Event], int]:
        """One batch, and where the next one begins."""
        # Asked before: what comes meanwhile is not passed over. Behind a filter the end of
        # the log may be far from the last event that fits.
        last = await self._store.last_seq()
        events = await self._store.events(query)
        whole = len(events) < query.limit
        after = max(last, query.after) if whole else events[-1].seq
        if events:
            after = max(after, events[-1].seq)
        return [event for event in events if await self._sees(caller, event)], after

    async def follow(self, caller: Caller, query: EventQuery) -> AsyncIterator[Event]:
        """Everything after `query.after`, without an end."""
        bell = asyncio.Event()
        self._bells.add(bell)
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

    async def last(self) -> int:
        """The end of the log now, for those who only want what comes."""
        return await self._store.last_seq()

    async def _sees(self, caller: Caller, event: Event) -> bool:
        if caller.scope.kind is ScopeKind.ADMIN:
            return True
        if not event.space_id:
            return False
        if caller.scope.kind is ScopeKind.SPACE:
            return event.space_id == caller.scope.value
        space = self._journal.get(event.space_id) or await self._store.space(event.space_id)
        return space is not None and may_see(caller, space)
