"""How fast a space is there, how many there can be, and what they cost.

    python bench/spaces.py [--count 100] [--live 1000] [--json]

Everything goes through the API of a daemon that was started for it. *Time to interactive* is
from sending the request for a space to the first byte that a command in it writes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.containers import container_rivals
from bench.measuring import Board, Spread, quantile, say, settle
from bench.own_spaces import Daemon, open_daemon
from bench.places import add_common_options, positive, run_main, workplace
from bench.projects import Shape, make_plain_folder, make_project
from bench.reporting import Report, Row, machine
from bench.sandbox_rivals import RivalFailed
from bench.space_outputs import Outputs
from bench.space_rivals import Rival, folder_rivals, of_containers

INTERACTIVE = "carrel: time to interactive"
CREATED = "carrel: until the space is there"
REMOVED = "carrel: remove"
IN_TURN = "carrel, in turn with the others"
DOCKER = "docker run"
LS_CLI, PYTHON = "carrel ls, the program", "python -c pass"
COPY_IN, COPY_OUT = "carrel cp, small files into a space", "carrel cp, small files out of it"
TAR = "tar | tar"
PROCESSOR = ", processor time"
RESTART = "restart after SIGKILL: until all spaces are listed"
PAUSE_S = 0.02
"""Before each subject: what the last one leaves to be done in the background is not the
next one's."""
BURSTS = 3
RESTARTS = 3
COPIES = 5
PAGE = 10
"""As many spaces as there are when there are few: the same answer from a longer list."""
QUICK = 5
"""In each round, of what takes a millisecond."""
STEP_S = 60.0
"""For one run of the program, which takes a fraction of a second."""
VERBS = ("ls", "show", "new", "rm")


def main() -> None:
    options = parse()
    shown = {
        name: getattr(options, name)
        for name in ("files", "count", "output", "burst", "live", "rounds")
    }
    with workplace(options.folder) as place:
        report = Report("spaces", shown, machine(place))
        project = place / "project"
        make_project(project, Shape(options.files, options.bytes))
        with open_daemon(place / "data") as daemon:
            say("making the base")
            daemon.base = daemon.client.make_base(str(project)).id
            Comparison(options, place, daemon, report).run(project)
        report.show(as_json=options.json)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--files", type=positive, default=50_000, help="in the project")
    parser.add_argument("--bytes", type=positive, default=4000, help="each, on average")
    parser.add_argument("--count", type=positive, default=100, help="one after the other")
    parser.add_argument("--burst", type=positive, default=100, help="at once")
    parser.add_argument("--few", type=positive, default=10, help="spaces to compare many with")
    parser.add_argument("--live", type=positive, default=1000, help="how many are many")
    parser.add_argument("--repeats", type=positive, default=20, help="of each verb")
    parser.add_argument(
        "--output", type=positive, default=200_000_000, help="bytes of one command, all read"
    )
    parser.add_argument("--small", type=positive, default=30_000, help="files to copy in and out")
    parser.add_argument("--no-containers", action="store_true", help="leave out podman and docker")
    add_common_options(parser, rounds=10)
    return parser.parse_args()


class Comparison:
    def __init__(
        self, options: argparse.Namespace, place: Path, daemon: Daemon, report: Report
    ) -> None:
        self._options = options
        self._place = place
        self._daemon = daemon
        self._report = report
        self._board = Board()

    def run(self, project: Path) -> None:
        self._warm_up()
        self._one_after_the_other()
        self._with_rivals(project)
        Outputs(self._options, self._place, self._daemon, self._report).measure()
        self._at_once()
        self._program()
        self._small_files()
        self._few_and_many()
        self._tell()

    def _warm_up(self) -> None:
        """The walls are proven at the first space of a daemon's life."""
        for _ in range(3):
            self._try_own(None, 0)

    # One after the other

    def _one_after_the_other(self) -> None:
        settle()
        say(f"{self._options.count} spaces, one after the other")
        for number in range(self._options.count):
            self._try_own(INTERACTIVE, number)

    def _try_own(self, name: str | None, number: int) -> None:
        """`None`: not noted."""
        time.sleep(PAUSE_S)
        space, times = self._daemon.interactive()
        begun = time.perf_counter()
        space.remove(force=True)
        removed_s = time.perf_counter() - begun
        if name is not None:
            self._board.add(name, number, times.interactive_s)
        if name == INTERACTIVE:
            self._board.add(CREATED, number, times.created_s)
            self._board.add(REMOVED, number, removed_s)

    def _with_rivals(self, project: Path) -> None:
        rivals, missing = folder_rivals(project, self._place)
        self._skip(missing)
        if self._options.no_containers:
            self._in_turn(rivals)
            return
        with container_rivals(self._place, project) as (containers, missing):
            self._skip(missing)
            self._in_turn([*rivals, *of_containers(containers)])

    def _skip(self, missing: dict[str, str]) -> None:
        for name, why in missing.items():
            self._report.skip(name, why)

    def _in_turn(self, rivals: list[Rival]) -> None:
        working = []
        for rival in rivals:
            if why := rival.works():
                self._report.skip(rival.name, why)
            else:
                working.append(rival)
        for number in range(self._options.rounds):
            say(f"round {number + 1} of {self._options.rounds}")
            settle()
            self._try_own(IN_TURN, number)
            for rival in working:
                self._try_rival(rival, number)

    def _try_rival(self, rival: Rival, number: int) -> None:
        try:
            time.sleep(PAUSE_S)
            with self._board.timed(rival.name, number):
                rival.run()
            rival.clean()
        except (RivalFailed, RuntimeError) as error:
            self._report.skip(f"{rival.name}, round {number + 1}", str(error))

    # At once

    def _at_once(self) -> None:
        rates = []
        for number in range(min(BURSTS, self._options.rounds)):
            say(f"{self._options.burst} spaces at once, round {number + 1}")
            settle()
            rates.append(self._daemon.burst(self._options.burst))
            self._daemon.shrink(0)
        spread = Spread.of(rates)
        self._row(f"carrel: {self._options.burst} spaces at once", "/s", spread)
        self._report.at_least("burst: spaces with their command run", 50, "/s", spread)

    # The program

    def _program(self) -> None:
        """Side by side, in turn."""
        program = Path(sys.executable).with_name("carrel")
        if not program.exists():
            self._report.skip(LS_CLI, f"{program} is not installed")
            return
        self._daemon.grow(self._options.few)
        subjects = {LS_CLI: (str(program), "ls"), PYTHON: (sys.executable, "-c", "pass")}
        for number in range(self._options.repeats):
            for name, argv in subjects.items():
                time.sleep(PAUSE_S)
                with self._board.timed(name, number):
                    self._execute(argv)
        ratio = self._board.ratio(LS_CLI, PYTHON)
        self._report.at_most("carrel ls / python -c pass", 2.5, "x", ratio)

    def _execute(self, argv: tuple[str, ...]) -> None:
        env = {**os.environ, "CARREL_DATA": str(self._daemon.data), "CARREL_NO_START": "1"}
        env.pop("CARREL_URL", None)
        subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL, timeout=STEP_S)

    # Many small files, into a space and out of it

    def _small_files(self) -> None:
        """Against two processes of tar with a pipe between them. Nothing is removed before the last
        round, so that none pays for the removal of what the one before has made."""
        program = Path(sys.executable).with_name("carrel")
        if not program.exists():
            self._report.skip(COPY_IN, f"{program} is not installed")
            return
        source, targets = self._place / "small", self._place / "copied"
        make_plain_folder(source, self._options.small)
        targets.mkdir()
        spaces = []
        for number in range(min(COPIES, self._options.rounds)):
            say(f"{self._options.small:,} small files, round {number + 1}")
            spaces.append(self._daemon.client.create())
            there, target = f"{spaces[-1].id}:small", targets / f"{number}"
            pipe = f"mkdir {target}-tar && tar -C {source} -cf - . | tar -C {target}-tar -xf -"
            self._copy(TAR, number, ("sh", "-c", pipe))
            self._copy(COPY_IN, number, (str(program), "cp", str(source), there))
            self._copy(COPY_OUT, number, (str(program), "cp", there, str(target)))
        shutil.rmtree(targets)
        for space in spaces:
            space.remove(force=True)
        for name in (COPY_IN, COPY_OUT):
            for kind in ("", PROCESSOR):
                ratio = self._board.ratio(name + kind, TAR + kind)
                self._report.at_most(f"{name} / {TAR}{kind}", 2, "x", ratio)

    def _copy(self, name: str, number: int, argv: tuple[str, ...]) -> None:
        """In elapsed time, and in that of the processor: the daemon's, and of what is run here."""
        settle()
        before = self._daemon.cpu_s() + _children_s()
        with self._board.timed(name, number):
            self._execute(argv)
        spent = self._daemon.cpu_s() + _children_s() - before
        self._board.add(name + PROCESSOR, number, spent)

    # Few and many

    def _few_and_many(self) -> None:
        """Few before and after, so that a machine that gets slower meanwhile hits both."""
        few, many = self._options.few, self._options.live
        # What earlier phases left in its memory is not what spaces cost.
        self._daemon.shrink(0)
        self._daemon.await_idle()
        without = self._daemon.helpers()
        self._daemon.stop()
        self._daemon.start()
        self._warm_up()
        self._daemon.grow(few)
        self._verbs(few)
        self._daemon.await_idle()
        memory = self._daemon.memory_mb()
        say(f"{many:,} spaces")
        self._daemon.grow(many)
        self._daemon.await_idle()
        self._costs(memory, without)
        self._verbs(many)
        self._restart()
        self._daemon.shrink(few)
        self._verbs(few)
        self._compare()

    def _costs(self, before_mb: float, without: int) -> None:
        many = self._options.live
        memory = self._daemon.memory_mb()
        further_kb = (memory - before_mb) * 1e3 / max(1, many - self._options.few)
        each = (self._daemon.helpers() - without) / many
        self._row(f"daemon's memory, {self._options.few} spaces", "MB", _one(before_mb))
        self._row(f"daemon's memory, {many} spaces", "MB", _one(memory))
        self._report.at_most(f"memory of the daemon, {many} spaces", 250, "MB", _one(memory))
        self._report.at_most("memory for each further space", 100, "kB", _one(further_kb))
        allowed = 0 if os.geteuid() == 0 else 1
        self._report.at_most("processes of an idle space", allowed, "each", _one(each))

    def _verbs(self, count: int) -> None:
        daemon, board = self._daemon, self._board
        say(f"verbs, with {count:,} spaces")
        settle()
        for number in range(self._options.repeats):
            time.sleep(PAUSE_S)
            for _ in range(QUICK):
                with board.timed(_verb("ls", count), number):
                    shown = daemon.newest(min(PAGE, self._options.few))
                with board.timed(_verb("show", count), number):
                    daemon.client.get(shown[number % len(shown)])
            with board.timed(_verb("ls, all of them", count), number):
                daemon.all()
            time.sleep(PAUSE_S)
            with board.timed(_verb("new", count), number):
                space = daemon.client.create(base=daemon.base)
            with board.timed(_verb("rm", count), number):
                space.remove()

    def _compare(self) -> None:
        few, many = self._options.few, self._options.live
        for verb in VERBS:
            ratio = self._board.ratio(_verb(verb, many), _verb(verb, few))
            self._report.at_most(f"{verb}: {many} spaces / {few} spaces", 1.5, "x", ratio)

    def _restart(self) -> None:
        many = self._options.live
        for number in range(min(RESTARTS, self._options.rounds)):
            say(f"restart with {many:,} spaces, round {number + 1}")
            self._daemon.kill()
            with self._board.timed(RESTART, number):
                self._daemon.start()
                found = self._daemon.all()
            if found != many:
                raise RuntimeError(f"{found} spaces are there after a restart, not {many}")
        spread = self._board.spread(RESTART)
        self._report.at_most(f"restart, {many} spaces", 2, "s", spread)

    # Telling

    def _tell(self) -> None:
        board, report, others = self._board, self._report, self._report.rows
        report.rows = []
        report.add_times(board)
        report.rows += others
        values = board.values(INTERACTIVE)
        for share, limit in ((0.5, 30), (0.99, 100)):
            found = _one(quantile(values, share) * 1e3, len(values))
            report.at_most(f"time to interactive, p{share * 100:.0f}", limit, "ms", found)
            self._row(f"{INTERACTIVE}, p{share * 100:.0f}", "ms", found)
        for name in board.names:
            if name in (DOCKER, "podman run") or name.startswith(("git ", "srt")):
                report.add_ratio(board, name, IN_TURN)
        if DOCKER in board:
            report.at_least("faster than docker run", 10, "x", board.ratio(DOCKER, IN_TURN))

    def _row(self, name: str, unit: str, spread: Spread) -> None:
        self._report.rows.append(Row(name, unit, spread))


def _verb(verb: str, count: int) -> str:
    return f"carrel: {verb}, {count} spaces"


def _children_s() -> float:
    """Processor time of all that was run here and has ended."""
    times = os.times()
    return times.children_user + times.children_system


def _one(value: float, count: int = 1) -> Spread:
    return Spread(value, value, value, count)


if __name__ == "__main__":
    run_main(main)
