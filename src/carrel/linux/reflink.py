"""Copies that share their blocks, the plain copy where they cannot, and what is shared."""

from __future__ import annotations

import errno
import fcntl
import os
import struct

FICLONE = 0x40049409
_NOT_HERE = frozenset(
    {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.ETXTBSY}
)
_CHUNK = 16 << 20
_PAGE = 4096
"""Smaller files have no holes that are worth looking for."""

_FIEMAP = 0xC020660B
_MAP = struct.Struct("=QQIIII")
_EXTENT = struct.Struct("=Q8xQ16xI12x")
_EXTENTS = 128
_MAP_SYNC = 1
_EXTENT_LAST = 1
_EXTENT_SHARED = 0x2000
_TO_THE_END = (1 << 64) - 1


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
    if 0 < size <= _PAGE:
        if _copy_range(src_fd, dst_fd, 0, size) < size:
            os.ftruncate(dst_fd, size)
        return
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


def unshared_bytes(descriptor: int) -> int | None:
    """How many bytes on disk no other file shares; None where the file system cannot tell."""
    total = start = 0
    while True:
        request = bytearray(_MAP.size + _EXTENTS * _EXTENT.size)
        _MAP.pack_into(request, 0, start, _TO_THE_END - start, _MAP_SYNC, 0, _EXTENTS, 0)
        try:
            fcntl.ioctl(descriptor, _FIEMAP, request)
        except OSError as error:
            if error.errno in _NOT_HERE:
                return None
            raise
        mapped = _MAP.unpack_from(request)[3]
        for index in range(mapped):
            logical, length, flags = _EXTENT.unpack_from(request, _MAP.size + index * _EXTENT.size)
            if not flags & _EXTENT_SHARED:
                total += length
            if flags & _EXTENT_LAST:
                return total
            start = logical + length
        if not mapped:
            return total
