"""Finding a pipe again in the processes that have it open."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable

_FIRST = ("1", "2")
"""Where a process that did nothing special has its output."""
_MODE = 0o600


def open_pipe(inode: int, pids: Iterable[int]) -> int | None:
    """A reading, non-blocking end of the pipe with this inode; None when none of the
    processes has it, or they are not ours to look at."""
    wanted = f"pipe:[{inode}]"
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        for name in _descriptors(folder):
            with contextlib.suppress(OSError):
                if os.readlink(f"{folder}/{name}") == wanted:
                    found = _open(f"{folder}/{name}", inode)
                    if found is not None:
                        return found
    return None


def _descriptors(folder: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(names, key=lambda name: name not in _FIRST)


def _open(path: str, inode: int) -> int | None:
    """What the process has there may have changed since; nothing else is ever opened."""
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if found.st_ino != inode or not stat.S_ISFIFO(found.st_mode):
            return None
        if found.st_uid == os.geteuid():
            # The command, whose pipe it is too, may have shut us out.
            os.chmod(f"/proc/self/fd/{handle}", _MODE)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(f"/proc/self/fd/{handle}", flags)
    finally:
        os.close(handle)
