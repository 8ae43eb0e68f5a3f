"""Git's index file, read and patched without git: versions 2, 3 and 4, SHA-1 and SHA-256.

Git believes that a file is unchanged when what `lstat` says equals what the index
recorded: mtime, ctime, inode, uid, gid and size (not the device). A copied file has
another inode and ctime, so in a copied checkout git would read every file again, in
every tree. `restat` writes what is true of the copy into the index once, in the base.

**Racy entries.** A file written in the same moment as the index may have changed after
its stat was taken without the stat showing it. Git therefore reads the content of every
entry whose mtime is not older than the index file. Two rules keep that safety:
`restat` gives the new file the old one's mtime, and it leaves such entries alone.

The caller must answer with a new stat only where the recorded one was true of the file
that was copied (`IndexStat.fits`): only there did git believe the content unchanged.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_STAT = struct.Struct(">10I")
_HEADER = struct.Struct(">4sII")
_STAT_SIZE = _STAT.size
_MODE_AT = 26
_EXTENDED = 0x4000
_STAGE = 0x3000
_NAME_MASK = 0x0FFF
_MASK32 = 0xFFFFFFFF
_HASHES = {20: hashlib.sha1, 32: hashlib.sha256}
GITLINK = 0o160000
"""The mode of a submodule's entry."""


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
        size = found.st_size & _MASK32
        if size == 0 and found.st_size:
            size = 0x80000000  # as git: a multiple of 4 GiB must not look empty
        return cls(
            ctime_s & _MASK32,
            ctime_ns,
            mtime_s & _MASK32,
            mtime_ns,
            found.st_dev & _MASK32,
            found.st_ino & _MASK32,
            found.st_mode,
            found.st_uid & _MASK32,
            found.st_gid & _MASK32,
            size,
        )

    def fits(self, found: os.stat_result) -> bool:
        """Whether git, at its strictest, takes a file with this stat for unchanged."""
        return self._compared() == IndexStat.of(found)._compared()

    def _compared(self) -> tuple[int, ...]:
        return (*self[:4], self.ino, self.uid, self.gid, self.size)


class IndexEntry(NamedTuple):
    """One entry; `oid` is binary; `stage` is 0 but in a conflict."""

    path: bytes
    mode: int
    oid: bytes
    stage: int
    stat: IndexStat


Lookup = Callable[[bytes, IndexStat], IndexStat | None]


class _Malformed(Exception):
    """Not an index that we understand."""


class _Parsed(NamedTuple):
    hash_size: int
    entries: list[tuple[int, bytes]]
    """Offset and path of each."""
    extensions: frozenset[bytes]


def entries(
    index: Path, wanted: Callable[[bytes, int], bool] = lambda _path, _mode: True
) -> Iterator[IndexEntry]:
    """Every entry that is wanted by its path and mode; nothing for a file that is
    missing or is no index."""
    data = _read(index)
    with suppress(_Malformed):
        parsed = _parse(data)
        for offset, path in parsed.entries:
            if not wanted(path, data[offset + _MODE_AT] << 8 | data[offset + _MODE_AT + 1]):
                continue
            found = IndexStat(*_STAT.unpack_from(data, offset))
            start = offset + _STAT_SIZE
            end = start + parsed.hash_size
            stage = (data[end] << 8 & _STAGE) >> 12
            yield IndexEntry(path, found.mode, data[start:end], stage, found)


def restat(index: Path, lookup: Lookup, *, racy: bool = False) -> int:
    """Replaces the stat data of entries; gives how many.

    `lookup(path, recorded)` answers with the stat to record, or None to leave the entry
    as it is. Submodules, folders of a sparse index and racy entries are not asked for
    (with `racy` the latter are: only for who wrote the files itself a moment ago).
    The file is replaced atomically, with the same mode, owner and mtime. An index that
    is missing, damaged or split in two files is left alone (0).
    """
    data = _read(index)
    try:
        parsed = _parse(data)
    except _Malformed:
        return 0
    if b"link" in parsed.extensions:
        return 0
    before = index.stat()
    patched = bytearray(data)
    racy_from = _MASK32 + 1 if racy else int(before.st_mtime)
    count = _patch(patched, parsed.entries, racy_from, lookup)
    if count:
        _seal(patched, parsed.hash_size)
        _replace(index, patched, before)
    return count


def _read(index: Path) -> bytes:
    try:
        return index.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return b""


def _patch(data: bytearray, found: list[tuple[int, bytes]], racy_from: int, lookup: Lookup) -> int:
    unpack, pack, make = _STAT.unpack_from, _STAT.pack_into, IndexStat._make
    not_files = (GITLINK, stat.S_IFDIR)
    count = 0
    for offset, path in found:
        fields = unpack(data, offset)
        mode = fields[6]
        if fields[2] >= racy_from or mode in not_files:
            continue
        new = lookup(path, make(fields))
        if new is not None:
            pack(data, offset, *new[:6], mode, *new[7:])
            count += 1
    return count


def _seal(data: bytearray, hash_size: int) -> None:
    """Writes the checksum, unless the index goes without one (index.skipHash)."""
    if any(data[-hash_size:]):
        data[-hash_size:] = _HASHES[hash_size](memoryview(data)[:-hash_size]).digest()


def _replace(index: Path, data: bytearray, before: os.stat_result) -> None:
    handle, name = tempfile.mkstemp(dir=index.parent, prefix=".index-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            after = os.fstat(handle)
            if (after.st_uid, after.st_gid) != (before.st_uid, before.st_gid):
                os.fchown(handle, before.st_uid, before.st_gid)
            os.fchmod(handle, stat.S_IMODE(before.st_mode))
            os.utime(handle, ns=(before.st_atime_ns, before.st_mtime_ns))
        os.rename(name, index)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _parse(data: bytes) -> _Parsed:
    """Raises `_Malformed`. The file does not say which hash it uses, but its checksum
    does, or with a checksum of zeros (index.skipHash) its structure."""
    view = memoryview(data)
    for size, algorithm in _HASHES.items():
        if len(data) > size and algorithm(view[:-size]).digest() == view[-size:]:
            return _parse_as(data, size)
    for size in _HASHES:
        if data and not any(view[-size:]):
            with suppress(_Malformed):
                return _parse_as(data, size)
    raise _Malformed


def _parse_as(data: bytes, hash_size: int) -> _Parsed:
    if len(data) < _HEADER.size + hash_size:
        raise _Malformed
    magic, version, count = _HEADER.unpack_from(data)
    if magic != b"DIRC" or version not in (2, 3, 4):
        raise _Malformed
    walk = _walk_compressed if version == 4 else _walk_padded
    try:
        found, at = walk(data, hash_size, count)
    except (IndexError, ValueError) as error:
        raise _Malformed from error
    end = len(data) - hash_size
    names = set()
    while at < end:
        names.add(data[at : at + 4])
        at += 8 + int.from_bytes(data[at + 4 : at + 8], "big")
    if at != end:
        raise _Malformed
    return _Parsed(hash_size, found, frozenset(names))


def _walk_padded(data: bytes, hash_size: int, count: int) -> tuple[list[tuple[int, bytes]], int]:
    """Versions 2 and 3: names in full, each entry padded with 1 to 8 zero bytes."""
    found = []
    offset, flags_at = _HEADER.size, _STAT_SIZE + hash_size
    for _ in range(count):
        start = offset + flags_at
        flags = data[start] << 8 | data[start + 1]
        start += 4 if flags & _EXTENDED else 2
        length = flags & _NAME_MASK
        end = start + length
        if length == _NAME_MASK:  # longer than the field can say
            end = data.index(0, end)
        found.append((offset, data[start:end]))
        offset += (end - offset + 8) & ~7
    return found, offset


def _walk_compressed(
    data: bytes, hash_size: int, count: int
) -> tuple[list[tuple[int, bytes]], int]:
    """Version 4: each name as what it shares with the one before, and the rest."""
    found = []
    offset, flags_at = _HEADER.size, _STAT_SIZE + hash_size
    path = b""
    for _ in range(count):
        start = offset + flags_at
        start += 4 if data[start] << 8 & _EXTENDED else 2
        strip, start = _varint(data, start)
        end = data.index(0, start)
        path = path[: len(path) - strip] + data[start:end]
        found.append((offset, path))
        offset = end + 1
    return found, offset


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    value = byte & 127
    while byte & 128:
        byte = data[at]
        at += 1
        value = ((value + 1) << 7) | (byte & 127)
    return value, at
