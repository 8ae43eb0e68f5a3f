"""How fast a space's work can be looked at, beside git in a checkout.

    python bench/review.py [--files 50000] [--changed 100] [--rounds 3] [--json]

The same change is made in a space and in the checkout that it was made from.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measuring import Board, say, settle
from bench.own_spaces import Daemon, open_daemon
from bench.places import add_common_options, positive, run_main, workplace
from bench.projects import Shape, change_files, make_project
from bench.reporting import Report, machine
from carrel.client import Space

OWN, NATIVE = "carrel: diff", "git diff, in the checkout"
OWN_CPU, NATIVE_CPU = f"{OWN}, processor time", f"{NATIVE}, processor time"
PROGRAM = "carrel diff, the program"
MOST_TIMES = 1.5
"""As long as git takes, in processor time: that is what a loaded machine leaves comparable."""
GIT_S = 120.0
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    options = parse()
    with workplace(options.folder) as place:
        measure(options, place)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--files", type=positive, default=50_000, metavar="N")
    parser.add_argument("--bytes", type=positive, default=10_000, help="average size of a file")
    parser.add_argument("--changed", type=positive, default=100, help="files that are changed")
    parser.add_argument("--repeats", type=positive, default=10, help="diffs in each round")
    add_common_options(parser, rounds=3)
    return parser.parse_args()


def measure(options: argparse.Namespace, place: Path) -> None:
    names = ("files", "bytes", "changed", "repeats", "rounds")
    report = Report("review", {name: getattr(options, name) for name in names}, machine(place))
    project, board = place / "project", Board()
    make_project(project, Shape(options.files, options.bytes))
    with open_daemon(place / "data") as daemon:
        say("making a space, and the same change in both")
        space = daemon.client.create(project)
        report.machine["driver"] = space.info.driver
        for name in change_files(project, options.files, options.changed, 1):
            space.files.write(name, (project / name).read_bytes())
        compare(daemon, space, project)
        for number in range(options.rounds):
            say(f"round {number + 1} of {options.rounds}")
            settle()
            for _ in range(options.repeats):
                own_diff(daemon, space, board, number)
                native_diff(project, board, number)
                program_diff(daemon, space, board, number)
    report.add_times(board)
    report.add_ratio(board, OWN, NATIVE)
    report.add_ratio(board, OWN_CPU, NATIVE_CPU)
    report.add_ratio(board, PROGRAM, NATIVE)
    report.at_most("diff, processor time", MOST_TIMES, "x", board.ratio(OWN_CPU, NATIVE_CPU))
    report.show(as_json=options.json)


def compare(daemon: Daemon, space: Space, project: Path) -> None:
    """That both tell the same, but for the names of blobs that git has shortened."""

    def told(text: bytes) -> list[bytes]:
        return [line for line in text.splitlines() if not line.startswith(b"index ")]

    if told(b"".join(space.diff())) != told(git_diff(project)):
        raise RuntimeError("the two differ in what differs")


def own_diff(daemon: Daemon, space: Space, board: Board, number: int) -> None:
    """Of the client, the daemon, and the git that it runs."""
    begun = time.process_time() + used_s(daemon.pid)
    with board.timed(OWN, number):
        for _piece in space.diff():
            continue
    board.add(OWN_CPU, number, time.process_time() + used_s(daemon.pid) - begun)


def used_s(pid: int) -> float:
    """By a process, and by those of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def native_diff(project: Path, board: Board, number: int) -> None:
    begun = children_s()
    with board.timed(NATIVE, number):
        git_diff(project)
    board.add(NATIVE_CPU, number, children_s() - begun)


def children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def git_diff(project: Path) -> bytes:
    words = ["git", "-C", str(project), "diff"]
    return subprocess.run(words, stdout=subprocess.PIPE, timeout=GIT_S, check=True).stdout


def program_diff(daemon: Daemon, space: Space, board: Board, number: int) -> None:
    words = [str(Path(sys.executable).with_name("carrel")), "--data", str(daemon.data)]
    with board.timed(PROGRAM, number):
        subprocess.run(
            [*words, "diff", space.id], stdout=subprocess.DEVNULL, timeout=GIT_S, check=True
        )


if __name__ == "__main__":
    run_main(main)
