"""Folders of tests: placing them on disk, and taking them away, whatever was mounted or forbidden
there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

from carrel.linux.subids import granted
from carrel.trees.removal import remove_tree

UNMOUNT_TIMEOUT_S = 20.0
"""A lazy unmount does not wait for users of the mount; only a stuck disk takes this long."""

_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
_TOP_OF_HIERARCHIES = 0x00020000


def spread(folder: Path | str) -> None:
    """Asks the file system to place the folders in this one far from each other.

    ext4 without a journal, as virtual machines often have it, reuses no inode for minutes after it
    was freed, and looks at all of these near a new file: a file costs ten times as much where
    thousands were removed.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Only ext file systems know of it.
        with contextlib.suppress(OSError):
            flags = int.from_bytes(fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8))[:4], "little")
            wanted = (flags | _TOP_OF_HIERARCHIES).to_bytes(8, "little")
            fcntl.ioctl(descriptor, _SET_FLAGS, wanted)
    finally:
        os.close(descriptor)


def mounts_below(folder: Path) -> list[str]:
    """The mount points at or below `folder`, in this process's namespace, the last first."""
    top = os.path.realpath(folder)
    points = []
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        point = os.fsdecode(_unescape(line.split(b" ")[4]))
        if point == top or point.startswith(top + "/"):
            points.append(point)
    return points[::-1]


def unmount_below(folder: Path) -> None:
    for point in mounts_below(folder):
        subprocess.run(
            ["umount", "--lazy", "--", point],
            timeout=UNMOUNT_TIMEOUT_S,
            capture_output=True,
            check=False,
        )


def remove_folder(folder: Path) -> None:
    """Unmounts what is mounted below it, then removes it, read-only folders too.

    Refuses while a mount remains: to delete through one would empty what is behind it.
    """
    unmount_below(folder)
    if remaining := mounts_below(folder):
        raise RuntimeError(f"still mounted, so not removed: {remaining}")
    if not folder.exists():
        return
    if os.geteuid() != 0 and granted() is not None:
        remove_tree(folder)
        return
    _open_up(folder)
    shutil.rmtree(folder)


def _open_up(folder: Path) -> None:
    # By descriptors: a path may be longer than the kernel takes.
    for _parent, names, _files, descriptor in os.fwalk(folder):
        for name in names:
            if stat.S_ISDIR(os.lstat(name, dir_fd=descriptor).st_mode):
                os.chmod(name, 0o700, dir_fd=descriptor)


def _unescape(field: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), field)
