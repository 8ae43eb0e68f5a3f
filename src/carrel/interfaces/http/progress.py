"""Long work, told step by step to who listens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from carrel.domain.projects import OnProgress, Progress
from carrel.interfaces.http.answers import details_of, foreseen
from carrel.interfaces.http.responses import Told, told

EVERY_S = 0.1
"""People and progress bars see no more; a large project has thousands of steps."""


class ProgressSteps:
    """The newest progress. Called from the thread that does the work."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stage = ""
        self._told_at = 0.0
        self._newest: Progress | None = None
        self._changed = asyncio.Event()

    def note(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.stage == self._stage and now - self._told_at < EVERY_S:
            return
        self._stage, self._told_at = progress.stage, now
        self._loop.call_soon_threadsafe(self._set, progress)

    def _set(self, progress: Progress) -> None:
        self._newest = progress
        self._changed.set()

    async def next(self) -> Progress:
        await self._changed.wait()
        self._changed.clear()
        assert self._newest is not None
        return self._newest


async def step_by_step(
    work: Callable[[OnProgress], Awaitable[Any]], answer: str, what: str
) -> Told:
    """Its steps as `progress`, and its end as `answer` or `problem`. It is cancelled when nobody
    listens any more."""
    steps = ProgressSteps()
    making = asyncio.ensure_future(work(steps.note))
    try:
        while not making.done():
            step = asyncio.ensure_future(steps.next())
            await asyncio.wait({making, step}, return_when=asyncio.FIRST_COMPLETED)
            if step.done():
                yield told("progress", step.result())
            else:
                step.cancel()
        try:
            made = making.result()
        except Exception as error:
            yield told("problem", details_of(foreseen(error, what)))
            return
        yield told(answer, made)
    finally:
        making.cancel()
