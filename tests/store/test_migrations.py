"""Changes of the tables: in order, whole or not at all, with a backup before."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from carrel.domain.errors import NameTaken, StoreDamaged
from carrel.domain.spaces import SpaceQuery, SpaceState
from carrel.store import open_store
from carrel.store.migrations import MIGRATIONS, backup_path, backups, migrate
from carrel.store.writes import dump
from tests.store import records

SECOND = "CREATE TABLE second (one TEXT NOT NULL){strict}; INSERT INTO second VALUES ('a');"
THIRD = "ALTER TABLE second ADD COLUMN two TEXT; UPDATE second SET two = one || 'b';"
BROKEN = "CREATE TABLE third (one TEXT){strict}; INSERT INTO nowhere VALUES (1);"


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


async def _make(path: Path) -> None:
    async with open_store(path) as store:
        await store.write(records.space(1), records.event())


async def test_scripts_are_applied_in_order_after_a_backup(path: Path) -> None:
    await _make(path)
    with closing(_connect(path)) as connection:
        migrate(connection, path, (*MIGRATIONS, SECOND, THIRD))
        assert _version(connection) == len(MIGRATIONS) + 2
        assert connection.execute("SELECT one, two FROM second").fetchall() == [("a", "ab")]
        assert connection.execute("SELECT count(*) FROM spaces").fetchone() == (1,)
    (backup,) = backups(path)
    assert backup == backup_path(path, len(MIGRATIONS))
    assert backup.stat().st_mode & 0o777 == 0o600
    # The way back, as the hint says.
    backup.replace(path)
    async with open_store(path) as store:
        assert (await store.spaces(SpaceQuery())).spaces == (records.space(1),)


async def test_a_script_that_fails_changes_nothing(path: Path) -> None:
    await _make(path)
    with closing(_connect(path)) as connection:
        with pytest.raises(sqlite3.OperationalError):
            migrate(connection, path, (*MIGRATIONS, SECOND, BROKEN, THIRD))
        # The ones before it hold.
        assert _version(connection) == len(MIGRATIONS) + 1
        tables = connection.execute("SELECT name FROM sqlite_master WHERE name = 'third'")
        assert tables.fetchall() == []
        assert not connection.in_transaction
        migrate(connection, path, (*MIGRATIONS, SECOND, THIRD))
        assert _version(connection) == len(MIGRATIONS) + 2
    assert len(backups(path)) == 2


async def test_without_a_backup_there_is_no_change(path: Path) -> None:
    await _make(path)
    backup = backup_path(path, len(MIGRATIONS))
    in_the_way = backup.with_name(f"{backup.name}.new")
    in_the_way.mkdir()
    with closing(_connect(path)) as connection:
        with pytest.raises(OSError):
            migrate(connection, path, (*MIGRATIONS, SECOND))
        assert _version(connection) == len(MIGRATIONS)
    assert backups(path) == []


async def test_what_is_up_to_date_is_left_alone(path: Path) -> None:
    await _make(path)
    before = path.read_bytes()
    with closing(_connect(path)) as connection:
        migrate(connection, path)
    assert path.read_bytes() == before
    assert backups(path) == []


async def test_damage_names_the_backup(path: Path) -> None:
    await _make(path)
    with closing(_connect(path)) as connection:
        migrate(connection, path, (*MIGRATIONS, SECOND))
    path.write_bytes(b"nothing")
    with pytest.raises(StoreDamaged) as caught:
        async with open_store(path):
            pytest.fail("it was opened")
    assert str(backups(path)[0]) in caught.value.hint


@pytest.mark.parametrize("version", [(3, 36, 0), (3, 37, 0)])
async def test_tables_check_types_where_sqlite_can(path: Path, version: tuple[int, ...]) -> None:
    with closing(_connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        migrate(connection, path, sqlite_version=version)
        (text,) = connection.execute(
            "SELECT group_concat(sql) FROM sqlite_master WHERE type = 'table'"
        ).fetchone()
    assert ("STRICT" in text) == (version >= (3, 37))
    assert "{" not in text
    async with open_store(path) as store:
        await store.write(records.full_space(1), records.event(), records.step("tree"))
        assert (await store.spaces(SpaceQuery())).spaces == (records.full_space(1),)


async def test_names_that_were_everybodys_are_the_owners(path: Path) -> None:
    """Of a database as it was when a name was taken for all."""
    live = records.space(1, name="desk", labels={"team": "blue"})
    gone = records.space(2, SpaceState.REMOVED, name="desk")
    with closing(_connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        migrate(connection, path, MIGRATIONS[:4])
        for one in (live, gone):
            fields = json.loads(dump(one))
            del fields["realm"]
            values = (one.space_id, one.name, str(one.state), 1.0, None, dump(one.labels))
            connection.execute(
                "INSERT INTO spaces (space_id, name, state, created_at, removed_at, labels,"
                " document) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*values, json.dumps(fields)),
            )
    async with open_store(path) as store:
        assert await store.find("desk") == [live]
        with pytest.raises(NameTaken):
            await store.write(records.space(3, name="desk"))
        theirs = records.space(3, name="desk", realm="team=blue")
        await store.write(theirs)
        assert await store.find("desk") == [live]
        assert await store.find("desk", "team=blue") == [theirs]
        assert await store.find("desk", "team=red") == [live, theirs]
        assert (await store.spaces(SpaceQuery(labels={"team": "blue"}))).spaces == (live,)
    assert backups(path) == [backup_path(path, 4)]
