"""How much input a command was given, also for who comes later."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from carrel.runtimes.runs import FILE, found_count, new_count


def gives(count: int) -> Callable[[], Awaitable[int]]:
    async def write() -> int:
        return count

    return write


def given_after(folder: Path) -> int | None:
    count = found_count(folder)
    assert count is not None
    count.close()
    return count.given


async def test_it_is_found_again(tmp_path: Path) -> None:
    count = new_count(tmp_path)
    assert await count.count(10, gives(7)) == 7
    assert await count.count(3, gives(3)) == 3
    count.close()
    assert count.given == given_after(tmp_path) == 10


async def test_a_write_that_gave_nothing_counts_nothing(tmp_path: Path) -> None:
    count = new_count(tmp_path)

    async def full() -> int:
        raise BlockingIOError

    with pytest.raises(BlockingIOError):
        await count.count(10, full)
    assert count.given == given_after(tmp_path) == 0
    count.close()


async def test_who_is_killed_within_a_write_leaves_nobody_to_know(tmp_path: Path) -> None:
    count = new_count(tmp_path)
    await count.count(5, gives(5))
    seen: list[int | None] = []

    async def write() -> int:
        seen.append(given_after(tmp_path))
        return 4

    await count.count(4, write)
    assert seen == [None]
    assert count.given == given_after(tmp_path) == 9
    count.close()


async def test_a_disk_that_refuses_leaves_nobody_to_know(tmp_path: Path) -> None:
    count = new_count(tmp_path)
    await count.count(5, gives(5))
    count.close()
    reading = os.open(tmp_path / FILE, os.O_RDONLY)
    count = type(count)(reading, 5)
    assert await count.count(4, gives(4)) == 4
    assert count.given is None
    assert await count.count(4, gives(2)) == 2
    count.close()


async def test_a_write_that_is_cancelled_leaves_nobody_to_know(tmp_path: Path) -> None:
    """It may still give something."""
    count = new_count(tmp_path)

    async def write() -> int:
        await asyncio.Event().wait()
        return 4

    writing = asyncio.ensure_future(count.count(4, write))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait({writing})
    assert count.given is given_after(tmp_path) is None
    count.close()


def test_one_without_input_has_none(tmp_path: Path) -> None:
    assert found_count(tmp_path) is None
    (tmp_path / FILE).write_bytes(b"torn")
    assert given_after(tmp_path) is None
