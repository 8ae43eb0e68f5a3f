"""The queue of landings: what is asked for, and what is told of it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from carrel.api.types.common import Answer, Moment, Query
from carrel.api.types.landings import LandBody
from carrel.domain.queue import QueueState


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
