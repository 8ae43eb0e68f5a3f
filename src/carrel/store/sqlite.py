"""The store on SQLite: one thread that writes, one that reads, and the loop never waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from carrel.domain.access import Token
from carrel.domain.agents import Turn
from carrel.domain.events import Event, EventQuery
from carrel.domain.instances import Instance
from carrel.domain.requests import Request, RequestQuery
from carrel.domain.runs import RunRecord
from carrel.domain.spaces import Space, SpacePage, SpaceQuery, SpaceState, Trashed
from carrel.domain.storing import Claim, Record, Step
from carrel.store import listing, reading
from carrel.store.opening import BUSY_TIMEOUT_S, KEEP_EVENTS, Settings
from carrel.store.reading import Read, Reader
from carrel.store.statements import drop_spaces, statements_for
from carrel.store.worker import Worker
from carrel.store.writing import MOST_WRITES, Outcome, Write, Writer

OnEvents = Callable[[Sequence[Event]], None]
Kind = TypeVar("Kind")

_PRUNE_MOST = 200
"""Spaces in one transaction, so that other writes get their turn in between."""


@asynccontextmanager
async def open_store(
    path: Path,
    *,
    durable: bool = False,
    keep_events: int = KEEP_EVENTS,
    busy_timeout_s: float = BUSY_TIMEOUT_S,
) -> AsyncIterator[SqliteStore]:
    """The store in the file at `path`, which is made if it is not there.

    What is stored survives the death of this process; with `durable` also a loss of power,
    for which every write waits for the disk. At least the last `keep_events` events are kept.

    Raises `StoreBusy`, `StoreDamaged`, `StoreTooNew`, `StoreReadOnly`, `InsufficientDisk`.
    """
    settings = Settings(path, durable, max(1, keep_events), busy_timeout_s)
    listeners: list[OnEvents] = []
    writer: Worker[Write, Sequence[Event]] = Worker(
        "carrel-store-writer",
        partial(Writer, settings),
        most=MOST_WRITES,
        heard=partial(_spread, listeners),
    )
    await writer.start()
    try:
        # One at a time: the answer to a short question does not wait for a long one's.
        reader: Worker[Read, object] = Worker(
            "carrel-store-reader", partial(Reader, settings), most=1
        )
        await reader.start()
        try:
            yield SqliteStore(writer, reader, listeners)
        finally:
            await reader.stop()
    finally:
        await writer.stop()


class SqliteStore:
    """Implements `carrel.domain.storing.Store`. Made by `open_store`, and used in the event
    loop in which that was called; elsewhere it raises RuntimeError.

    A write or read whose caller is cancelled is done all the same. After the store is
    closed, all methods raise `StoreBusy`.
    """

    def __init__(
        self,
        writer: Worker[Write, Sequence[Event]],
        reader: Worker[Read, object],
        listeners: list[OnEvents],
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._listeners = listeners

    async def write(self, *records: Record) -> Sequence[Event]:
        """Events without a time get the present one. Raises also `NameTaken`, TypeError and
        ValueError for records that cannot be written down."""
        if not (statements := statements_for(records)):
            return ()
        return await self._writer.ask(statements)

    async def space(self, space_id: str) -> Space | None:
        return await self._read(partial(reading.space, space_id=space_id))

    async def spaces(self, query: SpaceQuery) -> SpacePage:
        """`name` is a whole name. A cursor is a place in the list, and holds while spaces
        come and go. Raises `MessageInvalid` for a cursor that is none."""
        return await self._read(partial(listing.page, query=query))

    async def find(self, word: str) -> Sequence[Space]:
        return await self._read(partial(reading.find, word=word))

    async def run(self, run_id: str) -> RunRecord | None:
        return await self._read(partial(reading.run, run_id=run_id))

    async def runs(
        self, space_id: str = "", *, live: bool = False, limit: int = 100
    ) -> Sequence[RunRecord]:
        return await self._read(partial(reading.runs, space_id=space_id, live=live, limit=limit))

    async def turn(self, run_id: str) -> Turn | None:
        return await self._read(partial(reading.turn, run_id=run_id))

    async def turns(self, space_id: str, *, limit: int = 100) -> Sequence[Turn]:
        return await self._read(partial(reading.turns, space_id=space_id, limit=limit))

    async def live_turns(self) -> Sequence[Turn]:
        return await self._read(reading.live_turns)

    async def instance(self, instance_id: str) -> Instance | None:
        return await self._read(partial(reading.instance, instance_id=instance_id))

    async def instances(self, *, live: bool, limit: int = 100) -> Sequence[Instance]:
        return await self._read(partial(reading.instances, live=live, limit=limit))

    async def request(self, key: str) -> Request | None:
        return await self._read(partial(reading.request, key=key))

    async def request_of(self, caller: str, request_id: str) -> Request | None:
        return await self._read(partial(reading.request_of, caller=caller, request_id=request_id))

    async def requests(self, query: RequestQuery) -> Sequence[Request]:
        return await self._read(partial(reading.requests, query=query))

    async def events(self, query: EventQuery) -> Sequence[Event]:
        """In order. Older ones may have been dropped: see `event_span`."""
        return await self._read(partial(reading.events, query=query))

    async def event_span(self) -> tuple[int, int]:
        """`seq` of the first event that is kept and of the last there is; zeros before the
        first one. Who last saw one before `first - 1` has missed some."""
        return await self._read(reading.event_span)

    async def last_seq(self) -> int:
        return (await self.event_span())[1]

    def on_events(self, callback: OnEvents) -> None:
        """It hears of all events that are stored from now on, without gaps, and before
        their `write` returns. It must not wait."""
        self._listeners.append(callback)

    async def steps(self, space_id: str) -> Sequence[Step]:
        """In the order in which they were begun."""
        return await self._read(partial(reading.steps, space_id=space_id))

    async def claim(self, caller: str, key: str) -> Claim | None:
        return await self._read(partial(reading.claim, caller=caller, key=key))

    async def tokens(self, digest: bytes | None = None) -> Sequence[Token]:
        """Oldest first; revoked and expired ones too."""
        return await self._read(partial(reading.tokens, digest=digest))

    async def trash(self) -> Sequence[Trashed]:
        return await self._read(reading.trash)

    async def count(self) -> dict[SpaceState, int]:
        """Of every state, also those that no space is in."""
        return await self._read(reading.count)

    async def prune(self, removed_before: float) -> int:
        """Drops the records of spaces that were removed before that time, and whose changes
        are not in the trash. Says how many."""
        dropped = 0
        question = partial(reading.old_removed, before=removed_before, most=_PRUNE_MOST)
        while space_ids := await self._read(question):
            await self._writer.ask(drop_spaces(space_ids))
            dropped += len(space_ids)
        return dropped

    async def _read(self, question: Callable[..., Kind]) -> Kind:
        return cast(Kind, await self._reader.ask(question))


def _spread(listeners: list[OnEvents], outcomes: Sequence[Outcome]) -> None:
    events = [event for done in outcomes if not isinstance(done, Exception) for event in done]
    if not events:
        return
    for callback in tuple(listeners):
        try:
            callback(events)
        except Exception as error:
            # One listener's fault is no reason for the others, or the writers, to suffer.
            asyncio.get_running_loop().call_exception_handler(
                {"message": "A listener to events failed.", "exception": error}
            )
