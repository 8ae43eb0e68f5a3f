"""What is to be recorded in a git index for a file of a base, if anything."""

from __future__ import annotations

from collections.abc import Callable

from carrel.domain.trees import Owner
from carrel.linux.statx import Row
from carrel.trees.bases.manifest import Item
from carrel.trees.bases.places import join
from carrel.trees.bases.records import IndexFile
from carrel.trees.bases.views import View
from carrel.trees.git.index import Lookup
from carrel.trees.git.index_format import MASK32, IndexStat

_SECOND = 1_000_000_000

Rows = Callable[[bytes], Row | None]
Items = Callable[[bytes], Item | None]


def lazy_rows(view: View) -> Rows:
    """Most of what is asked for is new; only the rest is worth a table of everything."""
    new = {seen.path: seen.row for seen in view.seen()}
    everything: list[Rows] = []

    def find(path: bytes) -> Row | None:
        row = new.get(path)
        if row is None:
            if not everything:
                everything.append(view.rows())
            row = everything[0](path)
        return row

    return find


def project_lookup(index: IndexFile, rows: Rows, items: Items, shown: Owner) -> Lookup:
    """For an index as the project had it. `shown` is whom a sandbox sees files belong to."""
    prefix = index.worktree + b"/" if index.worktree else b""

    def lookup(path: bytes, recorded: IndexStat) -> IndexStat | None:
        # Called for every file of the project, so nothing is done twice or in vain.
        full = prefix + path
        row = rows(full)
        if row is None or not _fits_row(recorded, row):
            return None
        item = items(full)
        return _stat_of(item, recorded, shown) if item is not None else None

    return lookup


def moved_lookup(index: IndexFile, before: Items, after: Items, shown: Owner) -> Lookup:
    """For an index of a base whose files were stored anew; `before` finds them as they
    were when the index was right."""

    def lookup(path: bytes, recorded: IndexStat) -> IndexStat | None:
        full = join(index.worktree, path)
        old, new = before(full), after(full)
        if old is None or new is None or not _fits_item(recorded, old):
            return None
        return _stat_of(new, recorded, shown)

    return lookup


def _fits_row(recorded: IndexStat, row: Row) -> bool:
    return (
        recorded.ino == row.inode & MASK32
        and recorded.ctime_s == row.ctime_s & MASK32
        and recorded.ctime_ns == row.ctime_frac
        and recorded.mtime_s == row.mtime_s & MASK32
        and recorded.mtime_ns == row.mtime_frac
        and recorded.size == row.size & MASK32
        and recorded.uid == row.uid
        and recorded.gid == row.gid
    )


def _fits_item(recorded: IndexStat, item: Item) -> bool:
    return (
        recorded.ino == item.inode & MASK32
        and recorded.ctime_s == item.ctime_ns // _SECOND & MASK32
        and recorded.ctime_ns == item.ctime_ns % _SECOND
        and recorded.mtime_s == item.mtime_ns // _SECOND & MASK32
        and recorded.mtime_ns == item.mtime_ns % _SECOND
        and recorded.size == item.size & MASK32
    )


def _stat_of(item: Item, recorded: IndexStat, shown: Owner) -> IndexStat | None:
    if not item.inode:
        return None
    ctime_s, ctime_ns = divmod(item.ctime_ns, _SECOND)
    return IndexStat(
        ctime_s & MASK32,
        ctime_ns,
        recorded.mtime_s,
        recorded.mtime_ns,
        recorded.dev,
        item.inode & MASK32,
        recorded.mode,
        shown.uid,
        shown.gid,
        recorded.size,
    )
