"""When a space goes by itself: a decision about a record, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from carrel.domain.spaces import Space, SpaceState


class RetentionVerb(StrEnum):
    STOP = "stop"
    REMOVE = "remove"


@dataclass(frozen=True)
class Due:
    """What is due for a space, and why, in a sentence."""

    verb: RetentionVerb
    why: str


@dataclass(frozen=True)
class Defaults:
    """For spaces that say nothing themselves; seconds, 0 for ever."""

    idle_s: float = 0.0
    keep_s: float = 0.0


def due(space: Space, now: float, defaults: Defaults) -> Due | None:
    """A clock that jumped back makes nothing due; a command that runs keeps a space from
    being idle, but not from the end of its own time."""
    retention = space.retention
    if space.state in (SpaceState.REMOVING, SpaceState.REMOVED, SpaceState.CREATING):
        return None
    lifetime = retention.ttl_s or 0.0
    if lifetime and now - space.created_at >= lifetime:
        return Due(RetentionVerb.REMOVE, f"its time of {_shown(lifetime)} is over")
    if space.state is SpaceState.READY:
        return _idle(space, now, _chosen(retention.idle_s, defaults.idle_s))
    if space.state in (SpaceState.STOPPED, SpaceState.FAILED):
        return _kept(space, now, _chosen(retention.keep_s, defaults.keep_s))
    return None


def _idle(space: Space, now: float, idle_s: float) -> Due | None:
    if idle_s and now - space.active_at >= idle_s:
        return Due(RetentionVerb.STOP, f"nothing ran in it for {_shown(idle_s)}")
    return None


def _kept(space: Space, now: float, keep_s: float) -> Due | None:
    since = space.stopped_at or space.updated_at
    if keep_s and now - since >= keep_s:
        return Due(RetentionVerb.REMOVE, f"it was stopped {_shown(keep_s)} ago")
    return None


def _chosen(own: float | None, default: float) -> float:
    return default if own is None else own


def _shown(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
