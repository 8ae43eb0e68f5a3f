"""All that a data folder has of the machine's goods, counted: files, rows, mounts, processes."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.folders import mounts_below
from tests.load import reality

RECORDS, MESSAGES = "carrel.db", "hub.db"
EVENTS, REQUESTS = f"{RECORDS}: events", f"{RECORDS}: requests"
"""Tables that have a bound of their own."""


@dataclass(frozen=True)
class Holdings:
    """At a moment at which nothing is asked for. `rows` are by table; `bytes` are of all files
    but the databases and the daemon's log: pages are used again, and lines have a bound."""

    files: frozenset[str]
    bytes: int
    mounts: int
    rows: Mapping[str, int]
    databases: int
    daemon: reality.Process
    launcher: reality.Process

    @property
    def processes(self) -> int:
        return self.daemon.below + self.launcher.below

    def more_rows(self, before: Holdings, bounds: Mapping[str, int]) -> dict[str, int]:
        """By table: beyond what there was, and beyond its bound if it has one."""
        found = {
            table: count - max(before.rows.get(table, 0), bounds.get(table, 0))
            for table, count in self.rows.items()
        }
        return {table: more for table, more in found.items() if more > 0}


def holdings(data: Path) -> Holdings:
    files = dict(_files(data))
    databases = {name: size for name, size in files.items() if _is_database(name)}
    counted = {name: size for name, size in files.items() if not _is_bounded(name)}
    return Holdings(
        frozenset(files),
        sum(counted.values()),
        len(mounts_below(data)),
        {**_rows(data / RECORDS), **_rows(data / MESSAGES)},
        sum(databases.values()),
        reality.daemon(data),
        reality.launcher(data),
    )


def _files(data: Path) -> list[tuple[str, int]]:
    """Everything that has a name, with its size; what goes away meanwhile is not there."""
    found = []
    for folder, names, files in os.walk(data):
        for name in (*names, *files):
            path = os.path.join(folder, name)
            try:
                found.append((os.path.relpath(path, data), os.lstat(path).st_size))
            except FileNotFoundError:
                continue
    return found


def _is_database(name: str) -> bool:
    return name.startswith((RECORDS, MESSAGES))


def _is_bounded(name: str) -> bool:
    return _is_database(name) or name.endswith("log")


def _rows(path: Path) -> dict[str, int]:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        counts = {}
        for (table,) in tables.fetchall():
            (count,) = connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()
            counts[f"{path.name}: {table}"] = count
        return counts
    finally:
        connection.close()
