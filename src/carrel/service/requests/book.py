"""Every request that something is still to be done for, as it is now, and the writing of it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

from carrel.domain.events import EventType, NewEvent
from carrel.domain.requests import ENDED, Request, RequestState
from carrel.domain.storing import Record
from carrel.service.journal import Journal


@dataclasses.dataclass
class Live:
    """One that is being worked on, waited for or kept. `followers` are the connections of its
    clients."""

    request: Request
    by: str = ""
    """Whose turn it is in the line: the owner, or the connection."""
    task: asyncio.Task[None] | None = None
    followers: int = 0
    followed: bool = False
    """By anybody, ever since this daemon knows it."""
    lonely: asyncio.TimerHandle | None = None
    making: str = ""
    """What is being done for its workspace."""
    cancelling: bool = False
    """It is to end by that, whatever becomes of its agent meanwhile."""
    due: bool = False
    """Something is to be done for one that has ended."""
    writing: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)

    @property
    def key(self) -> str:
        return self.request.key


class Book:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._live: dict[str, Live] = {}
        self._of_space: dict[str, str] = {}
        self._bells: dict[str, set[asyncio.Event]] = {}

    def clock(self) -> float:
        return self._journal.clock()

    def know(self, live: Live) -> None:
        self._live[live.key] = live
        if live.request.space_id:
            self._of_space[live.request.space_id] = live.key

    def forget(self, live: Live) -> None:
        """Nothing is to be done for it any more, by the time that it would be given up either."""
        if live.lonely is not None:
            live.lonely.cancel()
            live.lonely = None
        self._live.pop(live.key, None)
        self._of_space.pop(live.request.space_id, None)

    def get(self, key: str) -> Live | None:
        return self._live.get(key)

    def in_space(self, space_id: str) -> Live | None:
        return self._live.get(self._of_space.get(space_id, ""))

    def all(self) -> list[Live]:
        return list(self._live.values())

    # Writing

    async def change(self, live: Live, *records: Record, **changes: Any) -> bool:
        """Whether it was still to be changed: what has ended does not begin again. Returns when
        it is written down."""
        async with live.writing:
            before = live.request
            if before.ended and changes.get("state", before.state) is not before.state:
                return False
            new = dataclasses.replace(before, updated_at=self.clock(), **changes)
            await self._journal.write(new, *records)
            live.request = new
        if new.space_id != before.space_id:
            self._of_space.pop(before.space_id, None)
            self._of_space[new.space_id] = live.key
        self.ring(live.key)
        return True

    async def move(self, live: Live, state: RequestState, message: str, **changes: Any) -> bool:
        """To another state, which its followers hear of."""
        space_id = changes.get("space_id", live.request.space_id)
        event = self.event(live.request, state, message, space_id)
        return await self.change(live, event, state=state, **changes)

    def event(self, request: Request, state: RequestState, message: str, space_id: str) -> NewEvent:
        return self._journal.event(
            EventType.REQUEST_STATE,
            space_id,
            request_id=request.request_id,
            key=request.key,
            to=str(state),
            **({} if state in ENDED else {"progress": PROGRESS[state], "message": message}),
        )

    # Bells

    def ring(self, key: str) -> None:
        """Something about it is new."""
        for bell in self._bells.get(key, ()):
            bell.set()

    def ring_all(self) -> None:
        for bells in self._bells.values():
            for bell in bells:
                bell.set()

    def listen(self, key: str) -> tuple[asyncio.Event, Callable[[], None]]:
        """A bell, and how it is taken off again."""
        bell = asyncio.Event()
        self._bells.setdefault(key, set()).add(bell)

        def leave() -> None:
            bells = self._bells.get(key)
            if bells is not None:
                bells.discard(bell)
                if not bells:
                    del self._bells[key]

        return bell, leave


PROGRESS = {
    RequestState.QUEUED: 0.0,
    RequestState.MAKING: 0.02,
    RequestState.WORKING: 0.1,
    RequestState.CHECKING: 0.9,
    RequestState.COLLECTING: 0.95,
}
"""When it gets there. What the agent does is between working and checking."""
