"""What Carrel itself has to tell goes into the same log as everything else.

The store has it first, together with what it is about; here it is told on. What a crash kept
from being told is told at the next start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from carrel.domain.events import Event, EventQuery
from carrel.domain.hub import HubLog
from carrel.hub.envelopes import SYSTEM, Said, raw
from carrel.hub.keeping import Keeper, Pending

BATCH = 1000

ReadEvents = Callable[[EventQuery], Awaitable[Sequence[Event]]]


class Teller:
    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    async def catch_up(self, log: HubLog, read: ReadEvents) -> None:
        """What is in the store, and not yet in the log."""
        after = await log.last_origin()
        while events := await read(EventQuery(after=after, limit=BATCH)):
            self.tell(events)
            after = events[-1].seq
            await self._keeper.settled()

    def tell(self, events: Sequence[Event]) -> None:
        """Called by the store after every write of events, in their order."""
        for event in events:
            self._keeper.keep(
                Pending(
                    event.space_id,
                    event.at,
                    SYSTEM,
                    [Said(str(event.type), raw(event.data), f"ev_{event.seq}")],
                    origin=event.seq,
                )
            )
