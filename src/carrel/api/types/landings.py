"""Landings, takes and the queue: what is asked for, and what is told of them."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from carrel.api.types.common import Answer, Body, Moment, PathText, Query
from carrel.domain.landing import CHECK_S, LandedFile, LandingState
from carrel.domain.queue import QueueState

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


class TakeBody(Body, frozen=True, kw_only=True):
    paths: Annotated[tuple[PathText, ...], Meta(min_length=1, max_length=1000)]
    """Files and folders that the space has changed."""
    into: Annotated[str, Meta(min_length=1, max_length=255)]
    """The other space."""
    force: bool = False
    """Replaces what the other space has in its own way."""


class TakeInfo(Answer, frozen=True, kw_only=True):
    id: str
    space: str
    """That they were taken from."""
    into: str
    name: str
    """Of the space that has them now."""
    created_at: Moment
    files: int
    listed: tuple[LandedFile, ...] = ()
    """The first of them."""


class UndoBody(Body, frozen=True, kw_only=True):
    landing: Annotated[str, Meta(max_length=64)] = ""
    """The id of a landing, a take, a rewind's checkpoint or a removed space; empty: what was done
    last and not taken back."""


class LandingsQuery(Query, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50


class LandingInfo(Answer, frozen=True, kw_only=True):
    """What can be taken back: a landing, a take into a space, a rewind, a removal."""

    id: str
    kind: Literal["landing", "take", "rewind", "removal"] = "landing"
    space: str
    name: str
    """Of the space, as it was called then."""
    project: str
    """Empty but for a landing."""
    branch: str
    before: str
    """The commit that the branch was at; empty: it was made."""
    after: str
    state: LandingState
    """Of others than landings, `landed` says that it is done."""
    created_at: Moment
    undone_at: Moment | None = None
    files: int = 0
    """How many the landing changed in the branch."""
    listed: tuple[LandedFile, ...] = ()
    """The first of them; only in the answer to the landing itself."""


class LandingList(Answer, frozen=True, kw_only=True):
    landings: tuple[LandingInfo, ...]


class QueueBody(LandBody, frozen=True, kw_only=True):
    """As for a landing; `branch` is `carrel/queue` when it is empty."""

    spaces: Annotated[
        tuple[Annotated[str, Meta(max_length=256)], ...], Meta(min_length=1, max_length=1000)
    ]
    """In this order."""


class QueueQuery(Query, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=2000)] = 200


class QueueEntryInfo(Answer, frozen=True, kw_only=True):
    id: str
    space: str
    name: str
    """Of the space, as it was called then."""
    project: str
    branch: str
    state: QueueState
    created_at: Moment
    ended_at: Moment | None = None
    check: str = ""
    landing: str = ""
    """What it landed as."""
    code: str = ""
    """Of the error for which it was returned, as `reason`, `hint` and `output` are."""
    reason: str = ""
    hint: str = ""
    output: str = ""


class QueueList(Answer, frozen=True, kw_only=True):
    entries: tuple[QueueEntryInfo, ...]
    """Those that wait, in their order, and then those that have ended, the newest first."""
