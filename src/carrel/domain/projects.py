"""What a space starts from, and how it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class ProjectKind(StrEnum):
    FOLDER = "folder"
    GIT = "git"
    ARCHIVE = "archive"
    EMPTY = "empty"


@dataclass(frozen=True)
class Project:
    """`location` is a path, or for git also a URL; `ref` only for git (None: its HEAD)."""

    kind: ProjectKind
    location: str = ""
    ref: str | None = None


@dataclass(frozen=True)
class BaseRequest:
    """How a project is to be read."""

    project: Project
    exclude: tuple[str, ...] = ()
    """Patterns in .gitignore's language; what matches is left out."""
    max_bytes: int | None = None
    max_files: int | None = None
    allow_changing: bool = False
    """Keep files that change while they are read as they were at one moment, and
    report them, instead of refusing the project."""
    git_timeout_s: float = 600.0


@dataclass(frozen=True)
class Progress:
    """One step of long work; `total` is 0 while it is not known."""

    stage: str
    done: int
    total: int
    bytes_done: int = 0


OnProgress = Callable[[Progress], None]


def ignore_progress(_progress: Progress) -> None:
    """The listener of callers that do not watch."""
