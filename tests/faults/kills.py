"""The daemon is killed at random moments while clients use it, and started again.

    python -m tests.faults.kills [--moments 200] [--clients 6] [--seed N]

After every restart the record and the machine agree, everything that was acknowledged is
there, and whoever was attached to a command has missed nothing. Ends with 0 or 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import select
import signal
import sys
import time
import traceback
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from carrel.client import AsyncClient, AsyncRunHandle
from carrel.client.exchange import STDOUT, RetryDelay
from carrel.daemon import control, places
from carrel.domain.errors import DaemonRunning, DaemonUnavailable
from carrel.domain.spaces import SpaceState
from carrel.lifecycle.table import SETTLED
from carrel.runtimes.engine import LINGER_S
from carrel.service.shared import Locks
from tests.load import reality
from tests.load.clients import PROJECT_FILE, PROJECT_TEXT, LoadClient, Surroundings
from tests.load.events import Follower
from tests.load.ledger import Held, Ledger
from tests.load.patience import SLOWER, Patient
from tests.soak.__main__ import soaked

EVERYBODY = "everybody"
END_S = 20.0 * SLOWER
"""A process that was killed is gone at once; one that waits for a disk is not."""
LONGEST_S = 0.8
"""From a restart to the next kill: a client does a few things in it."""
START_SHARE = 0.3
"""How often it is killed once more, while it starts."""
START_S = 2.0
TICK_S = 0.02
LISTED = [str(state) for state in SpaceState if state is not SpaceState.REMOVED]
_TICKS = f"i=0; while :; do echo tick $i; i=$((i+1)); sleep {TICK_S}; done"


@dataclass(frozen=True)
class Plan:
    moments: int
    clients: int
    seed: int
    seconds: float = 86400.0
    """When the time is over, no more moments follow."""


LOG_SHOWN = 20_000
"""Characters of the daemon's log that are shown when it failed."""


class Listener:
    """Attached to one command from its first to its last line, through all restarts."""

    def __init__(self, run: AsyncRunHandle) -> None:
        self.run = run
        self.lines = 0
        self._rest = b""

    async def listen(self) -> None:
        async for output in self.run.output():
            assert not output.dropped and output.stream == STDOUT, output
            *whole, self._rest = (self._rest + output.data).split(b"\n")
            for line in whole:
                assert line == b"tick %d" % self.lines, (line, self.lines)
                self.lines += 1


class Kills:
    def __init__(self, data: Path, project: Path, plan: Plan) -> None:
        self._data = data
        self._plan = plan
        self._chance = random.Random(plan.seed)
        self._locks = Locks()
        self._patient = Patient()
        self._over = False
        self._usual = {"trash"}
        """What a data folder has in it."""
        self.ledger = Ledger()
        self.kills = 0
        self.lines = 0
        self.slowest_s = 0.0
        """The longest restart."""
        project.mkdir()
        (project / PROJECT_FILE).write_bytes(PROJECT_TEXT)
        self._around = Surroundings(
            self.ledger, self._patient, project, lambda: nullcontext(), self._deed
        )

    def _deed(self) -> AbstractAsyncContextManager[None]:
        return self._locks.shared(EVERYBODY)

    async def run(self) -> None:
        """Raises what went wrong, AssertionErrors included. The daemon runs already."""
        async with AsyncExitStack() as stack:

            async def client() -> AsyncClient:
                # It is up to us when it is started again.
                opened = AsyncClient(data=self._data, autostart=False)
                return await stack.enter_async_context(opened)

            own = await client()
            follower = Follower(await client())
            listeners = [await self._listener(own, str(number)) for number in range(2)]
            self._usual |= set(os.listdir(self._data))
            seeds = [self._plan.seed * 1000 + number for number in range(self._plan.clients)]
            loads = [
                LoadClient(f"c{number}", await client(), seed, self._around)
                for number, seed in enumerate(seeds)
            ]
            async with asyncio.TaskGroup() as group:
                following = group.create_task(follower.follow())
                listening = [group.create_task(one.listen()) for one in listeners]
                await self._heard(follower, listeners)
                living = [group.create_task(self._lives(load)) for load in loads]
                await self._moments(own)
                await asyncio.wait(living)
                await self._end(own, listeners, listening)
                await follower.check(self.ledger)
                following.cancel()

    async def _listener(self, own: AsyncClient, number: str) -> Listener:
        space = await own.create(labels={"listener": number})
        self.ledger.made(space)
        run = await space.start_run(["sh", "-c", _TICKS])
        return Listener(run)

    async def _heard(self, follower: Follower, listeners: list[Listener]) -> None:
        """Whoever has heard nothing yet does not wait for a daemon to come back."""
        async with asyncio.timeout(END_S):
            while not (follower.count and all(one.lines for one in listeners)):
                await asyncio.sleep(TICK_S)

    async def _lives(self, load: LoadClient) -> None:
        while not self._over:
            await load.live()

    # Killing

    async def _moments(self, own: AsyncClient) -> None:
        until = time.monotonic() + self._plan.seconds
        while self.kills < self._plan.moments and time.monotonic() < until:
            await asyncio.sleep(self._chance.uniform(0.0, LONGEST_S))
            await asyncio.to_thread(self._kill)
            if self._chance.random() < START_SHARE:
                await self._kill_while_it_starts()
            begun = time.monotonic()
            await asyncio.to_thread(_start, self._data)
            self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
            async with self._locks.alone(EVERYBODY):
                await self._agree(own)
        self._over = True

    def _kill(self) -> None:
        """If it is there. Returns when it is gone."""
        found = control.status(self._data)
        if not found.running:
            return
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(found.pid)
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                assert select.select([descriptor], [], [], END_S)[0]
            finally:
                os.close(descriptor)
            self.kills += 1

    async def _kill_while_it_starts(self) -> None:
        starting = asyncio.create_task(asyncio.to_thread(_start, self._data))
        await asyncio.sleep(self._chance.uniform(0.0, START_S))
        await asyncio.to_thread(self._kill)
        with contextlib.suppress(DaemonUnavailable):
            await starting

    # Looking

    async def _agree(self, own: AsyncClient) -> None:
        """Everybody is at rest."""
        await own.gc()
        spaces = {space.id: space async for space in own.spaces(states=LISTED)}
        states = {space.id: space.info.state for space in spaces.values()}
        assert set(states) == set(self.ledger.held), _difference(states, self.ledger)
        assert set(states.values()) <= SETTLED, states
        found = await asyncio.to_thread(reality.traces, self._data, self.ledger.ever)
        for kind, names in found.items():
            # A daemon that is killed while it tries its walls leaves a sandbox that ends soon.
            names = names & self.ledger.ever if kind == "holders" else names
            assert names <= set(states), (kind, names - set(states))
        assert found["folders"] == set(states)
        await asyncio.gather(*(_intact(held) for held in self.ledger.held.values()))

    async def _end(
        self, own: AsyncClient, listeners: list[Listener], listening: list[asyncio.Task[None]]
    ) -> None:
        for one in listeners:
            await self._patient.surely(lambda one=one: one.run.signal("KILL"))  # type: ignore[misc]
        await asyncio.wait(listening)
        for one in listeners:
            assert one.run.info.exit is not None and one.run.info.exit.signal == signal.SIGKILL
            written = await one.run.read()
            assert written.count(b"\n") == one.lines, (one.lines, one.run)
            self.lines += one.lines
        await self._clear(own)

    async def _clear(self, own: AsyncClient) -> None:
        for held in list(self.ledger.held.values()):
            await held.space.remove(force=True)
            self.ledger.gone(held)
        await self._agree(own)
        until = time.monotonic() + LINGER_S + END_S
        while holders := reality.traces(self._data, set())["holders"]:
            assert time.monotonic() < until, holders
            await asyncio.sleep(TICK_S)
        left = set(os.listdir(self._data)) - self._usual
        assert left == set(), left


async def _intact(held: Held) -> None:
    """What was acknowledged is there."""
    for path, data in held.files.items():
        intact = await held.space.files.read(path) == data
        assert intact, f"{held.space}: {path} was lost"
    runs = {run.id: run for run in await held.space.runs()}
    for run_id, outcome in held.runs.items():
        ended = runs[run_id].info.exit
        assert ended is not None and ended.code == outcome.code, runs[run_id].info
        intact = await runs[run_id].read() == outcome.stdout
        assert intact and await runs[run_id].read("stderr") == outcome.stderr, run_id


def _difference(states: dict[str, SpaceState], ledger: Ledger) -> str:
    unknown = {one: state for one, state in states.items() if one not in ledger.held}
    return f"unknown: {unknown}, lost: {set(ledger.held) - set(states)}"


def _start(data: Path) -> None:
    with contextlib.suppress(DaemonRunning):
        control.start(data)


def main() -> int:
    parser = argparse.ArgumentParser(description="A daemon that is killed again and again.")
    parser.add_argument("--moments", type=int, default=200)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    # Clients wait for the next daemon, and where a machine is emulated that takes its time.
    RetryDelay.TOTAL_S *= SLOWER
    print(f"{given.moments} moments, {given.clients} clients, seed {given.seed}", flush=True)
    try:
        with soaked() as (data, project):
            kills = Kills(data, project, Plan(given.moments, given.clients, given.seed))
            try:
                asyncio.run(kills.run())
            except BaseException:
                # It goes with its folder.
                print(Path(places.log(data)).read_text()[-LOG_SHOWN:], flush=True)
                raise
    except BaseException:
        traceback.print_exc()
        print("FAILED")
        return 1
    counts = ", ".join(f"{name} {count}" for name, count in sorted(kills.ledger.counts.items()))
    print(f"killed {kills.kills} times, the longest start took {kills.slowest_s:.1f} s")
    print(f"{counts}; {len(kills.ledger.runs)} commands, {kills.lines} lines without a gap")
    print("nothing was lost, and nothing is left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
