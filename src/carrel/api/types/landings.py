"""Landings: what is asked for, and what is told of them."""

from __future__ import annotations

from typing import Annotated, TypedDict

from msgspec import Meta

from carrel.api.types.common import Answer, Body, Moment, Query
from carrel.domain.landing import CHECK_S, LandedFile, LandingState

MOST_LISTED = 1000


class LandBody(Body, frozen=True, kw_only=True):
    branch: Annotated[str, Meta(max_length=200)] = ""
    """Where the work goes; empty: `carrel/` and the space's name."""
    message: Annotated[str, Meta(max_length=100_000)] = ""
    """Of the commit."""
    author: Annotated[str, Meta(max_length=500)] = ""
    """As `Name <mail>`; empty: the daemon's user, as git knows it."""
    check: Annotated[str, Meta(max_length=100_000)] = ""
    """A command for the shell, which has to end well on the result before it lands."""
    check_s: Annotated[float, Meta(gt=0, le=86400)] = CHECK_S
    """For how long it may run."""
    commits: bool = False
    """The commits that were made in the space land one by one; else all as one."""
    worktree: bool = False
    """The files that change are written into the project's checkout too, whatever that is on."""
    resolve: bool = False
    """A conflict becomes the next turn of the space's agent: the error's `turn`."""


class LandOptions(TypedDict, total=False):
    """As `LandBody`, for Python."""

    branch: str
    message: str
    author: str
    check: str
    check_s: float
    commits: bool
    worktree: bool
    resolve: bool


class UndoBody(Body, frozen=True, kw_only=True):
    landing: Annotated[str, Meta(max_length=64)] = ""
    """Empty: the last one that was not taken back."""


class LandingsQuery(Query, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50


class LandingInfo(Answer, frozen=True, kw_only=True):
    id: str
    space: str
    name: str
    """Of the space, as it was called then."""
    project: str
    branch: str
    before: str
    """The commit that the branch was at; empty: it was made."""
    after: str
    state: LandingState
    created_at: Moment
    undone_at: Moment | None = None
    files: int = 0
    """How many the landing changed in the branch."""
    listed: tuple[LandedFile, ...] = ()
    """The first of them; only in the answer to the landing itself."""


class LandingList(Answer, frozen=True, kw_only=True):
    landings: tuple[LandingInfo, ...]
