"""Filling the disk under a store, whatever the disk is."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from carrel.domain.errors import InsufficientDisk
from carrel.domain.events import EventQuery
from carrel.domain.spaces import SpaceQuery
from carrel.store import open_store
from tests.store import records

MOST = 5000
"""Writes of a kilobyte and more: more than there is room for."""


MOUNT_S = 60.0
"""It takes milliseconds; the rest is for a loaded machine."""


def mount(folder: Path, options: str) -> None:
    """A file system of its own, in memory."""
    argv = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    subprocess.run(argv, check=True, capture_output=True, timeout=MOUNT_S)


async def check_full_disk(
    path: Path, fill: Callable[[], None], relieve: Callable[[], None]
) -> None:
    """Writes until there is no room, one by one and many at once; what was acknowledged is
    there, the rest is not, and when there is room again the store goes on."""
    acknowledged = set()
    async with open_store(path) as store:

        async def write(number: int) -> None:
            large = replace(records.space(number), env={"TEXT": "x" * 1000})
            await store.write(large, records.event(n=number))
            acknowledged.add(number)

        await write(0)
        fill()
        with pytest.raises(InsufficientDisk) as caught:
            for number in range(1, MOST):
                await write(number)
        assert str(path) in caught.value.message
        many = [write(number) for number in range(MOST, MOST + 200)]
        results = await asyncio.gather(*many, return_exceptions=True)
        assert {type(result) for result in results} <= {type(None), InsufficientDisk}
        assert InsufficientDisk in {type(result) for result in results}
        relieve()
        await write(2 * MOST)
        found = await store.spaces(SpaceQuery(limit=3 * MOST))
        assert {int(space.created_at) for space in found.spaces} == acknowledged
    async with open_store(path) as store:
        events = await store.events(EventQuery(limit=3 * MOST))
        assert {event.data["n"] for event in events} == acknowledged
        assert [event.seq for event in events] == list(range(1, len(acknowledged) + 1))
        assert await store._read(
            lambda connection: connection.execute("PRAGMA integrity_check").fetchall()
        ) == [("ok",)]
