"""How long the work of a request lasts: to its end, until its client goes away or until the
daemon ends; and work that outlives its request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from carrel.domain.errors import DaemonUnavailable

T = TypeVar("T")
REASON = "The daemon ends; what runs in spaces goes on."


class Shutdown:
    """Set once. Streams end then, and long waits are answered."""

    def __init__(self, before: Callable[[], None] | None = None) -> None:
        """`before` is called when it begins, while all are still there."""
        self._begun = asyncio.Event()
        self._before = before

    @property
    def begun(self) -> bool:
        return self._begun.is_set()

    def begin(self) -> None:
        if self._before is not None and not self.begun:
            self._before()
        self._begun.set()

    async def wait(self) -> None:
        await self._begun.wait()


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def while_wanted(request: Request, closing: Shutdown, work: Awaitable[T]) -> T:
    """The result of `work`, which is given up (not undone) when the client goes away or the
    daemon ends. Raises `ClientGone`, `DaemonUnavailable`."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(gone(request.receive))
    ending = asyncio.ensure_future(closing.wait())
    try:
        await asyncio.wait({working, leaving, ending}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if ending.done():
            raise DaemonUnavailable(REASON, hint="Ask again when it runs.")
        raise ClientGone
    finally:
        for task in (working, leaving, ending):
            task.cancel()


async def gone(receive: Receive) -> None:
    """Returns when the client has left: after the body, that is all that can come."""
    while (await receive())["type"] != "http.disconnect":
        pass


# Work that outlives its request


class BackgroundTasks:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
