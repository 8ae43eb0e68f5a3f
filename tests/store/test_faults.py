"""Full, read-only, locked and damaged: a clear error each, no harm, and on it goes after."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from carrel.domain.errors import (
    InsufficientDisk,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreReadOnly,
    StoreTooNew,
)
from carrel.domain.spaces import SpaceQuery, SpaceState
from carrel.store import open_store
from tests.accounts import PYTHON, Account, run_as
from tests.sampling import beyond
from tests.store import records
from tests.store.children import END_TIMEOUT_S, child
from tests.store.filling import check_full_disk, mount

BUSY_S = 0.2
"""How long the stores of these tests wait for a lock."""
BOUND_S = 30.0
"""What is refused is refused long before, also on a loaded machine."""

PAGE = 4096
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


async def _make(path: Path, spaces: int = 200) -> None:
    async with open_store(path) as store:
        await store.write(*(records.space(number) for number in range(spaces)))


async def _use(path: Path) -> None:
    """Opens the store and reads all there is."""
    async with open_store(path, busy_timeout_s=BUSY_S) as store:
        await store.spaces(SpaceQuery(frozenset(SpaceState), limit=10**6))
        await store.runs()
        await store.count()
        for number in range(200):
            assert await store.space(records.space_id(number)) == records.space(number)


# -- a full disk


@needs_root
async def test_a_full_disk(data: Path) -> None:
    mount(data, "size=2m")
    filler = data / "filler"

    def fill() -> None:
        filler.write_bytes(bytes(1 << 20))

    await check_full_disk(data / "carrel.db", fill, filler.unlink)


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    with child("limited", tmp_path / "carrel.db") as process:
        said, _ = process.communicate(timeout=END_TIMEOUT_S)
    assert (said, process.returncode) == (b"ok\n", 0)


@needs_root
async def test_no_room_for_a_new_database(data: Path) -> None:
    mount(data, "size=64k")
    with pytest.raises(InsufficientDisk) as caught:
        await _use(data / "carrel.db")
    assert caught.value.hint
    assert list(data.iterdir()) == []


# -- read-only


@needs_root
async def test_a_read_only_disk(data: Path) -> None:
    mount(data, "size=2m")
    path = data / "carrel.db"
    await _make(path)
    before = path.read_bytes()
    mount(data, "remount,ro")
    with pytest.raises(StoreReadOnly) as caught:
        await _use(path)
    assert str(path) in caught.value.message
    with pytest.raises(StoreReadOnly):
        await _use(data / "new.db")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("file_mode", "folder_mode"),
    [(0o400, 0o700), (0o600, 0o500), *beyond((0o000, 0o700), (0o400, 0o500))],
)
async def test_files_that_may_not_be_written(
    data: Path, ordinary_user: Account, file_mode: int, folder_mode: int
) -> None:
    folder = data / "theirs"
    folder.mkdir()
    path = folder / "carrel.db"
    await _make(path)
    for entry in (path, folder):
        os.chown(entry, ordinary_user.uid, ordinary_user.gid)
    path.chmod(file_mode)
    folder.chmod(folder_mode)
    argv = [PYTHON, "-m", "tests.store.children", "open", str(path)]
    refused = run_as(ordinary_user, argv)
    assert refused.stdout == "store_read_only\n", refused.stderr
    folder.chmod(0o700)
    path.chmod(0o600)
    assert run_as(ordinary_user, argv).stdout == "ok\n"


# -- locked


async def test_locked_while_it_is_opened(path: Path) -> None:
    await _make(path)
    began = time.monotonic()
    with child("lock", path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(StoreBusy) as caught:
            await _use(path)
        assert str(path) in caught.value.message
        process.communicate(timeout=END_TIMEOUT_S)
    assert time.monotonic() - began < BOUND_S
    await _use(path)


async def test_locked_while_it_is_used(path: Path) -> None:
    began = time.monotonic()
    async with open_store(path, busy_timeout_s=BUSY_S) as store:
        await store.write(records.space(1))
        with child("lock-writing", path) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"locked\n"
            for _ in range(2):
                writes = [store.write(records.space(number)) for number in range(10, 40)]
                results = await asyncio.gather(*writes, return_exceptions=True)
                assert {type(result) for result in results} == {StoreBusy}
            assert (await store.spaces(SpaceQuery())).total == 1
            process.communicate(timeout=END_TIMEOUT_S)
        await store.write(records.space(2))
        assert (await store.spaces(SpaceQuery())).total == 2
    assert time.monotonic() - began < BOUND_S


# -- damaged


def _garbage(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def _put(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


async def _refused_as_damaged(path: Path) -> StoreDamaged:
    with pytest.raises(StoreDamaged) as caught:
        await _use(path)
    return caught.value


@pytest.mark.parametrize("end", [0, 1, 50, 100, PAGE, 5 * PAGE, -PAGE, -100])
async def test_a_file_cut_short(path: Path, end: int) -> None:
    await _make(path)
    size = path.stat().st_size
    os.truncate(path, end if end >= 0 else size + end)
    error = await _refused_as_damaged(path)
    assert str(path) in error.message
    assert f"mv {path}" in error.hint


@pytest.mark.parametrize("at", [0, 16, 100], ids=["magic", "header", "first page"])
async def test_a_damaged_beginning(path: Path, at: int) -> None:
    await _make(path)
    _put(path, at, _garbage(PAGE - at))
    await _refused_as_damaged(path)


async def test_damaged_pages_are_noticed_in_use(path: Path) -> None:
    """The schema is whole, so the database opens; what cannot be read says so."""
    await _make(path)
    with closing(sqlite3.connect(path)) as connection:
        roots = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'spaces'")
        (root,) = roots.fetchone()
    _put(path, (root - 1) * PAGE, _garbage(PAGE))
    async with open_store(path) as store:
        with pytest.raises(StoreDamaged):
            await store.spaces(SpaceQuery())
        with pytest.raises(StoreDamaged):
            await store.write(records.space(1))
        await store.write(records.run(1))
        assert await store.runs() == [records.run(1)]


async def _crashed(path: Path) -> None:
    """A database as a dead process leaves it: with its log."""
    source = path.with_name("source.db")
    async with open_store(source) as store:
        await store.write(*(records.space(number) for number in range(200)))
    async with open_store(source) as store:
        await store.write(records.space(1))
        for suffix in ("", "-wal"):
            shutil.copy(f"{source}{suffix}", f"{path}{suffix}")


async def test_after_a_crash_damage_is_noticed_at_once(path: Path) -> None:
    await _crashed(path)
    await _use(path)
    await _crashed(path)
    _put(path, path.stat().st_size - 2 * PAGE, _garbage(PAGE))
    with pytest.raises(StoreDamaged):
        async with open_store(path):
            pytest.fail("it was opened")


async def test_any_page_may_be_damaged(path: Path) -> None:
    """Never anything but an error of ours, or the right answer."""
    await _make(path)
    whole = path.read_bytes()
    outcomes = set()
    for page in range(len(whole) // PAGE):
        _put(path, 0, whole)
        _put(path, page * PAGE, _garbage(PAGE))
        try:
            await _use(path)
        except StoreDamaged:
            outcomes.add("damaged")
        else:
            outcomes.add("unharmed")
        assert not path.with_name("carrel.db-wal").exists()
    assert "damaged" in outcomes
    _put(path, 0, whole)
    await _use(path)


def _lose(path: Path) -> None:
    path.unlink()


def _become_folder(path: Path) -> None:
    path.unlink()
    path.with_name("carrel.db-wal").unlink()
    path.mkdir()


def _become_text(path: Path) -> None:
    path.write_text("These are no records.\n" * 1000)


def _become_another(path: Path) -> None:
    path.unlink()
    path.with_name("carrel.db-wal").unlink()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE spaces (space_id TEXT)")


@pytest.mark.parametrize("change", [_lose, _become_folder, _become_text, _become_another])
async def test_what_is_no_database_of_ours(path: Path, change: Callable[[Path], None]) -> None:
    await _crashed(path)
    change(path)
    before = path.read_bytes() if path.is_file() else None
    error = await _refused_as_damaged(path)
    assert error.code == "store_damaged"
    assert (path.read_bytes() if path.is_file() else None) == before


async def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="missing is not there"):
        await _use(tmp_path / "missing" / "carrel.db")
    assert list(tmp_path.iterdir()) == []


# -- newer


async def test_a_newer_database_is_left_alone(path: Path) -> None:
    await _make(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA user_version = 1000")
    before = path.read_bytes()
    with pytest.raises(StoreTooNew) as caught:
        await _use(path)
    assert caught.value.details["version"] == 1000
    assert caught.value.hint
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["carrel.db"]
