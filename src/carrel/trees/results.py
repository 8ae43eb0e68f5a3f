"""What was made in a tree, for people: the files that truly are others now.

The tree may still be changing while it is read, and strangers filled it. Nothing is followed,
and what goes away meanwhile is told as far as it was seen.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from operator import attrgetter

from carrel.domain.requests import Collected
from carrel.domain.trees import Change, ChangeKind, EntryType, Tree, TreeDriver
from carrel.trees.archives import Packer, gather, ignore_skipped
from carrel.trees.drivers.common import Comparable, tree_errors
from carrel.trees.folders import Root
from carrel.trees.result_files import Entry, Reader
from carrel.trees.tar_entries import END

_LEVEL = 4
"""Of zlib: most of what can be saved, twice as fast as its own choice."""
_GIT = ".git"


class Results:
    """Implements `carrel.domain.requests.Collecting`."""

    def collect(
        self, driver: TreeDriver, tree: Tree, *, most: int, after: str = "", content_bytes: int = 0
    ) -> Collected:
        tally = _Tally(after)
        entries = tally.count(_entries(driver, tree))
        page = heapq.nsmallest(most, entries, key=attrgetter("path"))
        # It takes nothing where nothing is wanted.
        for _ in entries:
            pass
        with Root(driver.open_root(tree)) as root, tree_errors("read what changed"):
            reader = Reader(root, content_bytes)
            return Collected(tuple(reader.read(entry) for entry in page), tally.total)

    def archive(self, driver: TreeDriver, tree: Tree, *, everything: bool) -> Iterator[bytes]:
        """Who stops early closes it. Modes and times are kept, owners are not. What is wrong
        with the tree is told at once."""
        os.close(driver.open_root(tree))
        return _gzip(gather(_packed(driver, tree, everything)))


def _entries(driver: TreeDriver, tree: Tree) -> Iterator[Entry]:
    """Nearly in the order of their paths: a renamed file is two."""
    for change in _changes(driver, tree):
        if change.kind is ChangeKind.RENAMED and change.old_path is not None:
            yield from _entry(change.old_path, change.old_type, None)
            yield from _entry(change.path, None, change.new_type)
        else:
            yield from _entry(change.path, change.old_type, change.new_type)


def _changes(driver: TreeDriver, tree: Tree) -> Iterator[Change]:
    """As they are found, where the driver can: there may be any number."""
    if isinstance(driver, Comparable):
        return driver.compare(tree, links=False, renames=False)
    return driver.changes(tree)


def _entry(path: str, old: EntryType | None, new: EntryType | None) -> Iterator[Entry]:
    """Nothing for folders: where one takes a file's place, the file has gone."""
    if _is_git(path):
        return
    if new is not None and new is not EntryType.FOLDER:
        there = old is not None and old is not EntryType.FOLDER
        yield Entry(path, ChangeKind.MODIFIED if there else ChangeKind.ADDED, new)
    elif old is not None and old is not EntryType.FOLDER:
        yield Entry(path, ChangeKind.DELETED, old)


def _is_git(path: str) -> bool:
    return _GIT in path and _GIT in path.split("/")


@dataclass
class _Tally:
    after: str
    total: int = 0

    def count(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        for entry in entries:
            self.total += 1
            if entry.path > self.after:
                yield entry


def _packed(driver: TreeDriver, tree: Tree, everything: bool) -> Generator[bytes, None, None]:
    paths = [] if everything else _there(driver, tree)
    with Root(driver.open_root(tree)) as root:
        packer = Packer(root, ignore_skipped, leave_out=_is_git)
        if everything:
            yield from packer.pack_all()
        else:
            yield from packer.pack_each(paths)
    yield END


def _there(driver: TreeDriver, tree: Tree) -> list[str]:
    entries = _entries(driver, tree)
    return sorted(one.path for one in entries if one.change is not ChangeKind.DELETED)


def _gzip(blocks: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    """Without a time and a name, so that the same files give the same bytes."""
    packing = zlib.compressobj(_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    with contextlib.closing(blocks):
        for block in blocks:
            if piece := packing.compress(block):
                yield piece
    yield packing.flush()
