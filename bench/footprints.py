"""What processes take of the memory, as the kernel counts it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_OWN = ("Private_Clean", "Private_Dirty")


@dataclass(frozen=True)
class Footprint:
    """In millions of bytes. `own` is what no other process has; of what several have,
    `share` counts each its part."""

    own: float = 0.0
    share: float = 0.0

    def __add__(self, other: Footprint) -> Footprint:
        return Footprint(self.own + other.own, self.share + other.share)


def footprint(pid: int) -> Footprint:
    """Nothing, of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except (FileNotFoundError, ProcessLookupError):
        return Footprint()
    found = {name: int(rest.split()[0]) for name, _, rest in (one.partition(":") for one in lines)}
    own = sum(found.get(name, 0) for name in _OWN)
    return Footprint(own * 1024 / 1e6, found.get("Pss", 0) * 1024 / 1e6)


def together(pids: Iterable[int]) -> Footprint:
    return sum((footprint(pid) for pid in pids), Footprint())


def in_sandbox_of(pid: int) -> list[int]:
    """All processes that are where this one is, whoever their parents are."""
    wanted = os.readlink(f"/proc/{pid}/ns/pid")
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{name}/ns/pid") == wanted:
                found.append(int(name))
    return found
