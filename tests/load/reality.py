"""What is on the machine of a data folder, beside what its records say."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from carrel.daemon import control
from carrel.launcher.client import Launcher
from carrel.linux import processes
from tests.folders import mounts_below
from tests.machine import all_inhabitants, groups


@dataclass(frozen=True)
class Process:
    """What one process has of the machine's goods."""

    pid: int
    rss_mib: float
    descriptors: int
    threads: int
    below: int
    """Processes that it started, and those they started."""


def process(pid: int) -> Process:
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return Process(
        pid,
        int(fields["VmRSS"].split()[0]) / 1024,
        len(os.listdir(f"/proc/{pid}/fd")),
        int(fields["Threads"]),
        len(processes.descendants(pid)),
    )


def daemon(data: Path) -> Process:
    return process(control.status(data).pid)


def launcher(data: Path) -> Process:
    """Of a daemon that has used it; else one is started."""
    client = Launcher(data)
    try:
        reply, _ = client.call("hello", {}, [])
    finally:
        client.close()
    return process(int(reply["pid"]))


def traces(data: Path, ever: set[str]) -> dict[str, set[str]]:
    """By kind, the spaces of which something is there. `ever` are all that there were: what
    other data folders have on the machine is not ours to judge."""
    return {
        "folders": set(_names(data / "spaces")),
        "users": {os.readlink(data / "uids" / name) for name in _names(data / "uids")},
        "holders": {name.split(".")[0] for name in _names(data / "launcher" / "holders")},
        "mounts": _mounted(data / "spaces"),
        "groups": {group.name for group in groups()} & ever,
        "processes": {space_id for _pid, space_id in all_inhabitants()} & ever,
    }


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return os.listdir(folder)
    return []


def _mounted(spaces: Path) -> set[str]:
    above = os.path.realpath(spaces)
    return {os.path.relpath(point, above).split("/")[0] for point in mounts_below(spaces)} - {"."}


def running_in(folder: Path) -> list[str]:
    """Processes that work in the folder, or that were started with its name."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            words = Path(f"/proc/{name}/cmdline").read_text(errors="replace").replace("\0", " ")
            there = os.readlink(f"/proc/{name}/cwd")
            if there.startswith(str(folder)) or str(folder) in words:
                found.append(f"{name} {words}")
    return found
