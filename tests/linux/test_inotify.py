"""Being told that a file changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.linux import inotify


@pytest.fixture
def queue() -> Iterator[int]:
    opened = inotify.open_queue()
    yield opened
    os.close(opened)


def test_a_change_is_told(queue: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    watch = inotify.add_watch(queue, str(path), inotify.MODIFY)
    assert inotify.add_watch(queue, str(path), inotify.MODIFY) == watch
    with pytest.raises(BlockingIOError):
        inotify.read_events(queue)
    path.write_bytes(b"x")
    assert inotify.read_events(queue) == [(watch, inotify.MODIFY)]


def test_what_is_spliced_and_punched_is_told_too(queue: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    watch = inotify.add_watch(queue, str(path), inotify.MODIFY)
    read, write = os.pipe()
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(write, b"hello")
        os.splice(read, file, 5, offset_dst=0)
        assert inotify.read_events(queue) == [(watch, inotify.MODIFY)]
    finally:
        for descriptor in (read, write, file):
            os.close(descriptor)


def test_a_removed_watch_is_told_of(queue: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    watch = inotify.add_watch(queue, str(path), inotify.MODIFY)
    inotify.remove_watch(queue, watch)
    assert inotify.read_events(queue) == [(watch, inotify.IGNORED)]
    with pytest.raises(OSError):
        inotify.remove_watch(queue, watch)


def test_a_missing_file_cannot_be_watched(queue: int, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        inotify.add_watch(queue, str(tmp_path / "none"), inotify.MODIFY)
