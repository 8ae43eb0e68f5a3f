"""The log of messages on SQLite: one thread that writes, one that reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from carrel.domain.hub import Dropped, Keep, Message, Placed, PlaceQuery, Replay, Span, Sync
from carrel.store import messages_reading as reading
from carrel.store.messages_reading import MOST_READS, LogReader, Read
from carrel.store.messages_tables import MESSAGES
from carrel.store.messages_tasks import (
    DROP_MOST,
    Acknowledge,
    Append,
    Drop,
    Forget,
    ForgetConsumer,
    GiveBack,
    Piece,
    Task,
)
from carrel.store.messages_writing import MOST_TASKS, LogWriter
from carrel.store.opening import BUSY_TIMEOUT_S, Settings
from carrel.store.worker import Worker

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
    settings = Settings(path, busy_timeout_s=busy_timeout_s, schema=MESSAGES)
    writer: Worker[Task, object] = Worker(
        "carrel-hub-writer",
        partial(LogWriter, settings, disk=sync is Sync.DISK),
        most=MOST_TASKS,
    )
    await writer.start()
    try:
        reader: Worker[Read, object] = Worker(
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

    def __init__(self, writer: Worker[Task, object], reader: Worker[Read, object]) -> None:
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
        return cast(int, await self._writer.ask(Acknowledge(consumer, space_id, seq)))

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
        while not await self._writer.ask(Forget(space_id)):
            pass
        await self._give_back()

    async def _give_back(self) -> None:
        while await self._writer.ask(GiveBack()):
            pass

    async def _read(self, question: Callable[..., Kind]) -> Kind:
        return cast(Kind, await self._reader.ask(question))


def _steps(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """So that no append waits long for one of them."""
    step: list[Piece] = []
    room = DROP_MOST
    for piece in pieces:
        first = piece.first
        while first <= piece.last:
            last = min(piece.last, first + room - 1)
            step.append(Piece(piece.space_id, first, last))
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
