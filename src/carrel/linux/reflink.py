"""Copies that share their blocks: FICLONE, and the plain copy where there is none."""

from __future__ import annotations

import errno
import fcntl
import os

FICLONE = 0x40049409
_NOT_HERE = frozenset(
    {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.ETXTBSY}
)
_CHUNK = 16 << 20


def clone_file(src_fd: int, dst_fd: int) -> bool:
    """Makes `dst_fd` share all blocks of `src_fd`; False where the file system cannot.

    Raises OSError for real trouble, such as a full disk.
    """
    try:
        fcntl.ioctl(dst_fd, FICLONE, src_fd)
    except OSError as error:
        if error.errno in _NOT_HERE:
            return False
        raise
    return True


def copy_file(src_fd: int, dst_fd: int, size: int) -> None:
    """Copies `size` bytes into an empty file; holes stay holes."""
    position = 0
    while position < size:
        start = _seek_data(src_fd, position, size)
        if start >= size:
            break
        end = min(_seek_hole(src_fd, start, size), size)
        position = _copy_range(src_fd, dst_fd, start, end)
        if position < end:
            break
    os.ftruncate(dst_fd, size)


def _seek_data(fd: int, position: int, size: int) -> int:
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        return size if error.errno == errno.ENXIO else position


def _seek_hole(fd: int, position: int, size: int) -> int:
    try:
        return os.lseek(fd, position, os.SEEK_HOLE)
    except OSError:
        return size


def _copy_range(src_fd: int, dst_fd: int, start: int, end: int) -> int:
    """Copies up to `end`, or to where the source ends; answers where it got to."""
    position = start
    in_kernel = True
    while position < end:
        length = min(end - position, _CHUNK)
        if in_kernel:
            try:
                count = os.copy_file_range(src_fd, dst_fd, length, position, position)
            except OSError as error:
                if error.errno not in _NOT_HERE and error.errno != errno.EPERM:
                    raise
                in_kernel = False
                continue
        else:
            count = os.pwrite(dst_fd, os.pread(src_fd, min(length, 1 << 20), position), position)
        if count == 0:
            break
        position += count
    return position
