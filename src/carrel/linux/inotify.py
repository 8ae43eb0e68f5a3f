"""Being told when a file changes."""

from __future__ import annotations

import os
import struct

from carrel.linux import libc

MODIFY = 0x2
OVERFLOW = 0x4000
"""Some events were lost; the kernel sends this without being asked."""
IGNORED = 0x8000
"""A watch is gone, because it was removed or its file was."""

_EVENT = struct.Struct("iIII")
_BUFFER = 16 * 1024
"""Some hundreds of events. One is 16 bytes: a watched file's events carry no name."""


def open_queue() -> int:
    """A non-blocking descriptor that watches are added to. EMFILE: the user has too many."""
    return libc.call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)


def add_watch(queue: int, path: str, mask: int) -> int:
    """The number of the watch: the same for the same file. ENOSPC: the user has too many."""
    return libc.call("inotify_add_watch", queue, os.fsencode(path), mask)


def remove_watch(queue: int, watch: int) -> None:
    libc.call("inotify_rm_watch", queue, watch)


def read_events(queue: int) -> list[tuple[int, int]]:
    """The watch and the mask of each event that waits; raises `BlockingIOError` for none."""
    found = []
    content = os.read(queue, _BUFFER)
    at = 0
    while at < len(content):
        watch, mask, _cookie, length = _EVENT.unpack_from(content, at)
        found.append((watch, mask))
        at += _EVENT.size + length
    return found
