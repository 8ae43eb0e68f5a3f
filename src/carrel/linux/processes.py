"""Finding processes again, and ending whole trees of them."""

from __future__ import annotations

import os
import signal

MOST_ENVIRONMENT_BYTES = 1 << 20
"""So much of one is looked at."""


def start_time(pid: int) -> int | None:
    """Clock ticks since boot at which the process started; with the pid it names a process
    for good. None when there is no such process, or only its zombie."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fields = os.read(descriptor, 4096).rpartition(b")")[2].split()
    except OSError:
        return None
    finally:
        os.close(descriptor)
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])


def is_alive(pid: int, started: int) -> bool:
    return start_time(pid) == started


def children(pid: int) -> list[int]:
    """The direct children of a single-threaded process."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except FileNotFoundError:
        return _children_by_scan(pid) if os.path.exists(f"/proc/{pid}") else []
    except OSError:
        return []


def _children_by_scan(parent: int) -> list[int]:
    """For kernels without /proc/PID/task/TID/children."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(name))
    return found


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, parents first; a snapshot."""
    found: list[int] = []
    pending = children(pid)
    while pending:
        current = pending.pop()
        found.append(current)
        pending.extend(children(current))
    return found


def has_variable(pid: int, name: str, value: str) -> bool:
    """Whether the process was executed with it. No, when nobody may look."""
    try:
        descriptor = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found = os.read(descriptor, MOST_ENVIRONMENT_BYTES)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return f"\0{name}={value}\0".encode() in b"\0" + found + b"\0"


def send_signal(pid: int, number: int) -> bool:
    """False when the process is gone. Never to all, to our own group, or to init, which is
    what the kernel takes numbers below two for."""
    if pid < 2:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def send_group_signal(group: int, number: int) -> bool:
    """As `send_signal`, to a process group."""
    if group < 2:
        return False
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def kill_all(pids: list[int]) -> None:
    """Stops them first, so that none can fork while the others are being killed."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            send_signal(pid, number)
