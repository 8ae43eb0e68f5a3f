"""Commands that end with whoever watches them, as when a terminal hangs up."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator

from carrel.domain.errors import CarrelError
from carrel.domain.runs import RunRecord
from carrel.service.runs import Runs

WAIT_S = 10.0
"""For a client that lost its connection, or a daemon that was restarted, to be back."""
HANGUP = 1


class Hangups:
    """`begin` when the runs of an earlier daemon have been taken up."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._watchers: Counter[str] = Counter()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        for record in self._runs.alive():
            if record.hangup:
                self._wait(record.run_id)

    @contextlib.contextmanager
    def watching(self, record: RunRecord) -> Iterator[None]:
        if not record.hangup:
            yield
            return
        run_id = record.run_id
        self._watchers[run_id] += 1
        if (timer := self._timers.pop(run_id, None)) is not None:
            timer.cancel()
        try:
            yield
        finally:
            self._watchers[run_id] -= 1
            if not self._watchers[run_id]:
                del self._watchers[run_id]
                self._wait(run_id)

    def _wait(self, run_id: str) -> None:
        if self._runs.live(run_id) is not None:
            loop = asyncio.get_running_loop()
            self._timers[run_id] = loop.call_later(WAIT_S, self._hang_up, run_id)

    def _hang_up(self, run_id: str) -> None:
        self._timers.pop(run_id, None)
        task = asyncio.create_task(self._signal(run_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _signal(self, run_id: str) -> None:
        with contextlib.suppress(CarrelError):
            await self._runs.signal(run_id, HANGUP)

    async def close(self) -> None:
        """The daemon ends; its successor waits anew."""
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
