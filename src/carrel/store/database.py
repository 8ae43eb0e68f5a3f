"""What SQLite and the system say went wrong, in our own words."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sqlite3
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.domain.errors import (
    CarrelError,
    InsufficientDisk,
    NameTaken,
    StoreBusy,
    StoreDamaged,
    StoreReadOnly,
    StoreTooNew,
    TooLarge,
)
from carrel.domain.store import Room
from carrel.store.migrations import RECORDS, Schema, backups, migrate

_PRIMARY = 0xFF
"""SQLite's extended codes carry the plain one in their lowest byte."""
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
_DENIED = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN})

_MISUSE = (sqlite3.ProgrammingError, sqlite3.InterfaceError)

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_WAY = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})

_TRIAL_BYTES = 256 << 10
"""More than SQLite adds to a file at once."""


def of_sqlite(error: sqlite3.Error, path: Path) -> Exception:
    """The error to raise instead. What a caller did wrong becomes a ValueError."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY
    if code == sqlite3.SQLITE_CONSTRAINT or isinstance(error, _MISUSE):
        return ValueError(f"A record cannot be stored: {error}.")
    if code in _BUSY:
        return busy(path)
    if code in _DAMAGED:
        return damaged(path, str(error))
    if code == sqlite3.SQLITE_FULL:
        return no_room(path)
    if code == sqlite3.SQLITE_TOOBIG:
        return TooLarge("A record is too large to be stored.", hint="Keep it in a file instead.")
    if code == sqlite3.SQLITE_INTERRUPT:
        return closed()
    return _of_system(path) or _denied_or_damaged(code, error, path)


def of_os(error: OSError, path: Path) -> CarrelError:
    if error.errno in _NO_ROOM:
        return no_room(path)
    if error.errno in _NO_WAY:
        return read_only(path)
    return damaged(path, error.strerror or str(error))


def is_about_name(error: sqlite3.IntegrityError) -> bool:
    return "spaces.name" in str(error)


def name_taken(name: str) -> NameTaken:
    return NameTaken(
        f"Another space is named {name!r}.",
        hint="Choose another name, or remove that space first.",
        name=name,
    )


def busy(path: Path) -> StoreBusy:
    return StoreBusy(
        f"{path} is locked by another program.",
        hint="Close what else uses it, then try again.",
        path=str(path),
    )


def closed() -> StoreBusy:
    return StoreBusy("The records are closed.", hint="Try again when the daemon is up.")


def no_room(path: Path) -> InsufficientDisk:
    return InsufficientDisk(
        f"There is no room on the disk to write to {path}.",
        hint="Make room, then try again; nothing that was stored is lost.",
        path=str(path),
    )


def read_only(path: Path) -> StoreReadOnly:
    return StoreReadOnly(
        f"{path} and its folder cannot be written.",
        hint="Check owner and mode of both, and that the disk is not mounted read-only.",
        path=str(path),
    )


def damaged(path: Path, why: str) -> StoreDamaged:
    kept = backups(path)
    back = f"Put the backup {kept[-1]} in its place" if kept else "Put a backup in its place"
    return StoreDamaged(
        f"The database {path} is damaged: {why.rstrip('.')}.",
        hint=f"{back}, or set it aside (`mv {path} {path}.damaged`, and the files "
        f"{path.name}-wal and {path.name}-shm too) to start without records. "
        f"`sqlite3 {path} .recover` saves what can be read.",
        path=str(path),
    )


def taken_away(path: Path) -> StoreDamaged:
    return StoreDamaged(
        f"The database {path} was taken away or replaced while it was in use.",
        hint="Put it back as it was, or restart the daemon to use the one that is there.",
        path=str(path),
    )


def no_folder(path: Path) -> StoreDamaged:
    return StoreDamaged(
        f"The folder {path.parent} is not there.",
        hint="Make it, or choose another data folder.",
        path=str(path),
    )


def _denied_or_damaged(code: int, error: sqlite3.Error, path: Path) -> CarrelError:
    return read_only(path) if code in _DENIED else damaged(path, str(error))


def _of_system(path: Path) -> CarrelError | None:
    """SQLite does not tell why a write failed: the same is tried, to see what comes of it."""
    try:
        if _at_size_limit(path):
            return no_room(path)
        if not path.parent.exists():
            return taken_away(path)
        with tempfile.TemporaryFile(dir=path.parent, buffering=0) as trial:
            os.posix_fallocate(trial.fileno(), 0, _TRIAL_BYTES)
    except OSError as error:
        return of_os(error, path)
    # Asked last: one that could not be made for want of room is not there either.
    return None if path.exists() else taken_away(path)


def _at_size_limit(path: Path) -> bool:
    """Whether this process may not make the files longer (`ulimit -f`)."""
    limit, _hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return False
    files = (path, Path(f"{path}-wal"), Path(f"{path}-shm"))
    longest = max((file.stat().st_size for file in files if file.exists()), default=0)
    return longest + _TRIAL_BYTES > limit


# Opening the database: a new one, one that was closed properly, one that was not.

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
class DatabaseSettings:
    path: Path
    durable: bool = False
    """Wait for the disk at each commit: safe against loss of power too."""
    keep_events: int = KEEP_EVENTS
    busy_timeout_s: float = BUSY_TIMEOUT_S
    schema: Schema = RECORDS
    room: Room | None = None
    """Given up for what is written when the disk is full."""


def prepare(settings: DatabaseSettings) -> sqlite3.Connection:
    """Makes the database if there is none, else checks it and brings it up to date. Gives a
    connection to write with. Raises `StoreError`s and `InsufficientDisk`."""
    path = settings.path
    if settings.room is not None:
        settings.room.ensure()
    try:
        _check_access(path)
        if not path.exists():
            _make(settings)
        return _open(settings)
    except sqlite3.Error as error:
        raise of_sqlite(error, path) from error
    except OSError as error:
        raise of_os(error, path) from error


def connect(settings: DatabaseSettings, *, reading: bool = False) -> sqlite3.Connection:
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
        # Records may have had keys in them. The log of the hub has none, and is much longer.
        connection.execute(f"PRAGMA secure_delete = {not settings.schema.shrinks:d}")
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
        raise damaged(path, "it is a folder")
    if not path.parent.is_dir():
        raise no_folder(path)
    if path.exists() and path.stat().st_size == 0:
        raise damaged(path, "it is empty")
    if not path.exists() and log.exists() and log.stat().st_size:
        # SQLite would apply this log to the new database.
        raise damaged(path, f"it is not there, but its log {log.name} is")
    if not _may(path.parent, os.W_OK | os.X_OK) or (
        path.exists() and not _may(path, os.R_OK | os.W_OK)
    ):
        raise read_only(path)


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _make(settings: DatabaseSettings) -> None:
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


def _open(settings: DatabaseSettings) -> sqlite3.Connection:
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


def _migrate(connection: sqlite3.Connection, settings: DatabaseSettings) -> None:
    schema = settings.schema
    migrate(connection, settings.path, schema.migrations, application_id=schema.application_id)


def _check_version(connection: sqlite3.Connection, settings: DatabaseSettings) -> None:
    path, known = settings.path, len(settings.schema.migrations)
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if owner != settings.schema.application_id:
        raise damaged(path, "it is a database of another program")
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
        raise damaged(path, "it was cut short")


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
        raise damaged(path, str(verdict).replace("\n", " "))


def _use_log(connection: sqlite3.Connection, path: Path) -> None:
    if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise StoreReadOnly(
            f"The file system of {path} cannot hold a database that is read while it is written.",
            hint="Put the data folder on a local disk.",
            path=str(path),
        )
