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

from carrel.linux.libc import call, fail

FIRST_UID = 1_900_000_000
"""Above all that distributions, subuid ranges and systemd hand out, below 2^31."""
UIDS = 1_000_000
_SMALL_UIDS = 4096
FIRST_RANGE = FIRST_UID + UIDS
RANGE = 65_536
"""As many ids as the systems of images count with."""
RANGES = 3_700
"""Up to 2^31 there is room for a few more."""


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
    for inside, _outside, count in _own_map():
        if inside <= FIRST_UID and inside + count >= FIRST_UID + UIDS:
            return range(FIRST_UID, FIRST_UID + UIDS)
        top = max(top, inside + count)
    if top > _SMALL_UIDS * 2:
        return range(top - _SMALL_UIDS - 2, top - 2)
    return range(os.getuid(), os.getuid() + 1)


def image_ranges() -> range:
    """For root: the first ids of the ranges for sandboxes that have the ids of an image; empty
    where this user namespace maps none of them."""
    last = FIRST_RANGE + RANGE * RANGES
    if os.geteuid() == 0 and _maps(FIRST_RANGE, last):
        return range(FIRST_RANGE, last, RANGE)
    return range(0)


_range = False


def note_range() -> None:
    """This process has entered a namespace with the further ids of an ordinary user."""
    global _range
    _range = True


def may_give() -> bool:
    """Whether this process can give files to others, for good or in its namespace."""
    return _range or os.geteuid() == 0


def _maps(first: int, end: int) -> bool:
    return any(inside <= first and end <= inside + count for inside, _, count in _own_map())


def _own_map() -> list[list[int]]:
    # The launcher has this module too, and does without pathlib.
    with open("/proc/self/uid_map", encoding="ascii") as lines:
        return [[*map(int, line.split())] for line in lines]


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


IdLines = tuple[tuple[int, int, int], ...]
"""Lines of a map: the first id inside (as on disk), the first outside (as shown), how many."""


def _lines_of(own: int, host: int, first: int) -> IdLines:
    """All ids of an image from `first` on, but `own`, which is `host`."""
    parts = ((0, first, own), (own, host, 1), (own + 1, first + own + 1, RANGE - own - 1))
    return tuple(part for part in parts if part[2])


def open_ids(own: tuple[int, int], host: tuple[int, int], first: int) -> int:
    """A user namespace with the ids of an image from `first` on, but for the uid and gid `own`,
    which are `host`. As `make_user_namespace`."""
    uids, gids = (_lines_of(one, other, first) for one, other in zip(own, host, strict=True))
    return make_user_namespace(uids, gids)


def fork_ids(own: tuple[int, int], host: tuple[int, int], first: int) -> int:
    """As `open_ids`, for an ordinary user in a namespace that has all of these. What has ended is
    root's in /proc, whatever it was: so the child lives until its maps are written. For processes
    with one thread."""
    said, say = os.pipe2(os.O_CLOEXEC)
    wait, go = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            os.close(go)
            call("unshare", _CLONE_NEWUSER)
            os.write(say, b"x")
            os.read(wait, 1)
        finally:
            os._exit(0)
    for descriptor in (say, wait):
        os.close(descriptor)
    try:
        if not os.read(said, 1):
            raise OSError("no user namespace can be made")
        for kind, one, other in zip(("uid", "gid"), own, host, strict=True):
            _write_map(f"/proc/{child}/{kind}_map", _text(_lines_of(one, other, first)))
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for descriptor in (said, go):
            os.close(descriptor)
        os.waitpid(child, 0)


def make_id_map(inside: tuple[int, int], outside: tuple[int, int]) -> int:
    """As `make_user_namespace`, for one uid and one gid."""
    uids, gids = (((before, after, 1),) for before, after in zip(inside, outside, strict=True))
    return make_user_namespace(uids, gids)


def make_user_namespace(uids: IdLines, gids: IdLines) -> int:
    """A descriptor of a user namespace with these maps; for root. The caller closes it. Takes a
    tenth of a millisecond."""
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
            for kind, lines in (("uid", uids), ("gid", gids)):
                _write_map(f"/proc/{child}/{kind}_map", _text(lines))
            return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.waitpid(child, _WALL)


def _text(lines: IdLines) -> bytes:
    return "".join(f"{before} {after} {count}\n" for before, after, count in lines).encode()


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
