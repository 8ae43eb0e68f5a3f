"""System calls and devices that lead into the kernel, mounts, and namespaces."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import time
from collections.abc import Sequence

from carrel.launcher.probes.attempt import (
    DENIED,
    HIDDEN,
    ONLY_BUBBLEWRAP,
    ProbeAttempt,
    ProbeRefused,
    Targets,
    number,
    scratch,
)
from carrel.linux import libc
from carrel.linux.libc import syscall

_MS_RDONLY = 0x1
_MS_REMOUNT = 0x20
_MS_BIND = 0x1000
_MNT_DETACH = 0x2
_MNT_EXPIRE = 0x4
_OPEN_TREE_CLONE = 0x1
_CLONE_NEWUSER = 0x10000000
_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C
_KEYRING_OF_PROCESS = -2
_KEYRING_OF_SESSION = -3
_SYSLOG_SIZE_BUFFER = 10
_READ_IMPLIES_EXEC = 0x0400000
_ASK_PERSONALITY = 0xFFFFFFFF
_UFFD_USER_MODE_ONLY = 1
_X32_BIT = 0x40000000

_DEVICES = ("mem", "kmem", "port", "kmsg", "kvm", "fuse", "loop-control", "net/tun", "tty0")


def _mount(targets: Targets, _subject: str) -> str:
    where = os.fsencode(scratch(targets))
    libc.call("mount", b"none", where, b"tmpfs", 0, None)
    libc.call("umount2", where, _MNT_DETACH)
    return "mounted a tmpfs"


def _bind(targets: Targets, _subject: str) -> str:
    where = os.fsencode(scratch(targets))
    libc.call("mount", b"/", where, None, _MS_BIND, None)
    libc.call("umount2", where, _MNT_DETACH)
    return "bound / elsewhere"


def _remount(_targets: Targets, _subject: str) -> str:
    libc.call("mount", None, b"/usr", None, _MS_REMOUNT | _MS_BIND, None)
    libc.call("mount", None, b"/usr", None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY, None)
    return "made /usr writable"


def _unmount(_targets: Targets, _subject: str) -> str:
    # MNT_EXPIRE only marks: who may unmount is told EAGAIN, and nothing has happened.
    try:
        syscall("umount2", b"/proc", _MNT_EXPIRE)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EBUSY, errno.EINVAL):
            return f"may unmount ({errno.errorcode[error.errno]})"
        raise
    return "unmounted"


def _fsopen(_targets: Targets, _subject: str) -> str:
    os.close(syscall("fsopen", b"tmpfs", 1))
    return "opened a file system"


def _open_tree(_targets: Targets, _subject: str) -> str:
    os.close(syscall("open_tree", libc.AT_FDCWD, b"/", _OPEN_TREE_CLONE | os.O_CLOEXEC))
    return "cloned a mount"


def _pivot_root(_targets: Targets, _subject: str) -> str:
    syscall("pivot_root", b"/.carrel-probe", b"/.carrel-probe")
    return "changed the root"


def _chroot(_targets: Targets, _subject: str) -> str:
    os.chroot("/")
    return "changed the root"


def _make_device(targets: Targets, _subject: str) -> str:
    path = f"{scratch(targets)}/.carrel-probe-device-{os.getpid()}"
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 1))
    os.unlink(path)
    return "made /dev/mem"


def _devices(_targets: Targets) -> Sequence[str]:
    """Those that reach the kernel, and every disk that it lists."""
    return [f"/dev/{name}" for name in (*_DEVICES, *_disks())]


def _disks() -> list[str]:
    try:
        with open("/proc/partitions", encoding="utf-8") as partitions:
            rows = [line.split() for line in partitions]
    except OSError as error:
        if error.errno in HIDDEN:
            return []
        raise
    return [row[3] for row in rows[1:] if len(row) == 4]


def _open_device(_targets: Targets, path: str) -> str:
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    return "opened"


def _add_key(_targets: Targets, _subject: str) -> str:
    # The process's own keyring ends with the process.
    syscall("add_key", b"user", b"carrel-probe", b"x", 1, _KEYRING_OF_PROCESS)
    return "added a key"


def _session_keyring(_targets: Targets, _subject: str) -> str:
    return f"keyring {syscall('keyctl', 0, _KEYRING_OF_SESSION, 0)}"


def _request_key(_targets: Targets, _subject: str) -> str:
    try:
        syscall("request_key", b"user", b"carrel-probe", None, 0)
    except OSError as error:
        if error.errno == errno.ENOKEY:
            return "searched the keyrings"
        raise
    return "found a key"


def _bpf(_targets: Targets, _subject: str) -> str:
    # BPF_MAP_CREATE of an array of one: type, key size, value size, entries.
    attributes = (ctypes.c_uint32 * 32)(2, 4, 4, 1)
    os.close(syscall("bpf", 0, ctypes.byref(attributes), ctypes.sizeof(attributes)))
    return "made a BPF map"


def _perf(_targets: Targets, _subject: str) -> str:
    # A software event (its task clock) of this process alone, without the kernel.
    attributes = (ctypes.c_uint64 * 16)(1 | 128 << 32, 1)
    attributes[5] = 1 << 5 | 1 << 6
    os.close(syscall("perf_event_open", ctypes.byref(attributes), 0, -1, -1, 0))
    return "opened a performance counter"


def _userfaultfd(_targets: Targets, _subject: str) -> str:
    os.close(syscall("userfaultfd", _UFFD_USER_MODE_ONLY))
    return "opened"


def _io_uring(_targets: Targets, _subject: str) -> str:
    parameters = (ctypes.c_uint32 * 32)()
    os.close(syscall("io_uring_setup", 1, ctypes.byref(parameters)))
    return "set up a ring"


def _file_handle(_targets: Targets, _subject: str) -> str:
    """Opens a file past every folder on the way. The handle is made up: who may try is told
    that it is stale."""
    handle = (ctypes.c_uint32 * 4)(8, 1)
    anchor = os.open("/", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.close(syscall("open_by_handle_at", anchor, ctypes.byref(handle), os.O_RDONLY))
    finally:
        os.close(anchor)
    return "opened a file by its handle"


def _load_module(_targets: Targets, _subject: str) -> str:
    syscall("init_module", None, 0, b"")
    return "loaded a module"


def _kexec(_targets: Targets, _subject: str) -> str:
    # More segments than there can be: for those who may it is EINVAL, and nothing loads.
    syscall("kexec_load", 0, 1 << 20, None, 0)
    return "loaded a kernel"


def _reboot(_targets: Targets, _subject: str) -> str:
    # Without the magic numbers: for those who may it is EINVAL, and nothing happens.
    syscall("reboot", 0, 0, 0, None)
    return "may reboot"


def _kernel_log(_targets: Targets, _subject: str) -> str:
    return f"{syscall('syslog', _SYSLOG_SIZE_BUFFER, None, 0)} bytes of kernel log"


def _set_clock(_targets: Targets, _subject: str) -> str:
    time.clock_settime(time.CLOCK_REALTIME, time.time())
    return "set the clock"


def _personality(_targets: Targets, _subject: str) -> str:
    before = libc.call("personality", _ASK_PERSONALITY)
    libc.call("personality", before | _READ_IMPLIES_EXEC)
    libc.call("personality", before)
    return "made all memory executable"


def _io_ports(_targets: Targets, _subject: str) -> str:
    if "iopl" not in libc.HERE:
        raise OSError(errno.ENOSYS, "no such call on this machine")
    syscall("iopl", 3)
    return "got the I/O ports"


def _terminal_calls(_targets: Targets) -> Sequence[str]:
    return ("TIOCSTI", "TIOCLINUX", "TIOCSTI with a high bit")


def _terminal(_targets: Targets, name: str) -> str:
    """On something that is no terminal: who may ask is told ENOTTY. The kernel looks only
    at the lower half of the number, so a filter must, too."""
    request = {"TIOCSTI": _TIOCSTI, "TIOCLINUX": _TIOCLINUX}.get(name, _TIOCSTI | 1 << 32)
    here, there = os.pipe()
    try:
        libc.call("ioctl", here, request, b"x")
    except OSError as error:
        if error.errno == errno.ENOTTY:
            return "the kernel was asked"
        raise
    finally:
        os.close(here)
        os.close(there)
    return "pushed a key"


def _x32(_targets: Targets, _subject: str) -> str:
    libc.call("syscall", _X32_BIT | libc.HERE["fsopen"], b"tmpfs", 1)
    return "passed the filter"


def _enter(targets: Targets, _subject: str) -> str:
    """The namespaces of the first process that is seen, and of one outside."""
    refusal: OSError | None = None
    for pid in (number(targets, "host_pid"), 1):
        for kind in ("user", "mnt", "pid", "net"):
            try:
                descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    libc.call("setns", descriptor, 0)
                finally:
                    os.close(descriptor)
                return f"entered /proc/{pid}/ns/{kind}"
            except OSError as error:
                if error.errno not in HIDDEN:
                    raise
                refusal = error
    assert refusal is not None
    raise refusal


def _clone(_targets: Targets, _subject: str) -> str:
    child = libc.syscall_locked("clone", _CLONE_NEWUSER | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return "made a user namespace"


def _clone3(_targets: Targets, _subject: str) -> str:
    """Its flags are in memory, where no filter sees them: it must not be there at all.
    An invalid size makes it fail harmlessly where it is."""
    syscall("clone3", None, 0)
    return "made a process"


ATTEMPTS = (
    ProbeAttempt("mount a file system", _mount),
    ProbeAttempt("bind a folder", _bind),
    ProbeAttempt("remount /usr for writing", _remount),
    ProbeAttempt("unmount /proc", _unmount),
    ProbeAttempt("open a file system (fsopen)", _fsopen),
    ProbeAttempt("clone a mount (open_tree)", _open_tree),
    ProbeAttempt("change the root (pivot_root)", _pivot_root),
    ProbeAttempt("change the root (chroot)", _chroot),
    ProbeAttempt("make a device", _make_device),
    ProbeAttempt("open {}", _open_device, _devices, HIDDEN),
    ProbeAttempt("add a key", _add_key),
    ProbeAttempt("read the session's keyring", _session_keyring),
    ProbeAttempt("search the keyrings", _request_key),
    ProbeAttempt("make a BPF map", _bpf),
    ProbeAttempt("open a performance counter", _perf),
    ProbeAttempt("handle page faults (userfaultfd)", _userfaultfd),
    ProbeAttempt("set up io_uring", _io_uring),
    ProbeAttempt("open a file by handle", _file_handle),
    ProbeAttempt("load a kernel module", _load_module),
    ProbeAttempt("load a kernel (kexec)", _kexec),
    ProbeAttempt("reboot", _reboot),
    ProbeAttempt("read the kernel's log", _kernel_log),
    ProbeAttempt("set the clock", _set_clock),
    ProbeAttempt("make all memory executable", _personality),
    ProbeAttempt("use I/O ports", _io_ports),
    ProbeAttempt("ask a terminal for {}", _terminal, _terminal_calls),
    ProbeAttempt("pass the filter as x32", _x32),
    ProbeAttempt("enter other namespaces", _enter, refusals=HIDDEN),
    ProbeAttempt("make a user namespace (clone)", _clone),
    ProbeAttempt("make a user namespace (clone3)", _clone3),
)


# What the process is, and what it could become. These come last: one that got through would
# change the ground of all that follow.

_WANTED = {
    "CapInh": 0,
    "CapPrm": 0,
    "CapEff": 0,
    "CapAmb": 0,
    "NoNewPrivs": 1,
    "Seccomp": 2,
}
_BOUNDING_SET = "CapBnd"
"""Which only a privileged process can empty. Where a runtime has no user namespace to be
privileged in, no-new-privileges alone sees to it that it gives nothing."""
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_SYS_ADMIN = 21
_PR_SET_NO_NEW_PRIVS = 38
_NAMESPACES = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "time": 0x00000080,
    "user": 0x10000000,
}


def _fields(_targets: Targets) -> Sequence[str]:
    return tuple(_WANTED)


def _bounding_set(_targets: Targets) -> Sequence[str]:
    return (_BOUNDING_SET,)


_KEPT = ("CapPrm", "CapEff", _BOUNDING_SET)


def _status(targets: Targets, field: str) -> str:
    wanted = _WANTED.get(field, 0)
    if field in _KEPT and targets.get("capabilities"):
        wanted = int(str(targets["capabilities"]))
    with open("/proc/self/status", encoding="utf-8") as status:
        for line in status:
            key, _colon, value = line.partition(":")
            if key == field:
                if int(value, 16) == wanted:
                    raise ProbeRefused(value.strip())
                return f"{value.strip()}, not {wanted}"
    return "the kernel does not say"


def _is_root(targets: Targets, _subject: str) -> str:
    """By another name too: who is root outside is the owner of what the system owns. The files of
    an image are the space's own."""
    ids = (*os.getresuid(), *os.getresgid())
    if 0 in ids:
        return f"ids {ids}"
    if not targets.get("own_root") and os.stat("/usr").st_uid == os.getuid():
        return "owns /usr"
    raise ProbeRefused(f"uid {os.getuid()}")


def _host_root(_targets: Targets, _subject: str) -> str:
    """Whoever is root in here is somebody else outside."""
    with open("/proc/self/uid_map", encoding="utf-8") as lines:
        found = [tuple(map(int, line.split())) for line in lines]
    if not found or any(outside == 0 for _inside, outside, _count in found):
        return f"ids {found}"
    raise ProbeRefused(f"root is {found[0][1]} outside")


def _no_new_privileges(_targets: Targets, _subject: str) -> str:
    libc.call("prctl", _PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0)
    return "cleared"


def _set_user(_targets: Targets, _subject: str) -> str:
    os.setresuid(0, 0, 0)
    return "is root"


def _set_group(_targets: Targets, _subject: str) -> str:
    os.setresgid(0, 0, 0)
    return "is of root's group"


def _set_groups(_targets: Targets, _subject: str) -> str:
    os.setgroups([0])
    return "is of root's group"


def _take_capability(_targets: Targets, _subject: str) -> str:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    bit = 1 << _CAP_SYS_ADMIN
    data = (ctypes.c_uint32 * 6)(bit, bit, 0, 0, 0, 0)
    syscall("capset", ctypes.byref(header), ctypes.byref(data))
    return "has CAP_SYS_ADMIN"


def _namespaces(_targets: Targets) -> Sequence[str]:
    return tuple(_NAMESPACES)


def _unshare(_targets: Targets, kind: str) -> str:
    libc.call("unshare", _NAMESPACES[kind])
    return "made"


_DENIED_OR_UNMAPPED = DENIED | {errno.EINVAL}
"""An id that the user namespace does not map is EINVAL."""

PRIVILEGE_ATTEMPTS = (
    ProbeAttempt("{} of the sandbox", _status, _fields),
    ProbeAttempt("{} of the sandbox", _status, _bounding_set, runtimes=ONLY_BUBBLEWRAP),
    ProbeAttempt("be root", _is_root, own_ids=False),
    ProbeAttempt("be root of the host", _host_root, in_ranges=True),
    ProbeAttempt("clear no-new-privileges", _no_new_privileges, refusals=_DENIED_OR_UNMAPPED),
    ProbeAttempt("take a capability", _take_capability),
    ProbeAttempt("become root", _set_user, refusals=_DENIED_OR_UNMAPPED, own_ids=False),
    ProbeAttempt(
        "become a member of root's group", _set_group, refusals=_DENIED_OR_UNMAPPED, own_ids=False
    ),
    ProbeAttempt("set the groups", _set_groups, refusals=_DENIED_OR_UNMAPPED, own_ids=False),
    ProbeAttempt("make a {} namespace", _unshare, _namespaces, DENIED | {errno.EINVAL}),
)
