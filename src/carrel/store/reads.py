"""The reading side: every question that is asked of the tables, but lists of spaces."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

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
from carrel.domain.spaces import Space, SpaceQuery, SpaceState, Trashed
from carrel.domain.store import Claim, Step
from carrel.domain.takes import UndoRecord
from carrel.domain.turns import Turn
from carrel.store import database
from carrel.store.database import DatabaseSettings, connect
from carrel.store.writes import GREATEST, Unreadable, as_event, column, dump, load

FEW = 10
"""As many as `find` gives at most: enough to say which ones a short word may mean."""

LIST_BYTES = 16 << 20
"""Of what is read for one list. Prompts, arguments and results have a megabyte each, and a list has
a thousand records: whoever wrote them would have the memory of all."""

_ALL = SpaceQuery()
_AFTER_ALL = "\U0010ffff"
"""Sorts after every character that stands in an id."""

Kind = TypeVar("Kind")
Read = Callable[[sqlite3.Connection], object]


class Reader:
    """Serves reads; made, used and closed in one thread. Never waits for a writer: each
    read sees what was committed when it began."""

    def __init__(self, settings: DatabaseSettings) -> None:
        self._settings = settings
        try:
            self._connection = connect(settings, reading=True)
        except sqlite3.Error as error:
            raise database.of_sqlite(error, settings.path) from error

    def serve(self, tasks: Sequence[Read]) -> Sequence[object | Exception]:
        return [self._answer(task) for task in tasks]

    def tidy(self) -> None:
        """Nothing is left to do after a read."""

    def close(self) -> None:
        self._connection.close()

    def _answer(self, read: Read) -> object | Exception:
        try:
            return read(self._connection)
        except sqlite3.Error as error:
            return database.of_sqlite(error, self._settings.path)
        except Unreadable as error:
            return database.damaged(self._settings.path, str(error))
        except Exception as error:
            return error


def space(connection: sqlite3.Connection, space_id: str) -> Space | None:
    sql = "SELECT document FROM spaces WHERE space_id = ?"
    return _one(connection, Space, sql, column(space_id))


def find(
    connection: sqlite3.Connection, word: str, realm: str = "", among: SpaceQuery = _ALL
) -> list[Space]:
    if not word:
        return []
    if found := space(connection, word):
        return [found]
    text, own = column(word), column(realm)
    where, values = _among(among)
    named = (
        "SELECT document FROM spaces INDEXED BY spaces_names WHERE name = ? AND name <> ''"
        f" AND state <> 'removed'{where} ORDER BY realm <> ?, realm LIMIT {FEW}"
    )
    begun = (
        "SELECT document FROM spaces INDEXED BY spaces_ids WHERE state <> 'removed'"
        f" AND space_id >= ? AND space_id < ?{where} ORDER BY space_id LIMIT {FEW}"
    )
    if given := _all(connection, Space, named, text, *values, own):
        return given[:1] if given[0].realm == realm else given
    return _all(connection, Space, begun, text, text + _AFTER_ALL, *values)


def _among(query: SpaceQuery) -> tuple[str, list[str]]:
    """The part of a condition that says whose labels and ids those are."""
    where, values = "", []
    for key, value in query.labels.items():
        where += (
            " AND EXISTS (SELECT 1 FROM labels WHERE key = ? AND value = ? AND removed = 0"
            " AND labels.created_at = spaces.created_at AND labels.space_id = spaces.space_id)"
        )
        values += [column(key), column(value)]
    if query.space_ids is not None:
        where += " AND space_id IN (SELECT value FROM json_each(?))"
        values.append(dump([column(one) for one in query.space_ids]))
    return where, values


def run(connection: sqlite3.Connection, run_id: str) -> RunRecord | None:
    sql = "SELECT document FROM runs WHERE run_id = ?"
    return _one(connection, RunRecord, sql, column(run_id))


def runs(
    connection: sqlite3.Connection, space_id: str, live: bool, limit: int
) -> Sequence[RunRecord]:
    index = "runs_live" if live else "runs_of" if space_id else "runs_all"
    where = " AND ".join(
        text for text, asked in (("live = 1", live), ("space_id = ?", space_id)) if asked
    )
    sql = (
        f"SELECT document FROM runs INDEXED BY {index} {f'WHERE {where}' if where else ''}"
        " ORDER BY created_at DESC, run_id DESC LIMIT ?"
    )
    named = (column(space_id),) if space_id else ()
    # Of those that have not ended each counts.
    read = _all if live else _newest
    return read(connection, RunRecord, sql, *named, _checked(limit))


def turn(connection: sqlite3.Connection, run_id: str) -> Turn | None:
    return _one(connection, Turn, "SELECT document FROM turns WHERE run_id = ?", column(run_id))


def turns(connection: sqlite3.Connection, space_id: str, limit: int) -> Sequence[Turn]:
    sql = (
        "SELECT document FROM turns INDEXED BY turns_of WHERE space_id = ?"
        " ORDER BY created_at DESC, run_id DESC LIMIT ?"
    )
    return _newest(connection, Turn, sql, column(space_id), _checked(limit))


def usages(connection: sqlite3.Connection, space_id: str) -> Sequence[Turn]:
    bare = (
        "json_set(json_remove(document, '$.system_prompt', '$.first', '$.attachments',"
        " '$.result', '$.notes'), '$.prompt', '')"
    )
    sql = f"SELECT {bare} FROM turns INDEXED BY turns_of WHERE space_id = ?"
    return _all(connection, Turn, sql, column(space_id))


def live_turns(connection: sqlite3.Connection) -> Sequence[Turn]:
    sql = "SELECT document FROM turns INDEXED BY turns_live WHERE live = 1 ORDER BY created_at"
    return _all(connection, Turn, sql)


def instance(connection: sqlite3.Connection, instance_id: str) -> Instance | None:
    sql = "SELECT document FROM instances WHERE instance_id = ?"
    return _one(connection, Instance, sql, column(instance_id))


def instances(connection: sqlite3.Connection, live: bool, limit: int) -> Sequence[Instance]:
    sql = (
        "SELECT document FROM instances INDEXED BY instances_all WHERE live = ?"
        " ORDER BY created_at DESC, instance_id DESC LIMIT ?"
    )
    return _all(connection, Instance, sql, live, _checked(limit))


def request(connection: sqlite3.Connection, key: str) -> Request | None:
    return _one(connection, Request, "SELECT document FROM requests WHERE key = ?", column(key))


def request_of(connection: sqlite3.Connection, caller: str, request_id: str) -> Request | None:
    sql = "SELECT document FROM requests WHERE caller = ? AND request_id = ?"
    return _one(connection, Request, sql, column(caller), column(request_id))


def request_details(connection: sqlite3.Connection, key: str) -> RequestDetails | None:
    sql = "SELECT document FROM request_details WHERE key = ?"
    return _one(connection, RequestDetails, sql, column(key))


def last_version(connection: sqlite3.Connection, caller: str, series: str) -> int:
    sql = (
        "SELECT coalesce(max(json_extract(document, '$.version')), 0) FROM requests"
        " WHERE series = ? AND series <> '' AND caller = ?"
    )
    found: int = connection.execute(sql, (column(series), column(caller))).fetchone()[0]
    return found


def requests(connection: sqlite3.Connection, query: RequestQuery) -> Sequence[Request]:
    where, values = ["1"], []
    for name in ("caller", "owner", "series"):
        asked: str | None = getattr(query, name)
        if asked is not None:
            where.append(f"{name} = ?")
            values.append(column(asked))
    if query.series:
        where.append("series <> ''")
    for flag in ("live", "bare"):
        wanted: bool | None = getattr(query, flag)
        if wanted is not None:
            where.append(f"{flag} = {int(wanted)}")
    if query.before:
        where.append("(created_at, key) < (SELECT created_at, key FROM requests WHERE key = ?)")
        values.append(column(query.before))
    sql = (
        f"SELECT document FROM requests WHERE {' AND '.join(where)}"
        " ORDER BY created_at DESC, key DESC LIMIT ?"
    )
    return _all(connection, Request, sql, *values, _checked(query.limit))


def events(connection: sqlite3.Connection, query: EventQuery) -> list[Event]:
    # A plus sign keeps SQLite from using an index: in the order of the log it stops at the
    # limit, and who follows the log has little left to read.
    where = ["seq > :after"]
    values: dict[str, str | int] = {
        "after": min(query.after, GREATEST),
        "limit": _checked(query.limit),
    }
    if query.space_ids is not None and len(query.space_ids) == 1:
        where.append("space_id = :id")
        values["id"] = column(next(iter(query.space_ids)))
    elif query.space_ids is not None:
        where.append("+space_id IN (SELECT value FROM json_each(:ids))")
        values["ids"] = dump([column(one) for one in query.space_ids])
    if query.types is not None:
        where.append("+type IN (SELECT value FROM json_each(:types))")
        values["types"] = dump([column(str(one)) for one in query.types])
    sql = f"SELECT seq, document FROM events WHERE {' AND '.join(where)} ORDER BY seq LIMIT :limit"
    return [as_event(seq, document) for seq, document in connection.execute(sql, values)]


def event_span(connection: sqlite3.Connection) -> tuple[int, int]:
    # Two questions, because SQLite answers only one of them at a time from the end of a table.
    sql = "SELECT (SELECT min(seq) FROM events), (SELECT max(seq) FROM events)"
    first, last = connection.execute(sql).fetchone()
    return first or 0, last or 0


def steps(connection: sqlite3.Connection, space_id: str) -> list[Step]:
    sql = "SELECT document FROM steps WHERE space_id = ? ORDER BY place"
    return _all(connection, Step, sql, column(space_id))


def claim(connection: sqlite3.Connection, caller: str, key: str) -> Claim | None:
    sql = "SELECT document FROM claims WHERE caller = ? AND key = ?"
    return _one(connection, Claim, sql, column(caller), column(key))


def tokens(connection: sqlite3.Connection, digest: bytes | None) -> list[TokenRecord]:
    order = "ORDER BY created_at, token_id"
    if digest is None:
        return _all(connection, TokenRecord, f"SELECT document FROM tokens {order}")
    return _all(
        connection, TokenRecord, f"SELECT document FROM tokens WHERE digest = ? {order}", digest
    )


def trash(connection: sqlite3.Connection) -> list[Trashed]:
    return _all(connection, Trashed, "SELECT document FROM trash ORDER BY trashed_at, space_id")


def checkpoints(connection: sqlite3.Connection, space_id: str) -> list[Checkpoint]:
    if not space_id:
        sql = "SELECT document FROM checkpoints INDEXED BY checkpoints_open WHERE rewinding = 1"
        return _all(connection, Checkpoint, sql)
    sql = (
        "SELECT document FROM checkpoints WHERE space_id = ?"
        " ORDER BY created_at DESC, checkpoint_id DESC"
    )
    return _all(connection, Checkpoint, sql, column(space_id))


def landings(connection: sqlite3.Connection, limit: int) -> list[Landing]:
    sql = "SELECT document FROM landings ORDER BY created_at DESC, landing_id DESC LIMIT ?"
    return _all(connection, Landing, sql, limit)


def undo_records(connection: sqlite3.Connection, limit: int) -> list[UndoRecord]:
    sql = "SELECT document FROM undo_records ORDER BY created_at DESC, undo_id DESC LIMIT ?"
    return _all(connection, UndoRecord, sql, limit)


def comments(connection: sqlite3.Connection, space_id: str) -> list[Comment]:
    sql = "SELECT document FROM comments WHERE space_id = ? ORDER BY created_at, comment_id"
    return _all(connection, Comment, sql, space_id)


def queue(connection: sqlite3.Connection, live: bool, limit: int) -> list[QueueEntry]:
    sql = "SELECT document FROM landing_queue WHERE live = ? ORDER BY place DESC LIMIT ?"
    return _all(connection, QueueEntry, sql, int(live), limit)


def count(connection: sqlite3.Connection) -> dict[SpaceState, int]:
    counted = dict(connection.execute("SELECT state, spaces FROM tallies").fetchall())
    return {state: counted.get(str(state), 0) for state in SpaceState}


def old_removed(connection: sqlite3.Connection, before: float, most: int) -> list[str]:
    """Ids of removed spaces of which nothing is in the trash, the oldest first."""
    sql = (
        "SELECT space_id FROM spaces INDEXED BY spaces_gone_at"
        " WHERE state = 'removed' AND removed_at < ?"
        " AND NOT EXISTS (SELECT 1 FROM trash WHERE trash.space_id = spaces.space_id)"
        " ORDER BY removed_at, space_id LIMIT ?"
    )
    return [row[0] for row in connection.execute(sql, (before, most))]


def _one(
    connection: sqlite3.Connection, kind: type[Kind], sql: str, *values: str | bytes | float
) -> Kind | None:
    row = connection.execute(sql, values).fetchone()
    return None if row is None else load(kind, row[0])


def _all(
    connection: sqlite3.Connection, kind: type[Kind], sql: str, *values: str | bytes | float
) -> list[Kind]:
    return [load(kind, row[0]) for row in connection.execute(sql, values).fetchall()]


def _newest(
    connection: sqlite3.Connection, kind: type[Kind], sql: str, *values: str | bytes | float
) -> list[Kind]:
    """The first rows, as far as `LIST_BYTES` go."""
    found = within_bytes(connection.execute(sql, values))
    return [load(kind, document) for document in found.documents]


class Documents(NamedTuple):
    documents: list[str]
    more: bool
    """There are others behind them."""


def within_bytes(rows: sqlite3.Cursor) -> Documents:
    """The first, as far as `LIST_BYTES` go; one in any case."""
    found, size = list[str](), 0
    with contextlib.closing(rows):
        for (document,) in rows:
            size += len(document)
            if found and size > LIST_BYTES:
                return Documents(found, more=True)
            found.append(document)
    return Documents(found, more=False)


def _checked(limit: int) -> int:
    """For SQLite, less than nothing is no limit at all."""
    if limit < 0:
        raise MessageInvalid("The limit of a list cannot be less than 0.", hint="Raise the limit.")
    return min(limit, GREATEST)
