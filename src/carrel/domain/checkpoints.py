"""Checkpoints of a space: states that it can be put back to, and that others can begin with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from carrel.domain.systems import Part
from carrel.domain.trees import Tree, TreeDriver, TreeLayer
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
    left_out: str = ""
    """Why it has the tree alone, and not the space's system, in a sentence."""


@dataclass(frozen=True)
class PartsKept:
    """What a space has beside its tree, in the trash: bytes on the disk, and files."""

    bytes: int
    files: int


class States(Protocol):
    """The states of one space's files, by name: of its tree, and of what it has beside that.
    Blocking; one thread at a time. Methods raise what reading and writing a tree raises."""

    def take(
        self,
        name: str,
        *,
        agent: bool,
        without: Collection[str] = (),
        max_bytes: int,
        still: Callable[[], AbstractContextManager[object]] = nullcontext,
        parts: bool = True,
    ) -> StateSummary:
        """Keeps what there is now, but for the files of the agent's folder that `without` names.
        Without `parts` it is only the tree, and going back to it leaves them be. When something is
        written meanwhile it looks again, `still`: in there, what runs in the space may be made to
        stand still. Raises `TooLarge` for more than so many new bytes,
        `TreeUnavailable` when something keeps on writing, and leaves nothing then."""
        ...

    def parts_fit(self, max_bytes: int) -> bool:
        """What the space has beside its tree, if nothing of it was kept yet."""
        ...

    def put_back(self, name: str, *, parts: bool = True) -> bool:
        """Makes the files those of this state, or `START`; who is killed meanwhile does it again.
        Whether the agent's folder was in it. Raises `TreeDamaged` before anything is changed."""
        ...

    def layer(self, name: str) -> TreeLayer | None:
        """For trees that begin with the state; None: it is that of the base. Its files must stay
        until the first of them is made."""
        ...

    def part_layers(self, name: str) -> Mapping[str, TreeLayer]:
        """As `layer`, for systems, by the name of each: those that differ from their images."""
        ...

    def give(self, name: str, other: Tree, parts: Sequence[Part] = (), *, files: bool) -> None:
        """Gives the state to a space that was just made of the same base: the agent's folder, the
        volumes among its `parts`, and the `files` of a tree that did not get them as a layer."""
        ...

    def keep_only(self, names: Collection[str]) -> None:
        """Removes all other states, and what none of these has."""
        ...

    def bytes_kept(self) -> int: ...


class PartStates(Protocol):
    """What a space has beside its tree, for the trash. Nothing runs in the space meanwhile.
    Blocking; raises what reading and writing a tree raises."""

    def has_parts_to_keep(self) -> bool:
        """Files: folders alone are nobody's work."""
        ...

    def pack_parts(self, target: Path, max_bytes: int) -> PartsKept:
        """Into a folder, which is made. Raises `TooLarge`."""
        ...

    def unpack_parts(self, source: Path) -> None:
        """Into a space of the same base and image; where nothing was packed nothing is done.
        Raises `TreeDamaged` before anything is changed."""
        ...


PartStatesOf = Callable[[TreeDriver, Tree, tuple[Part, ...]], PartStates]
