"""What a request costs beside its agent, what becomes of many at once, and what thousands leave
behind.

    python bench/requests.py [--count 200] [--many 500] [--json]

By hand is the same scripted agent in a folder that was made for it: `mkdir` or `git worktree add`,
the agent, a look at what changed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.idle_codesmith import Idle, open_codesmith
from bench.measuring import Board, Spread, quantile, say, settle
from bench.own_requests import OwnRequests, Wanted, open_requests
from bench.places import add_common_options, add_rehearsal_option, positive, run_main, workplace
from bench.projects import Shape, make_project
from bench.reporting import Report, Row, in_ms, machine
from bench.request_crowds import behind_a_greedy_one, crowd, crowd_by_hand
from bench.request_rivals import ByHand, by_xargs
from carrel.service.requests.retention import FORGET_EVERY
from carrel.store.database import KEEP_EVENTS
from tests.load.holdings import EVENTS, REQUESTS, Holdings, holdings
from tests.load.reality import Process

SHOWN = ("count", "files", "connections", "each", "greedy", "others", "many", "idle_s", "rounds")
REMEMBERED = 100
SETTINGS = f"requests_remembered = {REMEMBERED}\nrequest_agent = 'scripted'\n"
AT_ONCE = 2 * (os.cpu_count() or 1)
"""As the daemon has it where nobody says otherwise."""
P50_MS, P95_MS = 100.0, 250.0
UNFAIR = 0.25
IDLE_MB, MORE_MB = 60.0, 16.0
EMPTY, GIT = "nothing", "a git project"


def main() -> None:
    options = parse()
    with workplace(options.folder) as place:
        shown = {name: getattr(options, name) for name in SHOWN}
        report = Report("requests", shown, machine(place))
        project = place / "project"
        make_project(project, Shape(options.files, options.bytes))
        with open_requests(place / "data", SETTINGS) as own:
            comparison = Comparison(options, place, own, report)
            comparison.one_by_one(EMPTY, None)
            comparison.one_by_one(GIT, project)
            comparison.at_once()
            comparison.greedy()
            comparison.in_a_row()
            comparison.idle()
            comparison.tell()
        report.show(as_json=options.json)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=positive, default=200, help="one at a time, of each kind")
    parser.add_argument("--files", type=positive, default=200, help="in the git project")
    parser.add_argument("--bytes", type=positive, default=2000, help="each, on average")
    parser.add_argument("--connections", type=positive, default=20, help="that ask at once")
    parser.add_argument("--each", type=positive, default=10, help="requests of each of them")
    parser.add_argument("--greedy", type=positive, default=100, help="requests of a single one")
    parser.add_argument("--others", type=positive, default=10, help="who ask for one after that")
    parser.add_argument("--many", type=positive, default=500, help="one after the other")
    parser.add_argument("--idle-s", type=positive, default=60, help="of `carrel codesmith`")
    add_common_options(parser, rounds=3)
    add_rehearsal_option(parser)
    return parser.parse_args()


class Comparison:
    def __init__(
        self, options: argparse.Namespace, place: Path, own: OwnRequests, report: Report
    ) -> None:
        self._options = options
        self._place = place
        self._own = own
        self._report = report
        self._board = Board()
        self._further: list[Row] = []

    # One at a time

    def one_by_one(self, kind: str, project: Path | None) -> None:
        """In turn with the same by hand. The first of each is not timed: the walls are proven,
        the project is read."""
        count = self._options.count
        say(f"{count} requests for {kind}, one at a time, beside as many by hand")
        by_hand = ByHand(self._place / f"by-hand-{len(kind)}", project)
        named = str(project or "")
        first = 0 if self._options.rehearse else 1
        numbers = range(first, count + 1)
        wanted = [Wanted(f"made-{one}.txt", f"hello {one}", named) for one in numbers]
        settle()
        for number, one, took in zip(numbers, wanted, self._own.one_by_one(wanted), strict=True):
            hand = by_hand.one(one)
            if number:
                self._board.add(_own(kind), number, took.own_s)
                self._board.add(_whole(kind), number, took.whole_s)
                self._board.add(_own_by_hand(kind), number, hand.own_s)
                self._board.add(_by_hand(kind), number, hand.whole_s)

    # Many

    def at_once(self) -> None:
        connections, each = self._options.connections, self._options.each
        lost = mixed = 0
        unfair = []
        for number in range(self._options.rounds):
            say(f"{connections} x {each} requests at once: round {number + 1}")
            settle()
            found = crowd(self._own, connections, each)
            self._board.add(self._crowd_name, number, found.took_s)
            lost, mixed = lost + found.lost, mixed + found.mixed
            unfair.append(found.unfair)
            settle()
            same = crowd_by_hand(connections, each)
            took_s = by_xargs(self._place / "xargs", same, AT_ONCE)
            self._board.add(self._xargs_name, number, took_s)
        self._most("requests lost", 0, "requests", [lost])
        self._most("results with files that are not their own", 0, "results", [mixed])
        self._most("mean places of connections lie apart", UNFAIR, "of all", unfair)

    @property
    def _crowd_name(self) -> str:
        return f"carrel: {self._options.connections * self._options.each} requests at once"

    @property
    def _xargs_name(self) -> str:
        return f"by hand: the same, xargs -P {AT_ONCE}"

    def greedy(self) -> None:
        """In turn, each of the others waits for one of the greedy one's at most, and for those
        that are being worked on."""
        greedy, others = self._options.greedy, self._options.others
        say(f"one asks for {greedy}, then {others} others for one each")
        rounds = range(self._options.rounds)
        found = [behind_a_greedy_one(self._own, greedy, others) for _ in rounds]
        name = f"results until {others} others have theirs, behind {greedy} of one"
        self._most(name, others + 3 * AT_ONCE, "results", found)

    # Thousands

    def in_a_row(self) -> None:
        """As many as are remembered go before, so that what has a bound has reached it."""
        many = self._options.many
        own = self._own
        if self._options.rehearse:
            own.in_a_row(min(many, REMEMBERED + 2 * FORGET_EVERY), AT_ONCE)
        before = self._holdings()
        say(f"{many} requests in a row")
        self._board.add(IN_A_ROW, 0, many / own.in_a_row(many, AT_ONCE))
        after = self._holdings()
        self._left(before, after, many)
        for when, one in (("before", before), (f"after {many} more", after)):
            self._row(f"daemon's memory, {when}", "MB", _mb(one.daemon))
            self._row(f"launcher's memory, {when}", "MB", _mb(one.launcher))
            self._row(f"databases with the log of events, {when}", "MB", one.databases / 1e6)
        more_mb = (
            _mb(after.daemon) + _mb(after.launcher) - _mb(before.daemon) - _mb(before.launcher)
        )
        self._most(f"memory of daemon and launcher after {many} more", MORE_MB, "MB", [more_mb])

    def _holdings(self) -> Holdings:
        self._own.daemon.await_idle()
        return holdings(self._own.daemon.data)

    def _left(self, before: Holdings, after: Holdings, many: int) -> None:
        bounds = {EVENTS: KEEP_EVENTS, REQUESTS: REMEMBERED + FORGET_EVERY}
        rows = after.more_rows(before, bounds)
        for table, count in rows.items():
            say(f"{table}: {count} rows more")
        for name in sorted(after.files - before.files):
            say(f"{name} is left")
        for what, more in (
            ("files", len(after.files - before.files)),
            ("bytes", after.bytes - before.bytes),
            ("mounts", after.mounts - before.mounts),
            ("processes", after.processes - before.processes),
            ("rows", sum(rows.values())),
        ):
            self._most(f"{what} that {many} requests leave", 0, what, [more])

    # Idle

    def idle(self) -> None:
        for name, instructions in (("", ""), (" after a call", "write a.txt a\nsay done")):
            say(f"carrel codesmith{name}, idle for {self._options.idle_s} s")
            found = self._idle(instructions)
            self._most(f"idle carrel codesmith{name}", 0, "ticks", [found.ticks])
            self._most(f"its memory{name}", IDLE_MB, "MB", [found.memory_mb])

    def _idle(self, instructions: str) -> Idle:
        with open_codesmith(self._own.daemon.data) as codesmith:
            codesmith.greet()
            if instructions:
                codesmith.generate(instructions)
            codesmith.idle(1)
            return codesmith.idle(self._options.idle_s)

    # Telling

    def tell(self) -> None:
        board, report = self._board, self._report
        for name in board.names:
            if name == IN_A_ROW:
                report.rows.append(Row(name, "/s", board.spread(name)))
            else:
                report.rows.append(Row(name, "ms", in_ms(board.spread(name))))
        report.rows += self._further
        for kind in (EMPTY, GIT):
            report.add_ratio(board, _whole(kind), _by_hand(kind))
            own = board.values(_own(kind))
            self._most(f"overhead, {kind}, p50", P50_MS, "ms", [quantile(own, 0.5) * 1e3])
            self._most(f"overhead, {kind}, p95", P95_MS, "ms", [quantile(own, 0.95) * 1e3])
        report.add_ratio(board, self._crowd_name, self._xargs_name)

    def _row(self, name: str, unit: str, value: float) -> None:
        self._further.append(Row(name, unit, Spread.of([value])))

    def _most(self, name: str, limit: float, unit: str, values: Sequence[float]) -> None:
        self._report.at_most(name, limit, unit, Spread.of(values))


IN_A_ROW = "carrel: requests in a row"


def _mb(process: Process) -> float:
    return process.rss_mib * (1 << 20) / 1e6


def _own(kind: str) -> str:
    return f"carrel: beyond the agent's time, {kind}"


def _own_by_hand(kind: str) -> str:
    return f"by hand: beyond the agent's time, {kind}"


def _whole(kind: str) -> str:
    return f"carrel: a request, {kind}"


def _by_hand(kind: str) -> str:
    return f"by hand, {kind}"


if __name__ == "__main__":
    run_main(main)
