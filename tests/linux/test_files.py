"""Holes in files, pipes found again, and changes that are told."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from carrel.linux import files
from carrel.linux.ids import files_as

BLOCK = 1 << 16


def test_a_hole_keeps_size_and_offsets(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * 4 * BLOCK)
    before = path.stat().st_blocks
    with path.open("r+b") as file:
        if not files.punch_hole(file.fileno(), BLOCK, BLOCK):
            pytest.skip("this file system cannot punch holes")
        assert files.next_data(file.fileno(), 0) == 0
        assert files.end_of_data(file.fileno(), 0) == BLOCK
        assert files.next_data(file.fileno(), BLOCK) == 2 * BLOCK
        assert files.end_of_data(file.fileno(), 2 * BLOCK) == 4 * BLOCK
        assert files.next_data(file.fileno(), 4 * BLOCK) is None
    found = path.stat()
    assert found.st_size == 4 * BLOCK and found.st_blocks <= before - BLOCK // 512
    assert path.read_bytes() == b"a" * BLOCK + bytes(BLOCK) + b"a" * 2 * BLOCK


def test_what_has_no_blocks_cannot_be_punched() -> None:
    read, write = os.pipe()
    try:
        with pytest.raises(OSError):
            files.punch_hole(write, 0, BLOCK)
    finally:
        os.close(read)
        os.close(write)


# Finding a pipe again

WAIT_S = 30.0


def _inode(descriptor: int) -> int:
    return os.fstat(descriptor).st_ino


def test_a_pipe_is_found_in_the_process_that_has_it() -> None:
    read, write = os.pipe()
    inode = _inode(read)
    with subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE, stdout=write) as process:
        try:
            os.close(write)
            os.close(read)
            found = files.open_pipe(inode, [os.getpid(), process.pid])
            assert found is not None and _inode(found) == inode
            assert not os.get_blocking(found) and not os.get_inheritable(found)
            os.close(found)
            assert files.open_pipe(inode, [os.getpid()]) is None
        finally:
            process.kill()
            process.wait(WAIT_S)
    assert files.open_pipe(inode, [process.pid]) is None


def test_one_that_its_owner_shut_is_opened_nevertheless() -> None:
    read, write = os.pipe()
    try:
        os.fchmod(read, 0)
        found = files.open_pipe(_inode(read), [os.getpid()])
        assert found is not None
        os.close(found)
    finally:
        os.close(read)
        os.close(write)


# Being told that a file changed


@pytest.fixture
def queue() -> Iterator[int]:
    opened = files.open_watch_queue()
    yield opened
    os.close(opened)


def test_a_change_is_told(queue: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    watch = files.add_watch(queue, str(path), files.WATCH_MODIFY)
    assert files.add_watch(queue, str(path), files.WATCH_MODIFY) == watch
    with pytest.raises(BlockingIOError):
        files.read_watch_events(queue)
    path.write_bytes(b"x")
    assert files.read_watch_events(queue) == [(watch, files.WATCH_MODIFY)]


def test_what_is_spliced_and_punched_is_told_too(queue: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    watch = files.add_watch(queue, str(path), files.WATCH_MODIFY)
    read, write = os.pipe()
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(write, b"hello")
        os.splice(read, file, 5, offset_dst=0)
        assert files.read_watch_events(queue) == [(watch, files.WATCH_MODIFY)]
    finally:
        for descriptor in (read, write, file):
            os.close(descriptor)


def test_a_removed_watch_is_told_of(queue: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    watch = files.add_watch(queue, str(path), files.WATCH_MODIFY)
    files.remove_watch(queue, watch)
    assert files.read_watch_events(queue) == [(watch, 0x8000)]
    with pytest.raises(OSError):
        files.remove_watch(queue, watch)


def test_a_missing_file_cannot_be_watched(queue: int, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.add_watch(queue, str(tmp_path / "none"), files.WATCH_MODIFY)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_files_as_another_user(data: Path) -> None:
    """Within, and in this thread only; afterwards everything is as before, whatever happened."""
    data.chmod(0o777)
    (closed := data / "closed").mkdir(mode=0o700)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(os.getpid).result(timeout=60)
        with pytest.raises(PermissionError), files_as(12345, 12346) as able:
            assert able
            (data / "theirs").touch()
            pool.submit((closed / "ours").touch).result(timeout=60)
            (closed / "theirs").touch()
    (closed / "later").touch()
    made = {path.name: path.stat() for path in data.rglob("*")}
    assert (made["theirs"].st_uid, made["theirs"].st_gid) == (12345, 12346)
    assert {made[name].st_uid for name in ("closed", "ours", "later")} == {0}
    with files_as(2**32 - 2, 2**32 - 2) as able:
        assert not able
