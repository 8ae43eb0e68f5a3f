"""A database that is damaged, locked, gone or newer: a clear error, and nothing is harmed."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from carrel.app import service
from carrel.app.service import Services
from carrel.daemon import control
from carrel.domain.access import LOCAL
from carrel.domain.errors import (
    CarrelError,
    DaemonUnavailable,
    StoreBusy,
    StoreDamaged,
    StoreTooNew,
)
from carrel.domain.events import Event
from carrel.domain.spaces import Space
from carrel.domain.store import Record
from carrel.lifecycle.table import SETTLED
from carrel.store.sqlite import SqliteStore, open_store
from tests.faults.rig import (
    assert_sound,
    assert_works,
    ending,
    everything,
    remove_all,
    serving,
)
from tests.sampling import beyond
from tests.service.rig import make, run

BUSY_S = 0.2
"""How long the stores of these tests wait for a lock."""
MOST_WRITES = 20
"""No operation has so many."""
PAGE = 4096


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "open_store", partial(open_store, busy_timeout_s=BUSY_S))


async def made_with_work(data: Path) -> Space:
    """By a service that has ended since."""
    async with serving(data) as services:
        space = await make(services, name="kept")
        await run(services, space, "echo work > work.txt")
    return space


async def assert_all_there(data: Path, space: Space) -> None:
    async with serving(data) as services:
        await assert_works(services, space, "cat work.txt", "work\n")
        await remove_all(services, data)


def work_on_disk(data: Path) -> list[str]:
    """Wherever the space's file is kept now."""
    found = [path.read_text() for path in data.glob("spaces/*/tree/**/work.txt")]
    return found + [str(path) for path in data.glob("trash/*/changes")]


# Damaged


async def test_a_damaged_database(data: Path) -> None:
    async with ending(data):
        space = await made_with_work(data)
        database, copy = data / "carrel.db", data / "copy"
        shutil.copy(database, copy)
        for damage in (_scribble, _cut, _empty, _replace):
            damage(database)
            with pytest.raises(StoreDamaged) as caught:
                async with serving(data):
                    pass
            assert str(database) in caught.value.message and caught.value.hint
            with pytest.raises(DaemonUnavailable) as refused:
                control.start(data)
            assert refused.value.details["cause"] == "store_damaged"
            assert "damaged" in refused.value.message
            assert work_on_disk(data) == ["work\n"]
            shutil.copy(copy, database)
        await assert_all_there(data, space)


def _scribble(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(os.urandom(PAGE))


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 + 100)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _replace(path: Path) -> None:
    path.write_text("This is no database.\n" * 1000)


async def test_a_database_that_is_gone_costs_no_work(data: Path) -> None:
    """Without records a daemon starts anew. What somebody worked on is not removed as a
    stray: nobody asked for that."""
    async with ending(data):
        await made_with_work(data)
        for name in ("carrel.db", "carrel.db-wal", "carrel.db-shm"):
            (data / name).unlink(missing_ok=True)
        async with serving(data) as services:
            await services.reconciler.sweep()
            await services.collector.run(LOCAL)
            assert work_on_disk(data) != []
            fresh = await make(services)
            await assert_works(services, fresh, "echo hello", "hello\n")
            await services.spaces.remove(LOCAL, fresh.space_id)


async def test_a_backup_of_the_database_costs_no_work(data: Path) -> None:
    """The hint for a damaged database says to put a backup in its place. It knows nothing of
    what was made since."""
    async with ending(data):
        async with serving(data):
            pass
        shutil.copy(data / "carrel.db", data / "backup")
        await made_with_work(data)
        shutil.copy(data / "backup", data / "carrel.db")
        async with serving(data) as services:
            await services.reconciler.sweep()
            await services.collector.run(LOCAL)
            assert work_on_disk(data) != []


async def test_a_database_that_is_taken_away_in_use(data: Path) -> None:
    async with ending(data):
        async with serving(data) as services:
            space = await make(services)
            await run(services, space, "echo work > work.txt")
            aside = data / "aside"
            (data / "carrel.db").rename(aside)
            try:
                with pytest.raises(CarrelError) as caught:
                    await make(services)
                assert caught.value.code == "store_damaged" and caught.value.hint
            finally:
                aside.rename(data / "carrel.db")
        await assert_all_there(data, space)


# Locked


@contextmanager
def locked(data: Path) -> Iterator[None]:
    """As by a person's `sqlite3` that is in the middle of a change."""
    with closing(sqlite3.connect(data / "carrel.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def test_a_locked_database(data: Path, impatient: None) -> None:
    async with ending(data):
        async with serving(data) as services:
            space = await make(services)
            await run(services, space, "echo work > work.txt")
            with locked(data):
                with pytest.raises(StoreBusy) as caught:
                    await make(services)
                assert caught.value.hint
                with pytest.raises(StoreBusy):
                    await run(services, space, "true")
                assert [one.space_id for one in await everything(services)] == [space.space_id]
            await assert_sound(services, data, space)
        await assert_all_there(data, space)


class Locker:
    """Locks the database after so many writes of the service."""

    def __init__(self, path: Path, after: int) -> None:
        self.after = after
        self.count = 0
        self.other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        real, locker = SqliteStore.write, self

        async def write(store: SqliteStore, *records: Record) -> Sequence[Event]:
            locker.count += 1
            if locker.count == locker.after + 1:
                locker.other.execute("BEGIN IMMEDIATE")
            return await real(store, *records)

        patch.setattr(SqliteStore, "write", write)

    def let_go(self) -> bool:
        """Whether it was locked at all."""
        was = self.other.in_transaction
        if was:
            self.other.execute("ROLLBACK")
        self.other.close()
        return was


@pytest.mark.parametrize("operation", ["create", "run", "remove", *beyond("stop", "start")])
async def test_locked_in_the_middle(operation: str, data: Path, impatient: None) -> None:
    """At whatever write: when the lock is gone, everything is settled again, without a
    restart, and what was there is there."""
    async with ending(data), serving(data) as services:
        for after in range(MOST_WRITES):
            space = await make(services)
            await run(services, space, "echo work > work.txt")
            if operation == "start":
                await services.spaces.stop(LOCAL, space.space_id, 0.2)
            locker = Locker(data / "carrel.db", after)
            with pytest.MonkeyPatch.context() as patch:
                locker.install(patch)
                try:
                    await _do(services, operation, space)
                except StoreBusy as error:
                    assert error.hint
                finally:
                    was_locked = locker.let_go()
            await _assert_settled(services, operation, space)
            await remove_all(services, data)
            if not was_locked:
                assert after
                return
        raise AssertionError("the operation never ends")


async def _do(services: Services, operation: str, space: Space) -> None:
    if operation == "create":
        await make(services)
    elif operation == "run":
        await run(services, space, "cat work.txt")
    elif operation == "stop":
        await services.spaces.stop(LOCAL, space.space_id, 0.2)
    elif operation == "start":
        await services.spaces.start(LOCAL, space.space_id)
    else:
        await services.spaces.remove(LOCAL, space.space_id, force=True, grace_s=0.2)


async def _assert_settled(services: Services, operation: str, space: Space) -> None:
    await services.collector.run(LOCAL)
    there = {one.space_id: one for one in await everything(services)}
    unsettled = [one for one in there.values() if one.state not in SETTLED]
    assert unsettled == [], f"after {operation}"
    for record in await services.store.runs(live=True):
        assert services.runs.live(record.run_id) is not None, record
    if operation != "remove":
        assert space.space_id in there


async def test_locked_from_the_start(data: Path, impatient: None) -> None:
    async with ending(data):
        space = await made_with_work(data)
        with closing(sqlite3.connect(data / "carrel.db", isolation_level=None)) as other:
            other.execute("PRAGMA locking_mode = EXCLUSIVE")
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(StoreBusy) as caught:
                async with serving(data):
                    pass
            assert caught.value.hint
            other.execute("ROLLBACK")
        await assert_all_there(data, space)


# Newer


async def test_a_data_folder_of_a_newer_version(data: Path) -> None:
    async with ending(data):
        space = await made_with_work(data)
        version = _set_version(data, 1000)
        with pytest.raises(StoreTooNew) as caught:
            async with serving(data):
                pass
        assert caught.value.hint
        with pytest.raises(DaemonUnavailable) as refused:
            control.start(data)
        assert refused.value.details["cause"] == "store_too_new"
        assert "newer version" in refused.value.message
        assert work_on_disk(data) == ["work\n"]
        _set_version(data, version)
        await assert_all_there(data, space)


def _set_version(data: Path, version: int) -> int:
    """The one before."""
    with closing(sqlite3.connect(data / "carrel.db", isolation_level=None)) as connection:
        before: int = connection.execute("PRAGMA user_version").fetchone()[0]
        connection.execute(f"PRAGMA user_version = {version}")
    return before
