"""Where a file has data, so that what is empty in it is neither read nor sent."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

_BLOCK = 512
"""The unit of `st_blocks`, on every file system."""


def may_have_holes(status: os.stat_result) -> bool:
    return status.st_blocks * _BLOCK < status.st_size


def data_ranges(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Beginnings and ends of data within the first `size` bytes, in order. A file that is
    cut short meanwhile has no more; a file system without holes has one range."""
    position = 0
    while position < size:
        try:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            start, end = position, size
        if start >= size:
            return
        yield start, min(end, size)
        position = end
