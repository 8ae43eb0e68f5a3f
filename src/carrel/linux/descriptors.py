"""File descriptors that are closed in time."""

from __future__ import annotations

import os


class Descriptor:
    """Closes a file descriptor when the block ends: `with Descriptor(os.open(…)) as folder:`."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_error: object) -> None:
        os.close(self._fd)
