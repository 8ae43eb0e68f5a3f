"""The connection that a database is written with: what a transaction needs, and what heals it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Sequence

from carrel.domain.errors import CarrelError
from carrel.store import problems
from carrel.store.opening import Settings, connect, prepare

Values = Sequence[object] | dict[str, object]
Statement = tuple[str, Values]


class Session:
    """Made, used and closed in one thread."""

    def __init__(self, settings: Settings) -> None:
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
            raise problems.taken_away(self._settings.path)
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

    def explain(self, error: Exception) -> Exception:
        """A new one for each caller, as raising changes it."""
        match error:
            case CarrelError():
                return type(error)(error.message, hint=error.hint, **error.details)
            case sqlite3.Error():
                return problems.of_sqlite(error, self._settings.path)
            case OSError():
                return problems.of_os(error, self._settings.path)
            case _:
                return error

    def close(self) -> None:
        if self._connection is None:
            return
        # What cannot be brought from the log into the database is at the next opening.
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()


def _identity(settings: Settings) -> tuple[int, int] | None:
    try:
        found = os.stat(settings.path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
