"""Makes git believe in a base what it believed in the project.

A git index remembers inode and ctime of every file. The copies have others, so git would
read all of them again, in every tree. What was true of a project's file is therefore
replaced by what is true of its copy, once, in the base.

In the manifest an index stays what it is in the project: that names the base.
"""

from __future__ import annotations

import hashlib
import os
import stat
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec

from carrel.domain.trees import Owner
from carrel.linux.descriptors import Descriptor
from carrel.linux.statx import Row
from carrel.trees.bases.disk import BuildContext
from carrel.trees.bases.entries import EntryMoved, ReadFailed, WantedEntry, open_source
from carrel.trees.bases.layer import LayerWriter
from carrel.trees.bases.manifest import Draft, StoredItem
from carrel.trees.bases.records import IndexFile
from carrel.trees.bases.views import ProjectView
from carrel.trees.git.index import (
    EXTENDED,
    GITLINK,
    HEADER,
    MASK32,
    MAX_BYTES,
    SPLIT,
    STAT,
    UNTRACKED_CACHE,
    Holds,
    IndexData,
    IndexStat,
    Lookup,
    MalformedIndex,
    Moments,
    Place,
    blob_id,
    blob_id_of_file,
    moment,
    parse,
    patch,
    read_extensions,
    settle,
    smudge,
    write_file,
)
from carrel.trees.paths import FOLDER, PATH_LIMIT, join, open_folder, split

_NO_FOLDER = (-1, b"")


class StoredFiles:
    """`layers` are those of the base, the lowest first. Files of one folder are best asked
    for one after another."""

    def __init__(self, layers: Sequence[Path], items: Callable[[bytes], StoredItem | None]) -> None:
        self._layers = layers
        self._items = items
        self._roots: dict[int, int] = {}
        self._folder = -1
        self._at = _NO_FOLDER

    def close(self) -> None:
        for descriptor in (*self._roots.values(), self._folder):
            if descriptor >= 0:
                os.close(descriptor)
        self._roots.clear()
        self._folder, self._at = -1, _NO_FOLDER

    def root(self, layer: int) -> int:
        """A descriptor of a layer's root, which stays ours."""
        if layer not in self._roots:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            self._roots[layer] = os.open(self._layers[layer], flags)
        return self._roots[layer]

    def has_blob(self, path: bytes, oid: bytes) -> bool:
        """Whether the content of a file, or a symlink's target, is a blob of git's. What
        cannot be read is not."""
        item = self._items(path)
        if item is None:
            return False
        with suppress(OSError, EntryMoved, ReadFailed):
            if stat.S_ISLNK(item.mode):
                target = os.readlink(split(path)[1], dir_fd=self._open_folder(item.layer, path))
                return blob_id(target, len(oid)) == oid
            with self._opened(path, item) as file:
                return blob_id_of_file(file, len(oid)) == oid
        return False

    @contextmanager
    def _opened(self, path: bytes, item: StoredItem) -> Iterator[int]:
        folder = self._open_folder(item.layer, path)
        # Nothing is done to read what may not be read: it would change the ctime.
        with Descriptor(open_source(WantedEntry(folder, split(path)[1], None, path))) as file:
            yield file

    def _open_folder(self, layer: int, path: bytes) -> int:
        """The folder that a file is in; open until another one is asked for."""
        wanted = (layer, split(path)[0])
        if self._at != wanted:
            if self._folder >= 0:
                os.close(self._folder)
                self._folder, self._at = -1, _NO_FOLDER
            self._folder, self._at = open_folder(self.root(layer), wanted[1]), wanted
        return self._folder


# What is to be recorded in an index for a file of a base, if anything

_SECOND = 1_000_000_000

Rows = Callable[[bytes], Row | None]
Items = Callable[[bytes], StoredItem | None]


def lazy_rows(view: ProjectView) -> Rows:
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


def _fits_item(recorded: IndexStat, item: StoredItem) -> bool:
    return (
        recorded.ino == item.inode & MASK32
        and recorded.ctime_s == item.ctime_ns // _SECOND & MASK32
        and recorded.ctime_ns == item.ctime_ns % _SECOND
        and recorded.mtime_s == item.mtime_ns // _SECOND & MASK32
        and recorded.mtime_ns == item.mtime_ns % _SECOND
        and recorded.size == item.size & MASK32
    )


def _stat_of(item: StoredItem, recorded: IndexStat, shown: Owner) -> IndexStat | None:
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


# Patching an index by what changed in it since the last base.
#
# Most commits change some entries of the index and leave the names as they are. Then the
# entries that stayed have the same patch as last time, and only the others are looked at:
# milliseconds instead of half a second for 50,000 files. What is needed for it, the index
# as the project had it last time, is kept beside the project's head.

_OID = 20
_CHECKSUM = 20
_FLAGS_AT = STAT.size + _OID
_BLOCK = 1 << 16
_FORMAT = 2


class KeptIndex(msgspec.Struct, array_like=True):
    """An index as the project had it. `digest` is that of its entry in the manifest;
    `offsets` are those of its entries, and of their end; `racy` those of the racy ones."""

    path: bytes
    digest: bytes
    content: bytes
    offsets: bytes
    racy: bytes


class _KeptDocument(msgspec.Struct, array_like=True):
    version: int
    base_id: str
    kept: list[KeptIndex]


_decoder = msgspec.msgpack.Decoder(_KeptDocument)


def read_kept(path: Path) -> dict[bytes, KeptIndex]:
    """By path; nothing when there is none, or it cannot be read: it only saves work."""
    try:
        document = _decoder.decode(path.read_bytes())
    except (FileNotFoundError, msgspec.MsgspecError):
        return {}
    return {kept.path: kept for kept in document.kept} if document.version == _FORMAT else {}


def write_kept(path: Path, base_id: str, kept: list[KeptIndex]) -> None:
    path.write_bytes(msgspec.msgpack.encode(_KeptDocument(_FORMAT, base_id, kept)))


class Patched(NamedTuple):
    """An index whose entries are patched, but for the racy ones. `offsets` are those of all
    entries, and of their end."""

    data: IndexData
    racy: list[Place]
    offsets: array[int]


def patch_again(
    new: bytes, kept: KeptIndex, patched: bytes, racy_from: int, lookup: Lookup
) -> Patched | None:
    """`patched` is what became of the kept index, which is not younger than the new one;
    entries that are not older than `racy_from` are racy. None when names differ, or when
    the index is of a kind that is not known here: then all of it has to be looked at."""
    old = kept.content
    if new[: HEADER.size] != old[: HEADER.size] or not _is_plain(new):
        return None
    offsets = array("I", kept.offsets)
    if min(len(new) - _CHECKSUM, len(patched)) < offsets[-1]:
        return None
    try:
        extensions = read_extensions(new, offsets[-1], _CHECKSUM)
    except MalformedIndex:
        return None
    data = IndexData(bytearray(patched[: offsets[-1]]), _OID, extensions, has_checksum=True)
    if data.has(SPLIT):
        return None
    racy: set[Place] = set()
    for start, end in (*_changed(new, old, offsets), *_doubted(new, kept, patched, racy_from)):
        if new[start + _FLAGS_AT : end] != old[start + _FLAGS_AT : end]:
            return None
        data.body[start:end] = new[start:end]
        recorded = data.stat(start)
        if recorded.mode == GITLINK:
            continue
        path = _name(new, start, end)
        if recorded.mtime_s >= racy_from:
            racy.add((start, path))
        elif (found := lookup(path, recorded)) is not None:
            data.record(start, found)
    return Patched(data, sorted(racy), offsets)


def _doubted(
    new: bytes, kept: KeptIndex, patched: bytes, racy_from: int
) -> Iterator[tuple[int, int]]:
    """Where entries begin and end that were racy last time, and either are so still or
    were left for git to read."""
    offsets = array("I", kept.offsets)
    for start in array("I", kept.racy):
        was, before, now = (_stat(data, start) for data in (patched, kept.content, new))
        if now.mtime_s >= racy_from or was == before or not was.size:
            yield start, offsets[bisect_right(offsets, start)]


def _stat(data: bytes, offset: int) -> IndexStat:
    return IndexStat(*STAT.unpack_from(data, offset))


def _is_plain(data: bytes) -> bool:
    """Of version 2 or 3, with SHA-1, and whole."""
    magic, version, _ = HEADER.unpack_from(data)
    view = memoryview(data)
    return (
        magic == b"DIRC"
        and version in (2, 3)
        and hashlib.sha1(view[:-_CHECKSUM]).digest() == view[-_CHECKSUM:]
    )


def _changed(new: bytes, old: bytes, offsets: array[int]) -> Iterator[tuple[int, int]]:
    """Where entries begin and end whose bytes are not the same."""
    last = offsets[-1]
    done = 0
    for start in range(HEADER.size, last, _BLOCK):
        stop = min(start + _BLOCK, last)
        if new[start:stop] == old[start:stop]:
            continue
        for at in range(max(done, bisect_right(offsets, start) - 1), len(offsets) - 1):
            begin, end = offsets[at], offsets[at + 1]
            if begin >= stop:
                break
            done = at + 1
            if new[begin:end] != old[begin:end]:
                yield begin, end


def _name(data: bytes | bytearray, start: int, end: int) -> bytes:
    flags = data[start + _FLAGS_AT] << 8
    name_at = start + _FLAGS_AT + (4 if flags & EXTENDED else 2)
    return bytes(data[name_at:end]).rstrip(b"\0")


# Indexes that a base has from the one before, because they did not change.
#
# A base may date an index later than the project has it (see `git.index.settle`). A file of the
# project that was written in the index's own second, and is written once more in that second,
# then has an entry that git in a tree would not doubt any more, though git in the project does.
# If git compares no more than times and sizes, it would take it for unchanged. So such an index
# is brought along, with that entry marked.


@dataclass(frozen=True)
class InheritedIndexes:
    """`find` gives a file of the last base, and where it is."""

    draft: Draft
    writer: LayerWriter
    find: Callable[[bytes], tuple[StoredItem, Path] | None]

    def bring(
        self, indexes: Iterable[IndexFile], stored: set[bytes]
    ) -> dict[IndexFile, set[bytes]]:
        """Stores those indexes again that have to be. `stored` are the paths that are new
        in this base. Gives the paths, as the index has them, that git must not believe."""
        doubted = {}
        for index in indexes:
            found = self.find(index.path)
            if index.path in stored or found is None:
                continue
            item, place = found
            young = self._young(index, item.mtime_ns // _SECOND, stored)
            if young and place.stat().st_mtime_ns != item.mtime_ns:
                self._store(index.path, item, place)
                doubted[index] = young
        return doubted

    def _young(self, index: IndexFile, second: int, stored: set[bytes]) -> set[bytes]:
        """The new files of the second in which the project's index was written."""
        prefix = index.worktree + b"/" if index.worktree else b""
        found = set()
        for path in stored:
            item = self.draft.item(path) if path.startswith(prefix) else None
            if item is not None and item.mtime_ns // _SECOND == second:
                found.add(path[len(prefix) :])
        return found

    def _store(self, path: bytes, item: StoredItem, source: Path) -> None:
        above, name = split(path)
        self.writer.make_folders([above])
        origin = os.open(source.parent, FOLDER)
        folder = open_folder(self.writer.root, above)
        try:
            wanted = WantedEntry(origin, name, None, path, ours=True)
            stored = self.writer.copier.store_file(wanted, folder, name)
        finally:
            os.close(folder)
            os.close(origin)
        # Else it stays what it is in the project; see `indexes`.
        self.draft.put(path, item._replace(layer=stored.layer))


# All indexes of one layer

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

    def __init__(self, context: BuildContext, draft: Draft, layers: Sequence[Path]) -> None:
        self._context = context
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
        lookup = moved_lookup(index, before, self._draft.item, self._context.shown)
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
        if not stat.S_ISREG(before.st_mode) or before.st_nlink > 1 or before.st_size > MAX_BYTES:
            return None
        return _Found(path, path.read_bytes(), before)

    def lookup(self, index: IndexFile, rows: Rows) -> Lookup:
        return project_lookup(index, rows, self._draft.item, self._context.shown)

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
    except MalformedIndex:
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
    before: Callable[[bytes], tuple[StoredItem, Path] | None]
    _new: dict[bytes, KeptIndex] = field(default_factory=dict)

    def patch(
        self, indexes: Indexes, index: IndexFile, item: StoredItem, view: ProjectView
    ) -> bool:
        """False for an index that is left as it is."""
        found = indexes.find(index)
        if found is None:
            return False
        lookup = indexes.lookup(index, lazy_rows(view))
        patched = self._patch_again(index, found, lookup) or _patch(found, lookup)
        if patched is None:
            return False
        indexes.write(index, found, patched, lookup)
        if len(found.content) >= _WORTH_KEEPING:
            racy = array("I", [offset for offset, _ in patched.racy])
            self._new[index.path] = KeptIndex(
                index.path,
                item.digest,
                found.content,
                patched.offsets.tobytes(),
                racy.tobytes(),
            )
        return True

    def remember(self, base_id: str) -> None:
        if self._new:
            merged = {**self._old, **self._new}
            write_kept(self.kept, base_id, list(merged.values()))

    @cached_property
    def _old(self) -> dict[bytes, KeptIndex]:
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
