"""System calls and devices that lead into the kernel, mounts, and namespaces."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import time
from collections.abc import Sequence

from carrel.launcher.probes.attempt import HIDDEN, Attempt, Targets, number, scratch
from carrel.launcher.probes.numbers import NUMBERS, syscall
from carrel.linux import libc

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
    anchor = os.open("/usr", os.O_RDONLY | os.O_CLOEXEC)
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
    if "iopl" not in NUMBERS:
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
    libc.call("syscall", _X32_BIT | NUMBERS["fsopen"], b"tmpfs", 1)
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
    Attempt("mount a file system", _mount),
    Attempt("bind a folder", _bind),
    Attempt("remount /usr for writing", _remount),
    Attempt("unmount /proc", _unmount),
    Attempt("open a file system (fsopen)", _fsopen),
    Attempt("clone a mount (open_tree)", _open_tree),
    Attempt("change the root (pivot_root)", _pivot_root),
    Attempt("change the root (chroot)", _chroot),
    Attempt("make a device", _make_device),
    Attempt("open {}", _open_device, _devices, HIDDEN),
    Attempt("add a key", _add_key),
    Attempt("read the session's keyring", _session_keyring),
    Attempt("search the keyrings", _request_key),
    Attempt("make a BPF map", _bpf),
    Attempt("open a performance counter", _perf),
    Attempt("handle page faults (userfaultfd)", _userfaultfd),
    Attempt("set up io_uring", _io_uring),
    Attempt("open a file by handle", _file_handle),
    Attempt("load a kernel module", _load_module),
    Attempt("load a kernel (kexec)", _kexec),
    Attempt("reboot", _reboot),
    Attempt("read the kernel's log", _kernel_log),
    Attempt("set the clock", _set_clock),
    Attempt("make all memory executable", _personality),
    Attempt("use I/O ports", _io_ports),
    Attempt("ask a terminal for {}", _terminal, _terminal_calls),
    Attempt("pass the filter as x32", _x32),
    Attempt("enter other namespaces", _enter, refusals=HIDDEN),
    Attempt("make a user namespace (clone)", _clone),
    Attempt("make a user namespace (clone3)", _clone3),
)
