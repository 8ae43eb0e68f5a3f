"""How many bytes a command was given on its standard input, known also to who comes later.

The count is in a file of the run. It holds two numbers: what was given, and what it will be at
most when the write that is under way is done. Whoever was killed within a write leaves two that
differ, and then nobody knows; that is a matter of microseconds.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

FILE = "input"
_NUMBERS = struct.Struct("<QQ")


class InputCount:
    """Of one run, which one process at a time writes to."""

    def __init__(self, descriptor: int, given: int | None) -> None:
        self._descriptor = descriptor
        self.given = given
        """None when it cannot be known."""

    def count(self, size: int, write: Callable[[], int]) -> int:
        """Calls `write`, which gives at most `size` bytes and says how many."""
        if self.given is None:
            return write()
        self._note(self.given + size)
        written = 0
        try:
            written = write()
        finally:
            if self.given is not None:
                self.given += written
                self._note(self.given)
        return written

    def _note(self, at_most: int) -> None:
        assert self.given is not None
        try:
            os.pwrite(self._descriptor, _NUMBERS.pack(self.given, at_most), 0)
        except OSError:
            # A full disk. An empty file says that nobody knows.
            self.given = None
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def new_count(folder: Path) -> InputCount:
    """Raises OSError."""
    descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, _NUMBERS.pack(0, 0), 0)
    except OSError:
        os.close(descriptor)
        raise
    return InputCount(descriptor, 0)


def found_count(folder: Path) -> InputCount | None:
    """Of a run that is taken up; None when it takes no input."""
    try:
        descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    content = os.pread(descriptor, _NUMBERS.size, 0)
    given, at_most = _NUMBERS.unpack(content) if len(content) == _NUMBERS.size else (0, 1)
    return InputCount(descriptor, given if given == at_most else None)
