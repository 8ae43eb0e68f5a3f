"""What a forked child does to itself before it executes: limits, namespaces, identity,
filters. Every function raises OSError.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import struct
import termios

from carrel.linux import landlock, mounts, namespaces, seccomp

ENTERED = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_TIOCSPTLCK = 0x40045431
_TIOCGPTPEER = 0x5441
MOST_GIVEN = 16
"""Beside the standard streams; see `carrel.domain.runtimes.Command`."""
OOM_SCORE = 200
"""When the host itself runs out of memory, what runs in sandboxes goes before the host's own."""


def reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def join_groups(procs_files: list[str]) -> None:
    for path in procs_files:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"0")
        finally:
            os.close(descriptor)


def raise_oom_score() -> None:
    """Before the process stops being dumpable: then the file is no longer its own."""
    try:
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except PermissionError:
        return  # It is that of the zygote it was forked from, who raised it before.
    try:
        os.write(descriptor, str(OOM_SCORE).encode())
    except PermissionError:
        pass  # Already higher: a container's own setting.
    finally:
        os.close(descriptor)


def set_limits(limits: list[list[int]]) -> None:
    for kind, soft, hard in limits:
        resource.setrlimit(kind, (soft, hard))


def enter(held: dict[str, int], late: dict[str, int]) -> None:
    """Joins the namespaces of a sandbox; the next fork is inside its pid namespace. `late`
    are mounts by their targets, which the sandbox was set up without; only root has such.

    As root the user namespace comes last: until then we keep the right to join the others.
    As an ordinary user we first join the user namespace that owns the others.
    """
    privileged = os.geteuid() == 0
    if privileged:
        os.setgroups([])
    else:
        owner = namespaces.owning_user_namespace(held["mnt"])
        namespaces.setns(owner, namespaces.CLONE_NEWUSER)
        os.close(owner)
    for kind in ("cgroup", "ipc", "uts", "net", "pid", "mnt"):
        if kind in held:
            namespaces.setns(held[kind])
    os.fchdir(held["root"])
    os.chroot(".")
    for target, mount in late.items():
        mounts.distrust(mount)
        mounts.attach(mount, target)
    namespaces.setns(held["user"], namespaces.CLONE_NEWUSER)


def become(uid: int, gid: int) -> None:
    """Takes on an identity for good."""
    if os.geteuid() == 0 and not _in_user_namespace():
        os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _in_user_namespace() -> bool:
    """Where setgroups may be forbidden, and supplementary groups were dropped before."""
    with open("/proc/self/setgroups") as file:
        return file.read().strip() == "deny"


def give_up_privileges() -> None:
    """The bounding set went before: that takes a capability."""
    namespaces.set_no_new_privileges()
    namespaces.drop_capabilities()


def open_terminal(size: list[int]) -> tuple[int, int]:
    """A pseudo-terminal of the file system we are in now, so that programs find its name."""
    ours = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(ours, _TIOCSPTLCK, struct.pack("i", 0))
    theirs = fcntl.ioctl(ours, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    return ours, theirs


def take_terminal(terminal: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def apply_landlock(rules: landlock.Rules) -> None:
    """Before the identity changes: the rules name paths that only we can open."""
    namespaces.set_no_new_privileges()
    landlock.restrict(rules)


def install_filter(program: bytes) -> None:
    seccomp.install(program)


def above_given(descriptor: int) -> int:
    """A copy out of the way of what the command is given."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3 + MOST_GIVEN)


def set_streams(streams: list[int]) -> None:
    """As 0, 1, 2 and on. The launcher's own 0, 1, 2 are always open, so all have higher
    numbers; beyond the standard ones some may still be in the way of another."""
    if len(streams) > 3:
        streams = [above_given(descriptor) for descriptor in streams]
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number, inheritable=True)


def close_others(*kept: int) -> None:
    """All descriptors but the standard ones and `kept`."""
    first = 3
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, 1 << 20)
