"""Writes objects into packs, as git reads them: a repository of our own is filled without git.

Git's importer takes longer: it hashes each byte three times, of which the last is to read the whole
pack once more. Here nothing is compressed, for what is compared and then gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
import zlib
from collections.abc import Iterator
from itertools import accumulate
from operator import itemgetter
from pathlib import Path

BLOB, TREE = "blob", "tree"
_KINDS = {TREE: 2, BLOB: 3}
FOLDER_MODE = b"40000"
_MOST_BYTES = 2 << 20
"""Of a pack, which is held until it is complete."""
_MOST_OBJECTS = 20_000

Entries = dict[bytes, tuple[bytes, bytes]]
"""Of a folder: the mode and the object of each name."""


class PackWriter:
    """Adds objects to a repository whose objects have names by SHA-1. `folder` has its packs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begin()

    def _begin(self) -> None:
        self._body = bytearray(b"PACK" + struct.pack(">II", 2, 0))
        self._index: dict[bytes, tuple[int, int]] = {}
        """Of each object its checksum, and where it begins."""

    def add(self, kind: str, content: bytes) -> bytes:
        """Its name. Raises OSError."""
        head = b"%s %d\0" % (kind.encode(), len(content))
        name = hashlib.sha1(head + content, usedforsecurity=False).digest()
        if name not in self._index:
            entry = _head(_KINDS[kind], len(content)) + zlib.compress(content, 0)
            self._index[name] = (zlib.crc32(entry), len(self._body))
            self._body += entry
            if len(self._body) > _MOST_BYTES or len(self._index) >= _MOST_OBJECTS:
                self.flush()
        return name

    def flush(self) -> None:
        """What was added can be read then."""
        if not self._index:
            return
        struct.pack_into(">I", self._body, 8, len(self._index))
        checksum = _sha1(self._body)
        self._body += checksum
        name = f"pack-{checksum.hex()}"
        with open(self._folder / f"{name}.pack", "xb") as file:
            file.write(self._body)
        (self._folder / f"{name}.idx").write_bytes(self._table(checksum))
        self._begin()

    def _table(self, checksum: bytes) -> bytes:
        found = sorted(self._index.items(), key=itemgetter(0))
        counts = [0] * 256
        for name, _ in found:
            counts[name[0]] += 1
        table = b"\xfftOc" + struct.pack(">I256I", 2, *accumulate(counts))
        table += b"".join(name for name, _ in found)
        table += struct.pack(f">{len(found)}I", *(crc for _, (crc, _) in found))
        table += struct.pack(f">{len(found)}I", *(begin for _, (_, begin) in found))
        table += checksum
        return table + _sha1(table)


class PackedTree:
    """Makes the folders of one tree of paths that come sorted, each folder's together. Only those
    on the way to the last path are held."""

    def __init__(self, packs: PackWriter) -> None:
        self._packs = packs
        self._open: list[tuple[bytes, Entries]] = [(b"", {})]

    def put(self, path: bytes, mode: bytes, name: bytes) -> None:
        *folders, last = path.split(b"/")
        self._reach(folders)
        self._open[-1][1][last] = (mode, name)

    def _reach(self, folders: list[bytes]) -> None:
        same = 1
        for folder, (known, _) in zip(folders, self._open[1:], strict=False):
            if folder != known:
                break
            same += 1
        while len(self._open) > same:
            self._close_last()
        self._open += ((folder, {}) for folder in folders[same - 1 :])

    def _close_last(self) -> None:
        folder, entries = self._open.pop()
        if entries:
            self._open[-1][1][folder] = (FOLDER_MODE, self._tree(entries))

    def _tree(self, entries: Entries) -> bytes:
        rows = sorted(entries.items(), key=_place)
        content = b"".join(b"%s %s\0%s" % (mode, one, name) for one, (mode, name) in rows)
        return self._packs.add(TREE, content)

    def end(self) -> bytes:
        """The name of the tree, which may have nothing in it."""
        self._reach([])
        return self._tree(self._open[0][1])


def _place(row: tuple[bytes, tuple[bytes, bytes]]) -> bytes:
    """Git sorts a folder as if its name ended with a slash."""
    return row[0] + b"/" if row[1][0] == FOLDER_MODE else row[0]


def _head(kind: int, size: int) -> bytes:
    head = bytearray()
    byte, size = kind << 4 | size & 15, size >> 4
    while size:
        head.append(byte | 0x80)
        byte, size = size & 0x7F, size >> 7
    head.append(byte)
    return bytes(head)


def _sha1(content: bytes | bytearray) -> bytes:
    return hashlib.sha1(content, usedforsecurity=False).digest()


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[PackWriter]:
    """All of it is there afterwards."""
    folder.mkdir(mode=0o700, exist_ok=True)
    packs = PackWriter(folder)
    yield packs
    packs.flush()
