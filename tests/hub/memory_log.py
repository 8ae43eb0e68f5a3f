"""The hub's log in memory: keeps every promise of `HubLog` but to outlive the process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from carrel.domain.errors import CarrelError
from carrel.domain.hub import Dropped, Keep, Message, Placed, PlaceQuery, Replay, Span


@dataclass
class _Space:
    last: int = 0
    messages: list[Placed] = field(default_factory=list)


class MemoryLog:
    """Implements `HubLog`. `failing` is raised by all that writes, as long as it is set;
    between `hold` and `release` appends wait."""

    def __init__(self) -> None:
        self.failing: CarrelError | None = None
        self.appends = 0
        """How often something was appended."""
        self.waiting = 0
        """Messages on their way in."""
        self._spaces: dict[str, _Space] = {}
        self._cursors: dict[str, dict[str, int]] = {}
        self._place = 0
        self._origin = 0
        self._go = asyncio.Event()
        self._go.set()

    def hold(self) -> None:
        """Appends wait from now on."""
        self._go.clear()

    def release(self) -> None:
        self._go.set()

    # Messages

    async def append(self, messages: Sequence[Message], *, sync: bool = True) -> Sequence[int]:
        self.waiting += len(messages)
        try:
            await asyncio.sleep(0)
            await self._go.wait()
        finally:
            self.waiting -= len(messages)
        if self.failing is not None:
            raise self.failing
        self._check(messages)
        self.appends += 1
        return [self._add(one) for message in messages for one in _singles(message)]

    def _check(self, messages: Sequence[Message]) -> None:
        last: dict[str, int] = {}
        for one in messages:
            before = last.get(one.space_id, self._of(one.space_id).last)
            if one.seq - one.together != before:
                raise ValueError(f"{one.space_id}: {one.seq} does not follow {before}")
            last[one.space_id] = one.seq

    def _add(self, one: Message) -> int:
        self._place += 1
        space = self._spaces.setdefault(one.space_id, _Space())
        space.last = one.seq
        placed = Placed(self._place, one.space_id, one.seq, one.type, one.at, one.body)
        space.messages.append(placed)
        self._origin = max(self._origin, one.origin)
        return self._place

    def _of(self, space_id: str) -> _Space:
        return self._spaces.get(space_id) or _Space()

    async def replay(self, query: Replay) -> tuple[Sequence[bytes], int]:
        await asyncio.sleep(0)
        bodies: list[bytes] = []
        reached, size = query.after, 0
        for one in self._of(query.space_id).messages:
            if one.seq <= query.after:
                continue
            if len(bodies) >= query.limit or (bodies and size + len(one.body) > query.max_bytes):
                break
            bodies.append(one.body)
            reached, size = one.seq, size + len(one.body)
        return bodies, reached

    async def read(self, query: PlaceQuery) -> Sequence[Placed]:
        await asyncio.sleep(0)
        found = [
            one
            for one in self._all()
            if one.place > query.after
            and (query.space_ids is None or one.space_id in query.space_ids)
            and (query.types is None or one.type in query.types)
        ]
        return found[: query.limit]

    def _all(self) -> list[Placed]:
        found = [one for space in self._spaces.values() for one in space.messages]
        return sorted(found, key=lambda one: one.place)

    async def spans(self) -> Mapping[str, Span]:
        await asyncio.sleep(0)
        return {
            space_id: Span(
                space.messages[0].seq if space.messages else space.last + 1,
                space.last,
                sum(len(one.body) for one in space.messages),
            )
            for space_id, space in self._spaces.items()
        }

    async def last_place(self) -> int:
        return self._place

    async def first_place(self) -> int:
        found = self._all()
        return found[0].place if found else 0

    async def last_origin(self) -> int:
        return self._origin

    async def since(self, space_id: str, at: float) -> int:
        await asyncio.sleep(0)
        space = self._of(space_id)
        return next((one.seq - 1 for one in space.messages if one.at >= at), space.last)

    # Consumers

    async def cursors(self, consumer: str) -> Mapping[str, int]:
        await asyncio.sleep(0)
        return dict(self._cursors.get(consumer, {}))

    async def consumers(self, space_id: str) -> Mapping[str, int]:
        await asyncio.sleep(0)
        return {
            consumer: cursors[space_id]
            for consumer, cursors in self._cursors.items()
            if space_id in cursors
        }

    async def acknowledge(self, consumer: str, space_id: str, seq: int) -> int:
        await asyncio.sleep(0)
        if self.failing is not None:
            raise self.failing
        cursors = self._cursors.setdefault(consumer, {})
        cursors[space_id] = max(cursors.get(space_id, 0), seq)
        return cursors[space_id]

    async def forget_consumer(self, consumer: str) -> None:
        self._cursors.pop(consumer, None)

    # Less

    async def compact(self, keep: Keep, now: float, only: str | None = None) -> Sequence[Dropped]:
        await asyncio.sleep(0)
        dropped = []
        for space_id, space in self._spaces.items():
            if only is None or space_id == only:
                count = _beyond(space.messages, keep, now)
                if count:
                    dropped.append(self._drop(space_id, space, count))
        return dropped

    async def overdue(self, keep: Keep, now: float) -> Sequence[Dropped]:
        await asyncio.sleep(0)
        found = []
        for space_id, space in self._spaces.items():
            if count := _beyond(space.messages, keep, now):
                found.append(self._told(space_id, space.messages[:count]))
        return found

    def _drop(self, space_id: str, space: _Space, count: int) -> Dropped:
        gone, space.messages = space.messages[:count], space.messages[count:]
        return self._told(space_id, gone)

    def _told(self, space_id: str, gone: list[Placed]) -> Dropped:
        last = gone[-1].seq
        missed = {
            consumer: cursors[space_id]
            for consumer, cursors in self._cursors.items()
            if cursors.get(space_id, last) < last
        }
        return Dropped(space_id, gone[0].seq, last, missed)

    async def forget(self, space_id: str) -> None:
        await asyncio.sleep(0)
        self._spaces.pop(space_id, None)
        for cursors in self._cursors.values():
            cursors.pop(space_id, None)


def _singles(message: Message) -> list[Message]:
    first = message.seq - message.together + 1
    lines = enumerate(message.body.split(b"\n"), first)
    return [message._replace(seq=seq, body=body, together=1) for seq, body in lines]


def _beyond(messages: list[Placed], keep: Keep, now: float) -> int:
    """How many of the oldest are beyond a bound; never the last one."""
    size = sum(len(one.body) for one in messages)
    count = 0
    for one in messages[:-1]:
        many = keep.messages and len(messages) - count > keep.messages
        large = keep.bytes and size > keep.bytes
        old = keep.seconds and one.at < now - keep.seconds
        if not (many or large or old):
            break
        count += 1
        size -= len(one.body)
    return count
