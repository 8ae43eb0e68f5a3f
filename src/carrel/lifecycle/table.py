"""Every legal move of a space, in one table.

A space is *created* step by step, then it is `ready`; while at least one command runs it is
`running`. It is stopped (no process of it is left, its tree stays) and started again as
often as one likes, and at last removed. Whatever goes wrong on the way makes it `failed`: a
failed space can be started again, or removed. From `removed` there is no way back: what is
undeleted is a new space with the old one's changes.

A space that is being created was promised to nobody yet: if the daemon dies meanwhile, it
goes straight to `removing`.
"""

from __future__ import annotations

from carrel.domain.errors import StateConflict
from carrel.domain.spaces import SpaceState as S

MOVES: dict[S, frozenset[S]] = {
    S.CREATING: frozenset({S.READY, S.FAILED, S.REMOVING}),
    S.READY: frozenset({S.RUNNING, S.STOPPING, S.FAILED}),
    S.RUNNING: frozenset({S.READY, S.STOPPING, S.FAILED}),
    S.STOPPING: frozenset({S.STOPPED, S.FAILED}),
    S.STOPPED: frozenset({S.READY, S.REMOVING, S.FAILED}),
    S.FAILED: frozenset({S.READY, S.STOPPING, S.REMOVING}),
    S.REMOVING: frozenset({S.REMOVED, S.FAILED}),
    S.REMOVED: frozenset(),
}

LIVE = frozenset({S.READY, S.RUNNING})
"""Commands can be run."""

LEAVING = frozenset({S.REMOVING, S.REMOVED})
"""Something of it may be gone already."""
SETTLED = frozenset({S.READY, S.RUNNING, S.STOPPED, S.FAILED, S.REMOVED})
"""No operation is under way."""


def can_move(now: S, then: S) -> bool:
    return then in MOVES[now]


def check_move(name: str, now: S, then: S) -> None:
    """Raises `StateConflict`."""
    if not can_move(now, then):
        raise StateConflict(
            f"{name} is {now}; it cannot become {then}.",
            hint=_hint(now),
            state=str(now),
        )


def _hint(now: S) -> str:
    ways = " or ".join(sorted(MOVES[now]))
    return f"From {now} it can only become {ways}." if ways else "It is gone for good."


# The table as a picture, for the documentation.


def mermaid() -> str:
    """As a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> creating"]
    for state, moves in MOVES.items():
        lines += [f"    {state} --> {other}" for other in MOVES if other in moves]
        if not moves:
            lines.append(f"    {state} --> [*]")
    return "\n".join(lines)
