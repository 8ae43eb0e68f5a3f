"""The tables, as an ordered list of changes to them.

A database says in `user_version` how many of these scripts it has seen. Scripts that were
released are never edited. Every record is kept as a JSON document, with those of its fields
beside it that are searched for. A new field with a default needs no script: old documents
are read with the default. A script is needed for a new column, and for every change of
documents that an older program would misread, a new value of an enumeration for one; such
an older program then refuses the database.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

APPLICATION_ID = 0x6361_7265
"""Says in the file's header whose it is: `care`."""

STRICT_SINCE = (3, 37)
"""SQLite's version from which tables check the types of what is put in them."""

_FIRST = """
CREATE TABLE spaces (
    space_id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    created_at REAL NOT NULL,
    removed_at REAL,
    labels TEXT NOT NULL,
    document TEXT NOT NULL
){strict};
-- Removed spaces stay for long and become many: no list of the others may pass over them.
CREATE UNIQUE INDEX spaces_names ON spaces (name) WHERE state <> 'removed' AND name <> '';
CREATE INDEX spaces_ids ON spaces (space_id) WHERE state <> 'removed';
CREATE INDEX spaces_present ON spaces (created_at, space_id, state) WHERE state <> 'removed';
CREATE INDEX spaces_gone ON spaces (created_at, space_id, name) WHERE state = 'removed';
CREATE INDEX spaces_gone_at ON spaces (removed_at, space_id) WHERE state = 'removed';

-- What the lists of spaces would otherwise have to count and to filter, kept by triggers.
CREATE TABLE tallies (
    state TEXT NOT NULL PRIMARY KEY,
    spaces INTEGER NOT NULL
){strict_without_rowid};
CREATE TABLE labels (
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    removed INTEGER NOT NULL,
    created_at REAL NOT NULL,
    space_id TEXT NOT NULL,
    PRIMARY KEY (key, value, removed, created_at, space_id)
){strict_without_rowid};

CREATE TRIGGER spaces_added AFTER INSERT ON spaces BEGIN
    INSERT INTO tallies VALUES (new.state, 1)
        ON CONFLICT (state) DO UPDATE SET spaces = spaces + 1;
    INSERT INTO labels
        SELECT key, value, new.state = 'removed', new.created_at, new.space_id
        FROM json_each(new.labels);
END;
CREATE TRIGGER spaces_moved AFTER UPDATE OF state ON spaces WHEN old.state <> new.state BEGIN
    UPDATE tallies SET spaces = spaces - 1 WHERE state = old.state;
    INSERT INTO tallies VALUES (new.state, 1)
        ON CONFLICT (state) DO UPDATE SET spaces = spaces + 1;
END;
CREATE TRIGGER spaces_labelled AFTER UPDATE OF labels, created_at, state ON spaces
WHEN old.labels <> new.labels OR old.created_at <> new.created_at
    OR (old.state = 'removed') <> (new.state = 'removed')
BEGIN
    DELETE FROM labels WHERE (key, value, removed, created_at, space_id) IN (
        SELECT key, value, old.state = 'removed', old.created_at, old.space_id
        FROM json_each(old.labels));
    INSERT INTO labels
        SELECT key, value, new.state = 'removed', new.created_at, new.space_id
        FROM json_each(new.labels);
END;
CREATE TRIGGER spaces_dropped AFTER DELETE ON spaces BEGIN
    UPDATE tallies SET spaces = spaces - 1 WHERE state = old.state;
    DELETE FROM labels WHERE (key, value, removed, created_at, space_id) IN (
        SELECT key, value, old.state = 'removed', old.created_at, old.space_id
        FROM json_each(old.labels));
END;

CREATE TABLE runs (
    run_id TEXT NOT NULL PRIMARY KEY,
    space_id TEXT NOT NULL,
    created_at REAL NOT NULL,
    live INTEGER NOT NULL,
    document TEXT NOT NULL
){strict};
CREATE INDEX runs_all ON runs (created_at, run_id);
CREATE INDEX runs_of ON runs (space_id, created_at, run_id);
CREATE INDEX runs_live ON runs (space_id, created_at, run_id) WHERE live = 1;

-- A new row gets the greatest `seq` and one: dense, because only the oldest are ever deleted.
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    space_id TEXT NOT NULL,
    type TEXT NOT NULL,
    document TEXT NOT NULL
){strict};
CREATE INDEX events_of ON events (space_id, seq);

-- `place` is the order in which steps were begun, whatever the clock did.
CREATE TABLE steps (
    space_id TEXT NOT NULL,
    operation TEXT NOT NULL,
    name TEXT NOT NULL,
    begun_at REAL NOT NULL,
    place INTEGER NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (space_id, operation, name)
){strict_without_rowid};

CREATE TABLE claims (
    caller TEXT NOT NULL,
    key TEXT NOT NULL,
    space_id TEXT NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (caller, key)
){strict_without_rowid};
CREATE INDEX claims_of ON claims (space_id);

CREATE TABLE tokens (
    token_id TEXT NOT NULL PRIMARY KEY,
    digest BLOB NOT NULL,
    created_at REAL NOT NULL,
    document TEXT NOT NULL
){strict};
CREATE INDEX tokens_digests ON tokens (digest);

CREATE TABLE trash (
    space_id TEXT NOT NULL PRIMARY KEY,
    trashed_at REAL NOT NULL,
    document TEXT NOT NULL
){strict};
CREATE INDEX trash_ages ON trash (trashed_at, space_id);
"""

_SECOND = """
CREATE TABLE turns (
    run_id TEXT NOT NULL PRIMARY KEY,
    space_id TEXT NOT NULL,
    created_at REAL NOT NULL,
    live INTEGER NOT NULL,
    document TEXT NOT NULL
){strict};
CREATE INDEX turns_of ON turns (space_id, created_at, run_id);
CREATE INDEX turns_live ON turns (created_at, run_id) WHERE live = 1;
"""

_THIRD = """
CREATE TABLE instances (
    instance_id TEXT NOT NULL PRIMARY KEY,
    created_at REAL NOT NULL,
    live INTEGER NOT NULL,
    document TEXT NOT NULL
){strict};
CREATE INDEX instances_all ON instances (live, created_at, instance_id);
"""

_FOURTH = """
CREATE TABLE requests (
    key TEXT NOT NULL PRIMARY KEY,
    caller TEXT NOT NULL,
    request_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    series TEXT NOT NULL,
    live INTEGER NOT NULL,
    bare INTEGER NOT NULL,
    created_at REAL NOT NULL,
    document TEXT NOT NULL,
    UNIQUE (caller, request_id)
){strict};
CREATE INDEX requests_all ON requests (created_at, key);
CREATE INDEX requests_bare ON requests (bare, created_at, key);
CREATE INDEX requests_series ON requests (series, created_at, key) WHERE series <> '';
"""

_FIFTH = """
-- Who gave a name: the same one may be given by several who know nothing of one another.
ALTER TABLE spaces ADD COLUMN realm TEXT NOT NULL DEFAULT '';
DROP INDEX spaces_names;
CREATE UNIQUE INDEX spaces_names ON spaces (name, realm) WHERE state <> 'removed' AND name <> '';
"""

_SIXTH = """
CREATE TABLE request_details (
    place INTEGER NOT NULL PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    caller TEXT NOT NULL,
    delivered INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL,
    document TEXT NOT NULL
){strict};
CREATE INDEX request_details_delivered ON request_details (caller, delivered, place, bytes);
"""

_SEVENTH = """
CREATE TABLE landings (
    landing_id TEXT NOT NULL PRIMARY KEY,
    created_at REAL NOT NULL,
    document TEXT NOT NULL
){strict};
CREATE INDEX landings_ages ON landings (created_at, landing_id);
"""

_EIGHTH = """
CREATE TABLE comments (
    comment_id TEXT NOT NULL PRIMARY KEY,
    space_id TEXT NOT NULL,
    created_at REAL NOT NULL,
    document TEXT NOT NULL
){strict};
CREATE INDEX comments_of ON comments (space_id, created_at, comment_id);
"""

_NINTH = """
CREATE TABLE undo_records (
    undo_id TEXT NOT NULL PRIMARY KEY,
    created_at REAL NOT NULL,
    document TEXT NOT NULL
){strict};
CREATE INDEX undo_records_ages ON undo_records (created_at, undo_id);
"""

_TENTH = """
CREATE TABLE checkpoints (
    checkpoint_id TEXT NOT NULL PRIMARY KEY,
    space_id TEXT NOT NULL,
    created_at REAL NOT NULL,
    rewinding INTEGER NOT NULL,
    document TEXT NOT NULL
){strict};
CREATE INDEX checkpoints_of ON checkpoints (space_id, created_at, checkpoint_id);
CREATE INDEX checkpoints_open ON checkpoints (rewinding) WHERE rewinding = 1;
"""

_ELEVENTH = """
CREATE TABLE landing_queue (
    place INTEGER NOT NULL PRIMARY KEY,
    entry_id TEXT NOT NULL UNIQUE,
    live INTEGER NOT NULL,
    document TEXT NOT NULL
){strict};
CREATE INDEX landing_queue_live ON landing_queue (live, place);
"""

MIGRATIONS: tuple[str, ...] = (
    *(_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, _SIXTH, _SEVENTH),
    *(_EIGHTH, _NINTH, _TENTH, _ELEVENTH),
)


@dataclass(frozen=True)
class Schema:
    """What makes a file one kind of database of ours."""

    application_id: int
    migrations: tuple[str, ...]
    shrinks: bool = False
    """Room that was freed can be given back to the disk; decided when the file is made."""


RECORDS = Schema(APPLICATION_ID, MIGRATIONS)


def migrate(
    connection: sqlite3.Connection,
    path: Path,
    migrations: tuple[str, ...] = MIGRATIONS,
    sqlite_version: tuple[int, ...] = sqlite3.sqlite_version_info,
    application_id: int = APPLICATION_ID,
) -> None:
    """Brings the database at `path` up to date, after a backup if there is something in it.
    Each script is applied whole or not at all. Raises `sqlite3.Error`, OSError."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version >= len(migrations):
        return
    if version:
        _back_up(connection, backup_path(path, version))
    strict = sqlite_version >= STRICT_SINCE
    for number, script in enumerate(migrations[version:], start=version + 1):
        _apply(connection, _with_types(script, strict), number, application_id)


def backup_path(path: Path, version: int) -> Path:
    """Where the database is kept as it was in `version`."""
    return path.with_name(f"{path.name}.v{version}.backup")


def backups(path: Path) -> list[Path]:
    """The backups of this database that there are, the newest last."""
    found = path.parent.glob(f"{path.name}.v*.backup")
    return sorted(found, key=lambda file: (len(file.name), file.name))


def _with_types(script: str, strict: bool) -> str:
    return script.replace("{strict}", " STRICT" if strict else "").replace(
        "{strict_without_rowid}", " STRICT, WITHOUT ROWID" if strict else " WITHOUT ROWID"
    )


def _apply(connection: sqlite3.Connection, script: str, number: int, application_id: int) -> None:
    try:
        connection.executescript(
            f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number};"
            f" PRAGMA application_id = {application_id}; COMMIT;"
        )
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _back_up(connection: sqlite3.Connection, target: Path) -> None:
    """A file of this name is a whole backup: it gets its name when it is complete."""
    draft = target.with_name(f"{target.name}.new")
    # SQLite writes into an empty file, but would make one that everybody can read.
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        connection.execute("VACUUM INTO ?", (str(draft),))
        os.fsync(descriptor)
        draft.replace(target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        raise
    finally:
        os.close(descriptor)
