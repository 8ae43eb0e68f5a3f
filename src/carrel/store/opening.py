"""Opening the database: a new one, one that was closed properly, one that was not."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.domain.errors import StoreReadOnly, StoreTooNew
from carrel.store import problems
from carrel.store.migrations import RECORDS, Schema, migrate

BUSY_TIMEOUT_S = 5.0
"""A backup or a person's `sqlite3` holds the lock for a moment; who holds it longer has
taken the database away, and callers should hear of it."""

CHECK_BUDGET_S = 1.0
"""For the check after a crash, which reads the whole file: a hundred megabytes take a tenth
of it. A much larger one is not worth a late start, as damage is noticed in use too."""

KEEP_EVENTS = 100_000

_JOURNAL_BYTES = 64 << 20
"""To how much the log is cut after a burst of writes made it longer."""
_CACHED_STATEMENTS = 256
_CHECK_STEP = 100_000
"""How many of SQLite's instructions pass between two looks at the clock: a millisecond."""


@dataclass(frozen=True)
class Settings:
    path: Path
    durable: bool = False
    """Wait for the disk at each commit: safe against loss of power too."""
    keep_events: int = KEEP_EVENTS
    busy_timeout_s: float = BUSY_TIMEOUT_S
    schema: Schema = RECORDS


def prepare(settings: Settings) -> sqlite3.Connection:
    """Makes the database if there is none, else checks it and brings it up to date. Gives a
    connection to write with. Raises `StoreError`s and `InsufficientDisk`."""
    path = settings.path
    try:
        _check_access(path)
        if not path.exists():
            _make(settings)
        return _open(settings)
    except sqlite3.Error as error:
        raise problems.of_sqlite(error, path) from error
    except OSError as error:
        raise problems.of_os(error, path) from error


def connect(settings: Settings, *, reading: bool = False) -> sqlite3.Connection:
    """Raises `sqlite3.Error`."""
    connection = sqlite3.connect(
        # As a URI, so that it is never made by mistake when somebody took it away.
        f"{settings.path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=settings.busy_timeout_s,
        isolation_level=None,
        cached_statements=_CACHED_STATEMENTS,
    )
    try:
        connection.execute(f"PRAGMA synchronous = {'FULL' if settings.durable else 'NORMAL'}")
        connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA trusted_schema = OFF")
        if reading:
            connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_access(path: Path) -> None:
    """Never opens the file itself: to close it would give up SQLite's locks on it, if this
    process has it open elsewhere."""
    log = Path(f"{path}-wal")
    if path.is_dir():
        raise problems.damaged(path, "it is a folder")
    if not path.parent.is_dir():
        raise problems.no_folder(path)
    if path.exists() and path.stat().st_size == 0:
        raise problems.damaged(path, "it is empty")
    if not path.exists() and log.exists() and log.stat().st_size:
        # SQLite would apply this log to the new database.
        raise problems.damaged(path, f"it is not there, but its log {log.name} is")
    if not _may(path.parent, os.W_OK | os.X_OK) or (
        path.exists() and not _may(path, os.R_OK | os.W_OK)
    ):
        raise problems.read_only(path)


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _make(settings: Settings) -> None:
    """Gets its name when it is complete: an empty file of that name is always damage."""
    path = settings.path
    draft = path.with_name(f"{path.name}.new")
    _discard(draft)
    try:
        os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        trial = replace(settings, path=draft, durable=True)
        with contextlib.closing(connect(trial)) as connection:
            if settings.schema.shrinks:
                # Only as long as nothing is in it.
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            _use_log(connection, draft)
            _migrate(connection, trial)
        draft.replace(path)
    except BaseException:
        _discard(draft)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _discard(draft: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{draft}{suffix}").unlink(missing_ok=True)


def _open(settings: Settings) -> sqlite3.Connection:
    path = settings.path
    log = Path(f"{path}-wal")
    # A proper close leaves no log.
    crashed = log.exists() and log.stat().st_size > 0
    connection = connect(settings)
    try:
        _check_version(connection, settings)
        if crashed:
            _check_contents(connection, path)
        else:
            _check_length(connection, path)
        _use_log(connection, path)
        _migrate(connection, settings)
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, settings: Settings) -> None:
    schema = settings.schema
    migrate(connection, settings.path, schema.migrations, application_id=schema.application_id)


def _check_version(connection: sqlite3.Connection, settings: Settings) -> None:
    path, known = settings.path, len(settings.schema.migrations)
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if owner != settings.schema.application_id:
        raise problems.damaged(path, "it is a database of another program")
    if version > known:
        raise StoreTooNew(
            f"{path} was made by a newer version of Carrel.",
            hint="Use that version, or another data folder.",
            path=str(path),
            version=version,
            known=known,
        )


def _check_length(connection: sqlite3.Connection, path: Path) -> None:
    """SQLite notices whole pages that are missing, but takes half a page for zeros."""
    page = connection.execute("PRAGMA page_size").fetchone()[0]
    if path.stat().st_size % page:
        raise problems.damaged(path, "it was cut short")


def _check_contents(connection: sqlite3.Connection, path: Path) -> None:
    """What it takes too long to check passes: see `CHECK_BUDGET_S`."""
    deadline = time.monotonic() + CHECK_BUDGET_S
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _CHECK_STEP)
    try:
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return
    finally:
        connection.set_progress_handler(None, 0)
    if verdict != "ok":
        raise problems.damaged(path, str(verdict).replace("\n", " "))


def _use_log(connection: sqlite3.Connection, path: Path) -> None:
    if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise StoreReadOnly(
            f"The file system of {path} cannot hold a database that is read while it is written.",
            hint="Put the data folder on a local disk.",
            path=str(path),
        )
