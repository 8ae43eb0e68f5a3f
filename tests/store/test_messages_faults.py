"""Full, read-only, locked and damaged: a clear error each, no harm, and on it goes after."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from carrel.domain.errors import (
    InsufficientDisk,
    StoreBusy,
    StoreDamaged,
    StoreReadOnly,
    StoreTooNew,
)
from carrel.domain.hub import PlaceQuery
from carrel.store import open_store
from carrel.store.messages import open_log
from tests.accounts import PYTHON, Account, run_as
from tests.store import children, messages_children
from tests.store.children import END_TIMEOUT_S
from tests.store.filling import mount
from tests.store.messages_children import check_full_disk
from tests.store.messages_records import DESK, bodies, everything, message, some

BUSY_S = 0.2
"""How long the logs of these tests wait for a lock."""

PAGE = 4096
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hub.db"


async def _make(path: Path) -> None:
    async with open_log(path) as log:
        await log.append(some(1, 200, size=300))


async def _use(path: Path) -> None:
    """Opens the log and reads all there is."""
    async with open_log(path, busy_timeout_s=BUSY_S) as log:
        span = (await log.spans())[DESK]
        assert (span.first, span.last) == (1, 200)
        assert await everything(log) == bodies(some(1, 200, size=300))
        assert len(await log.read(PlaceQuery())) == 200


# -- a full disk


@needs_root
async def test_a_full_disk(data: Path) -> None:
    mount(data, "size=2m")
    filler = data / "filler"

    def fill() -> None:
        filler.write_bytes(bytes(1 << 20))

    await check_full_disk(data / "hub.db", fill, filler.unlink)


def test_a_limit_on_the_size_of_files(path: Path) -> None:
    with messages_children.child("limited", path) as process:
        said, _ = process.communicate(timeout=END_TIMEOUT_S)
    assert (said, process.returncode) == (b"ok\n", 0)


@needs_root
async def test_no_room_for_a_new_log(data: Path) -> None:
    mount(data, "size=32k")
    with pytest.raises(InsufficientDisk):
        await _make(data / "hub.db")
    assert list(data.iterdir()) == []


# -- read-only


@needs_root
async def test_a_read_only_disk(data: Path) -> None:
    mount(data, "size=2m")
    path = data / "hub.db"
    await _make(path)
    before = path.read_bytes()
    mount(data, "remount,ro")
    with pytest.raises(StoreReadOnly) as caught:
        await _use(path)
    assert str(path) in caught.value.message
    assert path.read_bytes() == before


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o400, 0o700), (0o600, 0o500)])
async def test_files_that_may_not_be_written(
    data: Path, ordinary_user: Account, file_mode: int, folder_mode: int
) -> None:
    folder = data / "theirs"
    folder.mkdir()
    path = folder / "hub.db"
    async with open_log(path) as log:
        await log.append([message(1)])
    for entry in (path, folder):
        os.chown(entry, ordinary_user.uid, ordinary_user.gid)
    path.chmod(file_mode)
    folder.chmod(folder_mode)
    argv = [PYTHON, "-m", "tests.store.messages_children", "open", str(path)]
    refused = run_as(ordinary_user, argv)
    assert refused.stdout == "store_read_only\n", refused.stderr
    folder.chmod(0o700)
    path.chmod(0o600)
    assert run_as(ordinary_user, argv).stdout == "ok\n"


# -- locked


async def test_locked_while_it_is_used(path: Path) -> None:
    await _make(path)
    async with open_log(path, busy_timeout_s=BUSY_S) as log:
        with children.child("lock-writing", path) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"locked\n"
            calls = [log.append([message(seq)]) for seq in range(201, 230)]
            results = await asyncio.gather(
                *calls, log.acknowledge("a", DESK, 1), log.forget(DESK), return_exceptions=True
            )
            assert {type(result) for result in results} == {StoreBusy}
            assert len(await everything(log)) == 200
            process.communicate(timeout=END_TIMEOUT_S)
        assert await log.consumers(DESK) == {}
        await log.append([message(201)])


async def test_taken_away_while_it_is_used(path: Path) -> None:
    async with open_log(path) as log:
        await log.append([message(1)])
        path.rename(path.with_name("elsewhere.db"))
        with pytest.raises(StoreDamaged, match="taken away"):
            await log.append([message(2)])
        path.with_name("elsewhere.db").rename(path)
        await log.append([message(2)])
        assert await everything(log) == bodies(some(1, 2))


# -- damaged


async def _crashed(path: Path) -> None:
    """A log as a dead process leaves it."""
    source = path.with_name("source.db")
    async with open_log(source) as log:
        await log.append(some(1, 199, size=300))
    async with open_log(source) as log:
        await log.append([message(200, size=300)])
        for suffix in ("", "-wal"):
            shutil.copy(f"{source}{suffix}", f"{path}{suffix}")


def _lose(path: Path) -> None:
    path.unlink()


def _become_empty(path: Path) -> None:
    os.truncate(path, 0)


def _become_folder(path: Path) -> None:
    path.unlink()
    path.with_name("hub.db-wal").unlink()
    path.mkdir()


def _become_text(path: Path) -> None:
    path.write_text("These are no messages.\n" * 1000)


def _become_another(path: Path) -> None:
    path.unlink()
    path.with_name("hub.db-wal").unlink()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE messages (place INTEGER)")


@pytest.mark.parametrize(
    "change", [_lose, _become_empty, _become_folder, _become_text, _become_another]
)
async def test_what_is_no_log_of_ours(path: Path, change: Callable[[Path], None]) -> None:
    await _crashed(path)
    change(path)
    files = {file: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    with pytest.raises(StoreDamaged) as caught:
        await _use(path)
    assert caught.value.code == "store_damaged"
    assert str(path) in caught.value.message
    assert {file: file.read_bytes() for file in files} == files


async def test_the_records_are_not_taken_for_the_log(path: Path) -> None:
    async with open_store(path):
        pass
    before = path.read_bytes()
    with pytest.raises(StoreDamaged, match="another program"):
        await _use(path)
    assert path.read_bytes() == before


async def test_any_page_may_be_damaged(path: Path) -> None:
    """Never anything but an error of ours, or the right answer."""
    await _make(path)
    whole = path.read_bytes()
    outcomes = set()
    for page in range(len(whole) // PAGE):
        garbage = random.Random(page).randbytes(PAGE)
        path.write_bytes(whole[: page * PAGE] + garbage + whole[(page + 1) * PAGE :])
        try:
            await _use(path)
        except StoreDamaged:
            outcomes.add("damaged")
        else:
            outcomes.add("unharmed")
        assert not path.with_name("hub.db-wal").exists()
    assert "damaged" in outcomes
    path.write_bytes(whole)
    await _use(path)


async def test_after_a_crash_all_is_there(path: Path) -> None:
    await _crashed(path)
    await _use(path)


# -- newer


async def test_a_newer_log_is_left_alone(path: Path) -> None:
    await _make(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA user_version = 1000")
    before = path.read_bytes()
    with pytest.raises(StoreTooNew) as caught:
        await _use(path)
    assert caught.value.details["version"] == 1000
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["hub.db"]
