"""What processes take of the memory, as the kernel counts it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from carrel.instances.listening import tree

_PRIVATE = ("Private_Clean", "Private_Dirty")


@dataclass(frozen=True)
class Footprint:
    """In millions of bytes. `own` is what no other process has. `made` is what it, or the
    process that it was forked from, has written: it grows by what a process takes, whoever
    shares that with it."""

    own: float = 0.0
    made: float = 0.0

    def __add__(self, other: Footprint) -> Footprint:
        return Footprint(self.own + other.own, self.made + other.made)


def footprint(pid: int) -> Footprint:
    """Nothing, of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except (FileNotFoundError, ProcessLookupError):
        return Footprint()
    found = {name: int(rest.split()[0]) for name, _, rest in (one.partition(":") for one in lines)}
    own = sum(found.get(name, 0) for name in _PRIVATE)
    return Footprint(own * 1024 / 1e6, found.get("Anonymous", 0) * 1024 / 1e6)


def together(pids: Iterable[int]) -> Footprint:
    return sum((footprint(pid) for pid in pids), Footprint())


@dataclass(frozen=True)
class Inhabitants:
    """Of one sandbox: the server's own process, all that came of it, its gate, and what keeps
    the sandbox."""

    server: int
    tree: list[int]
    gates: list[int]
    keepers: list[int]

    @property
    def all(self) -> list[int]:
        return [*self.tree, *self.gates, *self.keepers]


def inhabitants(server: int) -> Inhabitants:
    """By their namespace: a language server may have gone away from its parent."""
    below = tree(server)
    others = [pid for pid in _beside(server) if pid not in below]
    keepers = [pid for pid in others if _program(pid) in ("bwrap", "hold", "")]
    gates = [pid for pid in others if pid not in keepers and _is_launchers(pid)]
    rest = [pid for pid in others if pid not in (*keepers, *gates)]
    return Inhabitants(server, [*below, *rest], gates, keepers)


def _beside(server: int) -> list[int]:
    wanted = os.readlink(f"/proc/{server}/ns/pid")
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{name}/ns/pid") == wanted:
                found.append(int(name))
    return found


def _program(pid: int) -> str:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).removesuffix(" (deleted)")
    except OSError:
        return ""


def _is_launchers(pid: int) -> bool:
    """Forked from the launcher, and nothing was executed since."""
    with contextlib.suppress(OSError):
        return b"carrel.launcher" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
