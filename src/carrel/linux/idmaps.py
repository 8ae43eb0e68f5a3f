"""User namespaces that exist only to say which ids an id-mapped mount shows as which.

A user namespace is born with a process. Ours does nothing but end: it shares our memory,
so nothing is copied, and runs one harmless function of the C library, no Python. Until it
is reaped, its namespace can be given a map and opened.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal

from carrel.linux.libc import fail

_CLONE_VM = 0x100
_CLONE_NEWUSER = 0x10000000
_WALL = 0x40000000
"""Waits also for a child that sends no signal when it ends, as ours: nobody else in this
process shall hear of it."""
_STACK = 1 << 14

_libc = ctypes.CDLL(None, use_errno=True)


def make_id_map(inside: tuple[int, int], outside: tuple[int, int]) -> int:
    """A descriptor of a user namespace in which the uid and gid `inside` (as on disk) are
    `outside`'s (as shown); for root. The caller closes it. Takes a tenth of a millisecond.
    """
    with mmap.mmap(-1, _STACK) as stack:
        # No signal may find the child: its handlers are ours, and so is its memory.
        mask = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        try:
            child = _start(stack)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            for kind, before, after in zip(("uid", "gid"), inside, outside, strict=True):
                _write(f"/proc/{child}/{kind}_map", b"%d %d 1" % (before, after))
            return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.waitpid(child, _WALL)


def _start(stack: mmap.mmap) -> int:
    view = ctypes.c_char.from_buffer(stack)
    top = ctypes.c_void_p(ctypes.addressof(view) + _STACK)
    del view  # else the memory could not be given back
    function = ctypes.cast(_libc.abs, ctypes.c_void_p)
    child: int = _libc.clone(function, top, _CLONE_VM | _CLONE_NEWUSER, None)
    if child < 0:
        raise fail("clone")
    return child


def _write(path: str, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
