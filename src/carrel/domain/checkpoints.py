"""Checkpoints of a space: states that it can be put back to, and that others can begin with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from carrel.domain.trees import Tree, TreeLayer
from carrel.domain.turns import Continuation

START = "start"
"""Names the state that a space began with, which is no checkpoint and always there."""


class CheckpointKind(StrEnum):
    TURN = "turn"
    """Taken by itself, after a turn."""
    ASKED = "asked"
    AGENT = "agent"
    """Asked for by the agent in the space."""
    REWIND = "rewind"
    """Taken by itself, before a rewind."""


@dataclass(frozen=True)
class StateSummary:
    """What was kept."""

    files: int
    """That differ from what the space began with."""
    changed: int
    """Since the state before."""
    named: tuple[str, ...]
    """The first of these."""
    bytes_new: int
    """What the kept files take on the disk that no earlier state had."""


@dataclass(frozen=True)
class Checkpoint:
    """The record of one. `created_at` is unique within its space."""

    checkpoint_id: str
    space_id: str
    name: str
    """Of the space, as it was called then."""
    created_at: float
    kind: CheckpointKind
    message: str = ""
    turn: str = ""
    """The last turn before it, if there was one."""
    with_agent: bool = False
    """The agent's own state is in it, and so the conversation."""
    continuation: Continuation | None = None
    """What the conversation can be gone on with."""
    files: int = 0
    changed: int = 0
    named: tuple[str, ...] = ()
    bytes_new: int = 0
    environment: Mapping[str, object] = field(default_factory=dict)
    """What the space was when it was taken: base, agent, runtime, network, tools, set-up."""
    merged: Mapping[str, str] = field(default_factory=dict)
    """Of the space, as it was then."""
    to: str = ""
    """Of one before a rewind: to where that went."""
    rewinding: bool = False
    """The rewind has begun, and has not ended."""
    undone: bool = False
    """The rewind was taken back."""


class States(Protocol):
    """The states of one space's files, by name. Blocking; one thread at a time. Methods raise what
    reading and writing a tree raises."""

    def take(
        self, name: str, *, agent: bool, without: Collection[str] = (), max_bytes: int
    ) -> StateSummary:
        """Keeps what there is now. `without`: files of the agent's folder that are not kept. Raises
        `TooLarge` for more than so many new bytes, `TreeUnavailable` when something keeps on
        writing, and leaves nothing then."""
        ...

    def put_back(self, name: str) -> bool:
        """Makes the files those of this state, or `START`; who is killed meanwhile does it again.
        Whether the agent's folder was in it. Raises `TreeDamaged` before anything is changed."""
        ...

    def layer(self, name: str) -> TreeLayer | None:
        """For trees that begin with the state; None: it is that of the base. Its files must stay
        until the first of them is made."""
        ...

    def give(self, name: str, other: Tree, *, files: bool) -> None:
        """Gives the state to a space that was just made of the same base: the agent's folder, and
        the `files` of a tree that did not get them as a layer."""
        ...

    def keep_only(self, names: Collection[str]) -> None:
        """Removes all other states, and what none of these has."""
        ...

    def bytes_kept(self) -> int: ...
