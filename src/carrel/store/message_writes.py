"""What the thread that writes the log is asked to do."""

from __future__ import annotations

import functools
import itertools
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from carrel.domain.errors import CarrelError, StoreBusy
from carrel.domain.hub import MOST_TOGETHER, OWNED, Dropped, Message
from carrel.store.database import DatabaseSettings
from carrel.store.writes import Statement, WriteSession

DROP_MOST = 1000
"""Messages in one transaction, about ten milliseconds, which an append may have to wait."""


@dataclass(frozen=True)
class Append:
    messages: Sequence[Message]
    sync: bool


@dataclass(frozen=True)
class AcknowledgeTask:
    consumer: str
    space_id: str
    seq: int


@dataclass(frozen=True)
class MessagePiece:
    """A stretch of one space's messages."""

    space_id: str
    first: int
    last: int


@dataclass(frozen=True)
class Drop:
    """At most `DROP_MOST` messages in all."""

    pieces: Sequence[MessagePiece]


@dataclass(frozen=True)
class ForgetTask:
    """Everything of a space if that is little, else its oldest messages. Answers whether
    that was all."""

    space_id: str


@dataclass(frozen=True)
class ForgetConsumer:
    consumer: str


@dataclass(frozen=True)
class GiveBack:
    """Some free room, to the disk. Answers whether there is more."""


Grouped = Append | AcknowledgeTask
Task = Grouped | Drop | ForgetTask | ForgetConsumer | GiveBack


# Appends and acknowledgements that are committed together, as few and large statements.

COLUMNS = 9
MOST_ROWS = 2048
"""In one statement: half as many values as SQLite takes at once."""

_ADD_HEADS = (
    "INSERT INTO heads (number, space_id) SELECT json_extract(value, '$[0]'),"
    " json_extract(value, '$[1]') FROM json_each(?)"
)
_PUT_CURSORS = (
    "INSERT INTO cursors SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),"
    " json_extract(value, '$[2]') FROM json_each(?) WHERE true"
    " ON CONFLICT (consumer, space) DO UPDATE SET seq = excluded.seq"
)

_DROP_CURSORS = (
    "DELETE FROM cursors WHERE (consumer, space) IN (SELECT json_extract(value, '$[0]'),"
    " json_extract(value, '$[1]') FROM json_each(?))"
)
MOST_CONSUMERS = 100
"""Of one space, of one caller: code in a space could make up names without end, and all are in
memory."""


class Gap(ValueError):
    """A message that comes after one that is not there."""


@dataclass(slots=True)
class Head:
    number: int
    first: int = 1
    last: int = 0
    total: int = 0


@dataclass
class Known:
    """What the writer would otherwise have to ask for before each write."""

    heads: dict[str, Head] = field(default_factory=dict)
    cursors: dict[str, dict[str, int]] = field(default_factory=dict)
    """By space, then by consumer: compaction asks for all of a space."""
    place: int = 0
    number: int = 0
    """The greatest that a head has."""

    @classmethod
    def load(cls, connection: sqlite3.Connection) -> Known:
        """Raises `sqlite3.Error`."""
        heads, cursors, place = connection.execute(
            "SELECT (SELECT json_group_array(json_array(space_id, number, first, last, total))"
            " FROM heads), (SELECT json_group_array(json_array(space_id, consumer, seq))"
            " FROM cursors JOIN heads ON number = space),"
            " (SELECT seq FROM sqlite_sequence WHERE name = 'messages')"
        ).fetchone()
        known = cls(place=place or 0)
        for space_id, *numbers in msgspec.json.decode(heads):
            known.heads[space_id] = Head(*numbers)
        for space_id, consumer, seq in msgspec.json.decode(cursors):
            known.cursors.setdefault(space_id, {})[consumer] = seq
        known.number = max((head.number for head in known.heads.values()), default=0)
        return known


class Group:
    """Changes nothing of what is known until it was written: see `settle`."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._place = known.place
        self._number = known.number
        self._heads: dict[str, Head] = {}
        self._cursors: dict[tuple[str, str], int] = {}
        self._gone: dict[tuple[str, str], None] = {}
        """Of what is known or was put here, cursors that are dropped."""
        self._rows: list[object] = []

    def append(self, messages: Sequence[Message]) -> Sequence[int]:
        """Their places. Raises ValueError, and then the group is as it was."""
        moved: dict[str, Head] = {}
        rows: list[object] = []
        place = self._place
        for one in messages:
            head = moved.get(one.space_id)
            if head is None:
                head = moved[one.space_id] = self._head(one.space_id)
            if one.seq - one.together != head.last:
                kind = Gap if one.seq - one.together > head.last else ValueError
                raise kind(f"Message {one.seq} of {one.space_id} cannot follow {head.last}.")
            if not 0 < one.together <= MOST_TOGETHER or one.body.count(b"\n") != one.together - 1:
                # Many are read as one text, and told apart by that.
                raise ValueError("The body of a message has no line breaks.")
            place += one.together
            rows += (place, head.number, one.seq, head.total)
            rows += (one.at, one.type, one.origin, one.body, one.together)
            head.last = one.seq
            head.total += len(one.body)
        places = range(self._place + 1, place + 1)
        self._place = place
        self._heads |= moved
        self._rows += rows
        return places

    def acknowledge(self, consumer: str, space_id: str, seq: int) -> int:
        head = self._heads[space_id] = self._head(space_id)
        before = self._cursors.get((space_id, consumer))
        if before is None and (space_id, consumer) not in self._gone:
            before = self._known.cursors.get(space_id, {}).get(consumer)
        if before is None:
            self._make_room(consumer, space_id)
            before = 0
        self._cursors[space_id, consumer] = after = max(before, min(seq, head.last))
        return after

    def _make_room(self, consumer: str, space_id: str) -> None:
        """For one more of its owner's: those go that are furthest behind. One that comes again
        afterwards is sent all that is kept."""
        owner = consumer.rpartition(OWNED)[0]
        known = dict(self._known.cursors.get(space_id, {}))
        for space, name in self._gone:
            if space == space_id:
                known.pop(name, None)
        known |= {name: seq for (space, name), seq in self._cursors.items() if space == space_id}
        mine = [one for one in known if one.rpartition(OWNED)[0] == owner]
        surplus = len(mine) - MOST_CONSUMERS + 1
        for name in sorted(mine, key=known.__getitem__)[: max(0, surplus)]:
            self._cursors.pop((space_id, name), None)
            self._gone[space_id, name] = None

    def statements(self) -> list[Statement]:
        """Mostly one: spaces are rarely new, and acknowledgements mostly come alone."""
        found: list[Statement] = []
        fresh = [
            (head.number, space_id)
            for space_id, head in self._heads.items()
            if space_id not in self._known.heads
        ]
        if fresh:
            found.append((_ADD_HEADS, (_json(fresh),)))
        most = MOST_ROWS * COLUMNS
        for begin in range(0, len(self._rows), most):
            found.append(_insert(self._rows[begin : begin + most]))
        if self._gone:
            gone = [(name, self._heads[space_id].number) for space_id, name in self._gone]
            found.append((_DROP_CURSORS, (_json(gone),)))
        if self._cursors:
            cursors = [
                (consumer, self._heads[space_id].number, seq)
                for (space_id, consumer), seq in self._cursors.items()
            ]
            found.append((_PUT_CURSORS, (_json(cursors),)))
        return found

    def settle(self) -> None:
        known = self._known
        known.place, known.number = self._place, self._number
        known.heads |= self._heads
        for space_id, consumer in self._gone:
            known.cursors.get(space_id, {}).pop(consumer, None)
        for (space_id, consumer), seq in self._cursors.items():
            known.cursors.setdefault(space_id, {})[consumer] = seq

    def _head(self, space_id: str) -> Head:
        """A copy, to be changed."""
        if head := self._heads.get(space_id) or self._known.heads.get(space_id):
            return replace(head)
        self._number += 1
        return Head(self._number)


def _json(rows: Sequence[object]) -> str:
    return msgspec.json.encode(rows).decode()


def _insert(values: list[object]) -> Statement:
    """Filled up to a power of two with nothing, so that few statements are ever compiled:
    that takes as long as running them."""
    rows = len(values) // COLUMNS
    size = 1 << (rows - 1).bit_length()
    return _insert_sql(size), values + [None] * ((size - rows) * COLUMNS)


@functools.cache
def _insert_sql(size: int) -> str:
    row = f"({', '.join('?' * COLUMNS)})"
    return (
        f"INSERT INTO messages SELECT * FROM (VALUES {', '.join([row] * size)})"
        " WHERE column1 IS NOT NULL"
    )


# The writing side of the log: what waits together is one transaction and one sync.

MOST_TASKS = 500
"""In one transaction. Clients that append many messages at once wait for their answers, so
few of those come together."""

SPARE_PAGES = 1024
"""Free room in the file that is not given back: the next messages fill it again."""
GIVE_BACK_PAGES = 256
"""At once: each may have to be moved, about five milliseconds in all."""

_DROP = (
    "DELETE FROM messages WHERE place IN (SELECT one.place FROM json_each(?) AS piece"
    " CROSS JOIN messages AS one ON one.space = json_extract(piece.value, '$[0]')"
    " AND one.seq BETWEEN json_extract(piece.value, '$[1]')"
    " AND json_extract(piece.value, '$[2]'))"
)


class MessageWriter:
    """Serves tasks; made, used and closed in one thread. With `disk`, appends that ask for
    it are on the disk when they are answered."""

    def __init__(self, settings: DatabaseSettings, *, disk: bool) -> None:
        self._session = WriteSession(settings)
        self._disk = disk
        self._failed: dict[str, CarrelError] = {}
        """Spaces of which a message could not be stored, until one can. What was already on
        its way behind it fails as that did: the gap is no mistake of its caller."""
        try:
            self._known = Known.load(self._session.connection())
        except sqlite3.Error as error:
            self._session.close()
            raise self._session.explain(error) from error

    def serve(self, tasks: Sequence[Task]) -> Sequence[object | Exception]:
        answers: list[object | Exception] = []
        for together, some in itertools.groupby(tasks, lambda task: isinstance(task, Grouped)):
            if together:
                answers += self._commit([task for task in some if isinstance(task, Grouped)])
            else:
                answers += [self._alone(task) for task in some]
        return answers

    def tidy(self) -> None:
        """Room is given back by a task of its own: this would come only after other tasks."""

    def close(self) -> None:
        self._session.close()

    def _commit(self, tasks: Sequence[Grouped]) -> list[object | Exception]:
        try:
            self._refresh()
            group = Group(self._known)
            answers = [self._join(group, task) for task in tasks]
            if statements := group.statements():
                full = any(
                    isinstance(task, Append) and task.sync and not isinstance(answer, Exception)
                    for task, answer in zip(tasks, answers, strict=True)
                )
                self._session.write(statements, full=self._disk and full)
        except Exception as error:
            self._session.recover()
            return self._again(tasks, error)
        group.settle()
        if self._failed:
            self._heal(tasks, answers)
        return answers

    def _join(self, group: Group, task: Grouped) -> object | Exception:
        try:
            match task:
                case Append(messages=messages):
                    return group.append(messages)
                case AcknowledgeTask():
                    return group.acknowledge(task.consumer, task.space_id, task.seq)
        except Gap as error:
            before = (self._failed.get(space_id) for space_id in _spaces(task))
            return self._session.explain(next(filter(None, before), error))
        except Exception as error:
            return error

    def _refuse(self, task: Grouped, error: Exception) -> Exception:
        found = self._session.explain(error)
        if isinstance(found, CarrelError):
            self._failed |= dict.fromkeys(_spaces(task), found)
        return found

    def _heal(self, tasks: Sequence[Grouped], answers: Sequence[object | Exception]) -> None:
        for task, answer in zip(tasks, answers, strict=True):
            if not isinstance(answer, Exception):
                for space_id in _spaces(task):
                    self._failed.pop(space_id, None)

    def _again(self, tasks: Sequence[Grouped], error: Exception) -> list[object | Exception]:
        """By halves, so that one that is bad soon stands alone. Not when the lock is taken:
        each half would wait for it as long as the whole did."""
        if len(tasks) == 1 or isinstance(self._session.explain(error), StoreBusy):
            return [self._refuse(task, error) for task in tasks]
        half = len(tasks) // 2
        return self._commit(tasks[:half]) + self._commit(tasks[half:])

    def _alone(self, task: Task) -> object | Exception:
        try:
            self._refresh()
            match task:
                case Drop(pieces=pieces):
                    return self._drop(pieces)
                case ForgetTask(space_id=space_id):
                    return self._forget(space_id)
                case ForgetConsumer(consumer=consumer):
                    return self._forget_consumer(consumer)
                case _:
                    return self._give_back()
        except Exception as error:
            self._session.recover()
            return self._session.explain(error)

    def _drop(self, pieces: Sequence[MessagePiece]) -> list[Dropped]:
        """Passes over what has gone meanwhile."""
        found = [(piece, head) for piece in pieces if (head := self._clipped(piece))]
        if not found:
            return []
        self._delete([(head.number, head.first, head.last) for _piece, head in found])
        dropped = []
        for piece, head in found:
            self._known.heads[piece.space_id].first = head.last + 1
            cursors = self._known.cursors.get(piece.space_id, {})
            missed = {consumer: seq for consumer, seq in cursors.items() if seq < head.last}
            dropped.append(Dropped(piece.space_id, head.first, head.last, missed))
        return dropped

    def _clipped(self, piece: MessagePiece) -> Head | None:
        """What there is of it, without the last message of the space."""
        head = self._known.heads.get(piece.space_id)
        if head is None:
            return None
        first, last = max(piece.first, head.first), min(piece.last, head.last - 1)
        # Only from the beginning, so that no gap comes to be.
        return Head(head.number, first, last) if first == head.first <= last else None

    def _forget(self, space_id: str) -> bool:
        head = self._known.heads.get(space_id)
        if head is None:
            return True
        end = head.first + DROP_MOST
        if end <= head.last:
            self._delete([(head.number, head.first, end - 1)])
            head.first = end
            return False
        self._session.write([("DELETE FROM heads WHERE number = ?", (head.number,))])
        del self._known.heads[space_id]
        self._known.cursors.pop(space_id, None)
        return True

    def _forget_consumer(self, consumer: str) -> object:
        self._session.write([("DELETE FROM cursors WHERE consumer = ?", (consumer,))])
        for cursors in self._known.cursors.values():
            cursors.pop(consumer, None)
        return None

    def _give_back(self) -> bool:
        connection = self._session.connection()
        free: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
        if free <= SPARE_PAGES:
            return False
        pages = min(free - SPARE_PAGES, GIVE_BACK_PAGES)
        # A script, because it gives a row for each page and does no more than are fetched.
        connection.executescript(f"PRAGMA incremental_vacuum({pages})")
        return free - pages > SPARE_PAGES

    def _delete(self, pieces: Sequence[tuple[int, int, int]]) -> None:
        self._session.write([(_DROP, (msgspec.json.encode(pieces).decode(),))])

    def _refresh(self) -> None:
        """With a new connection what is known is asked for anew: nobody can say what came of
        the last write of a broken one."""
        if self._session.lost:
            self._known = Known.load(self._session.connection())


def _spaces(task: Grouped) -> set[str]:
    """Of the messages that it appends."""
    return {one.space_id for one in task.messages} if isinstance(task, Append) else set()
