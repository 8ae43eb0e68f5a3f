"""How much input a command was given, also for who comes later."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carrel.runtimes.input_counts import FILE, found_count, new_count


def given_after(folder: Path) -> int | None:
    count = found_count(folder)
    assert count is not None
    count.close()
    return count.given


def test_it_is_found_again(tmp_path: Path) -> None:
    count = new_count(tmp_path)
    assert count.count(10, lambda: 7) == 7
    assert count.count(3, lambda: 3) == 3
    count.close()
    assert count.given == given_after(tmp_path) == 10


def test_a_write_that_gave_nothing_counts_nothing(tmp_path: Path) -> None:
    count = new_count(tmp_path)

    def full() -> int:
        raise BlockingIOError

    with pytest.raises(BlockingIOError):
        count.count(10, full)
    assert count.given == given_after(tmp_path) == 0
    count.close()


def test_who_is_killed_within_a_write_leaves_nobody_to_know(tmp_path: Path) -> None:
    count = new_count(tmp_path)
    count.count(5, lambda: 5)
    seen: list[int | None] = []

    def write() -> int:
        seen.append(given_after(tmp_path))
        return 4

    count.count(4, write)
    assert seen == [None]
    assert count.given == given_after(tmp_path) == 9
    count.close()


def test_a_disk_that_refuses_leaves_nobody_to_know(tmp_path: Path) -> None:
    count = new_count(tmp_path)
    count.count(5, lambda: 5)
    count.close()
    reading = os.open(tmp_path / FILE, os.O_RDONLY)
    count = type(count)(reading, 5)
    assert count.count(4, lambda: 4) == 4
    assert count.given is None
    assert count.count(4, lambda: 2) == 2
    count.close()


def test_one_without_input_has_none(tmp_path: Path) -> None:
    assert found_count(tmp_path) is None
    (tmp_path / FILE).write_bytes(b"torn")
    assert given_after(tmp_path) is None
