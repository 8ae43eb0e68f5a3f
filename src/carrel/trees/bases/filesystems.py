"""What kind of file system a device number stands for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

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
_ESCAPE = re.compile(rb"\\([0-7]{3})")


def pseudo_file_system(device: int) -> str | None:
    """The type of a mounted file system that holds no files, such as `proc`; None for
    real ones, and for devices that the mount table does not name."""
    wanted = f"{os.major(device)}:{os.minor(device)}".encode()
    kinds = (kind for number, _, kind in _mounts() if number == wanted)
    kind = next(kinds, "")
    return kind if kind in _PSEUDO else None


def folder_times_tell(path: bytes) -> bool:
    """Whether every file system at or below a real path is of a kind whose folders show by
    their times that entries came or went. Network and user-space ones may not."""
    here, kind = b"", ""
    for _, point, found in _mounts():
        if point.startswith(path.rstrip(b"/") + b"/") and found not in _TRUSTED | _PSEUDO:
            return False
        above = point == b"/" or path == point or path.startswith(point + b"/")
        # Of several on the same folder the last one counts.
        if above and len(point) >= len(here):
            here, kind = point, found
    return kind in _TRUSTED


def _mounts() -> Iterator[tuple[bytes, bytes, str]]:
    """Device number, mount point and type of every mount."""
    try:
        with open("/proc/self/mountinfo", "rb") as lines:
            for line in lines:
                fields = line.split(b" ")
                point = _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), fields[4])
                yield fields[2], point, fields[fields.index(b"-", 6) + 1].decode()
    except FileNotFoundError:
        return
