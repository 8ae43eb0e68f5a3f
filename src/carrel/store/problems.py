"""What SQLite and the system say went wrong, in our own words."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import tempfile
from pathlib import Path

from carrel.domain.errors import (
    CarrelError,
    InsufficientDisk,
    NameTaken,
    StoreBusy,
    StoreDamaged,
    StoreReadOnly,
    TooLarge,
)
from carrel.store.migrations import backups

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
