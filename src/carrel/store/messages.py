"""The log of messages on SQLite: one thread that writes, one that reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from carrel.domain.hub import Dropped, Keep, Message, Placed, PlaceQuery, Replay, Span, Sync
from carrel.store import message_reads as reading
from carrel.store.database import BUSY_TIMEOUT_S, DatabaseSettings
from carrel.store.message_reads import MOST_READS, LogReader, Read
from carrel.store.message_writes import (
    DROP_MOST,
    MOST_TASKS,
    AcknowledgeTask,
    Append,
    Drop,
    ForgetConsumer,
    ForgetTask,
    GiveBack,
    MessagePiece,
    MessageWriter,
    Task,
)
from carrel.store.migrations import Schema
from carrel.store.worker import StoreWorker

Kind = TypeVar("Kind")


@asynccontextmanager
async def open_log(
    path: Path, *, sync: Sync = Sync.DISK, busy_timeout_s: float = BUSY_TIMEOUT_S
) -> AsyncIterator[SqliteLog]:
    """The log in the file at `path`, which is made if it is not there. What is appended
    survives the death of this process; with `Sync.DISK` also a loss of power, if the append
    asks for it.

    Raises `StoreBusy`, `StoreDamaged`, `StoreTooNew`, `StoreReadOnly`, `InsufficientDisk`.
    """
    settings = DatabaseSettings(path, busy_timeout_s=busy_timeout_s, schema=MESSAGES)
    writer: StoreWorker[Task, object] = StoreWorker(
        "carrel-hub-writer",
        partial(MessageWriter, settings, disk=sync is Sync.DISK),
        most=MOST_TASKS,
    )
    await writer.start()
    try:
        reader: StoreWorker[Read, object] = StoreWorker(
            "carrel-hub-reader", partial(LogReader, settings), most=MOST_READS
        )
        await reader.start()
        try:
            yield SqliteLog(writer, reader)
        finally:
            await reader.stop()
    finally:
        await writer.stop()


class SqliteLog:
    """Implements `carrel.domain.hub.HubLog`. Made by `open_log`, and used in the event loop
    in which that was called; elsewhere it raises RuntimeError.

    What a cancelled caller asked for is done all the same, but for the later steps of
    `compact` and `forget`. After the log is closed, all methods raise `StoreBusy`.
    """

    def __init__(
        self, writer: StoreWorker[Task, object], reader: StoreWorker[Read, object]
    ) -> None:
        self._writer = writer
        self._reader = reader

    async def append(self, messages: Sequence[Message], *, sync: bool = True) -> Sequence[int]:
        return cast(Sequence[int], await self._writer.ask(Append(messages, sync)))

    async def replay(self, query: Replay) -> tuple[Sequence[bytes], int]:
        return cast(tuple[Sequence[bytes], int], await self._reader.ask(query))

    async def read(self, query: PlaceQuery) -> Sequence[Placed]:
        return await self._read(partial(reading.read, query=query))

    async def spans(self) -> Mapping[str, Span]:
        return await self._read(reading.spans)

    async def last_place(self) -> int:
        return await self._read(reading.last_place)

    async def first_place(self) -> int:
        return await self._read(reading.first_place)

    async def last_origin(self) -> int:
        return await self._read(reading.last_origin)

    async def since(self, space_id: str, at: float) -> int:
        return await self._read(partial(reading.since, space_id=space_id, at=at))

    async def cursors(self, consumer: str) -> Mapping[str, int]:
        return await self._read(partial(reading.cursors, consumer=consumer))

    async def consumers(self, space_id: str) -> Mapping[str, int]:
        return await self._read(partial(reading.consumers, space_id=space_id))

    async def acknowledge(self, consumer: str, space_id: str, seq: int) -> int:
        return cast(int, await self._writer.ask(AcknowledgeTask(consumer, space_id, seq)))

    async def forget_consumer(self, consumer: str) -> None:
        await self._writer.ask(ForgetConsumer(consumer))

    async def overdue(self, keep: Keep, now: float) -> Sequence[Dropped]:
        pieces = await self._read(partial(reading.beyond, keep=keep, now=now, only=None))
        found = []
        for piece in pieces:
            cursors = await self.consumers(piece.space_id)
            missed = {name: seq for name, seq in cursors.items() if seq < piece.last}
            found.append(Dropped(piece.space_id, piece.first, piece.last, missed))
        return found

    async def compact(self, keep: Keep, now: float, only: str | None = None) -> Sequence[Dropped]:
        question = partial(reading.beyond, keep=keep, now=now, only=only)
        dropped: dict[str, Dropped] = {}
        for pieces in _steps(await self._read(question)):
            for one in cast(list[Dropped], await self._writer.ask(Drop(pieces))):
                before = dropped.get(one.space_id)
                dropped[one.space_id] = one if before is None else _joined(before, one)
        if dropped:
            await self._give_back()
        return tuple(dropped.values())

    async def forget(self, space_id: str) -> None:
        while not await self._writer.ask(ForgetTask(space_id)):
            pass
        await self._give_back()

    async def _give_back(self) -> None:
        while await self._writer.ask(GiveBack()):
            pass

    async def _read(self, question: Callable[..., Kind]) -> Kind:
        return cast(Kind, await self._reader.ask(question))


def _steps(pieces: Sequence[MessagePiece]) -> Iterator[list[MessagePiece]]:
    """So that no append waits long for one of them."""
    step: list[MessagePiece] = []
    room = DROP_MOST
    for piece in pieces:
        first = piece.first
        while first <= piece.last:
            last = min(piece.last, first + room - 1)
            step.append(MessagePiece(piece.space_id, first, last))
            room -= last - first + 1
            first = last + 1
            if not room:
                yield step
                step, room = [], DROP_MOST
    if step:
        yield step


def _joined(before: Dropped, after: Dropped) -> Dropped:
    missed = {**before.missed, **after.missed}
    return Dropped(before.space_id, before.first, after.last, missed)


# The tables of the log of messages, a database of its own.
#
# Triggers keep the heads, so that what is appended or dropped is one statement and thereby a
# whole transaction: every statement more costs its thread several waits for Python's lock.

APPLICATION_ID = 0x6361_7268
"""`carh`: another than that of the records, so that neither is taken for the other."""

_FIRST = """
-- One row for each space. `total` is the bytes of all bodies that ever were, `dropped` of
-- those that are no longer kept.
CREATE TABLE heads (
    number INTEGER PRIMARY KEY,
    space_id TEXT NOT NULL UNIQUE,
    first INTEGER NOT NULL DEFAULT 1,
    last INTEGER NOT NULL DEFAULT 0,
    total INTEGER NOT NULL DEFAULT 0,
    dropped INTEGER NOT NULL DEFAULT 0
){strict};

-- AUTOINCREMENT remembers the greatest place there was, also when that message is gone.
-- `start` is the bytes of all bodies of the space before this one: the size of any stretch
-- is then a difference of two rows.
CREATE TABLE messages (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    space INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    start INTEGER NOT NULL,
    at REAL NOT NULL,
    type TEXT NOT NULL,
    origin INTEGER NOT NULL,
    body BLOB NOT NULL
){strict};
CREATE UNIQUE INDEX messages_of ON messages (space, seq);

CREATE TABLE cursors (
    consumer TEXT NOT NULL,
    space INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (consumer, space)
){strict_without_rowid};
CREATE INDEX cursors_of ON cursors (space);

CREATE TABLE origins (last INTEGER NOT NULL){strict};
INSERT INTO origins VALUES (0);

CREATE TRIGGER messages_added AFTER INSERT ON messages BEGIN
    UPDATE heads SET last = new.seq, total = new.start + length(new.body)
        WHERE number = new.space;
END;
CREATE TRIGGER messages_told AFTER INSERT ON messages WHEN new.origin > 0 BEGIN
    UPDATE origins SET last = new.origin WHERE last < new.origin;
END;
-- Whatever the order in which SQLite drops them.
CREATE TRIGGER messages_dropped AFTER DELETE ON messages BEGIN
    UPDATE heads SET first = max(first, old.seq + 1),
        dropped = max(dropped, old.start + length(old.body)) WHERE number = old.space;
END;
CREATE TRIGGER heads_dropped AFTER DELETE ON heads BEGIN
    DELETE FROM messages WHERE space = old.number;
    DELETE FROM cursors WHERE space = old.number;
END;
"""

_SECOND = """
-- A row may be several messages of one type that were said at once: then `seq` and `place` are
-- those of the last, and each is a line of `body`.
ALTER TABLE messages ADD COLUMN count INTEGER NOT NULL DEFAULT 1;
"""

MESSAGES = Schema(APPLICATION_ID, (_FIRST, _SECOND), shrinks=True)
