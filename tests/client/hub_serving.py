"""A real hub on a real socket, that a test can end and begin again with the same log."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from carrel.client.aio_hub import Timing
from carrel.domain.access import Caller, ScopeKind
from carrel.domain.hub import HUB_SOCKET
from carrel.domain.trees import Owner
from carrel.hub.hub import HubServer, Options
from carrel.interfaces.hub.sockets import HubListener
from carrel.interfaces.mcp import McpProcess
from tests.hub.memory_log import MemoryLog

T = TypeVar("T")
STEP_S = 20.0
"""For one step, on a busy machine."""
DESK, OTHER = "sp_aaaaaaaaaaaa", "sp_bbbbbbbbbbbb"


class KnownSpaces:
    """Implements `carrel.hub.access.Spaces`: those of a set. A space knows itself only."""

    def __init__(self) -> None:
        self.known = {DESK, OTHER}

    def exists(self, space_id: str) -> bool:
        return space_id in self.known

    def visible(self, caller: Caller, space_id: str) -> bool:
        if caller.scope.kind is ScopeKind.SPACE:
            return space_id == caller.scope.value
        return space_id in self.known or not space_id

    def may_agree(self, caller: Caller, space_id: str) -> bool:
        return caller.scope.kind is ScopeKind.ADMIN

    def account(self, space_id: str) -> str:
        return space_id


class Serving:
    """`socket` is the user's, `inside` that of the space DESK."""

    def __init__(self, folder: Path) -> None:
        self.data = folder
        self.log = MemoryLog()
        self.spaces = KnownSpaces()
        self.options = Options()
        self._folders = folder / "daemon", folder / "inside"
        for one in self._folders:
            one.mkdir()
        self.socket, self.inside = (one / HUB_SOCKET for one in self._folders)
        self.hub = HubServer(self.log, self.spaces, self.options)
        self._listening: HubListener | None = None

    async def open(self) -> None:
        self.hub = HubServer(self.log, self.spaces, self.options)
        await self.hub.open()
        self._listening = HubListener(self.hub, McpProcess(("false",)))
        self._listening.open_local(self._folders[0])
        self._listening.open_space(self._folders[1], DESK, Owner(0, 0))

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close_all()
            self._listening = None
            await self.hub.close()

    def cut(self, reason: str = "connection_lost") -> None:
        """Ends all connections; new ones are let in."""
        for client in list(self.hub._clients.values()):
            self.hub.cut_off(client, reason)

    async def until(self, holds: Callable[[], object]) -> None:
        """Bounded; gives the loop turns until something is so."""
        async with asyncio.timeout(STEP_S):
            while not holds():
                await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Serving]:
    folder = Path(tempfile.mkdtemp(prefix="carrel-"))
    found = Serving(folder)
    await found.open()
    try:
        yield found
    finally:
        await found.close()
        shutil.rmtree(folder)


class ServingThread:
    """The same for tests that block."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(STEP_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(STEP_S)
        self.loop.close()


class Served:
    """A hub in another thread."""

    def __init__(self, here: Serving, thread: ServingThread) -> None:
        self.here = here
        self.run = thread.run


@contextlib.contextmanager
def serving_in_thread() -> Iterator[Served]:
    thread = ServingThread()
    try:
        context = serving()
        here = thread.run(context.__aenter__())
        try:
            yield Served(here, thread)
        finally:
            thread.run(_leave(context))
    finally:
        thread.close()


async def _leave(context: contextlib.AbstractAsyncContextManager[Serving]) -> None:
    await context.__aexit__(None, None, None)


class FakeTime:
    """Time that passes when a test says so: who sleeps waits for that."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        """All that was asked for."""
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    @property
    def timing(self) -> Timing:
        return Timing(clock=lambda: self.now, sleep=self.sleep, jitter=lambda: 1.0)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        future = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, future))
        await future

    @property
    def asleep(self) -> list[float]:
        """When those who sleep want to be woken."""
        return sorted(at for at, future in self._sleepers if not future.done())

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        left = []
        for at, future in self._sleepers:
            if future.done():
                continue
            if at <= self.now:
                future.set_result(None)
            else:
                left.append((at, future))
        self._sleepers = left
