"""Project quotas: a folder's files, whoever owns them, share one limit of disk space.

The same calls serve xfs (mounted with `pquota`) and ext4 (made with the features
`project` and `quota`, mounted with `prjquota`). Everything here needs root.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from carrel.linux import libc

_GET_ATTRIBUTES = 0x801C581F  # FS_IOC_FSGETXATTR
_SET_ATTRIBUTES = 0x401C5820  # FS_IOC_FSSETXATTR
_ATTRIBUTES = struct.Struct("=IIIII8x")  # xflags, extsize, nextents, projid, cowextsize
_INHERIT = 0x200  # FS_XFLAG_PROJINHERIT

_PROJECT = 2  # PRJQUOTA
_GET = 0x800007 << 8 | _PROJECT  # Q_GETQUOTA; xfs understands it too
_SET = 0x800008 << 8 | _PROJECT  # Q_SETQUOTA
_VALID_LIMITS = 1 | 4  # QIF_BLIMITS, QIF_ILIMITS
_BLOCK = 1024

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Quota(ctypes.Structure):
    """`struct if_dqblk`: limits in blocks of 1 KiB, what is in use in bytes."""

    _fields_ = (
        ("hard", ctypes.c_uint64),
        ("soft", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
        ("inodes_hard", ctypes.c_uint64),
        ("inodes_soft", ctypes.c_uint64),
        ("inodes_used", ctypes.c_uint64),
        ("block_time", ctypes.c_uint64),
        ("inode_time", ctypes.c_uint64),
        ("valid", ctypes.c_uint32),
    )


@dataclass(frozen=True)
class ProjectQuota:
    """A limit of 0 means none."""

    limit_bytes: int
    used_bytes: int
    used_files: int = 0


def _control(folder: Path, command: int, project: int, quota: _Quota) -> None:
    """By a descriptor (since 5.14), else by the name of the block device."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        libc.syscall("quotactl_fd", fd, command, project, ctypes.byref(quota))
        return
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    finally:
        os.close(fd)
    device = ctypes.c_char_p(os.fsencode(_block_device(folder)))
    libc.syscall("quotactl", command, device, project, ctypes.byref(quota))


def _block_device(folder: Path) -> str:
    number = os.stat(folder).st_dev
    wanted = f"{os.major(number)}:{os.minor(number)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == wanted:
            source = right.split()[1]
            return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), source)
    raise OSError(errno.ENOTBLK, "no block device is known for this folder", str(folder))


def get(folder: Path, project: int) -> ProjectQuota:
    """Limit and use of a project on the file system of `folder`.

    Raises OSError: ENOSYS, ESRCH, ENOTSUP and others when it keeps no such quotas.
    """
    quota = _Quota()
    try:
        _control(folder, _GET, project, quota)
    except OSError as error:
        if error.errno == errno.ENOENT:  # xfs: nothing is known of this project
            return ProjectQuota(0, 0)
        raise
    return ProjectQuota(quota.hard * _BLOCK, quota.used, quota.inodes_used)


def set_limit(folder: Path, project: int, limit_bytes: int, limit_files: int = 0) -> None:
    """Sets the limits of a project, 0 to lift one. Raises OSError as `get` does."""
    blocks = -(-limit_bytes // _BLOCK)
    quota = _Quota(
        hard=blocks,
        soft=blocks,
        inodes_hard=limit_files,
        inodes_soft=limit_files,
        valid=_VALID_LIMITS,
    )
    _control(folder, _SET, project, quota)


def _get_attributes(fd: int) -> tuple[int, int, int, int, int]:
    raw = fcntl.ioctl(fd, _GET_ATTRIBUTES, bytes(_ATTRIBUTES.size))
    flags, extent, count, project, cow = _ATTRIBUTES.unpack(raw)
    return flags, extent, count, project, cow


def project_of(folder: Path) -> int:
    """The project that a folder belongs to, 0 when to none. Raises OSError."""
    fd = os.open(folder, _OPEN)
    try:
        return _get_attributes(fd)[3]
    finally:
        os.close(fd)


def _mark(fd: int, project: int) -> None:
    flags, extent, count, _, cow = _get_attributes(fd)
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        flags = flags | _INHERIT if project else flags & ~_INHERIT
    fcntl.ioctl(fd, _SET_ATTRIBUTES, _ATTRIBUTES.pack(flags, extent, count, project, cow))


def assign(folder: Path, project: int) -> None:
    """Gives a folder and what is in it to a project; what is made in it later follows by
    itself. Project 0 takes it back. Never leaves the folder by a link or a mount."""
    top = os.open(folder, _OPEN | os.O_DIRECTORY)
    try:
        _mark(top, project)
        device = os.fstat(top).st_dev
        for _path, folders, files, parent in os.fwalk(".", dir_fd=top, follow_symlinks=False):
            for name in files:
                _mark_entry(parent, name, device, project)
            folders[:] = [name for name in folders if _mark_entry(parent, name, device, project)]
    finally:
        os.close(top)


def _mark_entry(parent: int, name: str, device: int, project: int) -> bool:
    """Whether it could be marked: links, sockets and devices take no room to speak of."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return False
        fd = os.open(name, _OPEN, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
            return False  # went or became something else meanwhile
        raise
    try:
        if os.fstat(fd).st_dev != device:
            return False
        _mark(fd, project)
    finally:
        os.close(fd)
    return True
