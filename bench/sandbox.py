"""How fast a command runs in a sandbox, beside other ways to run one behind walls.

    python bench/sandbox.py [--rounds 30] [--json]

Every subject runs the same command, to its end and with its output, in one run and in turn.
A first command is measured in a fresh sandbox each time.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.containers import container_rivals
from bench.measuring import Board, Spread, say, settle
from bench.own_sandboxes import Footprint, Sandboxes, footprint, open_sandboxes
from bench.places import add_common_options, positive, run_main, workplace
from bench.reporting import Report, Row, machine
from bench.sandbox_rivals import BWRAP, Rival, RivalFailed, absent, plain_rivals
from carrel.domain.runtimes import LocalRuntime

DEFAULT = "bubblewrap"
REPEATS = 3
"""In each round, of what is quick. One alone would pay for the processor's caches, which the
last subject has filled."""
PAUSE_S = 0.02
"""Before each subject: what the last one leaves to be done in the background is not the
next one's."""
PARALLEL_ROUNDS = 3
REST_S = 0.2
"""Until what a command leaves to be done in the background is done."""


def first(runtime: str) -> str:
    return f"carrel {runtime}: first command"


def started(runtime: str) -> str:
    return f"carrel {runtime}: start and first command"


def further(runtime: str) -> str:
    return f"carrel {runtime}: further command"


def at_once(runtime: str) -> str:
    return f"carrel {runtime}: further command, right after another"


def main() -> None:
    options = parse()
    with workplace(options.folder) as place:
        asyncio.run(measure(options, place))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--at-once", type=positive, default=8, metavar="N")
    parser.add_argument(
        "--busy",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="how long each subject keeps so many places busy, in each of three rounds",
    )
    parser.add_argument("--no-containers", action="store_true", help="leave out podman and docker")
    add_common_options(parser, rounds=30)
    return parser.parse_args()


async def measure(options: argparse.Namespace, place: Path) -> None:
    shown = {"rounds": options.rounds, "at_once": options.at_once}
    report = Report("sandbox", shown, machine(place))
    async with open_sandboxes(place / "data") as sandboxes:
        await Comparison(options, place, sandboxes, report).run()
    report.show(as_json=options.json)


class Comparison:
    def __init__(
        self, options: argparse.Namespace, place: Path, sandboxes: Sandboxes, report: Report
    ) -> None:
        self._options = options
        self._place = place
        self._sandboxes = sandboxes
        self._report = report
        self._board = Board()
        self._rates = Board()

    async def run(self) -> None:
        runtimes = await self._runtimes()
        tree = self._place / "tree"
        tree.mkdir()
        rivals = self._working(plain_rivals(tree))
        for name, why in absent().items():
            self._report.skip(name, why)
        if self._options.no_containers:
            await self._measure(runtimes, rivals)
        else:
            with container_rivals(self._place) as (containers, missing):
                for name, why in missing.items():
                    self._report.skip(name, why)
                await self._measure(runtimes, rivals + self._working(containers))
        self._tell()

    async def _measure(self, runtimes: list[LocalRuntime], rivals: list[Rival]) -> None:
        settle()
        await self._one_at_a_time(runtimes, rivals)
        await self._many_at_once(runtimes, rivals)
        try:
            await self._memory(runtimes)
        except PermissionError:
            self._report.skip("memory", "only root may look at what gave up its privileges")

    async def _runtimes(self) -> list[LocalRuntime]:
        """Those that work here. Trying them out proves them, so no start has to."""
        found = []
        for runtime in self._sandboxes.app.runtimes:
            if runtime.capabilities.needs_image:
                continue
            answer = await runtime.probe()
            if answer.available:
                found.append(runtime)
                sandbox = await self._sandboxes.start(runtime, self._sandboxes.spec())
                await self._sandboxes.stop(runtime, sandbox)
            else:
                self._report.skip(f"carrel {runtime.name}", answer.reason)
        return found

    def _working(self, rivals: list[Rival]) -> list[Rival]:
        found = []
        for rival in rivals:
            if why := rival.works():
                self._report.skip(rival.name, why)
            else:
                found.append(rival)
        return found

    async def _one_at_a_time(self, runtimes: list[LocalRuntime], rivals: list[Rival]) -> None:
        """The order changes from round to round."""

        def own(runtime: LocalRuntime) -> Callable[[int], Awaitable[None]]:
            return lambda number: self._try_own(runtime, number)

        def other(rival: Rival) -> Callable[[int], Awaitable[None]]:
            return lambda number: self._try_rival(rival, number)

        subjects = [*map(own, runtimes), *map(other, rivals)]
        for number in range(self._options.rounds):
            if number % 10 == 0:
                say(f"round {number + 1} of {self._options.rounds}")
            turn = number % len(subjects)
            for subject in subjects[turn:] + subjects[:turn]:
                await subject(number)

    async def _try_own(self, runtime: LocalRuntime, number: int) -> None:
        name, sandboxes = runtime.name, self._sandboxes
        spec = sandboxes.spec()
        await asyncio.sleep(PAUSE_S)
        begun = time.perf_counter()
        sandbox = await sandboxes.start(runtime, spec)
        with self._board.timed(first(name), number):
            await sandboxes.run(runtime, sandbox)
        self._board.add(started(name), number, time.perf_counter() - begun)
        for _ in range(REPEATS):
            await asyncio.sleep(PAUSE_S)
            with self._board.timed(further(name), number):
                await sandboxes.run(runtime, sandbox)
        for _ in range(REPEATS):
            with self._board.timed(at_once(name), number):
                await sandboxes.run(runtime, sandbox)
        await sandboxes.stop(runtime, sandbox)

    async def _try_rival(self, rival: Rival, number: int) -> None:
        try:
            for _ in range(REPEATS if rival.quick else 1):
                await asyncio.sleep(PAUSE_S)
                with self._board.timed(rival.name, number):
                    rival.run()
        except RivalFailed as error:
            self._report.skip(f"{rival.name}, round {number + 1}", str(error))

    async def _many_at_once(self, runtimes: list[LocalRuntime], rivals: list[Rival]) -> None:
        places = self._options.at_once
        for number in range(min(PARALLEL_ROUNDS, self._options.rounds)):
            say(f"{places} at once, round {number + 1}")
            for runtime in runtimes:
                for count, where in ((1, "in one sandbox"), (places, "in as many sandboxes")):
                    rate = await self._own_rate(runtime, count)
                    self._rates.add(f"carrel {runtime.name}: {where}", number, rate)
            for rival in rivals:
                try:
                    rate = await asyncio.to_thread(rival_rate, rival, places, self._options.busy)
                except RivalFailed as error:
                    self._report.skip(f"{rival.name}, {places} at once", str(error))
                else:
                    self._rates.add(rival.name, number, rate)

    async def _own_rate(self, runtime: LocalRuntime, count: int) -> float:
        """Commands a second, all places busy, each sandbox warm."""
        sandboxes, places = self._sandboxes, self._options.at_once
        warm = [await sandboxes.start(runtime, sandboxes.spec()) for _ in range(count)]
        for sandbox in warm:
            await sandboxes.run(runtime, sandbox)
        until = time.perf_counter() + self._options.busy
        done = 0

        async def keep_busy(place: int) -> None:
            nonlocal done
            while time.perf_counter() < until:
                await sandboxes.run(runtime, warm[place % count])
                done += 1

        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for place in range(places):
                group.create_task(keep_busy(place))
        rate = done / (time.perf_counter() - begun)
        await sandboxes.stop_all()
        return rate

    async def _memory(self, runtimes: list[LocalRuntime]) -> None:
        launcher = await self._footprint()
        name = f"carrel: launcher, {launcher.processes} processes"
        self._add_row(name, "MiB", [launcher.mebibytes])
        for runtime in runtimes:
            await self._memory_of(runtime)

    async def _memory_of(self, runtime: LocalRuntime) -> None:
        """What warm, idle sandboxes add to the launcher, which stays when they are gone."""
        sandboxes, places = self._sandboxes, self._options.at_once
        before = await self._footprint()
        for _ in range(places):
            sandbox = await sandboxes.start(runtime, sandboxes.spec())
            await sandboxes.run(runtime, sandbox)
        after = await self._footprint()
        await sandboxes.stop_all()
        each = max(0.0, after.mebibytes - before.mebibytes) / places
        processes = (after.processes - before.processes) / places
        name = f"carrel {runtime.name}: a warm sandbox, {processes:g} processes"
        self._add_row(name, "MiB", [each])

    async def _footprint(self) -> Footprint:
        await asyncio.sleep(REST_S)
        return footprint(self._sandboxes.launcher_pid())

    def _add_row(self, name: str, unit: str, values: list[float]) -> None:
        self._report.rows.append(Row(name, unit, Spread.of(values)))

    def _tell(self) -> None:
        board, report, memory = self._board, self._report, self._report.rows
        report.rows = []
        report.add_times(board)
        for name in self._rates.names:
            self._add_row(
                f"{self._options.at_once} at once, {name}", "/s", self._rates.values(name)
            )
        report.rows += memory
        for name in board.names:
            if not name.startswith("carrel") and name != BWRAP:
                report.add_ratio(board, first(DEFAULT), name)
                report.add_ratio(board, further(DEFAULT), name)
        self._promise(first(DEFAULT), BWRAP, 1.5)
        # Raw bwrap sets its walls up each time, so ours with the set-up is held to the same.
        self._promise(started(DEFAULT), BWRAP, 1.5)
        self._promise(further(DEFAULT), BWRAP, 1.0)
        self._promise(at_once(DEFAULT), BWRAP, 1.0)
        self._promise(further(DEFAULT), "docker exec", 0.1)

    def _promise(self, own: str, rival: str, limit: float) -> None:
        if own in self._board and rival in self._board:
            name = f"{own.removeprefix(f'carrel {DEFAULT}: ')} / {rival}"
            self._report.at_most(name, limit, "x", self._board.ratio(own, rival))


def rival_rate(rival: Rival, places: int, busy_s: float) -> float:
    """Commands a second. At least one in each place, however slow it is."""
    until = time.perf_counter() + busy_s

    def keep_busy(_place: int) -> int:
        done = 0
        while not done or time.perf_counter() < until:
            rival.run()
            done += 1
        return done

    begun = time.perf_counter()
    with ThreadPoolExecutor(places) as pool:
        done = sum(pool.map(keep_busy, range(places)))
    return done / (time.perf_counter() - begun)


if __name__ == "__main__":
    run_main(main)
