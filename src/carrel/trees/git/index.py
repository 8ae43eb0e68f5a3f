"""Git's index file, read and patched without git: versions 2, 3 and 4, SHA-1 and SHA-256.

Git believes that a file is unchanged when what `lstat` says equals what the index
recorded: mtime, ctime, inode, uid, gid and size (not the device). A copied file has
another inode and ctime, so in a copied checkout git would read every file again, in
every tree. `patch` and `restat` write what is true of the copy into the index once, in
the base.

The caller must answer with a new stat only where the recorded one was true of the file
that was copied (`IndexStat.fits`): only there did git believe the content unchanged.
Where git did not, because the entry was racy, see `settle`.

Settings of git that compare less (`core.checkStat=minimal`, `core.trustctime=false`) do not
replace this: git would miss a file of the same size and second (every file of an npm package
is dated 1985, those of `git archive` as the commit), and read racy entries in every tree.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_SECOND = 1_000_000_000
HEADER = struct.Struct(">4sII")
STAT = struct.Struct(">10I")
MODE_AT = 26
"""Where the type and the permissions of an entry are: the lower half of its mode."""
MASK32 = 0xFFFFFFFF
GITLINK = 0o160000
"""The mode of a submodule's entry."""
UNTRACKED_CACHE = b"UNTR"
SPLIT = b"link"
"""This extension says that a part of the index is in another file."""
EXTENDED = 0x4000
_STAGE = 0x3000
NAME_MASK = 0x0FFF
_END_OF_ENTRIES = b"EOIE"
_LENGTH = 4
MAX_BYTES = 128 << 20
"""Of an index that is taken apart …"""
MAX_ENTRIES = 1_000_000
"""… and its files: each is some objects in memory. A larger index is copied as it is, and git reads
all files once."""
MAX_NAME_BYTES = 128 << 20
"""Of all names together; those of a million files take half of it."""
_NAMES_PER_BYTE = 8
"""A real index of version 4 unfolds to names of two or three times its size; a crafted one,
whose names share long beginnings, to as much as its size squared."""
_SMALL = 1 << 20
"""So many bytes of names are no matter, however small the file is."""
_VARINT_BYTES = 5
"""For a number that is no longer than a path."""
HASHES: dict[int, Callable[[bytes | bytearray | memoryview], hashlib._Hash]] = {
    20: hashlib.sha1,
    32: hashlib.sha256,
}
"""By the size of what they give."""
_WRITABLE = stat.S_IRUSR | stat.S_IWUSR


class IndexStat(NamedTuple):
    """The stat fields of an entry in the order of the file, each cut to 32 bits.

    `mode` is git's own (0o100644, 0o120000 …) in what the index gives; it is not
    changed by `restat`.
    """

    ctime_s: int
    ctime_ns: int
    mtime_s: int
    mtime_ns: int
    dev: int
    ino: int
    mode: int
    uid: int
    gid: int
    size: int

    @classmethod
    def of(cls, found: os.stat_result) -> IndexStat:
        """What git would record for a file."""
        ctime_s, ctime_ns = divmod(found.st_ctime_ns, 1_000_000_000)
        mtime_s, mtime_ns = divmod(found.st_mtime_ns, 1_000_000_000)
        size = found.st_size & MASK32
        if size == 0 and found.st_size:
            size = 0x80000000  # as git: a multiple of 4 GiB must not look empty
        return cls(
            ctime_s & MASK32,
            ctime_ns,
            mtime_s & MASK32,
            mtime_ns,
            found.st_dev & MASK32,
            found.st_ino & MASK32,
            found.st_mode,
            found.st_uid & MASK32,
            found.st_gid & MASK32,
            size,
        )

    def fits(self, found: os.stat_result) -> bool:
        """Whether git, at its strictest, takes a file with this stat for unchanged."""
        return self._compared() == IndexStat.of(found)._compared()

    def _compared(self) -> tuple[int, ...]:
        return (*self[:4], self.ino, self.uid, self.gid, self.size)


Place = tuple[int, bytes]
"""Where an entry begins, and its path. No class: there is one per file of a project."""


class MalformedIndex(Exception):
    """Not an index that we understand."""


@dataclass
class IndexData:
    """An index, taken apart. `body` has the header and the entries; extensions keep
    their order."""

    body: bytearray
    hash_size: int
    extensions: list[tuple[bytes, bytes]]
    has_checksum: bool
    """Some go without one (index.skipHash): then there are zeros."""

    def has(self, name: bytes) -> bool:
        return any(found == name for found, _ in self.extensions)

    def drop(self, name: bytes) -> None:
        """Takes an extension out."""
        self.extensions = [pair for pair in self.extensions if pair[0] != name]

    def stat(self, offset: int) -> IndexStat:
        """Of the entry that begins there."""
        return IndexStat(*STAT.unpack_from(self.body, offset))

    def oid(self, offset: int) -> bytes:
        start = offset + STAT.size
        return bytes(self.body[start : start + self.hash_size])

    def stage(self, offset: int) -> int:
        """0 but in a conflict."""
        return (self.body[offset + STAT.size + self.hash_size] << 8 & _STAGE) >> 12

    def record(self, offset: int, new: IndexStat) -> None:
        """Gives an entry other stat data; its mode stays."""
        mode = STAT.unpack_from(self.body, offset)[6]
        STAT.pack_into(self.body, offset, *new[:6], mode, *new[7:])

    def joined(self) -> bytes:
        """The whole file again."""
        data = bytearray(self.body)
        headers = bytearray()
        for name, content in self.extensions:
            if name != _END_OF_ENTRIES:
                header = name + len(content).to_bytes(_LENGTH, "big")
                headers += header
                data += header + content
        algorithm = HASHES[self.hash_size]
        if self.has(_END_OF_ENTRIES):
            # Comes last, and names the others; a wrong one would be ignored.
            content = len(self.body).to_bytes(_LENGTH, "big") + algorithm(headers).digest()
            data += _END_OF_ENTRIES + len(content).to_bytes(_LENGTH, "big") + content
        data += algorithm(data).digest() if self.has_checksum else bytes(self.hash_size)
        return bytes(data)


def parse(data: bytes) -> tuple[IndexData, list[Place]]:
    """Raises `MalformedIndex`, also for what would unfold to far more than its size. The file does
    not say which hash it uses, but its checksum does, or with one of zeros its structure."""
    view = memoryview(data)
    for size, algorithm in HASHES.items():
        if len(data) > size and algorithm(view[:-size]).digest() == view[-size:]:
            return _parse_as(data, size, has_checksum=True)
    for size in HASHES:
        if data and not any(view[-size:]):
            with suppress(MalformedIndex):
                return _parse_as(data, size, has_checksum=False)
    raise MalformedIndex


def _parse_as(data: bytes, hash_size: int, *, has_checksum: bool) -> tuple[IndexData, list[Place]]:
    if len(data) < HEADER.size + hash_size:
        raise MalformedIndex
    magic, version, count = HEADER.unpack_from(data)
    if magic != b"DIRC" or version not in (2, 3, 4) or count > MAX_ENTRIES:
        raise MalformedIndex
    walk = _walk_compressed if version == 4 else _walk_padded
    try:
        found, end = walk(data, hash_size, count)
    except (IndexError, ValueError) as error:
        raise MalformedIndex from error
    _check_order(found)
    extensions = read_extensions(data, end, hash_size)
    return IndexData(bytearray(data[:end]), hash_size, extensions, has_checksum), found


def _check_order(found: list[Place]) -> None:
    """As git has it: by name, and only a conflict has one up to four times (its stages).
    Else a file could be named, and be read, any number of times."""
    before, times = b"", 0
    for _, path in found:
        if path == before:
            times += 1
            if times > 4:
                raise MalformedIndex
        elif path < before:
            raise MalformedIndex
        else:
            before, times = path, 1


_MOST_EXTENSIONS = 32
"""Git knows ten. A file that is one large hole would have millions of empty ones."""


def read_extensions(data: bytes, at: int, hash_size: int) -> list[tuple[bytes, bytes]]:
    """Of an index whose entries end at `at`. Raises `MalformedIndex`."""
    extensions: list[tuple[bytes, bytes]] = []
    stop = len(data) - hash_size
    while at < stop:
        if len(extensions) >= _MOST_EXTENSIONS:
            raise MalformedIndex
        start = at + 4 + _LENGTH
        length = int.from_bytes(data[at + 4 : start], "big")
        extensions.append((data[at : at + 4], data[start : start + length]))
        at = start + length
    if at != stop:
        raise MalformedIndex
    return extensions


def _walk_padded(data: bytes, hash_size: int, count: int) -> tuple[list[Place], int]:
    """Versions 2 and 3: names in full, each entry padded with 1 to 8 zero bytes."""
    found = []
    offset, flags_at = HEADER.size, STAT.size + hash_size
    for _ in range(count):
        start = offset + flags_at
        flags = data[start] << 8 | data[start + 1]
        start += 4 if flags & EXTENDED else 2
        length = flags & NAME_MASK
        end = start + length
        if length == NAME_MASK:  # longer than the field can say
            end = data.index(0, end)
        found.append((offset, data[start:end]))
        offset += (end - offset + 8) & ~7
    return found, offset


def _walk_compressed(data: bytes, hash_size: int, count: int) -> tuple[list[Place], int]:
    """Version 4: each name as what it shares with the one before, and the rest."""
    found = []
    offset, flags_at = HEADER.size, STAT.size + hash_size
    path = b""
    left = min(_NAMES_PER_BYTE * len(data) + _SMALL, MAX_NAME_BYTES)
    for _ in range(count):
        start = offset + flags_at
        start += 4 if data[start] << 8 & EXTENDED else 2
        strip, start = _varint(data, start)
        end = data.index(0, start)
        kept = len(path) - strip
        left -= max(kept, 0) + end - start
        if kept < 0 or left < 0:
            raise MalformedIndex
        path = path[:kept] + data[start:end]
        found.append((offset, path))
        offset = end + 1
    return found, offset


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    value = byte & 127
    last = at + _VARINT_BYTES
    while byte & 128:
        if at >= last:
            raise MalformedIndex
        byte = data[at]
        at += 1
        value = ((value + 1) << 7) | (byte & 127)
    return value, at


class IndexName(NamedTuple):
    """One entry, without what `lstat` said of it; see `IndexEntry`."""

    path: bytes
    mode: int
    oid: bytes
    stage: int


def walk(data: bytes) -> Iterator[IndexName]:
    """The entries of an index, one after the other: not all that a stranger wrote is in memory.
    Raises `MalformedIndex`, also for one that is not in one file."""
    size = _hash_size(data)
    _, version, count = HEADER.unpack_from(data)
    at, path = HEADER.size, b""
    try:
        for _ in range(count):
            start = at + STAT.size + size
            flags = data[start] << 8 | data[start + 1]
            oid, mode = (
                data[at + STAT.size : start],
                data[at + MODE_AT] << 8 | data[at + MODE_AT + 1],
            )
            start += 4 if flags & EXTENDED else 2
            if version == 4:
                strip, start = _varint(data, start)
                end = data.index(0, start)
                path = path[: max(len(path) - strip, 0)] + data[start:end]
                at = end + 1
            else:
                end = data.index(0, start + (flags & NAME_MASK))
                path = data[start:end]
                at += (end - at + 8) & ~7
            yield IndexName(path, mode, oid, (flags & _STAGE) >> 12)
    except (IndexError, ValueError) as error:
        raise MalformedIndex from error
    if any(name == SPLIT for name, _ in read_extensions(data, at, size)):
        raise MalformedIndex


_KNOWN = tuple((b"DIRC", version) for version in (2, 3, 4))


def _hash_size(data: bytes) -> int:
    """As `parse` finds it out; with a checksum of zeros it is the usual one."""
    view = memoryview(data)
    if len(data) < HEADER.size + max(HASHES) or HEADER.unpack_from(data)[:2] not in _KNOWN:
        raise MalformedIndex
    for size, algorithm in HASHES.items():
        if algorithm(view[:-size]).digest() == view[-size:]:
            return size
    if any(view[-min(HASHES) :]):
        raise MalformedIndex
    return min(HASHES)


# Files


def read_file(index: Path) -> bytes:
    """Nothing for a file that is missing, or too big to be taken apart."""
    try:
        return index.read_bytes() if index.stat().st_size <= MAX_BYTES else b""
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return b""


def open_index(index: Path) -> tuple[IndexData, list[Place], os.stat_result]:
    """An index that can be written again. Raises `MalformedIndex` for one that is missing,
    damaged, or not in one file of its own."""
    before = index.lstat() if os.path.lexists(index) else None
    if before is None or not stat.S_ISREG(before.st_mode) or before.st_nlink > 1:
        raise MalformedIndex
    data, places = parse(read_file(index))
    if data.has(SPLIT):
        raise MalformedIndex
    return data, places, before


def moment(index: Path) -> int:
    """The present by the clock of the index's file system, in nanoseconds. Whatever is
    written there from now on has this mtime or a later one; `time.time()` may be ahead."""
    os.utime(index)
    return index.stat().st_mtime_ns


def write_file(index: Path, data: bytes, before: os.stat_result, mtime_ns: int) -> None:
    """Gives an index other bytes. Its owner and mode stay, and so does the time of the
    folder that it is in: nobody else sees the file yet."""
    mode = stat.S_IMODE(before.st_mode)
    locked = mode & _WRITABLE != _WRITABLE
    if locked:
        index.chmod(mode | _WRITABLE)
    index.write_bytes(data)
    if locked:
        index.chmod(mode)
    os.utime(index, ns=(before.st_atime_ns, mtime_ns))


# Patching

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
    with suppress(MalformedIndex):
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
    except MalformedIndex:
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
    except MalformedIndex:
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


# Entries of a git index that git does not believe, and how they become believable.
#
# A file written in the same moment as the index may have changed after its stat was taken
# without the stat showing it. Git therefore reads every file whose recorded mtime is not
# older than the index file, by whole seconds: all that a checkout wrote in its last second.
# In every tree of a base it would do so again.
#
# In a base the content stands still, so one look settles it: an entry whose blob the stored
# file has gets the stored file's stat, and the index a time of its own, later than the
# entry's. That holds as long as the index is dated by the clock of its file system, never
# ahead of it: whatever is written afterwards has another mtime then.
#
# What cannot be settled must not look settled under the new time. Such an entry is recorded
# with the size 0, as git itself does it: that fits no file, so git reads it. Entries of the
# very second in which the index is written anew stay as they are, racy.

_CHUNK = 1 << 20

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
