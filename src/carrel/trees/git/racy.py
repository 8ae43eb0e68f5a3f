"""Entries of a git index that git does not believe, and how they become believable.

A file written in the same moment as the index may have changed after its stat was taken
without the stat showing it. Git therefore reads every file whose recorded mtime is not
older than the index file, by whole seconds: all that a checkout wrote in its last second.
In every tree of a base it would do so again.

In a base the content stands still, so one look settles it: an entry whose blob the stored
file has gets the stored file's stat, and the index a time of its own, later than the
entry's. That holds as long as the index is dated by the clock of its file system, never
ahead of it: whatever is written afterwards has another mtime then.

What cannot be settled must not look settled under the new time. Such an entry is recorded
with the size 0, as git itself does it: that fits no file, so git reads it. Entries of the
very second in which the index is written anew stay as they are, racy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from carrel.trees.git.index_format import HASHES, MASK32, IndexData, IndexStat, Place

_CHUNK = 1 << 20
_SECOND = 1_000_000_000

Holds = Callable[[bytes, bytes], bool]
"""Whether the stored file at a path has the content that a blob's id names."""


@dataclass(frozen=True)
class Moments:
    """When the index was written, and when it is written again; nanoseconds."""

    then_ns: int
    now_ns: int

    @property
    def then_s(self) -> int:
        return self.then_ns // _SECOND & MASK32

    @property
    def now_s(self) -> int:
        return self.now_ns // _SECOND & MASK32


def settle(
    data: IndexData,
    racy: Iterable[Place],
    moments: Moments,
    lookup: Callable[[bytes, IndexStat], IndexStat | None],
    holds: Holds,
) -> bool:
    """Looks into racy entries. Gives whether any changed: then the index must be dated
    `now_ns`, else it must keep its time."""
    changed = False
    for offset, path in racy:
        recorded = data.stat(offset)
        if recorded.mtime_s >= moments.now_s:
            continue
        changed = True
        new = None
        # An mtime later than the index is no moment that it was written in, but somebody's
        # invention: the next file with that time need not be the same.
        if recorded.mtime_s == moments.then_s:
            new = lookup(path, recorded)
        if new is not None and holds(path, data.oid(offset)):
            data.record(offset, new)
        else:
            smudge(data, offset)
    return changed


def smudge(data: IndexData, offset: int) -> None:
    """Has git read the file, whatever `lstat` says."""
    data.record(offset, data.stat(offset)._replace(size=0))


def blob_id(content: bytes, hash_size: int) -> bytes:
    return HASHES[hash_size](b"blob %d\0" % len(content) + content).digest()


def blob_id_of_file(file: int, hash_size: int) -> bytes:
    """Of an open file's content."""
    size = os.fstat(file).st_size
    digest = HASHES[hash_size](b"blob %d\0" % size)
    position = 0
    while data := os.pread(file, _CHUNK, position):
        digest.update(data)
        position += len(data)
    return digest.digest()
