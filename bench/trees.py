"""How fast a private copy of a project is there and gone, beside what people use today.

    python bench/trees.py [--files 50000] [--rounds 3] [--json]

Everything happens in one run, in a temporary folder on the data folder's disk, with the
project in the page cache, and with all written out between two phases.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measuring import Board, Spread, say, settle
from bench.own_trees import Trees, bare_mount, open_trees, sandbox_on, sandboxes_work
from bench.places import add_common_options, positive, run_main, workplace
from bench.projects import Shape, change_files, git, make_plain_folder, make_project, name_of
from bench.reporting import Report, Row, in_ms, machine
from bench.tree_rivals import COPY, WORKTREE, WORKTREE_REMOVE, Rival, reflink_rival, rivals
from carrel.domain.trees import Base

CREATE = "carrel: tree from a ready base"
DROP = "carrel: drop"
BARE = "bare overlay mount"
BESIDE_BARE = "carrel: tree, in turn with the bare mount"
FIRST_BASE = "carrel: first base"
SECOND_BASE = "carrel: second base, 10 files changed"
STATUS_NATIVE = "git status, warm checkout"
STATUS_FRESH = "git status, first in a fresh tree"
STATUS_AGAIN = "git status, again in that tree"
FIRST_TREES = "carrel: a tree among the first tenth"
LAST_TREES = "carrel: a tree among the last tenth"
DROP_AMONG_MANY = "carrel: drop of one of all"
DISK_BY_STATVFS = "carrel: disk per tree, by statvfs"
CHANGED = 10
STATUS_REPEATS = 3
STANDING_SHARE = 10
"""The first and the last tenth of many trees are compared."""
DISK_LIMIT_KIB = 64.0


def main() -> None:
    options = parse()
    with workplace(options.folder) as place:
        asyncio.run(measure(options, place))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--files", type=positive, default=50_000, metavar="N")
    parser.add_argument("--bytes", type=positive, default=10_000, help="average size of a file")
    parser.add_argument("--trees", type=positive, default=1000, help="how many at the same time")
    parser.add_argument("--repeats", type=positive, default=20, help="trees made in each round")
    parser.add_argument(
        "--sizes", default="1000,200000", help="numbers of files between which it must be flat"
    )
    parser.add_argument("--driver", default="auto")
    add_common_options(parser, rounds=3)
    options = parser.parse_args()
    options.sizes = tuple(positive(size) for size in options.sizes.split(","))
    return options


async def measure(options: argparse.Namespace, place: Path) -> None:
    report = Report("trees", _shown(options), machine(place))
    async with open_trees(place / "data", options.driver) as trees:
        report.machine["driver"] = trees.driver.name
        await Comparison(options, place, trees, report).run()
        Flatness(options, place, trees, report).run()
    report.show(as_json=options.json)


def _shown(options: argparse.Namespace) -> dict[str, object]:
    names = ("files", "bytes", "trees", "repeats", "sizes", "rounds")
    return {name: getattr(options, name) for name in names}


class Comparison:
    """Side by side with git and cp, on one project, in rounds."""

    def __init__(
        self, options: argparse.Namespace, place: Path, trees: Trees, report: Report
    ) -> None:
        self._options = options
        self._place = place
        self._trees = trees
        self._report = report
        self._board = Board()
        self._project = place / "project"
        self._file = name_of(options.files // 2)

    async def run(self) -> None:
        make_project(self._project, Shape(self._options.files, self._options.bytes))
        settle()
        say("building the first base")
        with self._board.timed(FIRST_BASE, 0):
            base = self._trees.base(self._project)
        await self._in_sandboxes(base)
        self._beside_bare_mounts(base)
        with reflink_rival(self._project, self._place) as reflink:
            others = rivals(self._project, self._place)
            if isinstance(reflink, str):
                self._report.skip("cp -a --reflink", reflink)
            else:
                others.append(reflink)
            for number in range(self._options.rounds):
                say(f"round {number + 1} of {self._options.rounds}")
                self._create_and_drop(number, base)
                for rival in others:
                    self._try(rival, number)
                self._second_base(number)
        self._tell()

    def _beside_bare_mounts(self, base: Base) -> None:
        """Before the rivals too: after they removed so many files, ext4 looks long for an
        inode that was not used lately, and the two would differ by luck."""
        if os.geteuid() != 0 or self._trees.driver.name != "overlay":
            self._report.skip(BARE, "only root mounts on the host, and only overlays compare")
            return
        for number in range(self._options.rounds):
            settle()
            for _ in range(self._options.repeats):
                with self._board.timed(BESIDE_BARE, number):
                    self._trees.create(base, self._file)
                with bare_mount(base, self._place / "bare") as seconds:
                    self._board.add(BARE, number, seconds)
            self._trees.drop_all()

    def _create_and_drop(self, number: int, base: Base) -> None:
        """All stand until the last is made."""
        settle()
        for _ in range(self._options.repeats):
            with self._board.timed(CREATE, number):
                self._trees.create(base, self._file)
        settle()
        for tree in list(self._trees.standing):
            with self._board.timed(DROP, number):
                self._trees.drop(tree)

    async def _in_sandboxes(self, base: Base) -> None:
        """Before the other copies fill the kernel's tables of files, which outlives them."""
        if why := await sandboxes_work(self._trees.app):
            self._report.skip(STATUS_FRESH, why)
            return
        say("git status")
        for number in range(self._options.rounds):
            await self._status(number, base)

    async def _status(self, number: int, base: Base) -> None:
        """As a sandbox sees the tree, its command included, beside the project itself."""
        for _ in range(STATUS_REPEATS):
            settle()
            tree = self._trees.create(base, self._file)
            git("-C", str(self._project), "status")
            with self._board.timed(STATUS_NATIVE, number):
                git("-C", str(self._project), "status")
            async with sandbox_on(self._trees, tree) as run:
                with self._board.timed(STATUS_FRESH, number):
                    said = await run("git", "status")
                if "nothing to commit" not in said:
                    raise RuntimeError(f"git finds changes in a fresh tree: {said[:500]}")
                with self._board.timed(STATUS_AGAIN, number):
                    await run("git", "status")
            self._trees.drop(tree)

    def _try(self, rival: Rival, number: int) -> None:
        say(f"  {rival.name}")
        path = rival.place / "copy"
        settle()
        with self._board.timed(rival.name, number):
            rival.make(path)
        settle()
        with self._board.timed(rival.removal, number):
            rival.remove(path)

    def _second_base(self, number: int) -> None:
        """Of a project that has a base of its last state. Afterwards it is as it was: what
        git did to it for the others is no change of ours."""
        self._trees.base(self._project)
        change_files(self._project, self._options.files, CHANGED, number)
        settle()
        with self._board.timed(SECOND_BASE, number):
            self._trees.base(self._project)
        git("-C", str(self._project), "checkout", "--quiet", "--", ".")

    def _tell(self) -> None:
        board, report = self._board, self._report
        report.add_times(board)
        for name in board.names:
            if name.startswith(("git worktree add", "git clone", "cp")):
                report.add_ratio(board, name, CREATE)
        report.add_ratio(board, COPY, FIRST_BASE)
        report.add_ratio(board, STATUS_AGAIN, STATUS_NATIVE)
        faster = board.ratio(WORKTREE, CREATE)
        report.at_least("tree: faster than git worktree add", 500, "x", faster)
        if BARE in board:
            own = in_ms(board.difference(BESIDE_BARE, BARE))
            report.at_most("tree: own time beyond the mount", 10, "ms", own)
        faster = board.ratio(WORKTREE_REMOVE, DROP)
        report.at_least("drop: faster than git worktree remove", 50, "x", faster)
        faster = board.ratio(COPY, SECOND_BASE)
        report.at_least("second base: faster than cp -a", 20, "x", faster)
        if STATUS_FRESH in board:
            slower = board.ratio(STATUS_FRESH, STATUS_NATIVE)
            report.at_most("git status: in a fresh tree", 1.5, "x", slower)


class Flatness:
    """That neither the size of a project nor the number of trees matters."""

    def __init__(
        self, options: argparse.Namespace, place: Path, trees: Trees, report: Report
    ) -> None:
        self._options = options
        self._place = place
        self._trees = trees
        self._report = report

    def run(self) -> None:
        bases = {size: self._base_of(size) for size in self._options.sizes}
        self._by_size(bases)
        self._by_count(next(iter(bases.values())))

    def _base_of(self, size: int) -> Base:
        folder = self._place / f"folder-{size}"
        make_plain_folder(folder, size)
        settle()
        return self._trees.base(folder)

    def _by_size(self, bases: dict[int, Base]) -> None:
        board = Board()
        for number in range(self._options.rounds):
            settle()
            for _ in range(self._options.repeats):
                for size, base in bases.items():
                    with board.timed(f"carrel: tree of {size:,} files", number):
                        self._trees.create(base, name_of(0))
            self._trees.drop_all()
        self._report.add_times(board)
        sizes = list(bases)
        name = f"tree: from {sizes[0]:,} to {sizes[-1]:,} files"
        self._report.at_most(name, 1.3, "x", board.ratio(board.names[-1], board.names[0]))

    def _by_count(self, base: Base) -> None:
        """The first and the last of many that stand at the same time, and what they take."""
        board, grown, blocks = Board(), [], []
        count, rounds = self._options.trees, self._options.rounds
        share = max(1, count // STANDING_SHARE)
        for number in range(rounds):
            say(f"{count:,} trees at the same time, {number + 1} of {rounds}")
            settle()
            before = self._used()
            self._stand(base, board, number, share)
            settle()
            grown.append((self._used() - before) / count / 1024)
            blocks += [self._trees.blocks(tree) / 1024 for tree in self._trees.standing[::share]]
            for tree in self._trees.standing[: -share - 1 : -1]:
                with board.timed(DROP_AMONG_MANY, number):
                    self._trees.drop(tree)
            self._trees.drop_all()
        self._report.add_times(board, (FIRST_TREES, LAST_TREES, DROP_AMONG_MANY))
        self._report.rows.append(Row(DISK_BY_STATVFS, "KiB", Spread.of(grown)))
        name = f"tree: from the 1st to number {count:,}"
        self._report.at_most(name, 1.3, "x", board.ratio(LAST_TREES, FIRST_TREES))
        self._report.at_most("tree: disk", DISK_LIMIT_KIB, "KiB", Spread.of(blocks))

    def _stand(self, base: Base, board: Board, number: int, share: int) -> None:
        count = self._options.trees
        for place in range(count):
            name = LAST_TREES if place >= count - share else "between"
            with board.timed(FIRST_TREES if place < share else name, number):
                self._trees.create(base, name_of(0))

    def _used(self) -> int:
        status = os.statvfs(self._place)
        return (status.f_blocks - status.f_bfree) * status.f_frsize


if __name__ == "__main__":
    run_main(main)
