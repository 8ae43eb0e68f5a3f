"""Files with holes: making one, and finding what is around them."""

from __future__ import annotations

import errno
import os

from carrel.linux import libc

_KEEP_SIZE = 1
_PUNCH_HOLE = 2
_NOT_HERE = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.ENODEV})


def punch_hole(descriptor: int, offset: int, length: int) -> bool:
    """Gives the blocks of a range back, which then reads as zeros; the size stays. False
    where the file system cannot. Blocks that the range covers in part are kept, as zeros."""
    try:
        libc.call("fallocate", descriptor, _PUNCH_HOLE | _KEEP_SIZE, offset, length)
    except OSError as error:
        if error.errno in _NOT_HERE:
            return False
        raise
    return True


def next_data(descriptor: int, offset: int) -> int | None:
    """Where the first data at or after `offset` is; None when there is none. A file system
    that knows of no holes has data everywhere."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise


def end_of_data(descriptor: int, offset: int) -> int:
    """Where the hole after the data at `offset` begins, at the latest at the end of the file."""
    return os.lseek(descriptor, offset, os.SEEK_HOLE)
