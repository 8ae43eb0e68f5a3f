"""Makes git believe in a base what it believed in the project.

A git index remembers inode and ctime of every file. The copies have others, so git would
read all of them again, in every tree. What was true of a project's file is therefore
replaced by what is true of its copy, once, in the base.

In the manifest an index stays what it is in the project: that names the base.
"""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from carrel.trees.bases.drafting import Draft
from carrel.trees.bases.index_deltas import Kept, Patched, patch_again, read_kept, write_kept
from carrel.trees.bases.index_lookups import (
    Items,
    Rows,
    lazy_rows,
    moved_lookup,
    project_lookup,
)
from carrel.trees.bases.manifest import Item
from carrel.trees.bases.places import PATH_LIMIT, join
from carrel.trees.bases.publishing import Shop
from carrel.trees.bases.records import IndexFile
from carrel.trees.bases.stored import StoredFiles
from carrel.trees.bases.views import View
from carrel.trees.git.index import Lookup, patch
from carrel.trees.git.index_format import (
    SPLIT,
    UNTRACKED_CACHE,
    IndexData,
    Malformed,
    Place,
    moment,
    parse,
    write_file,
)
from carrel.trees.git.racy import Holds, Moments, settle, smudge

_SECOND = 1_000_000_000
_WORTH_KEEPING = 1 << 16
"""A smaller index has less than a thousand files: patching all of it is fast."""


class _Found(NamedTuple):
    """An index file as it was copied."""

    path: Path
    content: bytes
    before: os.stat_result

    @property
    def then_s(self) -> int:
        return self.before.st_mtime_ns // _SECOND


class Indexes:
    """The indexes in a layer that is being written. `layers` are those of the base, the
    lowest first; the draft has the number of the one."""

    def __init__(self, shop: Shop, draft: Draft, layers: Sequence[Path]) -> None:
        self._shop = shop
        self._draft = draft
        self._layer = layers[draft.layer]
        self._stored = StoredFiles(layers, draft.item)

    def __enter__(self) -> Indexes:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stored.close()

    def from_project(self, index: IndexFile, rows: Rows) -> None:
        """One that was copied as it was, from a project or from a tree."""
        self._run(index, self.lookup(index, rows), settles=True)

    def moved(self, index: IndexFile, before: Items) -> None:
        """One of a base whose files were stored anew; `before` finds them as they were
        when the index was right. What git would read again stays so."""
        lookup = moved_lookup(index, before, self._draft.item, self._shop.shown)
        self._run(index, lookup, settles=False)

    def doubt(self, index: IndexFile, paths: Collection[bytes]) -> None:
        """One of the last base, some entries of which git must not believe any more."""
        found = self.find(index)
        if found is None or (parsed := _parse(found.content)) is None:
            return
        data, places = parsed
        for offset, path in places:
            if path in paths:
                smudge(data, offset)
        write_file(found.path, data.joined(), found.before, found.before.st_mtime_ns)

    def _run(self, index: IndexFile, lookup: Lookup, *, settles: bool) -> None:
        found = self.find(index)
        if found is not None and (patched := _patch(found, lookup)) is not None:
            self.write(index, found, patched, lookup if settles else None)

    # The steps

    def find(self, index: IndexFile) -> _Found | None:
        """None for an index that is left as it is."""
        path = self._layer / os.fsdecode(index.path)
        if len(os.fsencode(path)) >= PATH_LIMIT:
            return None
        before = path.lstat()
        # Another name of the same file would change, too.
        if not stat.S_ISREG(before.st_mode) or before.st_nlink > 1:
            return None
        return _Found(path, path.read_bytes(), before)

    def lookup(self, index: IndexFile, rows: Rows) -> Lookup:
        return project_lookup(index, rows, self._draft.item, self._shop.shown)

    def write(
        self, index: IndexFile, found: _Found, patched: Patched, lookup: Lookup | None
    ) -> None:
        """Without a lookup, racy entries stay as they are and the index keeps its time."""
        mtime_ns = found.before.st_mtime_ns
        if lookup is not None and patched.racy:
            moments = Moments(mtime_ns, moment(found.path))
            if settle(patched.data, patched.racy, moments, lookup, self._holds(index)):
                mtime_ns = moments.now_ns
        # It is of other folders at another place: git would not use it, and say so each time.
        patched.data.drop(UNTRACKED_CACHE)
        write_file(found.path, patched.data.joined(), found.before, mtime_ns)

    def _holds(self, index: IndexFile) -> Holds:
        return lambda path, oid: self._stored.has_blob(join(index.worktree, path), oid)


def _parse(content: bytes) -> tuple[IndexData, list[Place]] | None:
    try:
        data, places = parse(content)
    except Malformed:
        return None
    return None if data.has(SPLIT) else (data, places)


def _patch(found: _Found, lookup: Lookup) -> Patched | None:
    """All of it. None for an index that is left as it is."""
    parsed = _parse(found.content)
    if parsed is None:
        return None
    data, places = parsed
    _, racy = patch(data, places, found.then_s, lookup)
    offsets = array("I", [offset for offset, _ in places])
    offsets.append(len(data.body))
    return Patched(data, racy, offsets)


@dataclass
class KeptIndexes:
    """Those of a live project. `kept` is the file for what makes it fast next time;
    `before` finds a file of the last base."""

    kept: Path
    before: Callable[[bytes], tuple[Item, Path] | None]
    _new: dict[bytes, Kept] = field(default_factory=dict)

    def patch(self, indexes: Indexes, index: IndexFile, item: Item, view: View) -> None:
        found = indexes.find(index)
        if found is None:
            return
        lookup = indexes.lookup(index, lazy_rows(view))
        patched = self._patch_again(index, found, lookup) or _patch(found, lookup)
        if patched is None:
            return
        indexes.write(index, found, patched, lookup)
        if len(found.content) >= _WORTH_KEEPING:
            racy = array("I", [offset for offset, _ in patched.racy])
            self._new[index.path] = Kept(
                index.path,
                item.digest,
                found.content,
                patched.offsets.tobytes(),
                racy.tobytes(),
            )

    def remember(self, base_id: str) -> None:
        if self._new:
            merged = {**self._old, **self._new}
            write_kept(self.kept, base_id, list(merged.values()))

    @cached_property
    def _old(self) -> dict[bytes, Kept]:
        return read_kept(self.kept)

    def _patch_again(self, index: IndexFile, found: _Found, lookup: Lookup) -> Patched | None:
        """By what changed, if the last patch can be used again."""
        if len(found.content) < _WORTH_KEEPING:
            return None
        kept, last = self._old.get(index.path), self.before(index.path)
        if kept is None or last is None or last[0].digest != kept.digest:
            return None
        if found.then_s < last[0].mtime_ns // _SECOND:
            return None  # dated back: then what is racy is not what it was
        patched = last[1].read_bytes()
        return patch_again(found.content, kept, patched, found.then_s, lookup)
