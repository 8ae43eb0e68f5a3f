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
QUEUE, BY_HAND = "carrel: the queue", "git worktree add, merge, run true"
MOST_QUEUE_TIMES = 2.0
GIT_S = 120.0
QUEUE_S = 600.0
LOOK_S = 0.02
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
    parser.add_argument("--landings", type=positive, default=10, help="spaces in the queue")
    parser.add_argument("--repeats", type=positive, default=10, help="diffs in each round")
    add_common_options(parser, rounds=3)
    return parser.parse_args()


def measure(options: argparse.Namespace, place: Path) -> None:
    names = ("files", "bytes", "changed", "landings", "repeats", "rounds")
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
        git(project, "checkout", "-q", "--", ".")
        for number in range(options.rounds):
            say(f"the queue, round {number + 1} of {options.rounds}")
            settle()
            own_queue(daemon, project, options, board, number)
            native_queue(project, place, options, board, number)
    report.add_times(board)
    report.add_ratio(board, QUEUE, BY_HAND)
    report.at_most("the queue", MOST_QUEUE_TIMES, "x", board.ratio(QUEUE, BY_HAND))
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


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    subprocess.run(["git", "-C", str(folder), *who, *words], timeout=GIT_S, check=True)


def work(number: int, changed: int) -> dict[str, bytes]:
    """What one of them adds: no two of them in the same file."""
    return {f"landed-{number}-{at}.txt": b"line\n" * (at + 1) for at in range(changed)}


def own_queue(
    daemon: Daemon, project: Path, options: argparse.Namespace, board: Board, number: int
) -> None:
    spaces = [daemon.client.create(project) for _ in range(options.landings)]
    for at, space in enumerate(spaces):
        for path, content in work(at, options.changed).items():
            space.files.write(path, content)
    with board.timed(QUEUE, number):
        ids = [space.id for space in spaces]
        daemon.client.land(ids, branch=f"queue-{number}", check="true")
        until = time.monotonic() + QUEUE_S
        while any(one.state in ("waiting", "landing") for one in daemon.client.queue()):
            if time.monotonic() > until:
                raise RuntimeError("the queue stands still")
            time.sleep(LOOK_S)
    if [one for one in daemon.client.queue() if one.state != "landed"]:
        raise RuntimeError("something did not land")
    for space in spaces:
        space.remove(force=True)


def native_queue(
    project: Path, place: Path, options: argparse.Namespace, board: Board, number: int
) -> None:
    """The work is on branches already, and the trees are removed when the time is taken."""
    made = place / f"made-{number}"
    git(project, "worktree", "add", "-q", "--detach", str(made))
    for at in range(options.landings):
        git(made, "checkout", "-q", "-b", f"work-{number}-{at}", "main")
        for path, content in work(at, options.changed).items():
            (made / path).write_bytes(content)
        git(made, "add", "-A")
        git(made, "commit", "-q", "-m", "work")
    branch = f"hand-{number}"
    git(project, "branch", branch, "main")
    trees = [place / f"tree-{number}-{at}" for at in range(options.landings)]
    with board.timed(BY_HAND, number):
        for at, tree in enumerate(trees):
            git(project, "worktree", "add", "-q", "--detach", str(tree), branch)
            git(tree, "merge", "-q", "--no-ff", "-m", "land", f"work-{number}-{at}")
            subprocess.run(["true"], cwd=tree, check=True)
            git(tree, "update-ref", f"refs/heads/{branch}", "HEAD")
    for tree in (made, *trees):
        git(project, "worktree", "remove", "--force", str(tree))


if __name__ == "__main__":
    run_main(main)
