"""Finding processes again, and ending whole trees of them."""

from __future__ import annotations

import os
import signal
import time

MOST_ENVIRONMENT_BYTES = 1 << 20
"""So much of one is looked at."""
EXECUTING_S = 0.5
"""For a process that is between two programs, and has no environment of either: it takes less
than a millisecond, but may have to wait for a core in the middle of it."""


def start_time(pid: int) -> int | None:
    """Clock ticks since boot at which the process started; with the pid it names a process
    for good. None when there is no such process, or only its zombie."""
    fields = _status(pid)
    return int(fields[19]) if fields is not None else None


def _status(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat from the third on. None as for `start_time`."""
    status = _read(f"/proc/{pid}/stat", 4096)
    if status is None:
        return None
    fields = status.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else fields


def _read(path: str, most: int) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, most)
    except OSError:
        return None
    finally:
        os.close(descriptor)


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
    path = f"/proc/{pid}/environ"
    end = time.monotonic() + EXECUTING_S
    while not (found := _read(path, MOST_ENVIRONMENT_BYTES)):
        if found is None or _has_none(pid) or time.monotonic() > end:
            return False
        time.sleep(0.0005)
    return f"\0{name}={value}\0".encode() in b"\0" + found + b"\0"


def _has_none(pid: int) -> bool:
    """Its environment is empty for good, or it has no memory. One that is being executed has
    no place for an environment yet."""
    fields = _status(pid)
    if fields is None or fields[20] == b"0":
        return True
    return fields[47] == fields[48] != b"0"


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
