"""How fast a space's state is kept, put back and forked, beside git and `cp` in a checkout.

    python bench/checkpoints.py [--files 50000] [--changed 100] [--rounds 3] [--json]

The same change is made in a space and in the checkout that it was made from, before each measure.
No process of the space is stopped for a checkpoint, so an agent waits for none; the time is that of
the person who asked for it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measuring import Board, say, settle
from bench.own_spaces import open_daemon
from bench.places import add_common_options, positive, run_main, workplace
from bench.projects import Shape, change_files, make_project
from bench.reporting import Report, in_ms, machine
from carrel.client import Client, Space

TAKE, BACK, FORK, FORKS = (
    f"carrel: {what}" for what in ("checkpoint", "rewind", "fork", "5 forks")
)
STASH, APPLY, WORKTREE, COPY = "git stash", "git reset and stash apply", "git worktree", "cp -a"
LATE, READ, READ_LATE = "carrel: 100th checkpoint", "read 100 files", "read them after 100"
CHECKPOINTS = 100
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
    parser.add_argument("--repeats", type=positive, default=5, help="of each in a round")
    add_common_options(parser, rounds=3)
    return parser.parse_args()


def measure(options: argparse.Namespace, place: Path) -> None:
    said = ("files", "bytes", "changed", "repeats", "rounds")
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
                own(daemon.client, space, board, number)
                native(project, place, board, number)
        say(f"{CHECKPOINTS} checkpoints")
        later(options.rounds, names, space, project, board)
    report.add_times(board)
    for own_name, other in ((TAKE, STASH), (BACK, APPLY), (FORK, WORKTREE), (FORK, COPY)):
        report.add_ratio(board, own_name, other)
    report.add_ratio(board, LATE, TAKE)
    report.add_ratio(board, READ_LATE, READ)
    for name, limit_ms in ((BACK, 50.0), (FORK, 50.0), (FORKS, 250.0)):
        report.at_most(name, limit_ms, "ms", in_ms(board.spread(name)))
    report.at_most(LATE, 1.3, "x", board.ratio(LATE, TAKE))
    report.at_most(READ_LATE, 1.5, "x", board.ratio(READ_LATE, READ))
    report.show(as_json=options.json)


def change(names: list[str], space: Space, project: Path, seed: int) -> None:
    """Always the same files, so that a space has changed as much in the end as at first."""
    for name in names:
        text = b"%d\n" % seed + (project / name).read_bytes().partition(b"\n")[2]
        (project / name).write_bytes(text)
        space.files.write(name, text)


def own(client: Client, space: Space, board: Board, number: int) -> None:
    with board.timed(TAKE, number):
        kept = space.checkpoint()
    space.run(["sh", "-c", "git ls-files -m | head -50 | xargs rm -f"])
    with board.timed(BACK, number):
        space.rewind(kept.id)
    with board.timed(FORK, number):
        made = space.fork(checkpoint=kept.id).spaces
    with board.timed(FORKS, number):
        made += space.fork(count=5, checkpoint=kept.id).spaces
    for one in made:
        client.get(one.id).remove(force=True)


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


def later(rounds: int, names: list[str], space: Space, project: Path, board: Board) -> None:
    def read(name: str, number: int) -> None:
        with board.timed(name, number):
            for one in names:
                space.files.read(one)

    for number in range(rounds):
        read(READ, number)
    for seed in range(CHECKPOINTS):
        space.files.write(names[seed % len(names)], f"{seed}\n".encode())
        space.checkpoint()
    for number in range(rounds):
        change(names, space, project, 2_000_000 + number)
        with board.timed(LATE, number):
            space.checkpoint()
        read(READ_LATE, number)


if __name__ == "__main__":
    run_main(main)
