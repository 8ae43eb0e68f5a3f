"""What is to be done to the tables for each kind of record."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from carrel.domain.access import Token
from carrel.domain.agents import Turn, TurnState
from carrel.domain.events import NewEvent
from carrel.domain.instances import LIVE as LIVE_INSTANCES
from carrel.domain.instances import Instance
from carrel.domain.requests import Request
from carrel.domain.runs import RunRecord, RunState
from carrel.domain.spaces import Space, SpaceState, Trashed
from carrel.domain.storing import Claim, Forget, Record, Step
from carrel.store.documents import column, dump, dump_checked

LIVE_RUNS = frozenset({RunState.STARTING, RunState.RUNNING})

PUT_SPACE = """
INSERT INTO spaces (space_id, name, state, created_at, removed_at, labels, document)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (space_id) DO UPDATE SET name = excluded.name, state = excluded.state,
    created_at = excluded.created_at, removed_at = excluded.removed_at,
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
PRUNE_REQUESTS = """
DELETE FROM requests WHERE bare = 1 AND key NOT IN (
    SELECT key FROM requests INDEXED BY requests_bare WHERE bare = 1
    ORDER BY created_at DESC, key DESC LIMIT ?)
"""
PRUNE_INSTANCES = """
DELETE FROM instances WHERE live = 0 AND instance_id NOT IN (
    SELECT instance_id FROM instances INDEXED BY instances_all WHERE live = 0
    ORDER BY created_at DESC, instance_id DESC LIMIT ?)
"""
ADD_EVENT = "INSERT INTO events (space_id, type, document) VALUES (?, ?, ?)"
PUT_STEP = """
INSERT INTO steps (space_id, operation, name, begun_at, document, place)
VALUES (?1, ?2, ?3, ?4, ?5,
    (SELECT coalesce(max(place), 0) + 1 FROM steps WHERE space_id = ?1))
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
PRUNE_EVENTS = """
DELETE FROM events WHERE seq < min((SELECT min(seq) FROM events) + :most,
                                   (SELECT max(seq) FROM events) - :keep + 1)
"""

Kept = Space | RunRecord | Turn | Instance | Request | Step | Claim | Token | Trashed
Value = str | bytes | float | None


class Statement(NamedTuple):
    sql: str
    values: tuple[Value, ...]


def statements_for(records: Iterable[Record]) -> list[Statement]:
    """Takes all from the records now: what becomes of their mappings later is no matter.
    Raises TypeError and ValueError for what cannot be written down and read again."""
    return [statement for record in records for statement in _for_record(record)]


def drop_spaces(space_ids: Sequence[str]) -> list[Statement]:
    """Takes away the records of removed spaces, with what else is kept of them."""
    ids = (dump(space_ids),)
    among = "space_id IN (SELECT value FROM json_each(?))"
    gone = Statement(f"DELETE FROM spaces WHERE state = 'removed' AND {among}", ids)
    rest = [
        Statement(f"DELETE FROM {table} WHERE {among}", ids)
        for table in ("steps", "claims", "runs", "turns")
    ]
    return [gone, *rest]


def _for_record(record: Record) -> list[Statement]:
    match record:
        case Forget():
            return _forget(record)
        case NewEvent():
            return [_add_event(record)]
        case _:
            # Before its fields are used: this refuses what is not of the right kind.
            document = dump_checked(record)
            return [_put(record, document)]


def _put(record: Kept, document: str) -> Statement:
    match record:
        case Space():
            return _put_space(record, document)
        case RunRecord(run_id=run_id, space_id=space_id, created_at=at):
            live = record.state in LIVE_RUNS
            return Statement(PUT_RUN, (column(run_id), column(space_id), at, live, document))
        case Turn(run_id=run_id, space_id=space_id, created_at=at):
            live = record.state is TurnState.RUNNING
            return Statement(PUT_TURN, (column(run_id), column(space_id), at, live, document))
        case Instance(instance_id=instance_id, created_at=at):
            live = record.state in LIVE_INSTANCES
            return Statement(PUT_INSTANCE, (column(instance_id), at, live, document))
        case Request():
            return _put_request(record, document)
        case Step(space_id=space_id, operation=operation, name=name, begun_at=at):
            keys = (column(space_id), column(operation), column(name))
            return Statement(PUT_STEP, (*keys, at, document))
        case Claim(caller=caller, key=key, space_id=space_id):
            return Statement(PUT_CLAIM, (column(caller), column(key), column(space_id), document))
        case Token(token_id=token_id, digest=digest, created_at=at):
            return Statement(PUT_TOKEN, (column(token_id), digest, at, document))
        case Trashed(space=space, trashed_at=at):
            return Statement(PUT_TRASH, (column(space.space_id), at, document))


def _put_request(request: Request, document: str) -> Statement:
    asked = request.asked
    names = (request.key, request.caller, request.request_id, asked.owner, asked.keeping.series)
    keys = tuple(column(name) for name in names)
    return Statement(
        PUT_REQUEST, (*keys, not request.ended, request.is_bare, request.created_at, document)
    )


def _put_space(space: Space, document: str) -> Statement:
    removed_at = None
    if space.state == SpaceState.REMOVED:
        removed_at = space.updated_at if space.removed_at is None else space.removed_at
    labels = {column(key): column(value) for key, value in space.labels.items()}
    keys = (column(space.space_id), column(space.name), str(space.state), space.created_at)
    return Statement(PUT_SPACE, (*keys, removed_at, dump(labels), document))


def _add_event(event: NewEvent) -> Statement:
    stamped = event if event.at else NewEvent(event.type, event.space_id, event.data, time.time())
    document = dump_checked(stamped)
    return Statement(ADD_EVENT, (column(event.space_id), str(event.type), document))


def _forget(what: Forget) -> list[Statement]:
    wanted = (
        ("steps", what.steps_of),
        ("claims", what.claims_of),
        ("runs", what.runs_of),
        ("turns", what.runs_of),
        ("trash", what.trash_of),
    )
    statements = [
        Statement(f"DELETE FROM {table} WHERE space_id = ?", (column(space_id),))
        for table, space_id in wanted
        if space_id
    ]
    if what.run_id:
        for table in ("runs", "turns"):
            one = Statement(f"DELETE FROM {table} WHERE run_id = ?", (column(what.run_id),))
            statements.append(one)
    if what.ended_instances_but is not None:
        statements.append(Statement(PRUNE_INSTANCES, (what.ended_instances_but,)))
    if what.spaces:
        statements += drop_spaces(what.spaces)
    if what.bare_requests_but is not None:
        statements.append(Statement(PRUNE_REQUESTS, (what.bare_requests_but,)))
    if what.requests:
        among = "key IN (SELECT value FROM json_each(?))"
        statements.append(Statement(f"DELETE FROM requests WHERE {among}", (dump(what.requests),)))
    return statements
