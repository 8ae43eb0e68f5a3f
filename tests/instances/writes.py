"""A disk that refuses what is written of instances, or takes its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from carrel.domain.errors import InsufficientDisk
from carrel.domain.events import Event
from carrel.domain.instances import Instance
from carrel.domain.store import Record
from carrel.store.sqlite import SqliteStore
from tests.instances.rig import WAIT_S

Which = Callable[[Instance], bool]


class Writes:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.refused: Which | None = None
        self._held: Which | None = None
        self._met, self._go = asyncio.Event(), asyncio.Event()
        real, mine = SqliteStore.write, self

        async def write(store: SqliteStore, *records: Record) -> Sequence[Event]:
            if mine.refused is not None and mine._has(mine.refused, records):
                raise InsufficientDisk("There is no room on the disk.")
            done = await real(store, *records)
            if mine._held is not None and mine._has(mine._held, records):
                mine._met.set()
                await mine._go.wait()
            return done

        patch.setattr(SqliteStore, "write", write)

    @staticmethod
    def _has(which: Which, records: Sequence[Record]) -> bool:
        return any(which(one) for one in records if isinstance(one, Instance))

    def hold(self, which: Which) -> None:
        """Done, and not yet told to who waits for it."""
        self._held = which

    async def met(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self._met.wait()

    def go_on(self) -> None:
        self._held = None
        self._go.set()
