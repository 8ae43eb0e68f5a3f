"""Makes git believe in a base what it believed in the project.

A git index remembers inode and ctime of every file. The copies have others, so git would
read all of them again, in every tree. What was true of a project's file is therefore
replaced by what is true of its copy, once, in the base.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from carrel.domain.trees import Owner
from carrel.linux.statx import Row
from carrel.trees.bases.manifest import Item
from carrel.trees.bases.places import PATH_LIMIT, join
from carrel.trees.bases.records import IndexFile
from carrel.trees.git.index import IndexStat, restat

_MASK = 0xFFFFFFFF
_SECOND = 1_000_000_000

Rows = Callable[[bytes], Row | None]
Items = Callable[[bytes], Item | None]


def patch_from_project(
    layer: Path, index: IndexFile, rows: Rows, items: Items, shown: Owner
) -> None:
    """For an index as the project had it. `shown` is whom a sandbox sees files belong to."""

    def lookup(path: bytes, recorded: IndexStat) -> IndexStat | None:
        full = join(index.worktree, path)
        row, item = rows(full), items(full)
        if row is None or item is None or not _fits_row(recorded, row):
            return None
        return _stat_of(item, recorded, shown)

    _patch(layer, index, lookup)


def patch_moved(layer: Path, index: IndexFile, before: Items, after: Items, shown: Owner) -> None:
    """For an index of a base whose files were stored anew; `before` finds them as they
    were when the index was right."""

    def lookup(path: bytes, recorded: IndexStat) -> IndexStat | None:
        full = join(index.worktree, path)
        old, new = before(full), after(full)
        if old is None or new is None or not _fits_item(recorded, old):
            return None
        return _stat_of(new, recorded, shown)

    _patch(layer, index, lookup)


def _patch(
    layer: Path, index: IndexFile, lookup: Callable[[bytes, IndexStat], IndexStat | None]
) -> None:
    path = layer / os.fsdecode(index.path)
    if len(os.fsencode(path)) < PATH_LIMIT and not path.is_symlink():
        restat(path, lookup)


def _fits_row(recorded: IndexStat, row: Row) -> bool:
    return (
        recorded.ino == row.inode & _MASK
        and recorded.ctime_s == row.ctime_s & _MASK
        and recorded.ctime_ns == row.ctime_frac
        and recorded.mtime_s == row.mtime_s & _MASK
        and recorded.mtime_ns == row.mtime_frac
        and recorded.size == row.size & _MASK
        and recorded.uid == row.uid
        and recorded.gid == row.gid
    )


def _fits_item(recorded: IndexStat, item: Item) -> bool:
    return (
        recorded.ino == item.inode & _MASK
        and recorded.ctime_s == item.ctime_ns // _SECOND & _MASK
        and recorded.ctime_ns == item.ctime_ns % _SECOND
        and recorded.mtime_s == item.mtime_ns // _SECOND & _MASK
        and recorded.mtime_ns == item.mtime_ns % _SECOND
        and recorded.size == item.size & _MASK
    )


def _stat_of(item: Item, recorded: IndexStat, shown: Owner) -> IndexStat | None:
    if not (stat.S_ISREG(item.mode) or stat.S_ISLNK(item.mode)) or not item.inode:
        return None
    return recorded._replace(
        ctime_s=item.ctime_ns // _SECOND & _MASK,
        ctime_ns=item.ctime_ns % _SECOND,
        mtime_s=item.mtime_ns // _SECOND & _MASK,
        mtime_ns=item.mtime_ns % _SECOND,
        ino=item.inode & _MASK,
        uid=shown.uid,
        gid=shown.gid,
    )
