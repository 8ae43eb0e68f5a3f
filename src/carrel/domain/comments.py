"""Comments: what a person says to lines of a space's files, until its agent is given it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class CommentState(StrEnum):
    OPEN = "open"
    SENDING = "sending"
    """Written down with its `turn` before that turn is: a daemon that died in between looks
    whether there is such a turn."""
    SENT = "sent"


@dataclass(frozen=True)
class Comment:
    """`lines` are the line that it speaks of and those around it, as they were when it was made;
    the first of them has the number `first`."""

    comment_id: str
    space_id: str
    path: str
    line: int
    text: str
    created_at: float
    first: int
    lines: tuple[str, ...]
    state: CommentState = CommentState.OPEN
    turn: str = ""
    sent_at: float | None = None


@dataclass(frozen=True)
class CommentPlace:
    """Where the line of a comment is now. Without a `line` it is not there any more, and `why` says
    so; then `lines` are those that are remembered."""

    path: str
    line: int | None
    first: int
    lines: tuple[str, ...]
    changed: bool = False
    """The line itself has other words now; those around it are the same."""
    why: str = ""


class LineFinder(Protocol):
    """Knows lines again in files that have changed since. Blocking, quick."""

    def lines_of(self, content: bytes, path: str) -> list[str]:
        """Raises `CommentRefused` for what is no text, `TooLarge`."""
        ...

    def remember(self, lines: Sequence[str], line: int, path: str) -> tuple[int, tuple[str, ...]]:
        """The number of the first line around it, and these lines. Raises `CommentRefused`."""
        ...

    def place(self, comment: Comment, lines: Sequence[str], path: str) -> CommentPlace: ...

    def lost(self, comment: Comment, why: str) -> CommentPlace: ...
