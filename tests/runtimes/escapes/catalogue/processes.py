"""Processes outside: signals, tracing, their memory, descriptors and scheduling."""

from __future__ import annotations

import ctypes
import os
import resource
import signal

from tests.runtimes.escapes.inside import (
    ROOT,
    USER,
    Refused,
    Targets,
    escape,
    first_success,
    pids,
    syscall,
)

PTRACE_ATTACH, PTRACE_DETACH, PTRACE_SEIZE = 16, 17, 0x4206
PTRACE_O_SUSPEND_SECCOMP = 1 << 21
NO_YAMA = ("kernel/yama/ptrace_scope", ("0",))


class Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@escape("signals.to_a_process", USER)
def to_a_process(targets: Targets) -> str:
    os.kill(targets.victim, signal.SIGCONT)
    return "sent"


@escape("signals.to_a_group", USER)
def to_a_group(targets: Targets) -> str:
    os.killpg(targets.victim, signal.SIGCONT)
    return "sent"


@escape("signals.to_a_thread", USER)
def to_a_thread(targets: Targets) -> str:
    syscall("tgkill", targets.victim, targets.victim, signal.SIGCONT)
    return "sent"


@escape("signals.with_a_value", USER)
def with_a_value(targets: Targets) -> str:
    info = (ctypes.c_int * 32)(signal.SIGCONT, 0, -1)
    syscall("rt_sigqueueinfo", targets.victim, signal.SIGCONT, ctypes.byref(info))
    return "sent"


@escape("signals.by_pidfd", USER)
def by_pidfd(targets: Targets) -> str:
    descriptor = syscall("pidfd_open", targets.victim, 0)
    syscall("pidfd_send_signal", descriptor, signal.SIGCONT, None, 0)
    return "sent"


@escape("signals.to_everybody")
def to_everybody(_targets: Targets) -> str:
    """One that nobody minds; the process outside has it blocked, so that there it would
    stay pending and be seen. Only who is in here is reached."""
    os.kill(-1, signal.SIGURG)
    raise Refused("sent to those inside")


@escape("ptrace.attach", USER, setting=NO_YAMA)
def attach(targets: Targets) -> str:
    syscall("ptrace", PTRACE_ATTACH, targets.victim, None, None)
    os.waitpid(targets.victim, 0)
    syscall("ptrace", PTRACE_DETACH, targets.victim, None, None)
    return "traced"


@escape("ptrace.seize", USER, setting=NO_YAMA)
def seize(targets: Targets) -> str:
    syscall("ptrace", PTRACE_SEIZE, targets.victim, None, None)
    return "traced"


@escape("ptrace.without_the_filter")
def without_the_filter(_targets: Targets) -> str:
    """A tracer may ask the kernel to suspend the filter of whom it traces."""
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        syscall("ptrace", PTRACE_SEIZE, child, None, PTRACE_O_SUSPEND_SECCOMP)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return "suspended the filter"


@escape("ptrace.first_process")
def first_process(_targets: Targets) -> str:
    """The sandbox's own keeper is of the same user: what could be made of it stays inside,
    but it must not have been left with the launcher's rights."""
    with open("/proc/1/status") as file:
        capabilities = {line.split()[0]: line.split()[1] for line in file if "Cap" in line}
    held = {name: bits for name, bits in capabilities.items() if int(bits, 16)}
    if held:
        return f"it holds {held}"
    raise Refused("it holds no capabilities")


@escape("ptrace.capabilities_of_all")
def capabilities_of_all(_targets: Targets) -> str:
    def look(pid: int) -> str:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith(("CapEff", "CapPrm")) and int(line.split()[1], 16):
                    return line.strip()
        raise Refused("none")

    return first_success(look, pids())


@escape("memory.read", USER, setting=NO_YAMA)
def read_memory(targets: Targets) -> str:
    found = ctypes.create_string_buffer(len(targets.marker))
    transfer("process_vm_readv", targets, found)
    return f"read {found.raw!r}"


@escape("memory.write", USER, setting=NO_YAMA)
def write_memory(targets: Targets) -> str:
    """What is there already."""
    transfer("process_vm_writev", targets, ctypes.create_string_buffer(targets.marker.encode()))
    return "wrote"


def transfer(name: str, targets: Targets, buffer: ctypes.Array[ctypes.c_char]) -> None:
    here = Vector(ctypes.addressof(buffer), len(targets.marker))
    there = Vector(targets.victim_address, len(targets.marker))
    syscall(name, targets.victim, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)


@escape("processes.take_a_descriptor", USER, setting=NO_YAMA)
def take_a_descriptor(targets: Targets) -> str:
    descriptor = syscall("pidfd_getfd", syscall("pidfd_open", targets.victim, 0), 0, 0)
    return f"read {os.pread(descriptor, 80, 0)!r}"


@escape("processes.compare", USER, setting=NO_YAMA)
def compare(targets: Targets) -> str:
    return f"kcmp says {syscall('kcmp', os.getpid(), targets.victim, 1, 0, 0)}"


@escape("processes.see", USER)
def see(targets: Targets) -> str:
    return f"in process group {os.getpgid(targets.victim)}"


@escape("processes.limits", USER)
def limits(targets: Targets) -> str:
    now = resource.prlimit(targets.victim, resource.RLIMIT_NOFILE)
    resource.prlimit(targets.victim, resource.RLIMIT_NOFILE, now)
    return "set its limits"


@escape("processes.priority", USER)
def priority(targets: Targets) -> str:
    now = os.getpriority(os.PRIO_PROCESS, targets.victim)
    os.setpriority(os.PRIO_PROCESS, targets.victim, now)
    return "set its priority"


@escape("processes.processors", USER)
def processors(targets: Targets) -> str:
    os.sched_setaffinity(targets.victim, os.sched_getaffinity(targets.victim))
    return "set its processors"


@escape("processes.more_priority", ROOT)
def more_priority(_targets: Targets) -> str:
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    return "has priority -20"


@escape("processes.real_time", ROOT)
def real_time(_targets: Targets) -> str:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    return "runs in real time"


@escape("processes.real_time_input_and_output", ROOT)
def real_time_input_and_output(_targets: Targets) -> str:
    syscall("ioprio_set", 1, 0, 1 << 13)
    return "has the disk first"


@escape("processes.raised_limits")
def raised_limits(_targets: Targets) -> str:
    """Beyond the hard limit. ValueError is Python's word for EPERM here."""
    for kind in (resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
        _soft, hard = resource.getrlimit(kind)
        if hard == resource.RLIM_INFINITY:
            continue
        try:
            resource.setrlimit(kind, (hard + 1, hard + 1))
        except ValueError:
            continue
        return f"raised limit {kind}"
    raise Refused("none could be raised")


@escape("processes.descriptors_of_what_holds_the_sandbox")
def descriptors_of_what_holds_the_sandbox(_targets: Targets) -> str:
    """They led to the launcher once."""

    def take(pid: int) -> str:
        handle = os.pidfd_open(pid)
        return first_success(
            lambda number: str(syscall("pidfd_getfd", handle, number, 0)), range(16)
        )

    return first_success(take, (1, 2))


@escape("processes.what_waits_to_become_a_command")
def what_waits_to_become_a_command(_targets: Targets) -> str:
    """It has a socket and a pipe to the launcher, and is nobody's to look into."""
    family = {1, 2, os.getpid(), os.getppid()}

    def look(pid: int) -> str:
        with open(f"/proc/{pid}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
        if parent in family:
            raise Refused("one of ours")
        try:
            return f"descriptors {os.listdir(f'/proc/{pid}/fd')}"
        except PermissionError:
            syscall("ptrace", PTRACE_SEIZE, pid, None, None)
            return "traced"

    return first_success(look, [pid for pid in pids() if pid not in family])
