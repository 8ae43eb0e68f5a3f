"""Takes: files of one space's work are brought into another space; and the record by which that is
taken back."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from carrel.domain.landing import LandedFile
from carrel.domain.trees import Change, Tree, TreeDriver


class UndoKind(StrEnum):
    TAKE = "take"
    """`details`: `source` (a space), `before` and `after`, which are commits in the repository
    `kept`."""


class UndoState(StrEnum):
    """It is written down before anything is touched, so that a daemon which died in between knows
    what to look at."""

    BEGUN = "begun"
    DONE = "done"
    UNDOING = "undoing"
    UNDONE = "undone"


@dataclass(frozen=True)
class UndoRecord:
    """One thing that was done to a space, and how it is taken back."""

    undo_id: str
    kind: UndoKind
    space_id: str
    name: str
    """Of the space, as it was called then."""
    created_at: float
    state: UndoState = UndoState.BEGUN
    files: int = 0
    undone_at: float | None = None
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TakeSide:
    """A space that is taken from, or into."""

    name: str
    driver: TreeDriver
    tree: Tree


@dataclass(frozen=True)
class TakeChange:
    """Both states of what a take changes are commits in `kept`, a repository of our own."""

    kept: str
    before: str
    after: str
    files: tuple[LandedFile, ...] = ()

    @property
    def back(self) -> TakeChange:
        return TakeChange(self.kept, self.after, self.before)


class Taker(Protocol):
    """Works on trees. Blocking. All methods raise `GitFailed`, `GitTimeout`, `InsufficientDisk` and
    `TreeError`s."""

    def prepare(
        self,
        source: TakeSide,
        target: TakeSide,
        changes: Sequence[Change],
        sends: Callable[[str, os.stat_result], None],
        *,
        force: bool,
    ) -> TakeChange:
        """Of the source's changes, what differs in the target. Raises `TakeRefused` when the target
        has changed one of the files in its own way, unless `force`, and when nothing differs.
        `sends` is told of each file before its bytes are read."""
        ...

    def apply(self, target: TakeSide, change: TakeChange) -> None:
        """All of it or nothing. Raises `TakeRefused` when a file is not as it was before,
        `LandingHalfDone` when it went wrong and could not be taken back."""
        ...

    def settle(self, target: TakeSide, change: TakeChange) -> bool:
        """After a crash in `apply`: finishes it, or takes it back when somebody changed one of
        the files meanwhile. Whether it is done."""
        ...

    def forget(self, kept: str) -> None:
        """Idempotent."""
        ...

    def sweep(self, kept: Collection[str]) -> None:
        """Removes what a process that was killed has left, and what is kept for others than
        these. Nobody is taking."""
        ...
