"""Landing: bringing the work of a space into its project, and taking that back."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from carrel.domain.spaces import Space
from carrel.domain.trees import Tree, TreeDriver

BRANCHES = "carrel/"
"""How the branches begin that landing makes by itself."""


class LandingState(StrEnum):
    """A landing is written down before the project is touched, so that a daemon which died in
    between knows what to look at."""

    BEGUN = "begun"
    LANDED = "landed"
    UNDOING = "undoing"
    UNDONE = "undone"


CHECK_S = 600.0
"""For a check, unless more is asked for."""


MOST_CHECKS = 5
"""Of one landing, as the branch moves meanwhile."""


@dataclass(frozen=True)
class LandingCheck:
    """A command for the shell that has to end well on the result before it lands."""

    command: str
    timeout_s: float = CHECK_S


@dataclass(frozen=True)
class LandRequest:
    """What a caller says about a landing."""

    branch: str = ""
    """Where it goes; empty: `carrel/` and the space's name."""
    message: str = ""
    """Of the commit; empty: one is made."""
    author: str = ""
    """As git writes it, `Name <mail>`; empty: the daemon's user."""
    check: LandingCheck | None = None
    commits: bool = False
    """The agent's own commits land one by one, and the rest as a last one; else all as one."""
    worktree: bool = False
    """The files that change are written into the project's checkout too, whatever that is on."""
    resolve: bool = False
    """A conflict becomes the next turn of the space's agent."""


@dataclass(frozen=True)
class LandedFile:
    """One file that a landing changes in its branch. `kind` is git's letter: A, M, D, T."""

    path: str
    kind: str
    mode: int = 0


@dataclass(frozen=True)
class LandingConflict:
    """One file that both sides changed. `text` has both versions, with git's marks between them;
    it is empty for what is no text, or too long."""

    path: str
    text: str = ""


@dataclass(frozen=True)
class LandingPlace:
    """Where work lands: a branch of a project's repository, or the files of a project that has
    none. Then `kept` is a repository of our own with both states of what landed."""

    project: str
    branch: str = ""
    kept: str = ""
    worktree: str = ""
    """The commit by which the project's checkout gets the files although it is not on the branch;
    empty: it does not."""


@dataclass(frozen=True)
class Landing:
    """The record of one landing: a branch of the project's repository moved from `before` (empty:
    it was made) to `after`, or the project's files did."""

    landing_id: str
    space_id: str
    name: str
    """Of the space, as it was called then."""
    project: str
    """Its folder."""
    branch: str
    """Empty: the project has no repository."""
    before: str
    after: str
    created_at: float
    state: LandingState = LandingState.BEGUN
    files: int = 0
    undone_at: float | None = None
    kept: str = ""
    worktree: str = ""
    work: str = ""
    """A commit of the space's files as they were. Nothing refers to it: git drops it some day."""
    commits: tuple[str, ...] = ()
    """The space's own that landed, then or before."""

    @property
    def place(self) -> LandingPlace:
        return LandingPlace(self.project, self.branch, self.kept, self.worktree)


@dataclass(frozen=True)
class PreparedLanding:
    """A landing that is ready: nothing of the project was touched yet."""

    place: LandingPlace
    before: str
    after: str
    files: tuple[LandedFile, ...]
    commits: tuple[str, ...] = ()
    """The space's own that land with it, or have."""
    work: str = ""
    """See `Landing.work`."""


class Lander(Protocol):
    """Works on the repositories of projects. Blocking. All methods raise `GitFailed`,
    `GitTimeout`, `InsufficientDisk` and what reading a project raises."""

    def prepare(
        self,
        space: Space,
        driver: TreeDriver,
        tree: Tree,
        request: LandRequest,
        sends: Callable[[str, os.stat_result], None],
        earlier: Sequence[Landing] = (),
    ) -> PreparedLanding:
        """Puts the objects of the landing into the project's repository, where nothing refers to
        them yet. `sends` is told of each file before its bytes are read. `earlier` are landings of
        the space, the newest first: what landed already is not merged again. Raises
        `LandingRefused`, `LandingConflicts`, `NothingToLand`."""
        ...

    def move(self, place: LandingPlace, before: str, after: str) -> None:
        """Moves the branch, if it still is at `before` (empty: if there is none); an empty `after`
        removes it. If the project's checkout is on it, or the place says so, the checkout goes
        along. Raises
        `LandingRefused` when the branch is elsewhere, or the checkout has changes of its own in
        files that differ; nothing has moved then. Raises `LandingHalfDone` when something went
        wrong and could not be taken back: `settle` is for that too."""
        ...

    def settle(self, place: LandingPlace, before: str, after: str) -> bool:
        """After a crash in `move`: whether it moved. Then what was not done of it is done."""
        ...

    def sweep(self, kept: Collection[str]) -> None:
        """Removes what a process that was killed has left, and what is kept for other places than
        these. Nobody is landing."""
        ...

    def forget(self, place: LandingPlace) -> None:
        """Removes what was kept for taking it back. Idempotent."""
        ...
