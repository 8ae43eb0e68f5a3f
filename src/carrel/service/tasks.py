"""Work that goes on to its end when whoever asked for it has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

CLOSE_S = 10.0
"""For operations that are under way when the daemon ends: they take milliseconds, but for a
large project's base, which is carried on next time."""


class Tasks:
    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    async def see_through(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result. When the caller is cancelled, the work is not."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            # Of a task whose caller has gone nobody else would ask.
            task.exception()

    async def close(self) -> None:
        """Waits for what is under way; what takes too long is cancelled, and undoes itself."""
        if self._running:
            await asyncio.wait(self._running, timeout=CLOSE_S)
        for task in list(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=CLOSE_S)
