"""Subvolumes of btrfs: making, snapshotting and deleting them without its tools."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

_SUBVOL_CREATE = 0x5000940E
_SNAP_DESTROY = 0x5000940F
_SNAP_CREATE_V2 = 0x50009417
_SUBVOL_GETFLAGS = 0x80089419
_SUBVOL_SETFLAGS = 0x4008941A
_SUBVOL_RDONLY = 2
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
    """Asks for something that only btrfs answers."""
    fd = os.open(path, _FOLDER)
    try:
        # BTRFS_IOC_FS_INFO: any answer will do.
        fcntl.ioctl(fd, 0x8400941F, bytearray(1024))
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


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
