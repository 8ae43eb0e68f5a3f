"""What a sandbox may use at most, and what it did use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class LimitKind(StrEnum):
    MEMORY = "memory"
    CPU = "cpu"
    PIDS = "pids"
    DISK = "disk"
    FILE_SIZE = "file_size"
    OPEN_FILES = "open_files"
    WALL_TIME = "wall_time"


@dataclass(frozen=True)
class Limits:
    """None means no limit. `strict` refuses to start where one cannot be enforced."""

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None
    disk_bytes: int | None = None
    file_bytes: int | None = None
    open_files: int | None = None
    wall_seconds: float | None = None
    strict: bool = False


NO_LIMITS = Limits()


@dataclass(frozen=True)
class LimitSupport:
    """How (or why not) one kind of limit is enforced here."""

    kind: LimitKind
    enforced: bool
    how: str
    remedy: str = ""
    """What a person does to have it enforced."""


@dataclass(frozen=True)
class ResourceUsage:
    """Of a whole sandbox since it started; None where this machine cannot tell."""

    cpu_seconds: float | None
    memory_bytes: int | None
    memory_peak_bytes: int | None
    pids: int | None


def together(used: Sequence[ResourceUsage]) -> ResourceUsage:
    """Of sandboxes of one space. Their peaks need not have been at the same time: together they are
    the most that it can have been."""
    seconds = [one.cpu_seconds for one in used if one.cpu_seconds is not None]

    def whole(numbers: Iterable[int | None]) -> int | None:
        known = [one for one in numbers if one is not None]
        return sum(known) if known else None

    return ResourceUsage(
        sum(seconds) if seconds else None,
        whole(one.memory_bytes for one in used),
        whole(one.memory_peak_bytes for one in used),
        whole(one.pids for one in used),
    )
