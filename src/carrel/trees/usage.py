"""What a tree costs on disk beyond its base."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from carrel.domain.trees import Owner, TreeUsage
from carrel.linux.reflink import unshared_bytes
from carrel.trees.folders import Root, join

Cost = Callable[[Root, str, os.stat_result], tuple[int, int]]
"""Bytes and files that one entry costs."""
_BLOCK = 512
"""The unit of `st_blocks`, on every file system."""


def measure(root: Root, cost: Cost) -> TreeUsage:
    """Adds up every entry below `root`; a file with several names counts once."""
    used = files = 0
    seen: set[tuple[int, int]] = set()
    pending = [""]
    while pending:
        folder = pending.pop()
        for name, status in root.list(folder).items():
            path = join(folder, name)
            if stat.S_ISDIR(status.st_mode):
                pending.append(path)
            elif status.st_nlink > 1:
                key = (status.st_dev, status.st_ino)
                if key in seen:
                    continue
                seen.add(key)
            more_bytes, more_files = cost(root, path, status)
            used += more_bytes
            files += more_files
    return TreeUsage(used, files)


def all_blocks(_root: Root, _path: str, status: os.stat_result) -> tuple[int, int]:
    """The cost where nothing is shared: an upper folder, a plain copy."""
    return status.st_blocks * _BLOCK, 1


def own_blocks(owner: Owner) -> Cost:
    """The cost of a copy some of whose files are somebody else's, under another name."""

    def cost(root: Root, path: str, status: os.stat_result) -> tuple[int, int]:
        if status.st_nlink > 1 and status.st_uid != owner.uid:
            return 0, 0
        return all_blocks(root, path, status)

    return cost


def unshared_since(settled_ns: int) -> Cost:
    """The cost of clones: what was written since, and is not shared with another file."""

    def cost(root: Root, path: str, status: os.stat_result) -> tuple[int, int]:
        if status.st_ctime_ns < settled_ns:
            return 0, 0
        if not stat.S_ISREG(status.st_mode):
            return status.st_blocks * _BLOCK, 1
        try:
            descriptor = root.open_file(path)
        except FileNotFoundError:
            return 0, 0
        try:
            own = unshared_bytes(descriptor)
        finally:
            os.close(descriptor)
        return (status.st_blocks * _BLOCK if own is None else own), 1

    return cost
