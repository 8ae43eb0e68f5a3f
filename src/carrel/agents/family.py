"""A process, its group, and what it started outside of that."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


class Family:
    """Those seen so far; each with when it started, for a number may come to mean another."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._below: set[tuple[int, str]] = set()
        self.look()

    def look(self) -> None:
        below = _children(self._pid)
        while below:
            one = below.pop()
            self._below.add((one, _started(one)))
            below += _children(one)

    def signal(self, number: int) -> None:
        """To the group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)

    def kill(self) -> None:
        """Whoever is outside of the group."""
        for pid, started in self._below:
            if started and _started(pid) == started:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    return children


def _started(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]
