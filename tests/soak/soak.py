"""Many clients use one daemon for a while, in every way at once.

Nothing that was acknowledged is lost, nothing is left at the end, and what the daemon and
the launcher have of the machine's goods does not grow.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from carrel.client import AsyncClient
from carrel.service.shared import Locks
from tests.load import reality
from tests.load.clients import PROJECT_FILE, PROJECT_TEXT, LoadClient, Surroundings
from tests.load.events import Follower
from tests.load.ledger import Ledger
from tests.load.patience import Impatient
from tests.load.reality import Process

EVERYBODY = "everybody"
SETTLE_S = 30.0
"""For connections to be closed and processes to be reaped after the last call."""
_STEP_S = 0.1
MORE_DESCRIPTORS = 8
"""Idle connections that clients happen to keep."""
MORE_MIB = 24.0
SHARE_MORE = 0.25
"""Of memory, from the middle to the end: caches fill, and the allocator keeps some."""


@dataclass(frozen=True)
class Plan:
    seconds: float
    clients: int
    seed: int = 1
    flat_memory: bool = True
    """A short run is over before the daemon's caches are full."""


@dataclass(frozen=True)
class Figures:
    """At a moment at which no client does anything, and there is no space."""

    when: str
    daemon: Process
    launcher: Process
    database_mib: float

    def __str__(self) -> str:
        parts = [f"{self.when:7}"]
        for name, one in (("daemon", self.daemon), ("launcher", self.launcher)):
            parts.append(
                f"{name} {one.rss_mib:.1f} MiB, {one.descriptors} descriptors, "
                f"{one.threads} threads, {one.below} processes below"
            )
        return "; ".join([*parts, f"database {self.database_mib:.1f} MiB"])


@dataclass
class Report:
    figures: list[Figures] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    events: int = 0


class Soak:
    def __init__(self, data: Path, project: Path, plan: Plan) -> None:
        self._data = data
        self._plan = plan
        self._locks = Locks()
        self._until = 0.0
        self.report = Report()
        project.mkdir()
        (project / PROJECT_FILE).write_bytes(PROJECT_TEXT)
        self._around = Surroundings(
            self.report.ledger,
            Impatient(),
            project,
            self._life,
            lambda: nullcontext(),
            requests=True,
        )

    def _life(self) -> AbstractAsyncContextManager[None]:
        return self._locks.shared(EVERYBODY)

    async def run(self) -> Report:
        """Raises what went wrong, AssertionErrors included. The daemon runs already."""
        plan = self._plan
        async with AsyncExitStack() as stack:
            clients = [
                LoadClient(
                    f"c{number}",
                    await stack.enter_async_context(AsyncClient(data=self._data)),
                    plan.seed * 1000 + number,
                    self._around,
                )
                for number in range(plan.clients)
            ]
            watching = await stack.enter_async_context(AsyncClient(data=self._data))
            follower = Follower(watching, dense=False)
            following = asyncio.create_task(follower.follow())
            try:
                await self._phases(clients, following)
                await follower.check(self.report.ledger)
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            self.report.events = follower.count
        self._judge()
        return self.report

    async def _phases(self, clients: list[LoadClient], following: asyncio.Task[None]) -> None:
        """Everybody lives once before the first look, so that all that is made once is made."""
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_fail_with(following))
            await asyncio.gather(*(client.live() for client in clients))
            await self._look("start")
            begun = time.monotonic()
            self._until = begun + self._plan.seconds
            lives = [group.create_task(self._lives(client)) for client in clients]
            await asyncio.sleep(self._plan.seconds / 2)
            await self._look("middle")
            await asyncio.wait(lives)
            await self._look("end")
            watch.cancel()

    async def _lives(self, client: LoadClient) -> None:
        while time.monotonic() < self._until:
            await client.live()

    async def _look(self, when: str) -> None:
        """With everybody at rest: nothing is left of all the spaces that were there."""
        async with self._locks.alone(EVERYBODY):
            assert not self.report.ledger.held
            await self._assert_nothing_left()
            found = Figures(
                when,
                await asyncio.to_thread(reality.daemon, self._data),
                await asyncio.to_thread(reality.launcher, self._data),
                (self._data / "carrel.db").stat().st_size / (1 << 20),
            )
            self.report.figures.append(found)

    async def _assert_nothing_left(self) -> None:
        until = time.monotonic() + SETTLE_S
        while True:
            ever = self.report.ledger.ever | self.report.ledger.workspaces
            found = await asyncio.to_thread(reality.traces, self._data, ever)
            left = {kind: names for kind, names in found.items() if names}
            if not left:
                return
            assert time.monotonic() < until, left
            await asyncio.sleep(_STEP_S)

    def _judge(self) -> None:
        start, middle, end = self.report.figures
        for name in ("daemon", "launcher"):
            first, half, last = (getattr(one, name) for one in (start, middle, end))
            assert last.descriptors <= first.descriptors + MORE_DESCRIPTORS, (name, first, last)
            assert last.below <= first.below + 1, (name, first, last)
            if self._plan.flat_memory:
                most = half.rss_mib * (1 + SHARE_MORE) + MORE_MIB
                assert last.rss_mib <= most, (name, half, last)


async def _fail_with(task: asyncio.Task[None]) -> None:
    """What goes wrong there ends everything here."""
    await asyncio.wait({task})
    task.result()
