"""Work that goes on when whoever began it has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

CLOSE_S = 10.0
"""For operations that are under way when the daemon ends: they take milliseconds, but for a
large project's base, which is carried on next time."""


class Tasks:
    """Each goes on to its end."""

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


class Errands:
    """Nobody waits for them, and they are given up when the daemon ends."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        if self._closed:
            work.close()
            return
        # The task has the work itself: within another coroutine, it would never be awaited when
        # the task is cancelled before its first step.
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def settled(self) -> None:
        while self._running:
            await asyncio.wait(self._running)

    async def close(self) -> None:
        self._closed = True
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=CLOSE_S)
