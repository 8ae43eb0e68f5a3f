"""Entering and making namespaces, and giving up privileges."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import struct

from carrel.linux import libc

CLONE_FS = 0x00000200
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
CLONE_PARENT = 0x00008000
SIGCHLD = 17

MS_REC = 0x4000
_MS_NOSUID = 2
_MS_NODEV = 4
_MS_NOEXEC = 8
_MS_REMOUNT = 32
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
_NS_GET_USERNS = 0xB701
_KEYCTL_JOIN_SESSION_KEYRING = 1


def unshare(flags: int) -> None:
    libc.call("unshare", flags)


def leave_umask() -> bool:
    """For a thread that ends soon: files that it makes have the modes that it asks for, while the
    others keep their umask. False: a filter forbids that."""
    try:
        unshare(CLONE_FS)
    except OSError:
        return False
    os.umask(0)
    return True


def unshare_user(more: int = 0) -> None:
    """Enters a user namespace of our own, with the same ids, and `more` namespaces."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER | more)
    maps = {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}
    for name, text in maps.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def setns(descriptor: int, flags: int = 0) -> None:
    libc.call("setns", descriptor, flags)


def owning_user_namespace(descriptor: int) -> int:
    """A descriptor of the user namespace that owns the namespace of `descriptor`."""
    return fcntl.ioctl(descriptor, _NS_GET_USERNS)


def set_propagation(flags: int) -> None:
    """For the whole mount tree of this namespace."""
    libc.call("mount", None, b"/", None, ctypes.c_ulong(flags | MS_REC), None)


def mount_tmpfs(target: str, options: str) -> None:
    """A small file system in memory, without set-user-id programs and devices."""
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
    libc.call("mount", b"tmpfs", target.encode(), b"tmpfs", flags, options.encode())


def bound_terminals(folder: str, most: int) -> None:
    """So many may there be in one mount of pseudo-terminals, of those that the machine has."""
    flags = ctypes.c_ulong(_MS_REMOUNT | _MS_NOSUID | _MS_NOEXEC)
    # As bubblewrap mounts it: what is not said is set back.
    options = f"ptmxmode=0666,mode=620,max={most}"
    libc.call("mount", None, folder.encode(), None, flags, options.encode())


def fork_to_parent() -> int:
    """As fork, but the child is our parent's child: a fork server enters a pid namespace in
    a helper, and yet reaps the command itself. Only for single-threaded processes."""
    return libc.syscall_locked("clone", CLONE_PARENT | SIGCHLD, 0, 0, 0, 0)


def _prctl(option: int, *arguments: int) -> None:
    padded = [*arguments, 0, 0, 0, 0][:4]
    libc.call("prctl", option, *(ctypes.c_ulong(value) for value in padded))


def set_no_new_privileges() -> None:
    """From here on no execute gives this process more rights; cannot be undone."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def set_dumpable(dumpable: bool) -> None:
    """Not dumpable: no process of the same user may trace us or read our memory."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable))


def set_name(name: str) -> None:
    """As process lists show it; the kernel keeps 15 bytes."""
    libc.call("prctl", _PR_SET_NAME, ctypes.c_char_p(name.encode(errors="replace")))


def end_with_parent() -> None:
    """Killed when the thread that started this process ends. A change of rights undoes it."""
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def become_subreaper() -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def drop_bounding_set(kept: int = 0) -> None:
    """But for the bits of `kept`. Needs CAP_SETPCAP in the current user namespace; stops at the
    last known one."""
    for capability in range(64):
        if kept >> capability & 1:
            continue
        try:
            _prctl(_PR_CAPBSET_DROP, capability)
        except OSError:
            return


def drop_capabilities(kept: int = 0) -> None:
    """Clears the inheritable and ambient sets, and the effective and permitted ones but for the
    bits of `kept`."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = struct.pack("=II", _CAPABILITY_VERSION_3, 0)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    sets = struct.pack("=IIIIII", low, low, 0, high, high, 0)
    libc.syscall("capset", ctypes.c_char_p(header), ctypes.c_char_p(sets))


def forbid_user_namespaces() -> None:
    """In the one that we are in, where the machine lets us say so."""
    with contextlib.suppress(OSError), open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")


def join_new_keyring() -> None:
    """An empty session keyring, so that nobody's keys are inherited; where it is allowed."""
    try:
        libc.syscall("keyctl", _KEYCTL_JOIN_SESSION_KEYRING, None, 0, 0, 0)
    except OSError:
        # A surrounding filter (a container's) forbids keyrings: then there is nothing to inherit.
        return


def open_namespaces(pid: int, kinds: tuple[str, ...]) -> dict[str, int]:
    """Descriptors of the namespaces of a process; closes them all when one fails."""
    opened: dict[str, int] = {}
    try:
        for kind in kinds:
            opened[kind] = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        for descriptor in opened.values():
            os.close(descriptor)
        raise
    return opened
