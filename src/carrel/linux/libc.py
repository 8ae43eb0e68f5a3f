"""The one door to the C library: system calls that Python has no function for."""

from __future__ import annotations

import ctypes
import os
import platform

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
# Holds the interpreter's lock during the call: for raw clone, where the child
# must find the lock as its own.
_libc_locked = ctypes.PyDLL(None, use_errno=True)
_libc_locked.syscall.restype = ctypes.c_long

_X86_64 = {
    "clone": 56,
    "pivot_root": 155,
    "quotactl": 179,
    "capset": 126,
    "capget": 125,
    "keyctl": 250,
    "seccomp": 317,
    "pidfd_send_signal": 424,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "pidfd_open": 434,
    "close_range": 436,
    "openat2": 437,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}
_GENERIC = {  # aarch64, riscv64: the unified table
    **_X86_64,
    "clone": 220,
    "pivot_root": 41,
    "quotactl": 60,
    "capget": 90,
    "capset": 91,
    "keyctl": 219,
    "seccomp": 277,
}

MACHINE = platform.machine()
NUMBERS = _X86_64 if MACHINE == "x86_64" else _GENERIC


def fail(what: str) -> OSError:
    """The error that `errno` holds, naming the call."""
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def _convert(argument: object) -> object:
    if isinstance(argument, int):
        return ctypes.c_long(argument)
    return argument


def syscall(name: str, *arguments: object) -> int:
    """A raw system call by name; raises OSError."""
    result: int = _libc.syscall(ctypes.c_long(NUMBERS[name]), *map(_convert, arguments))
    if result < 0:
        raise fail(name)
    return result


def syscall_locked(name: str, *arguments: object) -> int:
    """As `syscall`, without letting go of the interpreter's lock."""
    result: int = _libc_locked.syscall(ctypes.c_long(NUMBERS[name]), *map(_convert, arguments))
    if result < 0:
        raise fail(name)
    return result


def call(name: str, *arguments: object) -> int:
    """A function of the C library that answers -1 on failure; raises OSError."""
    result: int = getattr(_libc, name)(*map(_convert, arguments))
    if result < 0:
        raise fail(name)
    return result
