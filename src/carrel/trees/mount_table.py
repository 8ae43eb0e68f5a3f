"""What the kernel's mount table says: what is mounted where, of which kind it is, and where a
path is in its own file system, which has two names for it when it is mounted twice."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_TABLE = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(rb"\\([0-7]{3})")
"""The kernel writes spaces and the like as octal numbers."""
_ESCAPED = re.compile(rb"[ \t\n\\]")
"""Those that it writes so."""
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
    return [
        Mount(Inner(device.decode(), _unescape(root)), _unescape(point), kind.decode())
        for device, root, point, kind in _rows()
    ]


def inner_path(real: str) -> Inner:
    """Of a path without symlinks."""
    found = _mount_of(real)
    if found is None:
        return Inner("", real)
    below = real[len(found.point.rstrip("/")) :].rstrip("/")
    return Inner(found.shown.device, found.shown.path.rstrip("/") + below or "/")


def mounted_below(real: str) -> list[Mount]:
    """What is mounted in a folder, its own top apart."""
    inside = real.rstrip("/") + "/"
    return [mount for mount in read_mounts() if mount.point.startswith(inside)]


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
    # Asked for every space, with a mount for every space that there is: nothing is read of a line
    # but where it is mounted, if that is neither above nor below.
    parts = path.strip(b"/").split(b"/")
    above = {b"/", *(_escape(b"/" + b"/".join(parts[: end + 1])) for end in range(len(parts)))}
    below, here, best = _escape(path.rstrip(b"/") + b"/"), b"", -1
    for line in _TABLE.read_bytes().splitlines():
        point = line.split(b" ", 5)[4]
        if point in above:
            if len(point) >= best:
                here, best = _kind(line.split(b" ")), len(point)
        elif point.startswith(below):
            kind = _kind(line.split(b" ")).decode()
            if kind not in _TRUSTED and kind not in _PSEUDO:
                return False
    return here.decode() in _TRUSTED


def _mount_of(real: str) -> Mount | None:
    """The mount that shows a path."""
    found, best, whole = None, -1, f"{real}/"
    for mount in read_mounts():
        point = mount.point.rstrip("/")
        if len(point) >= best and whole.startswith(f"{point}/"):
            found, best = mount, len(point)
    return found


def _rows() -> Iterator[tuple[bytes, bytes, bytes, bytes]]:
    """The device, the part of its file system that is shown, where, and its type; of each mount as
    the kernel writes it."""
    for line in _TABLE.read_bytes().splitlines():
        fields = line.split(b" ")
        yield fields[2], fields[3], fields[4], _kind(fields)


def _kind(fields: list[bytes]) -> bytes:
    """Of a line: behind a dash, before which any number of words may be."""
    return fields[fields.index(b"-", 6) + 1]


def _unescape(field: bytes) -> str:
    return os.fsdecode(_plain(field))


def _escape(path: bytes) -> bytes:
    return _ESCAPED.sub(lambda match: b"\\%03o" % match[0][0], path)


def _plain(field: bytes) -> bytes:
    if b"\\" not in field:
        return field
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field)
