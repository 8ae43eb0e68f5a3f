"""The reading side of the log. Each answer is one row, whatever is in it: for every row more
the thread would have to wait for Python's lock again.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Sequence

import msgspec

from carrel.domain.hub import MOST_TOGETHER, Keep, Placed, PlaceQuery, Replay, Span
from carrel.store.database import DatabaseSettings
from carrel.store.message_writes import MessagePiece
from carrel.store.reads import Reader
from carrel.store.writes import GREATEST

MOST_READS = 16
"""Served together: with pages of a megabyte, some ten milliseconds."""

_PAGE = """(
SELECT CAST(max(seq) || char(10) || group_concat(body, char(10)) AS BLOB) FROM (
    SELECT seq, body FROM messages
    WHERE space = (SELECT number FROM heads WHERE space_id = :space{n}) AND seq > :after{n}
    AND seq < (SELECT max(first - 1, :after{n}) + :limit{n} + {most}
        FROM heads WHERE space_id = :space{n})
    AND seq - count < (SELECT max(first - 1, :after{n}) + :limit{n}
        FROM heads WHERE space_id = :space{n})
    AND start < (
        SELECT start + :bytes{n} FROM heads CROSS JOIN messages
        ON space = number AND seq > :after{n} WHERE space_id = :space{n} ORDER BY seq LIMIT 1)
    ORDER BY seq))"""
"""Its last `seq` and the bodies, each on a line. Numbers are dense, so the limit is a bound on
them; of what lies beyond the bytes at most `limit` are passed over. Of what was said at once
some may be before or beyond."""

_PLACED = """
WITH some AS (SELECT place, count, length(body) AS size FROM messages {index} WHERE {where}
    ORDER BY {order} LIMIT :limit),
counted AS (SELECT place, sum(count) OVER earlier - count AS before,
    sum(size) OVER earlier - size AS bytes FROM some WINDOW earlier AS (ORDER BY place))
SELECT json_group_array(json_array(place, space_id, seq, type, printf('%!.20g', at), count)),
    CAST(group_concat(body, char(10)) AS BLOB)
FROM (SELECT place, space_id, seq, type, at, count, body FROM counted
    CROSS JOIN messages USING (place) CROSS JOIN heads ON number = space
    WHERE bytes < :bytes AND before < :limit + coalesce((
        SELECT max(0, :after - place + count) FROM some ORDER BY place LIMIT 1), 0)
    ORDER BY place)"""
"""Times with more digits than SQLite's JSON gives them, so that they come back as they were. Of the
first row some messages may be passed over, and do not count."""

_BEYOND = """
SELECT json_group_array(json_array(space_id, first, until)) FROM (
    SELECT space_id, first, min((
            SELECT seq - count FROM messages WHERE space = number AND seq = last
        ), max(
        iif(:messages > 0 AND last - first >= :messages, (
            SELECT seq FROM messages WHERE space = number AND seq >= last - :messages
            ORDER BY seq LIMIT 1), 0),
        iif(:bytes > 0 AND total - dropped > :bytes, coalesce((
            SELECT seq - count FROM messages WHERE space = number AND start >= total - :bytes
            ORDER BY seq LIMIT 1), last), 0),
        iif(:seconds > 0, coalesce((
            SELECT seq - count FROM messages WHERE space = number AND at >= :now - :seconds
            ORDER BY seq LIMIT 1), last), 0))) AS until
    FROM heads WHERE {where})
WHERE until >= first"""
"""Each scan along a space ends at the first message that stays."""

Read = Replay | Callable[[sqlite3.Connection], object]


class LogReader:
    """Serves reads; made, used and closed in one thread. Replays that wait together are one
    question."""

    def __init__(self, settings: DatabaseSettings) -> None:
        self._path = settings.path
        self._reader = Reader(settings)

    def serve(self, tasks: Sequence[Read]) -> Sequence[object | Exception]:
        pages = iter(self._pages([task for task in tasks if isinstance(task, Replay)]))
        return [
            next(pages) if isinstance(task, Replay) else self._reader.serve([task])[0]
            for task in tasks
        ]

    def tidy(self) -> None:
        """Nothing is left to do after a read."""

    def close(self) -> None:
        self._reader.close()

    def _pages(self, queries: Sequence[Replay]) -> Sequence[object | Exception]:
        if not queries:
            return ()
        answer = self._reader.serve([functools.partial(replays, queries=queries)])[0]
        if isinstance(answer, tuple):
            return answer
        if len(queries) == 1:
            return (answer,)
        return [self._pages([query])[0] for query in queries]


def replays(
    connection: sqlite3.Connection, queries: Sequence[Replay]
) -> tuple[tuple[Sequence[bytes], int], ...]:
    values: dict[str, str | int] = {}
    for number, query in enumerate(queries):
        values[f"space{number}"] = query.space_id
        values[f"after{number}"] = _bounded(query.after, 0)
        values[f"limit{number}"] = _bounded(query.limit, 1)
        values[f"bytes{number}"] = _bounded(query.max_bytes, 1)
    row = connection.execute(_pages_sql(len(queries)), values).fetchone()
    return tuple(_page(query, text) for query, text in zip(queries, row, strict=True))


def read(connection: sqlite3.Connection, query: PlaceQuery) -> Sequence[Placed]:
    where = ["place > :after"]
    # Along the table SQLite stops at the limit; what is of one space would be far between.
    index, order = "NOT INDEXED", "place"
    values: dict[str, str | int] = {
        "after": _bounded(query.after, 0),
        "limit": _bounded(query.limit, 0),
        "bytes": _bounded(query.max_bytes, 1),
    }
    if query.space_ids is not None:
        chosen = "SELECT number FROM heads JOIN json_each(:ids) ON space_id = value"
        values["ids"] = _json(query.space_ids)
        if len(query.space_ids) == 1:
            where.append(f"space = ({chosen})")
            index, order = "INDEXED BY messages_of", "seq"
        else:
            where.append(f"space IN ({chosen})")
    if query.types is not None:
        where.append("type IN (SELECT value FROM json_each(:types))")
        values["types"] = _json(query.types)
    sql = _PLACED.format(index=index, where=" AND ".join(where), order=order)
    lines, text = connection.execute(sql, values).fetchone()
    bodies = iter(() if text is None else text.split(b"\n"))
    found = []
    for place, space_id, seq, type, at, count in msgspec.json.decode(lines):
        for before, body in zip(range(count - 1, -1, -1), bodies, strict=False):
            if place - before > query.after:
                found.append(Placed(place - before, space_id, seq - before, type, float(at), body))
    return found[: query.limit]


def beyond(
    connection: sqlite3.Connection, keep: Keep, now: float, only: str | None
) -> list[MessagePiece]:
    """What is out of bounds, of every space or of one."""
    values = {
        "messages": _bounded(keep.messages, 0),
        "bytes": _bounded(keep.bytes, 0),
        "seconds": keep.seconds,
        "now": now,
        "only": only,
    }
    where = "first < last" if only is None else "first < last AND space_id = :only"
    found = connection.execute(_BEYOND.format(where=where), values).fetchone()[0]
    return [MessagePiece(*piece) for piece in msgspec.json.decode(found)]


def spans(connection: sqlite3.Connection) -> dict[str, Span]:
    sql = "SELECT json_group_array(json_array(space_id, first, last, total - dropped)) FROM heads"
    rows = msgspec.json.decode(connection.execute(sql).fetchone()[0])
    return {space_id: Span(*numbers) for space_id, *numbers in rows}


def last_place(connection: sqlite3.Connection) -> int:
    """The last that was given, though its message may be gone."""
    return _number(connection, "SELECT max(seq) FROM sqlite_sequence WHERE name = 'messages'")


def first_place(connection: sqlite3.Connection) -> int:
    sql = "SELECT place - count + 1 FROM messages ORDER BY place LIMIT 1"
    row = connection.execute(sql).fetchone()
    return 0 if row is None else int(row[0])


def last_origin(connection: sqlite3.Connection) -> int:
    return _number(connection, "SELECT max(last) FROM origins")


def since(connection: sqlite3.Connection, space_id: str, at: float) -> int:
    sql = (
        "SELECT coalesce((SELECT seq - count FROM messages WHERE space = number AND at >= ?"
        " ORDER BY seq LIMIT 1), last) FROM heads WHERE space_id = ?"
    )
    row = connection.execute(sql, (at, space_id)).fetchone()
    return 0 if row is None else int(row[0])


def cursors(connection: sqlite3.Connection, consumer: str) -> dict[str, int]:
    sql = (
        "SELECT json_group_object(space_id, seq) FROM cursors CROSS JOIN heads"
        " ON number = space WHERE consumer = ?"
    )
    return _mapping(connection, sql, consumer)


def consumers(connection: sqlite3.Connection, space_id: str) -> dict[str, int]:
    sql = (
        "SELECT json_group_object(consumer, seq) FROM cursors"
        " WHERE space = (SELECT number FROM heads WHERE space_id = ?)"
    )
    return _mapping(connection, sql, space_id)


@functools.cache
def _pages_sql(count: int) -> str:
    """Side by side in one row."""
    return f"SELECT {', '.join(_PAGE.format(n=n, most=MOST_TOGETHER) for n in range(count))}"


def _page(query: Replay, text: bytes | None) -> tuple[Sequence[bytes], int]:
    if text is None:
        return (), query.after
    last, *bodies = text.split(b"\n")
    first = int(last) - len(bodies) + 1
    # Of the first and the last row some messages may not have been asked for.
    skipped = max(0, query.after + 1 - first)
    wanted = bodies[skipped : skipped + max(1, query.limit)]
    return wanted, first + skipped + len(wanted) - 1


def _number(connection: sqlite3.Connection, sql: str) -> int:
    return connection.execute(sql).fetchone()[0] or 0


def _mapping(connection: sqlite3.Connection, sql: str, value: str) -> dict[str, int]:
    found = connection.execute(sql, (value,)).fetchone()[0]
    return msgspec.json.decode(found, type=dict[str, int])


def _json(texts: frozenset[str]) -> str:
    return msgspec.json.encode(texts).decode()


def _bounded(number: int, least: int) -> int:
    """What SQLite can add to another number without leaving whole numbers."""
    return max(least, min(number, GREATEST // 4))
