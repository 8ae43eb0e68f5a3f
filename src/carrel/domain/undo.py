"""What can be taken back, as one kind of record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


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
