"""Namespaces: new ones, in which one would be root, and those of others."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal

from tests.runtimes.escapes.inside import (
    NAMESPACE,
    NUMBERS,
    ROOT,
    USER,
    X86_64,
    Targets,
    call,
    escape,
    first_success,
    syscall,
)

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
NS_GET_PARENT = 0xB702
KINDS = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
USER_NAMESPACES = ("kernel/apparmor_restrict_unprivileged_userns", ("0",))


def unshare(flag: int) -> str:
    call("unshare", flag)
    return "made one"


@escape("namespaces.new_user", USER, setting=USER_NAMESPACES)
def new_user(_targets: Targets) -> str:
    return unshare(CLONE_NEWUSER)


@escape("namespaces.new_mount", NAMESPACE)
def new_mount(_targets: Targets) -> str:
    return unshare(0x00020000)


@escape("namespaces.new_pid", NAMESPACE)
def new_pid(_targets: Targets) -> str:
    return unshare(0x20000000)


@escape("namespaces.new_net", NAMESPACE)
def new_net(_targets: Targets) -> str:
    return unshare(CLONE_NEWNET)


@escape("namespaces.new_ipc", NAMESPACE)
def new_ipc(_targets: Targets) -> str:
    return unshare(0x08000000)


@escape("namespaces.new_uts", NAMESPACE)
def new_uts(_targets: Targets) -> str:
    return unshare(0x04000000)


@escape("namespaces.new_cgroup", NAMESPACE)
def new_cgroup(_targets: Targets) -> str:
    return unshare(0x02000000)


@escape("namespaces.new_time", NAMESPACE)
def new_time(_targets: Targets) -> str:
    return unshare(0x00000080)


@escape("namespaces.clone", USER, setting=USER_NAMESPACES)
def clone(_targets: Targets) -> str:
    return reap(syscall("clone", CLONE_NEWUSER | signal.SIGCHLD, 0, 0, 0, 0))


@escape("namespaces.clone_with_high_bits", USER, setting=USER_NAMESPACES)
def clone_with_high_bits(_targets: Targets) -> str:
    """The kernel looks at the lower half of the flags only; a filter that compares all of
    them would let this through."""
    return reap(syscall("clone", 1 << 32 | CLONE_NEWUSER | signal.SIGCHLD, 0, 0, 0, 0))


@escape("namespaces.clone3", USER, setting=USER_NAMESPACES)
def clone3(_targets: Targets) -> str:
    """Its flags lie in memory, where no filter can look at them."""
    wanted = (ctypes.c_uint64 * 8)(CLONE_NEWUSER, 0, 0, 0, signal.SIGCHLD)
    return reap(syscall("clone3", ctypes.byref(wanted), ctypes.sizeof(wanted)))


def reap(child: int) -> str:
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return "made a process in another user namespace"


@escape("namespaces.enter_those_of_the_first_process", also=(errno.EINVAL,))
def enter_those_of_the_first_process(_targets: Targets) -> str:
    """EINVAL: the user namespace that one is in already."""
    return first_success(enter, [f"/proc/1/ns/{kind}" for kind in KINDS[1:]])


@escape("namespaces.enter_those_outside", ROOT, also=(errno.ENOENT,))
def enter_those_outside(targets: Targets) -> str:
    return first_success(enter, [f"/proc/{targets.victim}/ns/{kind}" for kind in ("net", "uts")])


def enter(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY)
    call("setns", descriptor, 0)
    return "entered"


@escape("namespaces.enter_by_pidfd", ROOT, also=(errno.ESRCH,))
def enter_by_pidfd(targets: Targets) -> str:
    call("setns", syscall("pidfd_open", targets.victim, 0), CLONE_NEWNET)
    return "entered"


@escape("namespaces.enter_the_parent")
def enter_the_parent(_targets: Targets) -> str:
    """The namespace around one's own, by the kernel's own map of them."""

    def up(kind: str) -> str:
        own = os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)
        parent = fcntl.ioctl(own, NS_GET_PARENT)
        call("setns", parent, 0)
        return "entered"

    return first_success(up, ("user", "pid"))


@escape("namespaces.through_the_32_bit_door", USER, setting=USER_NAMESPACES)
def through_the_32_bit_door(_targets: Targets) -> str:
    """unshare with its number of i386: a filter that looks at numbers only sees another."""
    if not X86_64:
        raise OSError(errno.ENOSYS, "no such door on this machine")
    # mov eax, 310; mov ebx, CLONE_NEWUSER; int 0x80; with rbx kept for the caller
    code = b"\x53\xb8\x36\x01\x00\x00\xbb\x00\x00\x00\x10\xcd\x80\x5b\xc3"
    result = run_code(code)
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return "made a user namespace"


def run_code(code: bytes) -> int:
    page = ctypes.CDLL(None, use_errno=True)
    page.mmap.restype = ctypes.c_void_p
    page.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    address = page.mmap(None, 4096, 7, 0x22, -1, 0)
    ctypes.memmove(address, code, len(code))
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(address)())


@escape("namespaces.through_the_x32_door")
def through_the_x32_door(_targets: Targets) -> str:
    if not X86_64:
        raise OSError(errno.ENOSYS, "no such door on this machine")
    call("syscall", 0x40000000 | NUMBERS["fsopen"], b"tmpfs", 0)
    return "passed the filter"
