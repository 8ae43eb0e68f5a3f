"""Git's index file, read and patched without git.

Git believes that a file is unchanged when what `lstat` says equals what the index
recorded: mtime, ctime, inode, uid, gid and size (not the device). A copied file has
another inode and ctime, so in a copied checkout git would read every file again, in
every tree. `restat` writes what is true of the copy into the index once, in the base.

The caller must answer with a new stat only where the recorded one was true of the file
that was copied (`IndexStat.fits`): only there did git believe the content unchanged.
Where git did not, because the entry was racy, see `racy`.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from carrel.trees.git.index_format import (
    GITLINK,
    MASK32,
    MODE_AT,
    STAT,
    IndexData,
    IndexStat,
    Malformed,
    Place,
    open_index,
    parse,
    read_file,
    write_file,
)

__all__ = ["GITLINK", "IndexEntry", "IndexStat", "Lookup", "entries", "is_whole", "patch", "restat"]

_SECOND = 1_000_000_000

Lookup = Callable[[bytes, IndexStat], IndexStat | None]
"""Asked with a path and what is recorded; gives what to record, or None to leave it."""


class IndexEntry(NamedTuple):
    """One entry; `oid` is binary; `stage` is 0 but in a conflict."""

    path: bytes
    mode: int
    oid: bytes
    stage: int
    stat: IndexStat


def entries(
    index: Path, wanted: Callable[[bytes, int], bool] = lambda _path, _mode: True
) -> Iterator[IndexEntry]:
    """Every entry that is wanted by its path and mode; nothing for a file that is
    missing or is no index."""
    content = read_file(index)
    with suppress(Malformed):
        data, places = parse(content)
        for offset, path in places:
            if not wanted(path, content[offset + MODE_AT] << 8 | content[offset + MODE_AT + 1]):
                continue
            found = data.stat(offset)
            yield IndexEntry(path, found.mode, data.oid(offset), data.stage(offset), found)


def is_whole(index: Path) -> bool:
    """Whether it is an index, and nothing of it is missing."""
    try:
        parse(read_file(index))
    except Malformed:
        return False
    return True


def restat(index: Path, lookup: Lookup, *, racy: bool = False) -> int:
    """Replaces the stat data of entries; gives how many.

    Submodules, folders of a sparse index and racy entries are not asked for (with `racy`
    the latter are: only for who wrote the files itself a moment ago). Mode, owner and mtime
    of the file stay. An index that is missing, damaged, or not in one file of its own is
    left alone (0).
    """
    try:
        data, places, before = open_index(index)
    except Malformed:
        return 0
    racy_from = MASK32 + 1 if racy else before.st_mtime_ns // _SECOND
    count = patch(data, places, racy_from, lookup)[0]
    if count:
        write_file(index, data.joined(), before, before.st_mtime_ns)
    return count


def patch(
    data: IndexData, places: list[Place], racy_from: int, lookup: Lookup
) -> tuple[int, list[Place]]:
    """Replaces the stat data of all entries that are older than a second; gives how many
    those were, and the others."""
    body = data.body
    unpack, pack, make = STAT.unpack_from, STAT.pack_into, IndexStat._make
    not_files = (GITLINK, stat.S_IFDIR)
    count = 0
    racy = []
    for place in places:
        offset, path = place
        fields = unpack(body, offset)
        mode = fields[6]
        if mode in not_files:
            continue
        if fields[2] >= racy_from:
            racy.append(place)
            continue
        new = lookup(path, make(fields))
        if new is not None:
            pack(body, offset, *new[:6], mode, *new[7:])
            count += 1
    return count, racy
