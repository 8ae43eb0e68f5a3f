"""What somebody in a space has given to others, in its tree, becomes its owner's again.

The root of an image with a range of ids can do that. In a tree everything is its owner's, and only
what is can be read by the daemon. So it looks for such files before it reads a tree.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from carrel.domain.trees import Tree
from carrel.linux.ids import RANGE
from carrel.linux.subids import granted
from carrel.trees.drivers.common import private_folder
from carrel.trees.folders import DEEPEST, Root, split

UPPER = "upper"


def written(tree: Tree) -> Path:
    """Where all is that a tree has been written, and perhaps what it began with."""
    upper = private_folder(tree) / UPPER
    return upper if upper.is_dir() else tree.path


def has_others(tree: Tree) -> bool:
    """Also where we may not look into a folder of our own."""
    ids = granted()
    first = ids.gid if ids is not None else 0
    try:
        return next(_others(written(tree), range(first, first + RANGE)), None) is not None
    except PermissionError:
        return True


def give_back(tree: Tree, root: Root, first: int) -> int:
    """Where files of all ids are within reach; `root` is that of the tree. How many there were."""
    count = 0
    for path in _others(written(tree), range(first, first + RANGE)):
        above, name = split(path)
        try:
            folder = root.folder(above)
            os.chown(name, tree.owner.uid, tree.owner.gid, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            continue  # It went meanwhile.
        count += 1
    return count


def _others(folder: Path, groups: range) -> Iterator[str]:
    """Paths below, the outer ones first."""
    own = os.geteuid()
    waiting = [""]
    while waiting:
        above = waiting.pop()
        try:
            entries = os.scandir(folder / above)
        except (FileNotFoundError, NotADirectoryError):
            continue
        with entries:
            for entry in entries:
                path = f"{above}/{entry.name}" if above else entry.name
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if status.st_uid != own or status.st_gid in groups:
                    yield path
                if stat.S_ISDIR(status.st_mode) and path.count("/") < DEEPEST:
                    waiting.append(path)
