"""Appends and acknowledgements that are committed together, as few and large statements."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from carrel.domain.hub import MOST_TOGETHER, Message
from carrel.store.session import Statement

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
        if before is None:
            before = self._known.cursors.get(space_id, {}).get(consumer, 0)
        self._cursors[space_id, consumer] = after = max(before, min(seq, head.last))
        return after

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
