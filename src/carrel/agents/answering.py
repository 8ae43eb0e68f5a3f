"""Questions of an agent that wait for their answers while it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType


class Answers:
    """Each is worked out by itself, in whatever order; none outlives the block. What goes wrong
    in one is raised at the end of the block, for nobody else waits for it."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._all: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Answers:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        for task in self._all:
            task.cancel()
        for outcome in await asyncio.gather(*self._all, return_exceptions=True):
            if error is None and isinstance(outcome, Exception):
                raise outcome

    def begin(self, id: str, work: Coroutine[None, None, None]) -> None:
        self.drop(id)
        self._tasks[id] = asyncio.create_task(work)
        self._all.append(self._tasks[id])

    def drop(self, id: str) -> None:
        """The agent has taken the question back."""
        task = self._tasks.pop(id, None)
        if task is not None:
            task.cancel()
