"""Single files: holes in them, pipes found again, sealed copies, changes told, attributes."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterable

from carrel.linux import libc

_KEEP_SIZE = 1
_PUNCH_HOLE = 2
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STAYS = 16 * _PAGE
"""As one call for each page is quicker than to read them again."""
_NO_HOLES = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.ENODEV})


def punch_hole(descriptor: int, offset: int, length: int) -> bool:
    """Gives the blocks of a range back, which then reads as zeros; the size stays. False
    where the file system cannot. Blocks that the range covers in part are kept, as zeros."""
    try:
        libc.call("fallocate", descriptor, _PUNCH_HOLE | _KEEP_SIZE, offset, length)
    except OSError as error:
        if error.errno in _NO_HOLES:
            return False
        raise
    return True


def begin_write_out(descriptor: int, size: int) -> None:
    """Has the kernel begin to write a file's data to the disk, and waits for nothing. The file may
    be in an overlay, where `sync_file_range` does nothing."""
    # What the kernel is said not to need any more leaves the memory, and is read from the disk
    # next; not so a page of which that is said of a part.
    for at in range(1, min(size, _STAYS) + 1, _PAGE):
        os.posix_fadvise(descriptor, at, 1, os.POSIX_FADV_DONTNEED)
    if size > _STAYS:
        os.posix_fadvise(descriptor, _STAYS, 0, os.POSIX_FADV_DONTNEED)


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


# Pipes

_OUTPUT = ("1", "2")
"""Where a process that did nothing special has its output."""
_PIPE_MODE = 0o600


def open_pipe(inode: int, pids: Iterable[int]) -> int | None:
    """A reading, non-blocking end of the pipe with this inode; None when none of the
    processes has it, or they are not ours to look at."""
    wanted = f"pipe:[{inode}]"
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        for name in _descriptors(folder):
            with contextlib.suppress(OSError):
                if os.readlink(f"{folder}/{name}") == wanted:
                    found = _open_fifo(f"{folder}/{name}", inode)
                    if found is not None:
                        return found
    return None


def _descriptors(folder: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(names, key=lambda name: name not in _OUTPUT)


def _open_fifo(path: str, inode: int) -> int | None:
    """What the process has there may have changed since; nothing else is ever opened."""
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if found.st_ino != inode or not stat.S_ISFIFO(found.st_mode):
            return None
        if found.st_uid == os.geteuid():
            # The command, whose pipe it is too, may have shut us out.
            os.chmod(f"/proc/self/fd/{handle}", _PIPE_MODE)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(f"/proc/self/fd/{handle}", flags)
    finally:
        os.close(handle)


# Sealed copies

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def sealed_copy(path: str, name: str) -> int:
    """A nameless file with the content of `path`, for good. Raises OSError."""
    copy = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(path, "rb") as program:
        while os.sendfile(copy, program.fileno(), None, 1 << 30):
            pass
    fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
    return copy


# Changes

WATCH_MODIFY, WATCH_ATTRIBUTES = 0x2, 0x4
WATCH_CREATE, WATCH_MOVED_TO = 0x100, 0x80
WATCH_ONLY_FOLDERS, WATCH_ONCE = 0x01000000, 0x80000000
"""Once: the watch ends with its first event. A second event says that the watch is gone, as it does
when the file goes."""
WATCH_OVERFLOW = 0x4000
"""Some events were lost; the kernel sends this without being asked."""

_EVENT = struct.Struct("iIII")
_BUFFER = 16 * 1024
"""Some hundreds of events. One is 16 bytes: a watched file's events carry no name."""


def open_watch_queue() -> int:
    """A non-blocking descriptor that watches are added to. EMFILE: the user has too many."""
    return libc.call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)


def add_watch(queue: int, path: str, mask: int) -> int:
    """The number of the watch: the same for the same file. ENOSPC: the user has too many."""
    return libc.call("inotify_add_watch", queue, os.fsencode(path), mask)


def remove_watch(queue: int, watch: int) -> None:
    libc.call("inotify_rm_watch", queue, watch)


def read_watch_events(queue: int) -> list[tuple[int, int]]:
    """The watch and the mask of each event that waits; raises `BlockingIOError` for none."""
    found = []
    content = os.read(queue, _BUFFER)
    at = 0
    while at < len(content):
        watch, mask, _cookie, length = _EVENT.unpack_from(content, at)
        found.append((watch, mask))
        at += _EVENT.size + length
    return found


# What is written through one mount, and through no other of the same files (fanotify)

_FAN_CLOEXEC, _FAN_NONBLOCK = 1, 2
_FAN_MARK_ADD, _FAN_MARK_MOUNT = 0x1, 0x10
_FAN_CLOSE_WRITE = 0x8
_WRITTEN = struct.Struct("=IBBHQii")


def open_write_queue() -> int:
    """A non-blocking descriptor that mounts are added to; for root. Raises OSError."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOATIME
    return libc.call("fanotify_init", _FAN_CLOEXEC | _FAN_NONBLOCK, flags)


def watch_writes(queue: int, mount: str) -> None:
    """From now on, each close of a file that was open for writing through the mount. Idempotent;
    it ends with the mount."""
    flags = _FAN_MARK_ADD | _FAN_MARK_MOUNT
    path = os.fsencode(mount)
    libc.call("fanotify_mark", queue, flags, ctypes.c_uint64(_FAN_CLOSE_WRITE), libc.AT_FDCWD, path)


def read_written(queue: int) -> list[tuple[int, int]]:
    """An open descriptor of each file, which the caller closes, and the process that wrote it;
    a negative one: some were lost. Regular files only. Raises `BlockingIOError` for none."""
    content = os.read(queue, 4096)
    places = range(0, len(content), _WRITTEN.size)
    return [_WRITTEN.unpack_from(content, at)[-2:] for at in places]


# Extended attributes

_NO_ATTRIBUTE = frozenset(
    {errno.ENODATA, errno.EOPNOTSUPP, errno.ENOENT, errno.EPERM, errno.EACCES}
)


def get_xattr(dir_fd: int, name: str, attribute: str) -> bytes | None:
    """Of an entry of an open folder, itself and not what it names. None when it has no such
    attribute, or the file system none at all."""
    try:
        return os.getxattr(f"/proc/self/fd/{dir_fd}/{name}", attribute, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_ATTRIBUTE:
            return None
        raise
