"""What is reviewed of a space: how its files differ from those that it began with; and exports, the
same work as one file for other places than its project."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import StrEnum
from typing import BinaryIO, Protocol

from carrel.domain.spaces import Space
from carrel.domain.trees import ChangeKind, Commit, Skipped, Tree, TreeDriver


@dataclass(frozen=True)
class DiffTree:
    """One side of a comparison. `personal`: the owner's own rules of what git ignores count too."""

    driver: TreeDriver
    tree: Tree
    personal: bool = True


def go_on() -> None:
    """Nobody wants it to end."""


@dataclass(frozen=True)
class TreeDiffQuery:
    """How a tree differs from its base, with what was not committed there; or with `before`, how
    it differs from that tree. `paths` are names of files and folders below the root, never
    patterns; none: everything."""

    after: DiffTree
    before: DiffTree | None = None
    paths: tuple[str, ...] = ()
    ignored: bool = False
    """Files that git ignores too."""
    check: Callable[[], None] = go_on
    """Called before each file is read; what it raises ends the comparison."""
    since: str = ""
    """Instead of `before`: how it differs from this state of its own that was kept. Nobody may
    thin its states meanwhile."""


@dataclass(frozen=True)
class DiffFile:
    """One file that differs. Paths are as `os.fsdecode` gives them."""

    path: str
    kind: ChangeKind
    old_path: str | None = None
    """Where it was before, of one that is `renamed`; it may have other lines too."""
    old_mode: str | None = None
    """As git has it: 100644, 100755 for a program, 120000 for a symlink; None: it was not there."""
    new_mode: str | None = None
    added: int | None = None
    """Lines; None where they are not compared."""
    deleted: int | None = None
    binary: bool = False
    """It is no text, or too large: it is only known to differ."""
    untracked: bool = False
    """It is new, and git in the space does not have it."""
    ignored: bool = False


@dataclass(frozen=True)
class Diff:
    """`files` are the first of `total`, sorted by path; the lines are those of all."""

    files: tuple[DiffFile, ...] = ()
    total: int = 0
    added: int = 0
    deleted: int = 0
    commits: tuple[Commit, ...] = ()
    """That were made in the space, newest first; none between two trees, or since a state."""
    hidden: int = 0
    """Files that git ignores, and that were not asked for."""


class Differ(Protocol):
    """Compares trees. Blocking. Raises what trees raise, `PathNotFound` for a path that neither
    side has, and `GitFailed`, `GitTimeout`, `InsufficientDisk`."""

    def text(self, query: TreeDiffQuery) -> Generator[bytes, None, None]:
        """A line for each commit, then what `git diff` prints. Nothing is done before it is first
        read; with the first piece both sides were read to their end, and the trees are not needed
        any more. Who stops early closes it."""
        ...

    def files(self, query: TreeDiffQuery, most: int) -> Diff: ...


DELETED = ".carrel-deleted"
"""The file in a tar that names what was deleted, with a zero byte after each name."""


class ExportFormat(StrEnum):
    PATCH = "patch"
    """One mail, as `git am` and `git apply` take it."""
    BUNDLE = "bundle"
    """A commit on top of the one that the space began with, as `git fetch` takes it."""
    TAR = "tar"
    """The files that changed."""


@dataclass(frozen=True)
class ExportRequest:
    format: ExportFormat
    message: str = ""
    """Of the commit; empty: one is made."""


class Exporter(Protocol):
    def export(
        self,
        space: Space,
        driver: TreeDriver,
        tree: Tree,
        request: ExportRequest,
        sends: Callable[[str, os.stat_result], None],
        skips: Callable[[Skipped], None],
    ) -> BinaryIO:
        """All of it, in a file that has no name and is gone when it is closed. `sends` is told of
        each file before its bytes are read, `skips` of what is left out. Blocking. Raises
        `LandingError`s, `GitFailed`, `GitTimeout`, `InsufficientDisk`, `TreeError`s."""
        ...
