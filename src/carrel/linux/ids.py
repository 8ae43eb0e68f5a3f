"""Which host users own what Carrel keeps and runs, and maps that show one as another.

As root, bases on disk belong to one unprivileged user of their own, and every sandbox
runs as another; both are numbers that no account has. As an ordinary user everything is
that user's.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from carrel.linux.libc import call, fail

FIRST_UID = 1_900_000_000
"""Above all that distributions, subuid ranges and systemd hand out, below 2^31."""
UIDS = 1_000_000
_SMALL_UIDS = 4096


@contextlib.contextmanager
def files_as(uid: int, gid: int) -> Iterator[bool]:
    """For root: what this thread makes and reaches within is another user's, with that user's
    rights and no more. Threads that are there go on as they are; none may be started within, since
    it would be that user for good. False: that cannot be."""
    if max(uid, gid) >= 1 << 31:
        yield False
        return
    own_gid = call("setfsgid", gid)
    own_uid = call("setfsuid", uid)
    try:
        # They say only what was before; an id that nobody can be asks.
        yield (call("setfsuid", -1), call("setfsgid", -1)) == (uid, gid)
    finally:
        call("setfsuid", own_uid)
        call("setfsgid", own_gid)


def uid_range() -> range:
    """The ids that may be used: the first is the store's, the others are for sandboxes.

    In a container whose user namespace does not map the usual range, the upper end of
    what it maps is taken.
    """
    top = 0
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, _outside, count = map(int, line.split())
        if inside <= FIRST_UID and inside + count >= FIRST_UID + UIDS:
            return range(FIRST_UID, FIRST_UID + UIDS)
        top = max(top, inside + count)
    if top > _SMALL_UIDS * 2:
        return range(top - _SMALL_UIDS - 2, top - 2)
    return range(os.getuid(), os.getuid() + 1)


def store_uid() -> int:
    """Whom everything in the bases belongs to on disk."""
    return uid_range()[0] if os.geteuid() == 0 else os.geteuid()


def store_gid() -> int:
    return uid_range()[0] if os.geteuid() == 0 else os.getegid()


# Maps of ids
#
# A user namespace is born with a process. Ours does nothing but end: it shares our memory,
# so nothing is copied, and runs one harmless function of the C library, no Python. Until it
# is reaped, its namespace can be given a map and opened.

_CLONE_VM = 0x100
_CLONE_NEWUSER = 0x10000000
_WALL = 0x40000000
"""Waits also for a child that sends no signal when it ends, as ours: nobody else in this
process shall hear of it."""
_STACK = 1 << 14
_SIGNAL_SET = 128
"""Bytes of a set of signals, as the C library has it."""
_ALL_SIGNALS = b"\xff" * _SIGNAL_SET

_libc = ctypes.CDLL(None, use_errno=True)


def make_id_map(inside: tuple[int, int], outside: tuple[int, int]) -> int:
    """A descriptor of a user namespace in which the uid and gid `inside` (as on disk) are
    `outside`'s (as shown); for root. The caller closes it. Takes a tenth of a millisecond.
    """
    with mmap.mmap(-1, _STACK) as stack:
        # No signal may find the child: its handlers are ours, and so is its memory.
        # By the C library: Python's own makes an enum of each of the 62, twice.
        mask = ctypes.create_string_buffer(_SIGNAL_SET)
        _libc.pthread_sigmask(signal.SIG_SETMASK, _ALL_SIGNALS, mask)
        try:
            child = _start(stack)
        finally:
            _libc.pthread_sigmask(signal.SIG_SETMASK, mask, None)
        try:
            for kind, before, after in zip(("uid", "gid"), inside, outside, strict=True):
                _write_map(f"/proc/{child}/{kind}_map", b"%d %d 1" % (before, after))
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


def _write_map(path: str, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
