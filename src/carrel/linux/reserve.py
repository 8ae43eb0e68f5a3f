"""Room on a disk that is kept for the time when the disk is full.

A file takes blocks, and empty files take inodes; both are given up in small pieces, so that
whoever fills the disk gets little of it at once. Cutting a file and removing one need no room
themselves.
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

from carrel.linux import btrfs

MOST_BYTES = 64 << 20
LEAST_BYTES = 4 << 20
_SHARE = 100
"""At most a hundredth of a disk, where that is more than `LEAST_BYTES` …"""
_SHARE_OF_FREE = 4
"""… and never more than a quarter of what nobody else uses."""
NEED_BYTES = 1 << 20
"""Far more than one operation writes: records, the folder of a command, a little output."""
FILES = 128
NEED_FILES = 32
"""A command's folder has half a dozen; several may start at once."""
_UNCOUNTED = 1 << 62
"""Free inodes of a file system that makes them as they are needed."""


class Free(NamedTuple):
    """What may still be written by ordinary users."""

    bytes: int
    files: int


def free_room(folder: str | os.PathLike[str]) -> Free:
    """On the file system of a folder, without what is set aside for root, nor what was written and
    has not been given its place. Raises OSError."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize - btrfs.unplaced(folder, disk.f_fsid)
    return Free(max(free, 0), disk.f_favail if disk.f_files else _UNCOUNTED)


def is_short(free: Free) -> bool:
    """Whether there is little more on the disk than a reserve has given up."""
    return free.bytes < 2 * NEED_BYTES or free.files < 2 * NEED_FILES


class Reserve:
    """In a folder of its own, which `take_back` makes. Blocking, quick, any thread; other
    processes may use the same folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = os.fspath(folder)
        self._room = os.path.join(folder, "room")

    def free(self) -> Free:
        """Without the reserve. Raises OSError."""
        return free_room(os.path.dirname(self._folder))

    def held(self) -> int:
        """How many bytes it keeps now."""
        try:
            return os.stat(self._room).st_blocks * 512
        except OSError:
            return 0

    def is_full(self) -> bool:
        try:
            return is_short(self.free())
        except OSError:
            return False

    def ensure(self) -> bool:
        """Gives up what is missing to the next operation. Whether anything was; costs one
        system call as long as nothing is."""
        few = False
        with contextlib.suppress(OSError):
            free = self.free()
            # Giving something up while we may use what is set aside for root would only fill that.
            few = free.bytes < NEED_BYTES and not self._has_more()
            if few:
                self._shorten(NEED_BYTES - free.bytes)
            if free.files < NEED_FILES:
                self._drop_files(NEED_FILES - free.files)
        return few

    def _has_more(self) -> bool:
        """Whether we may write more than ordinary users. Found out by doing: the root of a
        container may not, and not all that a file system calls free can be had by anybody."""
        if os.geteuid() != 0:
            return False
        try:
            fd = os.open(self._folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            os.posix_fallocate(fd, 0, NEED_BYTES)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def give_up(self) -> bool:
        """Another piece, though there seemed to be room: others were quicker, or a quota
        counts. Whether there was one."""
        try:
            return bool(self._shorten(NEED_BYTES)) | bool(self._drop_files(NEED_FILES))
        except OSError:
            return False

    def take_back(self) -> None:
        """As far as there is room for it. What cannot be had now is tried another time."""
        with contextlib.suppress(OSError):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            disk = os.statvfs(self._folder)
            wanted = min(MOST_BYTES, max(LEAST_BYTES, disk.f_blocks * disk.f_frsize // _SHARE))
            free, held = self.free(), self.held()
            self._lengthen(held, min(wanted, (free.bytes + held) // _SHARE_OF_FREE))
            if disk.f_files and free.files > _SHARE_OF_FREE * FILES:
                there = set(os.listdir(self._folder))
                for name in {str(number) for number in range(FILES)} - there:
                    path = os.path.join(self._folder, name)
                    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def _lengthen(self, held: int, size: int) -> None:
        if size < held + min(NEED_BYTES, size):
            return
        fd = os.open(self._room, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError:
            os.ftruncate(fd, held)
        finally:
            os.close(fd)

    def _shorten(self, count: int) -> int:
        """Answers how much it was."""
        try:
            fd = os.open(self._room, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return 0
        try:
            size = os.fstat(fd).st_size
            left = max(0, size - count)
            os.ftruncate(fd, left)
            return size - left
        finally:
            os.close(fd)

    def _drop_files(self, count: int) -> int:
        try:
            names = [name for name in os.listdir(self._folder) if name.isdigit()][:count]
        except FileNotFoundError:
            return 0
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._folder, name))
        return len(names)
