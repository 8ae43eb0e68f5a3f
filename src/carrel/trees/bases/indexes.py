"""Makes git believe in a base what it believed in the project.

A git index remembers inode and ctime of every file. The copies have others, so git would
read all of them again, in every tree. What was true of a project's file is therefore
replaced by what is true of its copy, once, in the base.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from carrel.domain.trees import Owner
from carrel.linux.statx import Row
from carrel.trees.bases.index_deltas import Kept, patch_again, read_kept, write_kept
from carrel.trees.bases.manifest import Item
from carrel.trees.bases.places import PATH_LIMIT, join
from carrel.trees.bases.records import IndexFile
from carrel.trees.bases.views import View
from carrel.trees.git.index import IndexStat, restat

_MASK = 0xFFFFFFFF
_SECOND = 1_000_000_000
_WORTH_KEEPING = 1 << 16
"""A smaller index has less than a thousand files: patching all of it is fast."""

Rows = Callable[[bytes], Row | None]
Items = Callable[[bytes], Item | None]
Lookup = Callable[[bytes, IndexStat], IndexStat | None]


@dataclass
class IndexPatcher:
    """Patches indexes that were copied from a project into `layer`. `items` finds what is
    stored; `kept` is the file for what makes it fast next time, and `before` finds a file
    of the last base."""

    layer: Path
    items: Items
    shown: Owner
    kept: Path
    before: Callable[[bytes], tuple[Item, Path] | None]
    _new: dict[bytes, Kept] = field(default_factory=dict)

    def patch(self, index: IndexFile, item: Item, view: View) -> None:
        path = self.layer / os.fsdecode(index.path)
        if len(os.fsencode(path)) >= PATH_LIMIT or not stat.S_ISREG(item.mode):
            return
        lookup = project_lookup(index, _lazy_rows(view), self.items, self.shown)
        if item.size < _WORTH_KEEPING:
            restat(path, lookup)
            return
        content = path.read_bytes()
        offsets = self._patch_again(index, path, item, content, lookup)
        if offsets is None:
            restat(path, lookup)
        self._new[index.path] = Kept(index.path, item.digest, content, offsets or b"")

    def remember(self, base_id: str) -> None:
        if self._new:
            merged = {**self._old, **self._new}
            write_kept(self.kept, base_id, list(merged.values()))

    @cached_property
    def _old(self) -> dict[bytes, Kept]:
        return read_kept(self.kept)

    def _patch_again(
        self, index: IndexFile, path: Path, item: Item, content: bytes, lookup: Lookup
    ) -> bytes | None:
        """The offsets of the entries, if the last patch could be used again."""
        kept, found = self._old.get(index.path), self.before(index.path)
        if kept is None or found is None or found[0].digest != kept.digest:
            return None
        result = patch_again(content, kept, found[1].read_bytes(), item.mtime_ns // _SECOND, lookup)
        if result is None:
            return None
        patched, offsets = result
        mode = stat.S_IMODE(item.mode)
        path.chmod(mode | stat.S_IWUSR)
        path.write_bytes(patched)
        path.chmod(mode)
        os.utime(path, ns=(item.mtime_ns, item.mtime_ns))
        return offsets


def _lazy_rows(view: View) -> Rows:
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


def patch_from_project(
    layer: Path, index: IndexFile, rows: Rows, items: Items, shown: Owner
) -> None:
    """Patches an index that was copied from a project into a layer."""
    _patch(layer, index, project_lookup(index, rows, items, shown))


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


def _patch(layer: Path, index: IndexFile, lookup: Lookup) -> None:
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
    if not item.inode:
        return None
    ctime_s, ctime_ns = divmod(item.ctime_ns, _SECOND)
    return IndexStat(
        ctime_s & _MASK,
        ctime_ns,
        recorded.mtime_s,
        recorded.mtime_ns,
        recorded.dev,
        item.inode & _MASK,
        recorded.mode,
        shown.uid,
        shown.gid,
        recorded.size,
    )
