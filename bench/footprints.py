"""What processes take of the memory, as the kernel counts it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from carrel.instances.processes import tree

_PRIVATE = ("Private_Clean", "Private_Dirty")
_LISTENS = "0A"
"""As `/proc/net/tcp` writes the state of such a socket."""
LOOKS, LOOK_S = 5, 0.01
_KEEPING = ("bwrap", "hold", "launcher")


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


def steady_own(pid: int) -> float:
    """What it has when it forks nothing: until a child is another program, it has all of its
    parent's pages too, and nothing is anybody's own."""
    found = []
    for _ in range(LOOKS):
        found.append(footprint(pid).own)
        time.sleep(LOOK_S)
    return max(found)


def together(pids: Iterable[int]) -> Footprint:
    return sum((footprint(pid) for pid in pids), Footprint())


@dataclass(frozen=True)
class Inhabitants:
    """Of one sandbox: the server and all that came of it, its gate, and what keeps the sandbox
    or is ready for a next command in it."""

    server: list[int]
    gate: list[int]
    keepers: list[int]

    @property
    def all(self) -> list[int]:
        return [*self.server, *self.gate, *self.keepers]


def inhabitants(server: int, port: int) -> Inhabitants:
    """By their namespace: a language server may have gone away from its parent."""
    below = tree(server)
    others = [pid for pid in _beside(server) if pid not in below]
    listening = _socket_at(port)
    gate = [pid for pid in others if listening in _sockets(pid)]
    keepers = [pid for pid in others if pid not in gate and _program(pid) in _KEEPING]
    rest = [pid for pid in others if pid not in (*gate, *keepers)]
    return Inhabitants([*below, *rest], gate, keepers)


def _beside(server: int) -> list[int]:
    wanted = os.readlink(f"/proc/{server}/ns/pid")
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{name}/ns/pid") == wanted:
                found.append(int(name))
    return found


def _socket_at(port: int) -> str:
    """That listens at this port of the machine."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
            return f"socket:[{words[9]}]"
    return ""


def _sockets(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def _program(pid: int) -> str:
    """Of the launcher's forks the interpreter's: they have executed nothing."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    forked = any(b"carrel.launcher" in word for word in words)
    return "launcher" if forked else os.path.basename(words[0]).decode(errors="replace")
