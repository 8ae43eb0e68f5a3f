"""Dedicated MCP servers: how soon one answers, cold and warm, what it takes, many at once, and
how soon it is gone.

    python bench/instances.py [--rounds 7] [--json]

The real servers that `make setup` installs, each beside itself as it is started by hand, with the
same Node. What is timed is not the first start of a server: by then its daemon has in the
background what it keeps for later ones, the bridge that is loaded and what Node has compiled.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.footprints import footprint
from bench.measuring import Board, Spread, quantile, say, settle
from bench.own_instances import OwnInstances, Taken, open_instances, taken, use
from bench.places import (
    add_common_options,
    add_rehearsal_option,
    positive,
    run_main,
    workplace,
)
from bench.raw_servers import raw_start, raw_starts
from bench.reporting import Report, Row, in_ms, machine
from carrel.client import Instance
from carrel.domain.instances import Server, ToolCall, Warmth
from carrel.instances.built_in import EVERYTHING, FILESYSTEM, SERENA
from tests.instances import misbehaving
from tests.instances.installed import PROGRAMS, search_path
from tests.instances.projects import MODULE, make_project

SHOWN = ("at_once", "live", "rounds")
SERVERS = (EVERYTHING, FILESYSTEM, SERENA)
WARM = "[servers.serena]\nwarm = 2\n"
PYTHON = "/usr/bin/python3"
SMALL: dict[str, object] = {
    "name": "small",
    "command": [PYTHON, "-I", "-S", misbehaving.__file__, "ok"],
    "binds": [misbehaving.__file__],
}
"""Takes little itself, and is reached by a gate."""
WORK = ToolCall("get_symbols_overview", {"relative_path": MODULE})
COLD, FORKED_MS, FORKED, STARTED_MS = 1.05, 800.0, 4.0, 100.0
"""So many times the raw server's own time; a fork is so quick, or so many times as quick."""
FORKED_MEMORY, MANAGER_KB, GONE_MS = 0.5, 200.0, 500.0
STREAMS = "filesystem on streams"
GATEWAY = Server(
    "supergateway",
    (
        *("supergateway", "--stdio", "mcp-server-filesystem {project}", "--stateful"),
        *("--outputTransport", "streamableHttp", "--port", "0", "--logLevel", "none"),
    ),
)
"""What people put in front of a server on streams who need it over HTTP."""
WIDE_ROUNDS = {EVERYTHING.name: 3, SERENA.name: 1}


def main() -> None:
    options = parse()
    os.environ["PATH"] = search_path()
    with workplace(options.folder) as place, ExitStack() as stack:
        shown = {name: getattr(options, name) for name in SHOWN}
        report = Report("instances", shown, {**machine(place), "node": node_version()})
        cold = stack.enter_context(open_instances(place / "cold"))
        comparison = Comparison(options, place, cold, report)
        servers = [one for one in SERVERS if one.name in options.servers]
        for server in servers:
            if installed(server, report):
                comparison.cold(server)
        if installed(FILESYSTEM):
            comparison.streams()
            if installed(GATEWAY, report):
                comparison.gateway()
        for server in (EVERYTHING, SERENA):
            if server.name in options.many and installed(server):
                comparison.at_once(server)
        comparison.managed()
        if SERENA in servers and installed(SERENA):
            comparison.warm(stack.enter_context(open_instances(place / "warm", WARM)))
        comparison.tell()
        report.show(as_json=options.json)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--at-once", type=positive, default=20, help="that are asked for at once")
    parser.add_argument("--many", default="everything,serena", help="which of the two that are")
    parser.add_argument("--servers", default=",".join(one.name for one in SERVERS))
    parser.add_argument("--live", type=positive, default=20, help="in each of two steps")
    add_common_options(parser, rounds=7)
    add_rehearsal_option(parser)
    return parser.parse_args()


def installed(server: Server, report: Report | None = None) -> bool:
    there = all(path.exists() for path in PROGRAMS[server.name])
    if not there and report is not None:
        report.skip(server.name, "`make setup` did not install it")
    return there


def node_version() -> str:
    node = shutil.which("node")
    if node is None:
        return "none"
    return subprocess.run([node, "--version"], capture_output=True, text=True).stdout.strip()


class Comparison:
    def __init__(
        self, options: argparse.Namespace, place: Path, own: OwnInstances, report: Report
    ) -> None:
        self._options = options
        self._place = place
        self._own = own
        self._report = report
        self._board = Board()
        self._memory = Board()
        self._projects = 0
        self._compiled = 0
        self._project = self._new_project()

    def _new_project(self) -> Path:
        """That nobody has asked for."""
        self._projects += 1
        return make_project(self._place / f"project{self._projects}").path

    def _rounds(self, what: str) -> range:
        rounds: int = self._options.rounds
        say(f"{what}, {rounds} rounds")
        return range(rounds)

    # One at a time

    def cold(self, server: Server) -> None:
        """The first of each is not timed: the walls are proven, files are read."""
        if self._options.rehearse:
            self._own.release(self._own.start(server.name, self._project)[0])
            self._prepare(server)
            raw_start(server, self._project, self._place)
        for number in self._rounds(f"{server.name}, cold and raw"):
            say(f"{server.name}: round {number + 1} of {self._options.rounds}")
            settle()
            self._board.add(
                _raw(server.name), number, raw_start(server, self._project, self._place)
            )
            instance, took_s = self._own.start(server.name, self._project)
            self._board.add(_cold(server.name), number, took_s)
            if server is SERENA:
                self._weigh(instance, "cold", number)
            elif server is FILESYSTEM:
                self._memory.add(BRIDGE, number, taken(instance).server)
            self._board.add(_gone(server.name), number, self._own.release(instance))

    def _prepare(self, server: Server) -> None:
        """The start after it proves its walls anew: they show what was compiled, too."""
        if server is SERENA:
            return
        self._compiled += 1
        say(f"{server.name}: until what it compiles is kept")
        self._own.happenings.await_compiled(self._compiled)
        if server is FILESYSTEM:
            pid = self._own.happenings.loaded("bridge")
            self._memory.add(LOADED_BRIDGE, 0, footprint(pid).own)
        self._own.release(self._own.start(server.name, self._project)[0])

    def streams(self) -> None:
        for number in self._rounds(STREAMS):
            settle()
            self._board.add(
                _raw(STREAMS), number, raw_start(FILESYSTEM, self._project, self._place)
            )
            self._board.add(
                _cold(STREAMS), number, self._own.on_streams(FILESYSTEM.name, self._project)
            )

    def gateway(self) -> None:
        """Both until the client itself has an answer."""
        for number in self._rounds("filesystem over HTTP, and behind a gateway"):
            settle()
            self._board.add(
                _raw(GATEWAY.name), number, raw_start(GATEWAY, self._project, self._place)
            )
            self._board.add(
                GREETED, number, self._own.until_greeted(FILESYSTEM.name, self._project)
            )

    def warm(self, own: OwnInstances) -> None:
        """Cold in the same rounds: by the other daemon, which keeps nothing warm. The first is
        not timed."""
        own.happenings.await_loaded(SERENA.name)
        if self._options.rehearse:
            first, _ = own.start(SERENA.name, self._new_project())
            own.happenings.await_spare(first.id)
            first.release()
        for number in self._rounds("serena, warm and cold"):
            say(f"warm: round {number + 1} of {self._options.rounds}")
            settle()
            project = self._new_project()
            forked, took_s = own.start(SERENA.name, project)
            _check(forked, Warmth.FORKED)
            own.happenings.await_spare(forked.id)
            self._board.add(FORKED_START, number, took_s)
            self._weigh(forked, "forked", number)
            settle()
            started, took_s = own.start(SERENA.name, project)
            _check(started, Warmth.STARTED)
            own.happenings.await_spare(started.id)
            self._board.add(STARTED_START, number, took_s)
            cold, took_s = self._own.start(SERENA.name, project)
            self._board.add(COLD_AGAIN, number, took_s)
            for instance in (forked, started, cold):
                instance.release()

    def _weigh(self, instance: Instance, how: str, number: int) -> None:
        found = taken(instance)
        self._memory.add(_memory(how, "after its first answer"), number, found.server)
        use(instance, WORK)
        found = taken(instance)
        self._memory.add(_memory(how, "after a tool call"), number, found.server)
        self._memory.add(_memory(how, "with its language server"), number, found.tree)

    # Many

    def at_once(self, server: Server) -> None:
        count = self._options.at_once
        for number in range(min(WIDE_ROUNDS[server.name], self._options.rounds)):
            say(f"{count} of {server.name} at once, round {number + 1}")
            settle()
            own = self._own.starts(server.name, self._project, count)
            self._note_many(_many("carrel", server, count), number, own.took_s)
            self._memory.add(OVERTAKEN, number, own.overtaken)
            self._memory.add(STARTING, number, self._own.happenings.most_starting(own.ids))
            settle()
            raw = raw_starts(server, self._project, self._place, count)
            self._note_many(_many("raw", server, count), number, raw)

    def _note_many(self, name: str, number: int, took_s: Sequence[float]) -> None:
        self._board.add(f"{name}: the first", number, min(took_s))
        self._board.add(f"{name}: the median", number, statistics.median(took_s))
        self._board.add(f"{name}: the last", number, max(took_s))

    def managed(self) -> None:
        """In two steps: the first also fills what is kept for later use."""
        count = self._options.live
        kept: list[Instance] = []
        self._own.start(SMALL, self._project)[0].release()
        before = self._own.manager_mb()
        for step in (1, 2):
            say(f"{step * count} live instances")
            kept += [self._own.start(SMALL, self._project)[0] for _ in range(count)]
            after = self._own.manager_mb()
            self._memory.add(_managed(step), 0, (after - before) * 1000 / count)
            before = after
        found = [taken(instance) for instance in kept]
        self._note_sandboxes(found)
        for instance in kept:
            instance.release()

    def _note_sandboxes(self, found: list[Taken]) -> None:
        for one in found:
            self._memory.add(GATE, 0, one.gate)
            self._memory.add(KEEPERS, 0, one.keepers)

    # What it says

    def tell(self) -> None:
        self._report.add_times(self._board)
        for name in self._memory.names:
            self._report.rows.append(Row(name, _unit(name), self._memory.spread(name)))
        for name in (EVERYTHING.name, FILESYSTEM.name, STREAMS, SERENA.name):
            self._tell_cold(name)
        if GREETED in self._board:
            self._report.add_ratio(self._board, GREETED, _raw(GATEWAY.name))
        self._tell_warm()
        self._tell_many()

    def _tell_cold(self, name: str) -> None:
        board, report = self._board, self._report
        if _cold(name) not in board:
            return
        report.add_ratio(board, _cold(name), _raw(name))
        ratio = board.ratio(_cold(name), _raw(name))
        report.at_most(f"{name}: cold / raw", COLD, "x", ratio)
        if _gone(name) in board:
            late = quantile(board.values(_gone(name)), 0.95) * 1e3
            count = board.spread(_gone(name)).count
            report.at_most(
                f"{name}: release to all gone, p95", GONE_MS, "ms", Spread(late, late, late, count)
            )

    def _tell_warm(self) -> None:
        board, report = self._board, self._report
        if FORKED_START not in board:
            return
        report.add_ratio(board, COLD_AGAIN, FORKED_START)
        forked = in_ms(board.spread(FORKED_START))
        if forked.median <= FORKED_MS:
            report.at_most("serena, forked", FORKED_MS, "ms", forked)
        else:
            ratio = board.ratio(COLD_AGAIN, FORKED_START)
            report.at_least("serena, forked: faster than cold", FORKED, "x", ratio)
        report.at_most("serena, pre-started", STARTED_MS, "ms", in_ms(board.spread(STARTED_START)))
        for when in ("after its first answer", "after a tool call"):
            ratio = self._memory.ratio(_memory("forked", when), _memory("cold", when))
            report.at_most(f"serena's own memory {when}: forked / cold", FORKED_MEMORY, "x", ratio)

    def _tell_many(self) -> None:
        report, memory, count = self._report, self._memory, self._options.at_once
        for server in (EVERYTHING, SERENA):
            own, raw = (f"{_many(whose, server, count)}: the last" for whose in ("carrel", "raw"))
            report.add_ratio(self._board, own, raw)
        if STARTING in memory:
            cores = os.cpu_count() or 1
            report.at_most("starting at the same time", cores, "of them", memory.spread(STARTING))
            report.at_most("overtaken by others", cores, "of them", memory.spread(OVERTAKEN))
        report.at_most(
            "the manager's memory for each", MANAGER_KB, "kB", memory.spread(_managed(2))
        )


FORKED_START = "carrel: serena, forked, a project that is new"
STARTED_START = "carrel: serena, pre-started, a project of lately"
COLD_AGAIN = "carrel: serena, cold, in the same rounds"
GREETED = "carrel: filesystem over HTTP, until its client's own handshake"
OVERTAKEN = "many at once: overtaken by others, most"
STARTING = "many at once: starting at the same time, most"
GATE = "a gate's own memory"
KEEPERS = "… of what keeps its sandbox"
BRIDGE = "a bridge's own memory"
LOADED_BRIDGE = "… of the one that they are forked from"


def _raw(name: str) -> str:
    return f"raw: {name}"


def _cold(name: str) -> str:
    return f"carrel: {name}, cold"


def _gone(name: str) -> str:
    return f"carrel: {name}, release to all gone"


def _many(whose: str, server: Server, count: int) -> str:
    return f"{whose}: {count} of {server.name} at once"


def _memory(how: str, when: str) -> str:
    return f"own memory of serena, {how}, {when}"


def _managed(step: int) -> str:
    return f"the manager's memory for each instance, step {step}"


def _unit(name: str) -> str:
    if name in (OVERTAKEN, STARTING):
        return "of them"
    return "kB" if name.startswith("the manager") else "MB"


def _check(instance: Instance, warmth: Warmth) -> None:
    if instance.info.warmth is not warmth:
        raise RuntimeError(f"{instance} is {instance.info.warmth}, not {warmth}")


if __name__ == "__main__":
    run_main(main)
