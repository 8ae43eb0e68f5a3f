"""How a git index lies in its file: versions 2, 3 and 4, SHA-1 and SHA-256.

A header, the entries, extensions (a name of four letters, a length, bytes), a checksum.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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


class Malformed(Exception):
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
    """Raises `Malformed`. The file does not say which hash it uses, but its checksum
    does, or with a checksum of zeros its structure."""
    view = memoryview(data)
    for size, algorithm in HASHES.items():
        if len(data) > size and algorithm(view[:-size]).digest() == view[-size:]:
            return _parse_as(data, size, has_checksum=True)
    for size in HASHES:
        if data and not any(view[-size:]):
            with suppress(Malformed):
                return _parse_as(data, size, has_checksum=False)
    raise Malformed


def _parse_as(data: bytes, hash_size: int, *, has_checksum: bool) -> tuple[IndexData, list[Place]]:
    if len(data) < HEADER.size + hash_size:
        raise Malformed
    magic, version, count = HEADER.unpack_from(data)
    if magic != b"DIRC" or version not in (2, 3, 4):
        raise Malformed
    walk = _walk_compressed if version == 4 else _walk_padded
    try:
        found, end = walk(data, hash_size, count)
    except (IndexError, ValueError) as error:
        raise Malformed from error
    extensions = read_extensions(data, end, hash_size)
    return IndexData(bytearray(data[:end]), hash_size, extensions, has_checksum), found


def read_extensions(data: bytes, at: int, hash_size: int) -> list[tuple[bytes, bytes]]:
    """Of an index whose entries end at `at`. Raises `Malformed`."""
    extensions = []
    stop = len(data) - hash_size
    while at < stop:
        start = at + 4 + _LENGTH
        length = int.from_bytes(data[at + 4 : start], "big")
        extensions.append((data[at : at + 4], data[start : start + length]))
        at = start + length
    if at != stop:
        raise Malformed
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
    for _ in range(count):
        start = offset + flags_at
        start += 4 if data[start] << 8 & EXTENDED else 2
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


# Files


def read_file(index: Path) -> bytes:
    """Nothing for a file that is missing."""
    try:
        return index.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return b""


def open_index(index: Path) -> tuple[IndexData, list[Place], os.stat_result]:
    """An index that can be written again. Raises `Malformed` for one that is missing,
    damaged, or not in one file of its own."""
    data, places = parse(read_file(index))
    before = index.stat()
    if data.has(SPLIT) or before.st_nlink > 1:
        raise Malformed
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
