"""Finding processes again, and ending whole trees and control groups of them."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator

from carrel.linux import libc

MOST_ENVIRONMENT_BYTES = 1 << 20
"""So much of one is looked at."""
EXECUTING_WAITS = 1000
"""Of half a millisecond, for a process that is between two programs, and has no environment of
either: it takes less than one, but may have to wait for a core in the middle of it. Counted and not
timed: a machine that stood still for a second has not given the process that second."""
_KCMP_FILES = 2
_PF_EXITING = 4
READ_TRIES = 16
"""For one that was executed between two looks at it. One that has taken its environment out of
its memory would be tried for ever."""


def python(module: str, *options: str) -> list[str]:
    """The words that run a module with the interpreter of this process. `-P`: Python would else
    import first what lies in the current folder, which may be anybody's project."""
    return [sys.executable, "-P", *options, "-m", module]


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def living_in(namespace: os.stat_result) -> Iterator[int]:
    """The processes of a pid namespace, but for those that are dead or dying."""
    for pid in all_pids():
        try:
            found = os.stat(f"/proc/{pid}/ns/pid")
        except OSError:
            continue
        if os.path.samestat(found, namespace) and not is_dying(pid):
            yield pid


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
    # One whose first thread has ended looks like a zombie while the others run.
    return None if fields[0] in (b"Z", b"X") and fields[17] in (b"0", b"1") else fields


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


def is_dying(pid: int) -> bool:
    """It has given up its memory, and no signal can do more; also one that is gone. The first of a
    pid namespace stays so until somebody has waited for each of the others, which its parent may
    never do."""
    fields = _status(pid)
    return fields is None or (bool(int(fields[6]) & _PF_EXITING) and fields[20] == b"0")


def parent(pid: int) -> int | None:
    fields = _status(pid)
    return int(fields[1]) if fields is not None else None


def _states(pid: int) -> set[bytes]:
    """Of its threads. None when it is gone."""
    found: set[bytes] = set()
    for path in _threads(pid, "stat"):
        if status := _read(path, 4096):
            found.add(status.rpartition(b")")[2].split()[0])
    return found


def _threads(pid: int, name: str) -> list[str]:
    try:
        return [f"/proc/{pid}/task/{thread}/{name}" for thread in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def is_stopped(pid: int) -> bool:
    """By a signal, or by who traces it; also one that is gone."""
    return _states(pid) <= {b"T", b"t", b"Z", b"X"}


def is_waiting_its_turn(pid: int) -> bool:
    """For a processor or a disk, which others have: it needs nothing but time."""
    return not _states(pid).isdisjoint({b"R", b"D"})


def is_running(pid: int) -> bool:
    """Or could be at once: it neither is stopped, nor waits in the kernel, for a disk say."""
    return not _states(pid).isdisjoint({b"R", b"S"})


def turns(pid: int) -> int | None:
    """How often its threads have been taken off a processor. None when it is gone."""
    found = [
        int(line.split()[1])
        for path in _threads(pid, "status")
        for line in (_read(path, 8192) or b"").splitlines()
        if b"ctxt_switches:" in line
    ]
    return sum(found) if found else None


def children(pid: int) -> list[int]:
    """The direct children of a process, whichever of its threads has forked them."""
    found: list[int] = []
    for path in _threads(pid, "children"):
        try:
            with open(path) as file:
                found += map(int, file.read().split())
        except FileNotFoundError:
            if _has_no_lists():
                return _children_by_scan(pid)
        except OSError:
            # That thread has ended; what it had forked is another's.
            continue
    return found


@functools.cache
def _has_no_lists() -> bool:
    return not os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def _children_by_scan(parent: int) -> list[int]:
    """For kernels whose /proc has no lists of them."""
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


def having_variable(pids: Iterable[int], name: str, value: str) -> list[int]:
    """Those that were executed with it. No, where nobody may look. All of them together are
    waited for as one is: a process can have itself executed without end."""
    waits = iter(range(EXECUTING_WAITS))
    return [pid for pid in pids if _has_variable(pid, f"\0{name}={value}\0".encode(), waits)]


def _has_variable(pid: int, wanted: bytes, waits: Iterator[int]) -> bool:
    path = f"/proc/{pid}/environ"
    tries = READ_TRIES
    while not (found := _read(path, MOST_ENVIRONMENT_BYTES)):
        if found is None or not tries:
            return False
        if _is_executing(pid):
            if next(waits, None) is None:
                return False
            time.sleep(0.0005)
        else:
            tries -= 1
    return wanted in b"\0" + found + b"\0"


def _is_executing(pid: int) -> bool:
    """It has memory, and no end of an environment yet; no process can choose that end, the
    first byte of all, itself."""
    fields = _status(pid)
    return fields is not None and fields[20] != b"0" and fields[48] == b"0"


def owners_of_descriptors(pid: int) -> list[int]:
    """Threads of a process, one for each table of descriptors that they have: mostly the first
    alone. All of them where the kernel does not tell."""
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
    found = [pid]
    for thread in threads:
        if thread != pid and not _shares_descriptors(found[-1], thread):
            found.append(thread)
    return found


def _shares_descriptors(pid: int, other: int) -> bool:
    try:
        return libc.syscall("kcmp", pid, other, _KCMP_FILES, 0, 0) == 0
    except OSError:
        # Not allowed, or one of the two has ended: then nothing is known of the other.
        return False


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


# Those of one control group, by its path; nothing here waits


def group_members(group: str) -> list[int]:
    try:
        with open(f"{group}/cgroup.procs") as file:
            return [int(line) for line in file]
    except OSError:
        return []


def kill_group(group: str) -> bool:
    """At once and for all, where the kernel can (cgroup v2 since 5.14)."""
    try:
        with open(f"{group}/cgroup.kill", "w") as file:
            file.write("1")
    except OSError:
        return False
    return True


def freeze_group(group: str, frozen: bool) -> bool:
    """With all that is below it, or has it go on. Whether the kernel can, in this tree."""
    for name, on, off in (("cgroup.freeze", "1", "0"), ("freezer.state", "FROZEN", "THAWED")):
        try:
            with open(f"{group}/{name}", "w") as file:
                file.write(on if frozen else off)
        except OSError:
            continue
        return True
    return False


def is_frozen(group: str) -> bool:
    """Whether none of it runs any more; a group that is gone has none."""
    for name, sign in (("cgroup.events", "frozen 1"), ("freezer.state", "FROZEN")):
        try:
            with open(f"{group}/{name}") as file:
                return sign in file.read()
        except OSError:
            continue
    return True


def remove_group(group: str) -> bool:
    """False while something that detached itself still lives in it."""
    try:
        os.rmdir(group)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
