"""File descriptors: closed in time, and waited for."""

from __future__ import annotations

import os
import select


class Descriptor:
    """Closes a file descriptor when the block ends: `with Descriptor(os.open(…)) as folder:`."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_error: object) -> None:
        os.close(self._fd)


def is_readable(fd: int, within_s: float) -> bool:
    """Whether there is something to read in that time, or the other end has closed. `select.select`
    takes no number from 1024 on, which any process with many connections has."""
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    return bool(waiting.poll(max(0.0, within_s) * 1000))
