"""Subvolumes of btrfs: making, snapshotting and deleting them without its tools; and what it has
written to memory only."""

from __future__ import annotations

import fcntl
import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The launcher loads this, and is to load little.
    from pathlib import Path

_SUBVOL_CREATE = 0x5000940E
_SNAP_DESTROY = 0x5000940F
_SNAP_CREATE_V2 = 0x50009417
_SUBVOL_GETFLAGS = 0x80089419
_SUBVOL_SETFLAGS = 0x4008941A
_SUBVOL_RDONLY = 2
_FS_INFO = 0x8400941F
_FS_INFO_SIZE = 1024
_MOST_KNOWN = 1024
_ROOT_INODE = 256
"""The inode number of every subvolume's root, and of nothing else."""
_PATH_NAME_MAX = 4087
_SUBVOL_NAME_MAX = 4039
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def is_subvolume(path: Path) -> bool:
    """Only on btrfs itself: other file systems have an inode of that number too."""
    try:
        return os.lstat(path).st_ino == _ROOT_INODE and on_btrfs(path)
    except FileNotFoundError:
        return False


def on_btrfs(path: Path) -> bool:
    return bool(_identity(path))


def _identity(path: str | os.PathLike[str]) -> str:
    """Its UUID; empty on other file systems."""
    told = bytearray(_FS_INFO_SIZE)
    fd = os.open(path, _FOLDER)
    try:
        fcntl.ioctl(fd, _FS_INFO, told)
    except OSError:
        return ""
    finally:
        os.close(fd)
    text = bytes(told[16:32]).hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


_counters: dict[int, str] = {}
"""By file system and subvolume, the file that says how much has no place yet; empty elsewhere."""


def unplaced(folder: str | os.PathLike[str], fsid: int) -> int:
    """Bytes of data that were written and have no place on the disk yet, which free room does not
    tell of for half a minute; 0 on other file systems. `fsid` is what `os.statvfs` says. Raises
    OSError."""
    counter = _counters.get(fsid)
    if counter is None:
        if len(_counters) >= _MOST_KNOWN:
            _counters.clear()
        counter = _counters[fsid] = _counter(_identity(folder))
    if not counter:
        return 0
    try:
        with open(counter, "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _counter(identity: str) -> str:
    of = f"/sys/fs/btrfs/{identity}/allocation"
    found = (f"{of}/{kind}/bytes_may_use" for kind in ("data", "mixed"))
    return next((path for path in found if identity and os.path.exists(path)), "")


def create_subvolume(path: Path) -> None:
    _with_name(path, _SUBVOL_CREATE)


def snapshot(source: Path, target: Path) -> None:
    """A writable snapshot; `source` may be read-only."""
    name = os.fsencode(target.name)
    origin = os.open(source, _FOLDER)
    try:
        arguments = struct.pack(f"=qQQ32x{_SUBVOL_NAME_MAX + 1}s", origin, 0, 0, name)
        _ioctl(target.parent, _SNAP_CREATE_V2, arguments)
    finally:
        os.close(origin)


def delete_subvolume(path: Path) -> None:
    """Raises OSError: EPERM for ordinary users, unless mounted with
    `user_subvol_rm_allowed`; ENOTEMPTY when another subvolume is in it."""
    _with_name(path, _SNAP_DESTROY)


def set_read_only(path: Path, read_only: bool) -> None:
    fd = os.open(path, _FOLDER)
    try:
        flags = bytearray(8)
        fcntl.ioctl(fd, _SUBVOL_GETFLAGS, flags)
        value = int.from_bytes(flags, "little")
        value = value | _SUBVOL_RDONLY if read_only else value & ~_SUBVOL_RDONLY
        fcntl.ioctl(fd, _SUBVOL_SETFLAGS, value.to_bytes(8, "little"))
    finally:
        os.close(fd)


def _with_name(path: Path, request: int) -> None:
    name = os.fsencode(path.name)
    _ioctl(path.parent, request, struct.pack(f"=q{_PATH_NAME_MAX + 1}s", 0, name))


def _ioctl(folder: Path, request: int, arguments: bytes) -> None:
    fd = os.open(folder, _FOLDER)
    try:
        # A bytearray, since arguments longer than a kilobyte are only taken that way.
        fcntl.ioctl(fd, request, bytearray(arguments))
    finally:
        os.close(fd)
