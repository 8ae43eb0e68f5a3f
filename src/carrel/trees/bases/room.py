"""Whether what is to be stored fits on the disk, before and while it is written."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from carrel.domain.errors import InsufficientDisk
from carrel.linux.reflink import clone_file

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_ENTRY_BYTES = 512
"""For the inode and the name of an entry."""


def check_room(folder: Path, sizes: Iterable[int], measure: Callable[[], int]) -> None:
    """Raises `InsufficientDisk`. `sizes` are those of the files; when they do not fit,
    `measure` gives what they really need, which for sparse and shared files is less."""
    disk = os.statvfs(folder)
    block = disk.f_frsize or 4096
    free = disk.f_bavail * block
    needed = count = 0
    for size in sizes:
        needed += (size + block - 1) // block * block + _ENTRY_BYTES
        count += 1
    if needed > free:
        needed = measure() + count * _ENTRY_BYTES
    if needed > free:
        raise InsufficientDisk(
            f"The project needs {_shown(needed)} on the disk of {str(folder)!r}, "
            f"and {_shown(free)} are free.",
            hint="Make room, exclude what is not needed, or move the data folder.",
            needed_bytes=needed,
            free_bytes=free,
        )
    # Some file systems do not count inodes.
    if disk.f_files and count > disk.f_favail:
        raise InsufficientDisk(
            f"The project has {count} files, and the file system of {str(folder)!r} can "
            f"take {disk.f_favail} more.",
            hint="Remove files there, or move the data folder.",
            needed_files=count,
            free_files=disk.f_favail,
        )


def can_clone(source: bytes, folder: Path) -> bool:
    """Tries whether copies of a file in a folder share its blocks."""
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        writer = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            return clone_file(reader, writer)
        finally:
            os.close(writer)
    finally:
        os.close(reader)


@contextlib.contextmanager
def no_room_as_error(folder: Path) -> Iterator[None]:
    """Tells in a coded error that the disk became full."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        disk = os.statvfs(folder)
        free = disk.f_bavail * disk.f_frsize
        why = "The disk quota is used up" if error.errno == errno.EDQUOT else "The disk is full"
        raise InsufficientDisk(
            f"{why} ({_shown(free)} are free in {str(folder)!r}): the base was not built.",
            hint="Make room, exclude what is not needed, or move the data folder.",
            free_bytes=free,
        ) from error


def _shown(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
