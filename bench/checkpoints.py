"""How fast a space's state is kept, put back and forked, beside git and `cp` in a checkout.

    python bench/checkpoints.py [--files 50000] [--changed 100] [--sizes 1000,200000] [--rounds 3]
                                [--json]

The same change is made in a space and in the checkout that it was made from, before each measure.
The time of a checkpoint is that of the person who asked for it, or of a turn that is begun while
one is taken. What an agent at work waits is measured beside it: the longest time between two acts
of a program that reads or writes files without end, when a checkpoint is taken and when none is.
One that reads waits for nothing. One that writes stands still for the second look at its files, if
its space has a control group.

Whether it costs the same in any project is measured with the same changes in projects of other
sizes, in processor time of the daemon: that is what a loaded machine leaves comparable. What
changed in more folders costs more, in a project of any size.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measuring import Board, say, settle
from bench.own_spaces import Daemon, open_daemon
from bench.places import add_common_options, positive, run_main, workplace
from bench.projects import Shape, change_files, make_plain_folder, make_project
from bench.reporting import Report, Row, in_ms, machine
from carrel.client import Client, Space

TAKE, BACK, FORK, FORKS = (
    f"carrel: {what}" for what in ("checkpoint", "rewind", "fork", "5 forks")
)
STASH, APPLY, WORKTREE, COPY = "git stash", "git reset and stash apply", "git worktree", "cp -a"
EARLY, LATE = "with a few checkpoints", "after 100 checkpoints"
READ, READ_LATE = "read the files", "read them after 100"
SIZE, SHARED = "size of a fork", "what forks of a state share"
FLAT = ("checkpoint", "rewind", "fork")
MOST_KIB = 128.0
CHECKPOINTS = 100
READS, WRITES = "reads", "writes"
AGENT_S = 0.4
AGENT = """
import sys, time
act, last, longest = sys.argv[1], time.monotonic(), 0.0
until = last + float(sys.argv[2])
while last < until:
    with open("at-work", "w" if act == "writes" else "a+") as file:
        file.write("x") if act == "writes" else file.read()
    now = time.monotonic()
    last, longest = now, max(longest, now - last)
print(longest)
"""
GIT_S = 300.0


def main() -> None:
    options = parse()
    with workplace(options.folder) as place:
        measure(options, place)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--files", type=positive, default=50_000, metavar="N")
    parser.add_argument("--bytes", type=positive, default=10_000, help="average size of a file")
    parser.add_argument("--changed", type=positive, default=100, help="files that are changed")
    parser.add_argument("--sizes", default="1000,200000", help="projects to be compared")
    parser.add_argument("--repeats", type=positive, default=5, help="of each in a round")
    add_common_options(parser, rounds=3)
    return parser.parse_args()


def measure(options: argparse.Namespace, place: Path) -> None:
    said = ("files", "bytes", "changed", "sizes", "repeats", "rounds")
    report = Report("checkpoints", {name: getattr(options, name) for name in said}, machine(place))
    project, board = place / "project", Board()
    make_project(project, Shape(options.files, options.bytes))
    with open_daemon(place / "data") as daemon:
        space = daemon.client.create(project)
        names = change_files(project, options.files, options.changed, 1)
        report.machine["driver"] = space.info.driver
        seed = 0
        for number in range(options.rounds):
            say(f"round {number + 1} of {options.rounds}")
            settle()
            for _ in range(options.repeats):
                seed += 1
                change(names, space, project, seed)
                own(daemon, space, board, number)
                at_work(daemon, space, board, number)
                native(project, place, board, number)
        say(f"{CHECKPOINTS} checkpoints")
        later(options, names, daemon, space, project, board)
        sizes = sorted(map(int, options.sizes.split(",")))
        flat = Board()
        flatness(options, place, daemon, sizes, flat)
    report.add_times(board, [name for name in board.names if name not in (SIZE, SHARED)])
    report.rows += [Row(name, "KiB", board.spread(name)) for name in (SIZE, SHARED)]
    report.add_times(flat)
    for own_name, other in ((TAKE, STASH), (BACK, APPLY), (FORK, WORKTREE), (FORK, COPY)):
        report.add_ratio(board, own_name, other)
    report.add_ratio(board, READ_LATE, READ)
    for name, limit_ms in ((TAKE, 15.0), (BACK, 50.0), (FORK, 50.0), (FORKS, 250.0)):
        report.at_most(name, limit_ms, "ms", in_ms(board.spread(name)))
        report.at_most(processor(name), limit_ms, "ms", in_ms(board.spread(processor(name))))
    report.at_most(SIZE, MOST_KIB, "KiB", board.spread(SIZE))
    for name in FLAT:
        small, large = (processor(of(name, files)) for files in (sizes[0], sizes[-1]))
        report.add_ratio(flat, of(name, sizes[-1]), of(name, sizes[0]))
        report.at_most(f"{large} / {sizes[0]:,}", 1.3, "x", flat.ratio(large, small))
        early, late = (processor(f"{name}, {when}") for when in (EARLY, LATE))
        report.add_ratio(board, late, early)
        report.at_most(late, 1.3, "x", board.ratio(late, early))
    report.at_most(READ_LATE, 1.5, "x", board.ratio(READ_LATE, READ))
    report.show(as_json=options.json)


def change(names: list[str], space: Space, project: Path, seed: int) -> None:
    """Always the same files, so that a space has changed as much in the end as at first."""
    for name in names:
        text = b"%d\n" % seed + (project / name).read_bytes().partition(b"\n")[2]
        (project / name).write_bytes(text)
        space.files.write(name, text)


def of(name: str, files: int) -> str:
    return f"{name}, {files:,} files"


def processor(name: str) -> str:
    return f"{name}, processor time"


def flatness(
    options: argparse.Namespace, place: Path, daemon: Daemon, sizes: list[int], board: Board
) -> None:
    spaces: dict[int, Space] = {}
    for files in sizes:
        project = place / f"of-{files}"
        make_plain_folder(project, files)
        spaces[files] = daemon.client.create(project)
    names = change_files(project, sizes[0], min(options.changed, sizes[0]), 1)
    for number in range(options.rounds):
        settle()
        for seed in range(options.repeats):
            for files, space in spaces.items():
                for name in names:
                    space.files.write(name, b"%d in %d\n" % (seed, number))
                keep_and_go_back(daemon, space, names, board, f", {files:,} files", number)


@contextmanager
def timed(daemon: Daemon, board: Board, name: str, number: int) -> Iterator[None]:
    begun = daemon.cpu_s()
    with board.timed(name, number):
        yield
    board.add(processor(name), number, daemon.cpu_s() - begun)


def kib(folder: Path, without: str = "") -> float:
    """What is on this disk and has no other name, beside the folder `without`."""
    blocks = 0
    for above, folders, files in os.walk(folder):
        if without in folders:
            folders.remove(without)
        for name in (".", *files):
            status = os.lstat(os.path.join(above, name))
            blocks += status.st_blocks if name == "." or status.st_nlink == 1 else 0
    return blocks / 2


def own(daemon: Daemon, space: Space, board: Board, number: int) -> None:
    client = daemon.client
    with timed(daemon, board, TAKE, number):
        kept = space.checkpoint()
    space.run(["sh", "-c", "git ls-files -m | head -50 | xargs rm -f"])
    with timed(daemon, board, BACK, number):
        space.rewind(kept.id)
    with timed(daemon, board, FORK, number):
        made = space.fork(checkpoint=kept.id).spaces
    with timed(daemon, board, FORKS, number):
        made += space.fork(count=5, checkpoint=kept.id).spaces
    for one in made:
        # Where the tree is shown, it is whole.
        board.add(SIZE, number, kib(daemon.data / "spaces" / one.id, without="project"))
    board.add(SHARED, number, kib(daemon.data / "layers"))
    for one in made:
        client.get(one.id).remove(force=True)


def waits(act: str, when: str) -> str:
    return f"longest wait of an agent that {act}, {when}"


def at_work(daemon: Daemon, space: Space, board: Board, number: int) -> None:
    """What a program in the space waits for at most: with a checkpoint, and without."""
    for act in (READS, WRITES):
        for when in ("alone", "at a checkpoint"):
            with ThreadPoolExecutor(1) as pool, Client(data=daemon.data) as other:
                words = ["python3", "-c", AGENT, act, str(AGENT_S)]
                told = pool.submit(other.get(space.id).run, words)
                time.sleep(AGENT_S / 2)
                if when != "alone":
                    space.checkpoint()
                board.add(waits(act, when), number, float(told.result().stdout))
    space.run(["rm", "-f", "at-work"])


def native(project: Path, place: Path, board: Board, number: int) -> None:
    with board.timed(STASH, number):
        kept = git(project, "stash", "create")
    with board.timed(APPLY, number):
        git(project, "reset", "-q", "--hard")
        git(project, "stash", "apply", "-q", kept)
    other = place / "worktree"
    with board.timed(WORKTREE, number):
        git(project, "worktree", "add", "-q", "--detach", str(other))
        git(other, "stash", "apply", "-q", kept)
    git(project, "worktree", "remove", "--force", str(other))
    with board.timed(COPY, number):
        subprocess.run(["cp", "-a", project, other], check=True, timeout=GIT_S)
    shutil.rmtree(other)


def git(folder: Path, *words: str) -> str:
    told = subprocess.run(
        ["git", "-C", str(folder), *words],
        capture_output=True,
        text=True,
        timeout=GIT_S,
        check=True,
        env={**os.environ, "GIT_AUTHOR_NAME": "b", "GIT_AUTHOR_EMAIL": "b@b"}
        | {"GIT_COMMITTER_NAME": "b", "GIT_COMMITTER_EMAIL": "b@b"},
    )
    return told.stdout.strip()


def later(
    options: argparse.Namespace,
    names: list[str],
    daemon: Daemon,
    space: Space,
    project: Path,
    board: Board,
) -> None:
    """In turn with a space that has few checkpoints. Each of the many has kept all the files."""
    fresh = daemon.client.create(project)
    for seed in range(CHECKPOINTS):
        space.run(["sed", "-i", f"1s/.*/{seed} of many/", *names])
        space.checkpoint()
    for number in range(options.rounds):
        for seed in range(options.repeats):
            both = ((fresh, EARLY, READ), (space, LATE, READ_LATE))
            for one, when, reading in both[:: 1 if (number + seed) % 2 else -1]:
                change(names, one, project, (2_000 + number) * 1_000 + seed)
                keep_and_go_back(daemon, one, names, board, f", {when}", number)
                with board.timed(reading, number):
                    for name in names:
                        one.files.read(name)


def keep_and_go_back(
    daemon: Daemon, space: Space, names: list[str], board: Board, which: str, number: int
) -> None:
    with timed(daemon, board, f"checkpoint{which}", number):
        kept = space.checkpoint()
    space.run(["rm", "-f", *names[::2]])
    with timed(daemon, board, f"rewind{which}", number):
        space.rewind(kept.id)
    with timed(daemon, board, f"fork{which}", number):
        made = space.fork(checkpoint=kept.id).spaces
    daemon.client.get(made[0].id).remove(force=True)


if __name__ == "__main__":
    run_main(main)
