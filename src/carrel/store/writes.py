"""Records as JSON documents, and back."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar, cast, get_args

import msgspec

from carrel.domain.access import TokenRecord
from carrel.domain.checkpoints import Checkpoint
from carrel.domain.comments import Comment
from carrel.domain.errors import CarrelError, InsufficientDisk, StoreBusy
from carrel.domain.events import Event, NewEvent
from carrel.domain.instances import LIVE as LIVE_INSTANCES
from carrel.domain.instances import Instance
from carrel.domain.landing import Landing
from carrel.domain.queue import QueueEntry
from carrel.domain.requests import Request, RequestDetails
from carrel.domain.runs import RunRecord, RunState
from carrel.domain.spaces import Space, SpaceState, Trashed
from carrel.domain.store import Claim, Forget, Record, Step
from carrel.domain.takes import UndoRecord
from carrel.domain.turns import Turn
from carrel.store import database
from carrel.store.database import DatabaseSettings, connect, prepare

Kind = TypeVar("Kind")

GREATEST = 2**63 - 1
"""SQLite's greatest whole number."""


class Unreadable(Exception):
    """A document that is none of its kind."""


def dump(record: object) -> str:
    """Raises TypeError for what JSON has no words for."""
    try:
        return msgspec.json.encode(record).decode()
    except UnicodeEncodeError:
        # Names of files need not be UTF-8; Python then uses lone surrogates, which only
        # its own JSON writes, as escapes.
        return json.dumps(msgspec.to_builtins(record))


def dump_checked(record: object) -> str:
    """For what is read as a whole later: one that cannot be would spoil every list that it
    is in. Raises TypeError and ValueError."""
    return _dump_and_load(record)[0]


def _dump_and_load(record: Kind) -> tuple[str, Kind]:
    document = dump(record)
    try:
        return document, load(type(record), document)
    except Unreadable as error:
        raise ValueError(f"It cannot be stored: {error}.") from None


def load(kind: type[Kind], document: str) -> Kind:
    """Fields that are missing get their default, those that are not known are passed over.
    Raises `Unreadable`."""
    try:
        return cast(Kind, _decoders[kind].decode(document))
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        try:
            return msgspec.convert(json.loads(document), kind)
        except (msgspec.ValidationError, ValueError):
            raise Unreadable(f"a record of a {kind.__name__} cannot be read: {error}") from None


def column(text: str) -> str:
    """How a text is written in a column that is searched: as it is, but for what SQLite
    cannot keep or compare."""
    if text.isascii():
        return text.replace("\0", r"\x00")
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", r"\x00")


_decoders: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in get_args(Record)
}
"""Before there are threads: msgspec notes on a class how it is read, and another thread that
comes across a note that is not whole crashes the process."""


# What is to be done to the tables for each kind of record.

LIVE_RUNS = frozenset({RunState.STARTING, RunState.RUNNING})

PUT_SPACE = """
INSERT INTO spaces (space_id, name, realm, state, created_at, removed_at, labels, document)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (space_id) DO UPDATE SET name = excluded.name, realm = excluded.realm,
    state = excluded.state, created_at = excluded.created_at, removed_at = excluded.removed_at,
    labels = excluded.labels, document = excluded.document
"""
PUT_RUN = """
INSERT INTO runs (run_id, space_id, created_at, live, document) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (run_id) DO UPDATE SET space_id = excluded.space_id,
    created_at = excluded.created_at, live = excluded.live, document = excluded.document
"""
PUT_TURN = """
INSERT INTO turns (run_id, space_id, created_at, live, document) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (run_id) DO UPDATE SET live = excluded.live, document = excluded.document
"""
PUT_INSTANCE = """
INSERT INTO instances (instance_id, created_at, live, document) VALUES (?, ?, ?, ?)
ON CONFLICT (instance_id) DO UPDATE SET live = excluded.live, document = excluded.document
"""
PUT_REQUEST = """
INSERT INTO requests (key, caller, request_id, owner, series, live, bare, created_at, document)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET live = excluded.live, bare = excluded.bare,
    document = excluded.document
"""
PRUNE_TURNS = """
DELETE FROM turns WHERE run_id IN (
    SELECT run_id FROM (
        SELECT run_id, row_number() OVER newest AS place, sum(length(document)) OVER newest AS size
        FROM turns WHERE space_id = ? AND live = 0
        WINDOW newest AS (ORDER BY created_at DESC, run_id DESC))
    WHERE place > ? OR (place > 1 AND size > ?))
"""
PRUNE_REQUESTS = """
DELETE FROM requests WHERE bare = 1 AND key IN (
    SELECT key FROM (
        SELECT key, row_number() OVER (PARTITION BY caller ORDER BY created_at DESC, key DESC)
            AS number FROM requests WHERE bare = 1)
    WHERE number > ?)
"""
PUT_DETAILS = """
INSERT INTO request_details (key, caller, bytes, document) VALUES (?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET bytes = excluded.bytes, document = excluded.document
"""
DELIVERED_DETAILS = "UPDATE request_details SET delivered = 1 WHERE key = ? AND delivered = 0"
PRUNE_DETAILS = """
DELETE FROM request_details WHERE place IN (
    SELECT place FROM (
        SELECT place, sum(bytes) OVER (ORDER BY place DESC) AS so_far FROM request_details
        WHERE caller = ? AND delivered = ?)
    WHERE so_far > ?)
"""
DROP_DETAILS = "DELETE FROM request_details WHERE key NOT IN (SELECT key FROM requests)"
PRUNE_INSTANCES = """
DELETE FROM instances WHERE live = 0 AND instance_id NOT IN (
    SELECT instance_id FROM instances INDEXED BY instances_all WHERE live = 0
    ORDER BY created_at DESC, instance_id DESC LIMIT ?)
"""
ADD_EVENT = "INSERT INTO events (space_id, type, document) VALUES (?, ?, ?)"
PUT_STEP = """
INSERT INTO steps (space_id, operation, name, begun_at, document, place)
SELECT space, operation, name, begun_at, document,
    (SELECT coalesce(max(place), 0) + 1 FROM steps WHERE space_id = space)
FROM (SELECT ? AS space, ? AS operation, ? AS name, ? AS begun_at, ? AS document)
-- Without a condition, what follows could be one of a join.
WHERE true
ON CONFLICT (space_id, operation, name) DO UPDATE SET
    place = CASE WHEN begun_at = excluded.begun_at THEN place ELSE excluded.place END,
    begun_at = excluded.begun_at, document = excluded.document
"""
PUT_CLAIM = """
INSERT INTO claims (caller, key, space_id, document) VALUES (?, ?, ?, ?)
ON CONFLICT (caller, key) DO UPDATE SET
    space_id = excluded.space_id, document = excluded.document
"""
PUT_TOKEN = """
INSERT INTO tokens (token_id, digest, created_at, document) VALUES (?, ?, ?, ?)
ON CONFLICT (token_id) DO UPDATE SET digest = excluded.digest,
    created_at = excluded.created_at, document = excluded.document
"""
PUT_TRASH = """
INSERT INTO trash (space_id, trashed_at, document) VALUES (?, ?, ?)
ON CONFLICT (space_id) DO UPDATE SET
    trashed_at = excluded.trashed_at, document = excluded.document
"""
PUT_CHECKPOINT = """
INSERT INTO checkpoints (checkpoint_id, space_id, created_at, rewinding, document)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (checkpoint_id) DO UPDATE SET rewinding = excluded.rewinding,
    document = excluded.document
"""
PUT_LANDING = """
INSERT INTO landings (landing_id, created_at, document) VALUES (?, ?, ?)
ON CONFLICT (landing_id) DO UPDATE SET document = excluded.document
"""
PUT_COMMENT = """
INSERT INTO comments (comment_id, space_id, created_at, document) VALUES (?, ?, ?, ?)
ON CONFLICT (comment_id) DO UPDATE SET document = excluded.document
"""
PUT_UNDO_RECORD = """
INSERT INTO undo_records (undo_id, created_at, document) VALUES (?, ?, ?)
ON CONFLICT (undo_id) DO UPDATE SET document = excluded.document
"""
PUT_QUEUE_ENTRY = """
INSERT INTO landing_queue (entry_id, live, document) VALUES (?, ?, ?)
ON CONFLICT (entry_id) DO UPDATE SET live = excluded.live, document = excluded.document
"""
PRUNE_QUEUE = """
DELETE FROM landing_queue WHERE live = 0 AND place NOT IN
    (SELECT place FROM landing_queue WHERE live = 0 ORDER BY place DESC LIMIT ?)
"""
PRUNE_EVENTS = """
DELETE FROM events WHERE seq < min((SELECT min(seq) FROM events) + :most,
                                   (SELECT max(seq) FROM events) - :keep + 1)
"""

Kept = (
    Space
    | RunRecord
    | Turn
    | Instance
    | Request
    | RequestDetails
    | Step
    | Claim
    | TokenRecord
    | Trashed
    | Landing
    | Comment
    | UndoRecord
    | Checkpoint
    | QueueEntry
)
Value = str | bytes | float | None


class RecordStatement(NamedTuple):
    sql: str
    values: tuple[Value, ...]
    event: NewEvent | None = None
    """That it adds, as it will be read."""


def statements_for(records: Iterable[Record]) -> list[RecordStatement]:
    """Takes all from the records now: what becomes of their mappings later is no matter.
    Raises TypeError and ValueError for what cannot be written down and read again."""
    return [statement for record in records for statement in _for_record(record)]


def drop_spaces(space_ids: Sequence[str]) -> list[RecordStatement]:
    """Takes away the records of removed spaces, with what else is kept of them."""
    ids = (dump(space_ids),)
    among = "space_id IN (SELECT value FROM json_each(?))"
    gone = RecordStatement(f"DELETE FROM spaces WHERE state = 'removed' AND {among}", ids)
    rest = [
        RecordStatement(f"DELETE FROM {table} WHERE {among}", ids)
        for table in ("steps", "claims", "runs", "turns", "comments")
    ]
    return [gone, *rest]


def _for_record(record: Record) -> list[RecordStatement]:
    match record:
        case Forget():
            return _forget(record)
        case NewEvent():
            return [_add_event(record)]
        case _:
            # Before its fields are used: this refuses what is not of the right kind.
            document = dump_checked(record)
            put = _put(record, document)
            if isinstance(record, Request) and record.is_settled:
                return [put, RecordStatement(DELIVERED_DETAILS, (column(record.key),))]
            return [put]


def _put(record: Kept, document: str) -> RecordStatement:
    match record:
        case Space():
            return _put_space(record, document)
        case RunRecord(run_id=run_id, space_id=space_id, created_at=at):
            live = record.state in LIVE_RUNS
            return RecordStatement(PUT_RUN, (column(run_id), column(space_id), at, live, document))
        case Turn(run_id=run_id, space_id=space_id, created_at=at):
            live = not record.ended
            return RecordStatement(PUT_TURN, (column(run_id), column(space_id), at, live, document))
        case Instance(instance_id=instance_id, created_at=at):
            live = record.state in LIVE_INSTANCES
            return RecordStatement(PUT_INSTANCE, (column(instance_id), at, live, document))
        case Request():
            return _put_request(record, document)
        case RequestDetails(key=key, caller=caller):
            return RecordStatement(
                PUT_DETAILS, (column(key), column(caller), len(document), document)
            )
        case Step(space_id=space_id, operation=operation, name=name, begun_at=at):
            keys = (column(space_id), column(operation), column(name))
            return RecordStatement(PUT_STEP, (*keys, at, document))
        case Claim(caller=caller, key=key, space_id=space_id):
            return RecordStatement(
                PUT_CLAIM, (column(caller), column(key), column(space_id), document)
            )
        case TokenRecord(token_id=token_id, digest=digest, created_at=at):
            return RecordStatement(PUT_TOKEN, (column(token_id), digest, at, document))
        case Trashed(space=space, trashed_at=at):
            return RecordStatement(PUT_TRASH, (column(space.space_id), at, document))
        case Checkpoint(checkpoint_id=checkpoint_id, space_id=space_id, created_at=at):
            named = (column(checkpoint_id), column(space_id))
            return RecordStatement(PUT_CHECKPOINT, (*named, at, record.rewinding, document))
        case Landing(landing_id=landing_id, created_at=at):
            return RecordStatement(PUT_LANDING, (column(landing_id), at, document))
        case QueueEntry(entry_id=entry_id):
            return RecordStatement(PUT_QUEUE_ENTRY, (column(entry_id), not record.ended, document))

        case Comment(comment_id=comment_id, space_id=space_id, created_at=at):
            names = (column(comment_id), column(space_id))
            return RecordStatement(PUT_COMMENT, (*names, at, document))

        case UndoRecord(undo_id=undo_id, created_at=at):
            return RecordStatement(PUT_UNDO_RECORD, (column(undo_id), at, document))


def _put_request(request: Request, document: str) -> RecordStatement:
    asked = request.asked
    names = (request.key, request.caller, request.request_id, asked.owner, asked.keeping.series)
    keys = tuple(column(name) for name in names)
    return RecordStatement(
        PUT_REQUEST, (*keys, not request.ended, request.is_bare, request.created_at, document)
    )


def _put_space(space: Space, document: str) -> RecordStatement:
    removed_at = None
    if space.state == SpaceState.REMOVED:
        removed_at = space.updated_at if space.removed_at is None else space.removed_at
    labels = {column(key): column(value) for key, value in space.labels.items()}
    keys = (column(space.space_id), column(space.name), column(space.realm))
    state = (str(space.state), space.created_at, removed_at)
    return RecordStatement(PUT_SPACE, (*keys, *state, dump(labels), document))


def _add_event(event: NewEvent) -> RecordStatement:
    stamped = event if event.at else NewEvent(event.type, event.space_id, event.data, time.time())
    document, read = _dump_and_load(stamped)
    return RecordStatement(ADD_EVENT, (column(event.space_id), str(event.type), document), read)


SCRUB = RecordStatement("SELECT 1", ())
"""Changes nothing; who does it knows that the log is to be emptied afterwards."""


def _forget(what: Forget) -> list[RecordStatement]:
    wanted = (
        ("steps", what.steps_of),
        ("claims", what.claims_of),
        ("runs", what.runs_of),
        ("turns", what.runs_of),
        ("trash", what.trash_of),
        ("checkpoints", what.checkpoints_of),
    )
    statements = [
        RecordStatement(f"DELETE FROM {table} WHERE space_id = ?", (column(space_id),))
        for table, space_id in wanted
        if space_id
    ]
    if what.values:
        statements.append(SCRUB)
    if what.checkpoints:
        among = "checkpoint_id IN (SELECT value FROM json_each(?))"
        statements.append(
            RecordStatement(f"DELETE FROM checkpoints WHERE {among}", (dump(what.checkpoints),))
        )
    if what.run_id:
        for table in ("runs", "turns"):
            one = RecordStatement(f"DELETE FROM {table} WHERE run_id = ?", (column(what.run_id),))
            statements.append(one)
    if what.turns_of:
        bounds = (column(what.turns_of), what.turns_but, what.turns_bytes)
        statements.append(RecordStatement(PRUNE_TURNS, bounds))
    if what.comment_id:
        gone = "DELETE FROM comments WHERE comment_id = ?"
        statements.append(RecordStatement(gone, (column(what.comment_id),)))
    if what.ended_instances_but is not None:
        statements.append(RecordStatement(PRUNE_INSTANCES, (what.ended_instances_but,)))
    if what.spaces:
        statements += drop_spaces(what.spaces)
    if what.bare_requests_but is not None:
        statements.append(RecordStatement(PRUNE_REQUESTS, (what.bare_requests_but,)))
        statements.append(RecordStatement(DROP_DETAILS, ()))
    if what.queue_but is not None:
        statements.append(RecordStatement(PRUNE_QUEUE, (what.queue_but,)))
    if what.details_of:
        limits = (column(what.details_of), what.details_delivered, what.details_bytes)
        statements.append(RecordStatement(PRUNE_DETAILS, limits))
    if what.requests:
        among = "key IN (SELECT value FROM json_each(?))"
        statements.append(
            RecordStatement(f"DELETE FROM requests WHERE {among}", (dump(what.requests),))
        )
        statements.append(RecordStatement(DROP_DETAILS, ()))
    return statements


# The connection that a database is written with: what a transaction needs, and what heals it.

Values = Sequence[object] | dict[str, object]
Statement = tuple[str, Values]


class WriteSession:
    """Made, used and closed in one thread."""

    def __init__(self, settings: DatabaseSettings) -> None:
        """Raises `StoreError`s and `InsufficientDisk`."""
        self._settings = settings
        self._connection: sqlite3.Connection | None = prepare(settings)
        self._file = _identity(settings)
        self._full = settings.durable

    @property
    def lost(self) -> bool:
        """Whether the connection had to be given up; `connection` makes another."""
        return self._connection is None

    def begin(self) -> sqlite3.Connection:
        """For a transaction of several steps. Raises as `connection` does."""
        connection = self.connection()
        connection.execute("BEGIN IMMEDIATE")
        return connection

    def connection(self) -> sqlite3.Connection:
        """Raises `sqlite3.Error`, `StoreDamaged`."""
        if _identity(self._settings) != self._file:
            # What is written to a deleted file is lost with this process.
            raise database.taken_away(self._settings.path)
        if self._connection is None:
            self._connection = connect(self._settings)
            self._full = self._settings.durable
        return self._connection

    def write(self, statements: Sequence[Statement], *, full: bool = False) -> int:
        """All or none; with `full` it is on the disk afterwards. Gives how many rows the
        last statement changed. Raises `sqlite3.Error`, `StoreDamaged`."""
        connection = self.connection()
        if full != self._full:
            connection.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
            self._full = full
        if len(statements) == 1:
            # Alone it is a transaction already.
            return connection.execute(*statements[0]).rowcount
        self.begin()
        changed = 0
        for sql, values in statements:
            changed = connection.execute(sql, values).rowcount
        connection.execute("COMMIT")
        return changed

    def recover(self) -> None:
        """Ends the transaction; a connection with which that fails is given up."""
        if self._connection is None:
            return
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            broken, self._connection = self._connection, None
            with contextlib.suppress(sqlite3.Error):
                broken.close()

    def empty_log(self) -> bool:
        """Whether nothing is left in the log; not when somebody reads from it right now."""
        try:
            connection = self.connection()
            connection.execute("PRAGMA busy_timeout = 0")
            try:
                busy: int = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            finally:
                wait_ms = round(self._settings.busy_timeout_s * 1000)
                connection.execute(f"PRAGMA busy_timeout = {wait_ms}")
        except (sqlite3.Error, CarrelError):
            return False
        return not busy

    def explain(self, error: Exception) -> Exception:
        """A new one for each caller, as raising changes it."""
        match error:
            case CarrelError():
                return type(error)(error.message, hint=error.hint, **error.details)
            case sqlite3.Error():
                return database.of_sqlite(error, self._settings.path)
            case OSError():
                return database.of_os(error, self._settings.path)
            case _:
                return error

    def close(self) -> None:
        if self._connection is None:
            return
        # What cannot be brought from the log into the database is at the next opening.
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()


def _identity(settings: DatabaseSettings) -> tuple[int, int] | None:
    try:
        found = os.stat(settings.path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


# The writing side: many writes in one transaction, each of them whole or not at all.

MOST_WRITES = 500
"""In one transaction: about twenty milliseconds of work, which the first of them waits for."""

PRUNE_EVERY = 256
"""How many events beyond those to be kept there may be, so that pruning costs little."""
PRUNE_MOST = 1024
"""At once, so that no write waits long for it. More than are mostly added meanwhile."""

GIVE_UP_MOST = 4
"""Pieces of the reserve for one batch of writes: others on a full disk may take the first."""

Write = Sequence[RecordStatement]
Outcome = Sequence[Event] | Exception


class Writer:
    """Serves writes; made, used and closed in one thread.

    The writes that wait together are committed together. Each stands in a savepoint of its
    own, so that a bad one fails alone. When the transaction as a whole fails, as on a full
    disk, each is tried by itself.
    """

    def __init__(self, settings: DatabaseSettings) -> None:
        self._session = WriteSession(settings)
        self._room = settings.room
        self._keep_events = settings.keep_events
        self._unpruned = PRUNE_EVERY
        self._scrubs = False
        self._short = False
        """There was hardly any room before the last writes."""

    def serve(self, tasks: Sequence[Write]) -> Sequence[Outcome]:
        """Where the disk is full, the room that is kept for that is given up."""
        if self._room is None:
            return self._commit(tasks)
        self._short = self._room.ensure()
        outcomes = list(self._commit(tasks))
        for _ in range(GIVE_UP_MOST):
            short = [at for at, one in enumerate(outcomes) if isinstance(one, InsufficientDisk)]
            # Emptying the log takes some room, and gives more.
            if not short or not (self._room.give_up() | self._session.empty_log()):
                break
            self._short = True
            for at, outcome in zip(short, self._commit([tasks[at] for at in short]), strict=True):
                outcomes[at] = outcome
        return outcomes

    def _commit(self, tasks: Sequence[Write]) -> Sequence[Outcome]:
        try:
            connection = self._session.begin()
        except (sqlite3.Error, OSError, CarrelError) as error:
            self._session.recover()
            return [self._session.explain(error) for _task in tasks]
        try:
            if len(tasks) == 1:
                outcomes: list[Outcome] = [_apply(connection, tasks[0])]
            else:
                outcomes = [self._attempt(connection, task) for task in tasks]
            connection.execute("COMMIT")
        except Exception as error:
            self._session.recover()
            return [self._session.explain(error)] if len(tasks) == 1 else self._one_by_one(tasks)
        self._unpruned += sum(len(done) for done in outcomes if not isinstance(done, Exception))
        self._scrubs = self._scrubs or any(SCRUB in task for task in tasks)
        return outcomes

    def tidy(self) -> None:
        """Empties the log of what is to be gone, and on a full disk of everything: it would grow
        by megabytes, which is more than there is. Drops the oldest events. If that cannot be, the
        next write hears of it."""
        if (self._scrubs or self._short) and not self._session.lost:
            self._scrubs = not self._session.empty_log() and self._scrubs
        if self._unpruned < PRUNE_EVERY or self._session.lost:
            return
        values = {"most": PRUNE_MOST, "keep": self._keep_events}
        try:
            dropped = self._session.connection().execute(PRUNE_EVENTS, values).rowcount
        except (sqlite3.Error, CarrelError):
            self._session.recover()
        else:
            self._unpruned = PRUNE_EVERY if dropped == PRUNE_MOST else 0

    def close(self) -> None:
        self._session.close()

    def _attempt(self, connection: sqlite3.Connection, write: Write) -> Outcome:
        """Raises `sqlite3.Error` if the whole transaction has failed."""
        connection.execute("SAVEPOINT one")
        outcome: Outcome
        try:
            outcome = _apply(connection, write)
        except Exception as error:
            if not connection.in_transaction:
                raise
            connection.execute("ROLLBACK TO one")
            outcome = self._session.explain(error)
        connection.execute("RELEASE one")
        return outcome

    def _one_by_one(self, tasks: Sequence[Write]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for task in tasks:
            outcome = self._commit([task])[0]
            outcomes.append(outcome)
            if isinstance(outcome, StoreBusy):
                # Each of the others would wait for the lock as long as this one did.
                outcomes += [self._session.explain(outcome) for _task in tasks[len(outcomes) :]]
                break
        return outcomes


def _apply(connection: sqlite3.Connection, write: Write) -> list[Event]:
    """Raises `NameTaken`, `sqlite3.Error`."""
    events = []
    for statement in write:
        try:
            cursor = connection.execute(statement.sql, statement.values)
        except sqlite3.IntegrityError as error:
            if statement.sql is PUT_SPACE and database.is_about_name(error):
                raise database.name_taken(str(statement.values[1])) from None
            raise
        if (new := statement.event) is not None:
            events.append(_numbered(cursor.lastrowid or 0, new))
    return events


def as_event(seq: int, document: str) -> Event:
    return _numbered(seq, load(NewEvent, document))


def _numbered(seq: int, new: NewEvent) -> Event:
    """As it is kept, for those who hear of it now and those who read it later alike."""
    return Event(seq, new.type, new.space_id, new.data, new.at)
