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


_SCHEMES = ("http://", "https://", "ssh://", "git://", "git+ssh://", "ssh+git://", "file://")


def is_address(place: str) -> bool:
    """Whether a word names a repository elsewhere: a URL, or the short form of ssh, `host:path`."""
    host, colon, path = place.partition(":")
    return place.startswith(_SCHEMES) or bool(host and colon and path and "/" not in host)


def project_named(text: str) -> Project:
    """By a person or a program that says no more than where it is; empty: nothing."""
    if not text:
        return Project(ProjectKind.EMPTY)
    return Project(ProjectKind.GIT if is_address(text) else ProjectKind.FOLDER, text)


class GitReach(StrEnum):
    """What may be read of git repositories that a project's content names, but that lie
    outside of its folder: pointers, worktrees, submodules, borrowed objects."""

    NONE = "none"
    """Nothing: who asks is not the owner."""
    AGREED = "agreed"
    """Repositories that name the project themselves, and what was agreed to before."""
    AGREE = "agree"
    """All that it names now, and that is remembered for the project."""


@dataclass(frozen=True)
class ClonePolicy:
    """How git may talk to other machines for callers who are not the owner: to public
    addresses and to `hosts`, with nothing of the daemon's user."""

    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class BaseRequest:
    """How a project is to be read."""

    project: Project
    exclude: tuple[str, ...] = ()
    """Patterns in .gitignore's language; what matches is left out."""
    max_bytes: int | None = None
    max_files: int | None = None
    allow_changing: bool = False
    """Keep files of `.git` too that keep changing while they are read, as they were at
    one moment, instead of refusing the project."""
    git_timeout_s: float = 600.0
    git_reach: GitReach = GitReach.NONE
    clone_policy: ClonePolicy | None = None
    """None is the owner's own: with the configuration and the keys of the daemon's user."""

    @property
    def narrow(self) -> bool:
        """Who asks is not the owner; then `location` is a real path, or a URL."""
        return self.clone_policy is not None


@dataclass(frozen=True)
class Progress:
    """One step of long work; `total` is 0 while it is not known."""

    stage: str
    done: int
    total: int
    bytes_done: int = 0
    building: str = ""
    """The file of a project whose image is built first, which may take minutes."""


OnProgress = Callable[[Progress], None]


def ignore_progress(_progress: Progress) -> None:
    """The listener of callers that do not watch."""
