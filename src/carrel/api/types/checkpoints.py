"""Checkpoints, rewinds and forks: what is asked for, and what is told of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from carrel.api.types.common import Answer, Body, Moment, Word
from carrel.api.types.spaces import SpaceInfo
from carrel.domain.checkpoints import CheckpointKind
from carrel.domain.turns import Continuation

MOST_FORKS = 20


class CheckpointBody(Body, frozen=True, kw_only=True):
    message: Annotated[str, Meta(max_length=1000)] = ""
    """What it is for."""


class RewindBody(Body, frozen=True, kw_only=True):
    checkpoint: Word = ""
    """Where to; empty: the newest one. `start` is what the space began with."""


class ForkBody(Body, frozen=True, kw_only=True):
    count: Annotated[int, Meta(ge=1, le=MOST_FORKS)] = 1
    checkpoint: Word = ""
    """What they begin with; empty: what the space is now. `start` is what it began with."""
    name: Word = ""
    """Of the new space; of several, how their names begin."""


class CheckpointInfo(Answer, frozen=True, kw_only=True):
    id: str
    space: str
    created_at: Moment
    kind: CheckpointKind
    message: str
    turn: str
    """The last turn before it, if there was one."""
    with_agent: bool
    """The agent's own state is in it, and so the conversation."""
    continuation: Continuation | None
    files: int
    """That differ from what the space began with, ignored ones and git's own too."""
    changed: int
    """Since the checkpoint before."""
    named: tuple[str, ...]
    """The first of these."""
    bytes: int
    """What it took on the disk that no earlier one had."""
    environment: Mapping[str, Any]
    to: str = ""
    """Of one that was taken before a rewind: where that went."""
    undone: bool = False
    """That rewind was taken back."""
    left_out: str = ""
    """Why it has the tree alone, and not the space's system, in a sentence."""


class CheckpointList(Answer, frozen=True, kw_only=True):
    checkpoints: tuple[CheckpointInfo, ...]


class ForkList(Answer, frozen=True, kw_only=True):
    spaces: tuple[SpaceInfo, ...]
    checkpoint: str
    conversation: bool
    """Their agent can go on with a copy of the conversation."""
