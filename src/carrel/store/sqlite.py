"""The store on SQLite: one thread that writes, one that reads, and the loop never waits."""

from __future__ import annotations

import asyncio
import base64
import math
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from carrel.domain.access import TokenRecord
from carrel.domain.checkpoints import Checkpoint
from carrel.domain.comments import Comment
from carrel.domain.errors import MessageInvalid
from carrel.domain.events import Event, EventQuery
from carrel.domain.instances import Instance
from carrel.domain.landing import Landing
from carrel.domain.queue import QueueEntry
from carrel.domain.requests import Request, RequestDetails, RequestQuery
from carrel.domain.runs import RunRecord
from carrel.domain.spaces import Space, SpacePage, SpaceQuery, SpaceState, Trashed
from carrel.domain.store import Claim, Record, Room, Step
from carrel.domain.takes import UndoRecord
from carrel.domain.turns import Turn
from carrel.store import reads
from carrel.store.database import BUSY_TIMEOUT_S, KEEP_EVENTS, DatabaseSettings
from carrel.store.reads import Read, Reader
from carrel.store.worker import StoreWorker
from carrel.store.writes import (
    GREATEST,
    MOST_WRITES,
    Outcome,
    Write,
    Writer,
    column,
    drop_spaces,
    dump,
    load,
    statements_for,
)

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
    room: Room | None = None,
) -> AsyncIterator[SqliteStore]:
    """The store in the file at `path`, which is made if it is not there.

    What is stored survives the death of this process; with `durable` also a loss of power,
    for which every write waits for the disk. At least the last `keep_events` events are kept.
    On a full disk, `room` is given up for what is written.

    Raises `StoreBusy`, `StoreDamaged`, `StoreTooNew`, `StoreReadOnly`, `InsufficientDisk`.
    """
    settings = DatabaseSettings(path, durable, max(1, keep_events), busy_timeout_s, room=room)
    listeners: list[OnEvents] = []
    writer: StoreWorker[Write, Sequence[Event]] = StoreWorker(
        "carrel-store-writer",
        partial(Writer, settings),
        most=MOST_WRITES,
        heard=partial(_spread, listeners),
    )
    await writer.start()
    try:
        # One at a time: the answer to a short question does not wait for a long one's.
        reader: StoreWorker[Read, object] = StoreWorker(
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
    """Implements `carrel.domain.store.Store`. Made by `open_store`, and used in the event
    loop in which that was called; elsewhere it raises RuntimeError.

    A write or read whose caller is cancelled is done all the same. After the store is
    closed, all methods raise `StoreBusy`.
    """

    def __init__(
        self,
        writer: StoreWorker[Write, Sequence[Event]],
        reader: StoreWorker[Read, object],
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
        return await self._read(partial(reads.space, space_id=space_id))

    async def spaces(self, query: SpaceQuery) -> SpacePage:
        """`name` is a whole name. A cursor is a place in the list, and holds while spaces
        come and go. Raises `MessageInvalid` for a cursor that is none."""
        return await self._read(partial(page, query=query))

    async def find(
        self, word: str, realm: str = "", among: SpaceQuery | None = None
    ) -> Sequence[Space]:
        asked = partial(reads.find, word=word, realm=realm, among=among or SpaceQuery())
        return await self._read(asked)

    async def run(self, run_id: str) -> RunRecord | None:
        return await self._read(partial(reads.run, run_id=run_id))

    async def runs(
        self, space_id: str = "", *, live: bool = False, limit: int = 100
    ) -> Sequence[RunRecord]:
        return await self._read(partial(reads.runs, space_id=space_id, live=live, limit=limit))

    async def turn(self, run_id: str) -> Turn | None:
        return await self._read(partial(reads.turn, run_id=run_id))

    async def turns(self, space_id: str, *, limit: int = 100) -> Sequence[Turn]:
        return await self._read(partial(reads.turns, space_id=space_id, limit=limit))

    async def usages(self, space_id: str) -> Sequence[Turn]:
        return await self._read(partial(reads.usages, space_id=space_id))

    async def live_turns(self) -> Sequence[Turn]:
        return await self._read(reads.live_turns)

    async def instance(self, instance_id: str) -> Instance | None:
        return await self._read(partial(reads.instance, instance_id=instance_id))

    async def instances(self, *, live: bool, limit: int = 100) -> Sequence[Instance]:
        return await self._read(partial(reads.instances, live=live, limit=limit))

    async def request(self, key: str) -> Request | None:
        return await self._read(partial(reads.request, key=key))

    async def request_of(self, caller: str, request_id: str) -> Request | None:
        return await self._read(partial(reads.request_of, caller=caller, request_id=request_id))

    async def requests(self, query: RequestQuery) -> Sequence[Request]:
        return await self._read(partial(reads.requests, query=query))

    async def request_details(self, key: str) -> RequestDetails | None:
        return await self._read(partial(reads.request_details, key=key))

    async def last_version(self, caller: str, series: str) -> int:
        return await self._read(partial(reads.last_version, caller=caller, series=series))

    async def events(self, query: EventQuery) -> Sequence[Event]:
        """In order. Older ones may have been dropped: see `event_span`."""
        return await self._read(partial(reads.events, query=query))

    async def event_span(self) -> tuple[int, int]:
        """`seq` of the first event that is kept and of the last there is; zeros before the
        first one. Who last saw one before `first - 1` has missed some."""
        return await self._read(reads.event_span)

    async def last_seq(self) -> int:
        return (await self.event_span())[1]

    def on_events(self, callback: OnEvents) -> None:
        """It hears of all events that are stored from now on, without gaps, and before
        their `write` returns. It must not wait."""
        self._listeners.append(callback)

    async def steps(self, space_id: str) -> Sequence[Step]:
        """In the order in which they were begun."""
        return await self._read(partial(reads.steps, space_id=space_id))

    async def claim(self, caller: str, key: str) -> Claim | None:
        return await self._read(partial(reads.claim, caller=caller, key=key))

    async def tokens(self, digest: bytes | None = None) -> Sequence[TokenRecord]:
        """Oldest first; revoked and expired ones too."""
        return await self._read(partial(reads.tokens, digest=digest))

    async def checkpoints(self, space_id: str = "") -> Sequence[Checkpoint]:
        return await self._read(partial(reads.checkpoints, space_id=space_id))

    async def landings(self, *, limit: int = 100) -> Sequence[Landing]:
        return await self._read(partial(reads.landings, limit=limit))

    async def undo_records(self, *, limit: int = 100) -> Sequence[UndoRecord]:
        return await self._read(partial(reads.undo_records, limit=limit))

    async def comments(self, space_id: str) -> Sequence[Comment]:
        return await self._read(partial(reads.comments, space_id=space_id))

    async def queue(self, *, live: bool, limit: int) -> Sequence[QueueEntry]:
        return await self._read(partial(reads.queue, live=live, limit=limit))

    async def trash(self) -> Sequence[Trashed]:
        return await self._read(reads.trash)

    async def count(self) -> dict[SpaceState, int]:
        """Of every state, also those that no space is in."""
        return await self._read(reads.count)

    async def prune(self, removed_before: float) -> int:
        """Drops the records of spaces that were removed before that time, and whose changes
        are not in the trash. Says how many."""
        dropped = 0
        question = partial(reads.old_removed, before=removed_before, most=_PRUNE_MOST)
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


# Where a page of spaces ends, as a word that callers hand back.


def to_cursor(created_at: float, space_id: str) -> str:
    """A place in the list rather than a count, so that it holds while spaces come and go."""
    return base64.urlsafe_b64encode(f"{created_at!r} {space_id}".encode()).decode().rstrip("=")


def from_cursor(cursor: str) -> tuple[float, str]:
    """Raises `MessageInvalid`."""
    try:
        text = base64.b64decode(
            f"{cursor}{'=' * (-len(cursor) % 4)}".encode("ascii"), altchars=b"-_", validate=True
        ).decode()
        created_at, _space, space_id = text.partition(" ")
        place = float(created_at), space_id
    except ValueError:
        place = math.nan, ""
    if not math.isfinite(place[0]) or not place[1]:
        raise MessageInvalid(
            "This is no cursor of a page of spaces.", hint="Take it from the page before."
        )
    return place


# Lists of spaces.
#
# Removed spaces may outnumber the others a thousand times. Therefore a query has up to two
# branches, one over each kind, and each goes along an index in the order of the list: over
# labels if there are any, else over the spaces themselves.

PRESENT = frozenset(SpaceState) - {SpaceState.REMOVED}


def page(connection: sqlite3.Connection, query: SpaceQuery) -> SpacePage:
    """Raises `MessageInvalid` for a cursor that is none and a limit below 0."""
    if query.limit < 0:
        raise MessageInvalid("The limit of a page cannot be less than 0.", hint="Raise the limit.")
    plan = _Plan(query)
    connection.execute("BEGIN")
    try:
        total = connection.execute(plan.total_sql(), plan.values).fetchone()[0]
        read = reads.within_bytes(connection.execute(plan.page_sql(), plan.values))
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    spaces = tuple(load(Space, document) for document in read.documents[: query.limit])
    more = (read.more or len(read.documents) > query.limit) and bool(spaces)
    after = to_cursor(spaces[-1].created_at, spaces[-1].space_id) if more else ""
    return SpacePage(spaces, after, total)


class _Plan:
    """The SQL for one query. What a caller gave stands in `values` only."""

    def __init__(self, query: SpaceQuery) -> None:
        self.query = query
        self.states = query.states or PRESENT
        self.values: dict[str, str | float] = {
            "limit": min(query.limit, GREATEST - 1) + 1,
            "name": column(query.name),
        }
        if query.space_ids is not None:
            self.values["ids"] = dump([column(one) for one in query.space_ids])
        for number, (key, value) in enumerate(query.labels.items()):
            self.values[f"key{number}"] = column(key)
            self.values[f"value{number}"] = column(value)
        for number, state in enumerate(sorted(self.states)):
            self.values[f"state{number}"] = str(state)
        if query.after:
            self.values["at"], self.values["id"] = from_cursor(query.after)

    def total_sql(self) -> str:
        if not (self.query.labels or self.query.name or self.query.space_ids is not None):
            return f"SELECT coalesce(sum(spaces), 0) FROM tallies WHERE state IN ({self._states()})"
        counts = (f"(SELECT count(*) {source})" for _head, source in self._branches())
        return f"SELECT {' + '.join(counts)}"

    def page_sql(self) -> str:
        parts = " UNION ALL ".join(
            f"SELECT * FROM (SELECT {head}.created_at, {head}.space_id {source}"
            f" {self._after(head)} ORDER BY {head}.created_at DESC, {head}.space_id DESC"
            " LIMIT :limit)"
            for head, source in self._branches()
        )
        return (
            "SELECT spaces.document FROM (SELECT created_at, space_id FROM"
            f" ({parts}) ORDER BY created_at DESC, space_id DESC LIMIT :limit) AS chosen"
            " CROSS JOIN spaces ON spaces.space_id = chosen.space_id"
            " ORDER BY chosen.created_at DESC, chosen.space_id DESC"
        )

    def _branches(self) -> list[tuple[str, str]]:
        """Of each, the table that leads, and the text from FROM on."""
        kinds = []
        if self.states & PRESENT:
            kinds.append(False)
        if SpaceState.REMOVED in self.states:
            kinds.append(True)
        along = self._along_labels if self.query.labels else self._along_spaces
        return [along(removed) for removed in kinds]

    def _along_labels(self, removed: bool) -> tuple[str, str]:
        source = "FROM labels AS led"
        narrowed = not removed and not self.states >= PRESENT
        if narrowed or self.query.name:
            source += " CROSS JOIN spaces AS one ON one.space_id = led.space_id"
        where = [f"led.key = :key0 AND led.value = :value0 AND led.removed = {int(removed)}"]
        where += [
            f"EXISTS (SELECT 1 FROM labels AS other WHERE other.key = :key{number}"
            f" AND other.value = :value{number} AND other.removed = led.removed"
            " AND other.created_at = led.created_at AND other.space_id = led.space_id)"
            for number in range(1, len(self.query.labels))
        ]
        return "led", f"{source} WHERE {' AND '.join(where + self._filters('led', narrowed))}"

    def _along_spaces(self, removed: bool) -> tuple[str, str]:
        narrowed = not removed and not self.states >= PRESENT
        source = "FROM spaces AS one"
        if self.query.space_ids is None and (removed or not self.query.name):
            source += f" INDEXED BY {'spaces_gone' if removed else 'spaces_present'}"
        where = ["one.state = 'removed'" if removed else "one.state <> 'removed'"]
        return "one", f"{source} WHERE {' AND '.join(where + self._filters('one', narrowed))}"

    def _filters(self, head: str, narrowed: bool) -> list[str]:
        filters = []
        if narrowed:
            filters.append(f"one.state IN ({self._states()})")
        if self.query.name:
            # The second half lets SQLite use the index of names, which leaves out empty ones.
            filters.append("one.name = :name AND one.name <> ''")
        if self.query.space_ids is not None:
            filters.append(f"{head}.space_id IN (SELECT value FROM json_each(:ids))")
        return filters

    def _states(self) -> str:
        return ", ".join(f":state{number}" for number in range(len(self.states)))

    def _after(self, head: str) -> str:
        if not self.query.after:
            return ""
        return f"AND ({head}.created_at, {head}.space_id) < (:at, :id)"
