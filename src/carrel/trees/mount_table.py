"""What the kernel's mount table says: what is mounted where, of which kind it is, and where a
path is in its own file system, which has two names for it when it is mounted twice."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

_TABLE = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(rb"\\([0-7]{3})")
"""The kernel writes spaces and the like as octal numbers."""
_PSEUDO = frozenset(
    {
        "autofs",
        "binder",
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devpts",
        "efivarfs",
        "fusectl",
        "hugetlbfs",
        "mqueue",
        "nsfs",
        "proc",
        "pstore",
        "rpc_pipefs",
        "securityfs",
        "selinuxfs",
        "smackfs",
        "sysfs",
        "tracefs",
    }
)
"""Views of the kernel: not files that somebody has, and often without an end."""
_TRUSTED = frozenset(
    {
        "bcachefs",
        "btrfs",
        "erofs",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "jfs",
        "overlay",
        "ramfs",
        "reiserfs",
        "squashfs",
        "tmpfs",
        "xfs",
        "zfs",
    }
)
"""A folder's time changes there, at once, whenever an entry comes or goes."""


class Inner(NamedTuple):
    """`device` as the kernel writes it; `path` from the file system's own root."""

    device: str
    path: str


class Mount(NamedTuple):
    """`point` is where it is mounted; `kind` is the type of the file system."""

    shown: Inner
    point: str
    kind: str


def read_mounts() -> list[Mount]:
    """Every mount, the last one last: of two in the same place that is on top."""
    mounts = []
    for line in _TABLE.read_bytes().splitlines():
        fields = line.split(b" ")
        kind = fields[fields.index(b"-", 6) + 1].decode()
        shown = Inner(fields[2].decode(), _unescape(fields[3]))
        mounts.append(Mount(shown, _unescape(fields[4]), kind))
    return mounts


def inner_path(real: str) -> Inner:
    """Of a path without symlinks."""
    found = _mount_of(real, read_mounts())
    if found is None:
        return Inner("", real)
    below = real[len(found.point.rstrip("/")) :].rstrip("/")
    return Inner(found.shown.device, found.shown.path.rstrip("/") + below or "/")


def mounted_below(real: str) -> list[Mount]:
    """What is mounted in a folder, its own top apart."""
    return _below(real, read_mounts())


def pseudo_file_system(device: int) -> str | None:
    """The type of a mounted file system that holds no files, such as `proc`; None for
    real ones, and for devices that the mount table does not name."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    kinds = (mount.kind for mount in read_mounts() if mount.shown.device == wanted)
    kind = next(kinds, "")
    return kind if kind in _PSEUDO else None


def folder_times_tell(path: bytes) -> bool:
    """Whether every file system at or below a real path is of a kind whose folders show by
    their times that entries came or went. Network and user-space ones may not."""
    real, mounts = os.fsdecode(path), read_mounts()
    if any(mount.kind not in _TRUSTED | _PSEUDO for mount in _below(real, mounts)):
        return False
    here = _mount_of(real, mounts)
    return here is not None and here.kind in _TRUSTED


def _below(real: str, mounts: list[Mount]) -> list[Mount]:
    inside = real.rstrip("/") + "/"
    return [mount for mount in mounts if mount.point.startswith(inside)]


def _mount_of(real: str, mounts: list[Mount]) -> Mount | None:
    """The mount that shows a path."""
    found, best, whole = None, -1, f"{real}/"
    for mount in mounts:
        point = mount.point.rstrip("/")
        if len(point) >= best and whole.startswith(f"{point}/"):
            found, best = mount, len(point)
    return found


def _unescape(field: bytes) -> str:
    if b"\\" not in field:
        return os.fsdecode(field)
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field))
