"""The queue of landings: spaces in line for a branch, merged on the result of one another."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from carrel.domain.landing import LandRequest

QUEUE_BRANCH = "carrel/queue"
"""Where they land when no branch is named."""


class QueueState(StrEnum):
    WAITING = "waiting"
    LANDING = "landing"
    """It is merged and checked, or lands."""
    LANDED = "landed"
    RETURNED = "returned"
    """It did not land, for a reason."""
    CANCELLED = "cancelled"


QUEUE_ENDS = frozenset({QueueState.LANDED, QueueState.RETURNED, QueueState.CANCELLED})


@dataclass(frozen=True)
class QueueEntry:
    """One space in line. `code`, `reason`, `hint` and `output` are those of the error for which it
    was returned."""

    entry_id: str
    space_id: str
    name: str
    """Of the space, as it was called then."""
    project: str
    request: LandRequest
    """With the branch."""
    created_at: float
    state: QueueState = QueueState.WAITING
    attempts: int = 0
    landing_id: str = ""
    """Written down together with the landing, before anything of the project moves."""
    code: str = ""
    reason: str = ""
    hint: str = ""
    output: str = ""
    ended_at: float | None = None

    @property
    def branch(self) -> str:
        return self.request.branch

    @property
    def ended(self) -> bool:
        return self.state in QUEUE_ENDS
