"""Processes outside: seeing, reading, signalling and tracing them."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence

from carrel.launcher.probes.attempt import (
    DENIED,
    HIDDEN,
    ONLY_BUBBLEWRAP,
    ProbeAttempt,
    ProbeRefused,
    Targets,
    number,
    text,
)
from carrel.linux.libc import syscall

_PTRACE_SEIZE = 0x4206
_ENVIRONMENT_BYTES = 1 << 20
"""More than a usual environment; a longer one is searched as far as this."""
_DOORS = ("environ", "mem", "maps", "syscall")
_LINKS = ("fd/0", "exe", "cwd", "root", "ns/mnt")
_ABSENT = DENIED | {errno.ESRCH, errno.ENOENT}


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _outside(targets: Targets) -> int:
    """The process outside; refused when its number belongs to another one in here."""
    pid = number(targets, "host_pid")
    started = targets.get("host_pid_start")
    if started is not None:
        seen = _start_time(pid)
        if seen is not None and seen != started:
            raise ProbeRefused(f"{pid} is another process here")
    return pid


def _start_time(pid: int) -> int | None:
    """In ticks since boot, which with the pid names a process for good."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[19])
    except OSError:
        return None


def _doors(_targets: Targets) -> Sequence[str]:
    return (*_DOORS, *_LINKS)


def _read_door(targets: Targets, door: str) -> str:
    path = f"/proc/{_outside(targets)}/{door}"
    if door in _LINKS:
        return os.readlink(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Opening is not enough for some: the kernel asks again on the first read.
        return f"read {len(os.pread(descriptor, 1, 0))} bytes"
    finally:
        os.close(descriptor)


def _find_environment(targets: Targets, _subject: str) -> str:
    """Any process but this one, whose environment is still the launcher's own: no command
    of the sandbox has it, as they all execute with another."""
    marker = os.fsencode(text(targets, "secret_env"))
    seen = readable = 0
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        seen += 1
        environment = _environment(name)
        readable += environment is not None
        if environment is not None and marker in environment:
            return f"/proc/{name}/environ"
    raise ProbeRefused(f"not in any of {seen} processes, {readable} of them readable")


def _environment(pid: str) -> bytes | None:
    try:
        descriptor = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in HIDDEN:
            raise
        return None
    try:
        return os.read(descriptor, _ENVIRONMENT_BYTES)
    except OSError as error:
        if error.errno not in HIDDEN:
            raise
        return None
    finally:
        os.close(descriptor)


def _see(targets: Targets, _subject: str) -> str:
    os.stat(f"/proc/{_outside(targets)}")
    return "visible"


def _signal(targets: Targets, _subject: str) -> str:
    os.kill(_outside(targets), 0)
    return "signalled"


def _signal_pidfd(targets: Targets, _subject: str) -> str:
    descriptor = syscall("pidfd_open", _outside(targets), 0)
    try:
        syscall("pidfd_send_signal", descriptor, 0, None, 0)
    finally:
        os.close(descriptor)
    return "signalled"


def _take_descriptor(targets: Targets, _subject: str) -> str:
    descriptor = syscall("pidfd_open", _outside(targets), 0)
    try:
        os.close(syscall("pidfd_getfd", descriptor, 0, 0))
    finally:
        os.close(descriptor)
    return "got its standard input"


def _take_by_number(_targets: Targets, _subject: str) -> str:
    """Its own, which is always allowed where the call is: so none is taken of any process that
    works for the sandbox, or for another command in it."""
    here, there = os.pipe()
    handle = syscall("pidfd_open", os.getpid(), 0)
    try:
        os.close(syscall("pidfd_getfd", handle, here, 0))
    finally:
        for descriptor in (here, there, handle):
            os.close(descriptor)
    return "taken"


def _trace(targets: Targets, _subject: str) -> str:
    # Seizing does not stop it, and the kernel lets go when this process ends.
    syscall("ptrace", _PTRACE_SEIZE, _outside(targets), None, None)
    return "traced"


def _read_memory(targets: Targets, _subject: str) -> str:
    byte = ctypes.create_string_buffer(1)
    here = _Vector(ctypes.addressof(byte), 1)
    there = _Vector(1, 1)
    pid = _outside(targets)
    try:
        syscall("process_vm_readv", pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    except OSError as error:
        if error.errno == errno.EFAULT:  # asked about the address, so it was let in
            return "reached its memory"
        raise
    return "read its memory"


def _renice(targets: Targets, _subject: str) -> str:
    pid = _outside(targets)
    os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))
    return "set its priority"


def _limit(targets: Targets, _subject: str) -> str:
    # Whoever may read them may set them.
    limits = (ctypes.c_uint64 * 2)()
    syscall("prlimit64", _outside(targets), 0, None, limits)
    return "read its limits"


def _require(targets: Targets) -> Sequence[str]:
    """One subject, if there is a process to attack at all."""
    number(targets, "host_pid")
    return ("",)


def _require_marker(targets: Targets) -> Sequence[str]:
    text(targets, "secret_env")
    return ("",)


ATTEMPTS = (
    ProbeAttempt("find a process outside", _see, _require, HIDDEN, ONLY_BUBBLEWRAP),
    ProbeAttempt("read {} of a process outside", _read_door, _doors, HIDDEN),
    ProbeAttempt("find the host's environment", _find_environment, _require_marker, HIDDEN),
    ProbeAttempt("signal a process outside", _signal, _require, _ABSENT),
    ProbeAttempt("signal a process outside by pidfd", _signal_pidfd, _require, _ABSENT),
    ProbeAttempt("take a descriptor of a process outside", _take_descriptor, _require, _ABSENT),
    ProbeAttempt("take a descriptor by its number", _take_by_number),
    ProbeAttempt("trace a process outside", _trace, _require, _ABSENT),
    ProbeAttempt("read the memory of a process outside", _read_memory, _require, _ABSENT),
    ProbeAttempt("set the priority of a process outside", _renice, _require, _ABSENT),
    ProbeAttempt("limit a process outside", _limit, _require, _ABSENT),
)
