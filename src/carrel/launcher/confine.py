"""What a forked child does to itself before it executes: limits, namespaces, identity,
filters. Every function raises OSError.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import struct
import termios
from collections.abc import Iterable

from carrel.linux import landlock, mounts, namespaces

_TIOCSPTLCK = 0x40045431
_TIOCGPTPEER = 0x5441
MOST_GIVEN = 16
"""Beside the standard streams; see `carrel.domain.runtimes.Command`."""
SHARED_MEMORY = "/dev/shm"
TERMINALS = "/dev/pts"
MOST_TERMINALS = 256
"""Of a sandbox. The machine has 4,096 for all, and keeps 1,024 of them for itself."""
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


def set_limits(limits: Iterable[tuple[int, int, int]]) -> None:
    for kind, soft, hard in limits:
        _, most = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:
            # An earlier daemon may have started us with less than this one has.
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(kind, (soft, hard))


def enter_network(net: int) -> None:
    """Joins the network of a sandbox, and nothing else of it. As an ordinary user we have to join
    the user namespace that owns it, which is not the one of its mounts where it is a pod's."""
    if os.geteuid() != 0:
        _join_owner(net)
    namespaces.setns(net, namespaces.CLONE_NEWNET)


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
        if "net" in held:
            # That of a pod belongs to the namespace around the sandbox's own.
            _enter_owned(held["net"])
        _join_owner(held["mnt"])
    # With a range of ids there is none further in. Inside, the kernel's files do not know us.
    there = os.path.samestat(os.fstat(held["user"]), os.stat("/proc/self/ns/user"))
    for kind in ("cgroup", "ipc", "uts", "net", "pid", "mnt"):
        if kind in held and (privileged or kind != "net"):
            namespaces.setns(held[kind])
    if privileged and "cgroup" not in held:
        # Its groups are the root of what it sees.
        with contextlib.suppress(OSError):
            namespaces.unshare(namespaces.CLONE_NEWCGROUP)
    os.fchdir(held["root"])
    os.chroot(".")
    # What the host mounts below a folder that is shown read-only would come in as it is there.
    namespaces.set_propagation(namespaces.MS_PRIVATE)
    # A share, not a wall: where the kernel will not bound them, the sandbox is as good.
    with contextlib.suppress(OSError):
        namespaces.bound_terminals(TERMINALS, MOST_TERMINALS)
    for target, mount in late.items():
        mounts.distrust(mount)
        mounts.attach(mount, target)
    if not there:
        namespaces.setns(held["user"], namespaces.CLONE_NEWUSER)
    if not privileged:
        # Of those of the user whose launcher this is. Where there is one id, nobody may.
        with contextlib.suppress(OSError):
            os.setgroups([])


def _enter_owned(namespace: int) -> None:
    _join_owner(namespace)
    namespaces.setns(namespace)


def _join_owner(namespace: int) -> None:
    """The user namespace that owns another one; where we are in it already, there is nothing to
    do."""
    owner = namespaces.owning_user_namespace(namespace)
    try:
        if not os.path.samestat(os.fstat(owner), os.stat("/proc/self/ns/user")):
            namespaces.setns(owner, namespaces.CLONE_NEWUSER)
    finally:
        os.close(owner)


def become(uid: int, gid: int | None) -> None:
    """Takes on an identity for good."""
    assert gid is not None
    if os.geteuid() == 0 and not _in_user_namespace():
        os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _in_user_namespace() -> bool:
    """Where setgroups may be forbidden, and supplementary groups were dropped before."""
    with open("/proc/self/setgroups") as file:
        return file.read().strip() == "deny"


def become_root(users: int) -> None:
    """That of a user namespace which root has made; there, nobody makes others."""
    os.setgroups([])
    namespaces.setns(users, namespaces.CLONE_NEWUSER)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    namespaces.forbid_user_namespaces()


def give_up_privileges(kept: int = 0) -> None:
    """But for the capabilities `kept`. The bounding set went before: that takes a capability."""
    namespaces.set_no_new_privileges()
    namespaces.drop_capabilities(kept)


def open_terminal(size: list[int]) -> tuple[int, int]:
    """A pseudo-terminal of the file system we are in now, so that programs find its name."""
    ours = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(ours, _TIOCSPTLCK, struct.pack("i", 0))
    theirs = fcntl.ioctl(ours, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    return ours, theirs


def take_terminal(terminal: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def show_shared_memory(folder: str) -> bool:
    """Puts a folder on /dev/shm, for ourselves and what comes of us; False where that is
    forbidden. What is mounted and unmounted on the host is so for us too."""
    try:
        namespaces.unshare(namespaces.CLONE_NEWNS)
        namespaces.set_propagation(namespaces.MS_SLAVE)
        mount = mounts.clone_mount(folder)
        try:
            mounts.distrust(mount)
            mounts.attach(mount, SHARED_MEMORY)
        finally:
            os.close(mount)
    except OSError:
        return False
    return True


def apply_landlock(rules: landlock.Rules, *, shared_memory: bool) -> None:
    """Before the identity changes: the rules name paths that only we can open. Without
    `shared_memory` what is there is the machine's, and out of reach whatever they say."""
    namespaces.set_no_new_privileges()
    if not shared_memory:
        rules["write"] = [path for path in rules["write"] if path != SHARED_MEMORY]
    landlock.restrict(rules)


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
