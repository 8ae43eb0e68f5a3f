"""Git's own files and objects, read without git.

Whoever filled a git folder is a stranger: nothing is followed, every size is bounded, and an object
is what its name says or it is not there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Protocol

from carrel.linux.descriptors import Descriptor
from carrel.trees.folders import ENTRY_ERRORS, Root
from carrel.trees.git.index import HASHES
from carrel.trees.layers import Layers

_MOST_PACKS = 256
"""Git puts them together when there are 50."""
MOST_DEPTH = 50
"""Of an object that is told by its differences from another; git makes no longer chains."""
_MAX_OBJECT = 1 << 20
"""Bytes of a commit, of which most have some hundreds, or of a folder of 20,000 files."""
_HEADER = 32
"""Bytes before the content of an object in a file of its own: its kind and size."""
COMMIT, TREE, BLOB, TAG, _NEAR, _NAMED = 1, 2, 3, 4, 6, 7
"""Kinds of objects in a pack: the last two are differences, from what is so many bytes before them
or from what has this name."""
_WORDS = {COMMIT: b"commit", TREE: b"tree", BLOB: b"blob", TAG: b"tag"}
_KINDS = {word: kind for kind, word in _WORDS.items()}
_IDX_MAGIC, _FAN_OUT = b"\xfftOc\0\0\0\2", struct.Struct(">I")
_FAR = 1 << 31


class HistoryUnread(Exception):
    """A repository that takes too long to read, or has what we do not read: nobody knows which
    commits it has."""


class Effort:
    """What one review may spend on git's objects: microseconds, as far as they can be told
    beforehand, and in any case no longer than so many seconds. Sizes alone do not bound the work:
    each object may be told by fifty others."""

    def __init__(self, most_us: int = 4_000_000, most_s: float = 10.0) -> None:
        self._left = most_us
        self._until = time.monotonic() + most_s

    def spend(self, us: int) -> None:
        """Raises `HistoryUnread`."""
        self._left -= us
        if self._left < 0 or time.monotonic() > self._until:
            raise HistoryUnread


OPEN_US, _FIND_US = 30, 20
"""To open a file or an object in a pack; to look for a name in a pack."""
BYTES_A_US = 64
"""That are inflated, put together, or looked through."""


class GitFiles(Protocol):
    """A folder with git folders in it. Paths are relative to it."""

    def open_file(self, path: str) -> int:
        """A regular file to read. Raises OSError."""
        ...

    def mode(self, path: str) -> int:
        """Type and permissions of what is there; 0 for nothing. Raises OSError."""
        ...

    def names(self, path: str) -> Sequence[tuple[str, int]]:
        """What is in a folder, with its mode; nothing for what is none. Raises OSError."""
        ...


class TreeGitFiles:
    """Of a tree as it is mounted, or a plain folder."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self.open_file = root.open_file

    def mode(self, path: str) -> int:
        status = self._root.status(path)
        return 0 if status is None else status.st_mode

    def names(self, path: str) -> Sequence[tuple[str, int]]:
        return [(name, status.st_mode) for name, status in self._root.list(path).items()]


class LayerGitFiles:
    """Of a base, in its layers."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers

    def open_file(self, path: str) -> int:
        entry = self._layers.find(path)
        if entry is None or not entry.is_file:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return entry.content.root.open_file(entry.content.path)

    def mode(self, path: str) -> int:
        entry = self._layers.find(path)
        return 0 if entry is None else entry.status.st_mode

    def names(self, path: str) -> Sequence[tuple[str, int]]:
        entry = self._layers.find(path)
        if entry is None or not entry.is_folder:
            return ()
        return [(name, one.status.st_mode) for name, one in self._layers.children(entry).items()]


def read_small(files: GitFiles, path: str, most: int) -> bytes | None:
    """Nothing where nothing is, or not any more; None for what is no file, larger, or cannot be
    read."""
    try:
        mode = files.mode(path)
        if not stat.S_ISREG(mode):
            return None if mode else b""
        with Descriptor(files.open_file(path)) as descriptor:
            size = os.fstat(descriptor).st_size
            return os.pread(descriptor, size, 0) if size <= most else None
    except FileNotFoundError:
        return b""
    except OSError as error:
        if error.errno not in ENTRY_ERRORS:
            raise
        return None


def folder_names(files: GitFiles, path: str) -> Sequence[tuple[str, int]]:
    """Of a folder; nothing where nothing is. Raises `HistoryUnread` for a symlink or whatever else
    stands there: git may find there what we do not."""
    try:
        mode = files.mode(path)
        if mode and not stat.S_ISDIR(mode):
            raise HistoryUnread
        return files.names(path)
    except OSError as error:
        if error.errno not in ENTRY_ERRORS:
            raise
        raise HistoryUnread from error


class ObjectStore:
    """The objects of one git folder: each in a file of its own, or in packs."""

    def __init__(
        self, files: GitFiles, folder: str, effort: Effort, most: int = _MAX_OBJECT
    ) -> None:
        """`most` are the bytes of an object that is read."""
        self._files = files
        self._effort = effort
        self._most = most
        self._objects = f"{folder}/objects"
        self._packs: list[_Pack] | None = None

    def __enter__(self) -> ObjectStore:
        return self

    def __exit__(self, *_error: object) -> None:
        for pack in self._packs or ():
            pack.close()
        self._packs = None

    def has(self, oid: bytes) -> bool:
        self._effort.spend(OPEN_US)
        with _reading(), Descriptor(self._files.open_file(self._loose(oid))):
            return True
        self._effort.spend(_FIND_US * len(self._all_packs()))
        return any(pack.find(oid) is not None for pack in self._all_packs())

    def read(self, oid: bytes, depth: int = 0) -> tuple[int, bytes]:
        """Its kind and its content; 0 when it is told by too many others. Raises `HistoryUnread`
        when it is not there, or cannot be read."""
        self._effort.spend(OPEN_US)
        with _reading(), Descriptor(self._files.open_file(self._loose(oid))) as descriptor:
            found = _inflated(descriptor, 0, self._most + _HEADER, self._effort)
            header, _, content = found.partition(b"\0")
            return self._checked(oid, _KINDS.get(header.partition(b" ")[0], 0), content)
        for pack in self._all_packs():
            self._effort.spend(_FIND_US)
            place = pack.find(oid)
            if place is not None:
                with _reading():
                    return self._checked(oid, *self._unpacked(pack, place, depth))
        raise HistoryUnread

    def _checked(self, oid: bytes, kind: int, content: bytes) -> tuple[int, bytes]:
        """An index can give one object any number of names; only one of them is its own. Raises
        `_Malformed`."""
        if kind:
            self._effort.spend(len(content) // BYTES_A_US)
            whole = b"%b %d\0%b" % (_WORDS[kind], len(content), content)
            if HASHES[len(oid) // 2](whole).hexdigest().encode() != oid:
                raise _Malformed
        return kind, content

    def _unpacked(self, pack: _Pack, place: int, depth: int) -> tuple[int, bytes]:
        if depth > MOST_DEPTH:
            return 0, b""
        self._effort.spend(OPEN_US)
        kind, at = pack.header(place)
        if kind in _WORDS:
            return kind, pack.inflate(at, self._most, self._effort)
        if kind == _NEAR:
            back, at = pack.offset(at)
            if not 0 < back <= place:
                return 0, b""
            kind, base = self._unpacked(pack, place - back, depth + 1)
        elif kind == _NAMED:
            oid = pack.name_at(at)
            at += len(oid) // 2
            kind, base = self.read(oid, depth + 1)
        else:
            return 0, b""
        if not kind:
            return 0, b""
        delta = pack.inflate(at, self._most, self._effort)
        return kind, _patched(base, delta, self._most, self._effort)

    def _all_packs(self) -> list[_Pack]:
        if self._packs is None:
            self._packs = []
            folder = f"{self._objects}/pack"
            names = [name for name, _ in folder_names(self._files, folder) if name.endswith(".idx")]
            if len(names) > _MOST_PACKS:
                raise HistoryUnread
            for name in sorted(names):
                with _reading():
                    self._packs.append(_Pack(self._files, f"{folder}/{name[:-4]}"))
        return self._packs

    def _loose(self, oid: bytes) -> str:
        text = oid.decode("ascii")
        return f"{self._objects}/{text[:2]}/{text[2:]}"


class _Pack:
    """A pack and its index. Raises OSError and `_Malformed`."""

    def __init__(self, files: GitFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._pack: int | None = None
        self._index = files.open_file(f"{path}.idx")
        try:
            if os.pread(self._index, 8, 0) != _IDX_MAGIC:
                raise _Malformed
            self._count = self._number(8 + 4 * 255)
            rest = os.fstat(self._index).st_size - 8 - 1024 - 40
            # A name, a checksum and a place for each; more for places beyond 2 GiB.
            self._hash = 32 if self._count and rest >= self._count * 40 else 20
        except BaseException:
            os.close(self._index)
            raise

    def close(self) -> None:
        os.close(self._index)
        if self._pack is not None:
            os.close(self._pack)

    def find(self, oid: bytes) -> int | None:
        """Where the object begins in the pack."""
        wanted = bytes.fromhex(oid.decode("ascii"))
        if len(wanted) != self._hash:
            return None
        with _reading():
            low = self._number(8 + 4 * (wanted[0] - 1)) if wanted[0] else 0
            high = min(self._number(8 + 4 * wanted[0]), self._count)
            while low < high:
                middle = (low + high) // 2
                name = os.pread(self._index, self._hash, 8 + 1024 + middle * self._hash)
                if name == wanted:
                    return self._place(middle)
                if name < wanted:
                    low = middle + 1
                else:
                    high = middle
        return None

    def _place(self, number: int) -> int:
        places = 8 + 1024 + self._count * (self._hash + 4)
        near = self._number(places + 4 * number)
        if near < _FAR:
            return near
        far = places + 4 * self._count + 8 * (near - _FAR)
        return self._number(far) << 32 | self._number(far + 4)

    def _number(self, at: int) -> int:
        data = os.pread(self._index, 4, at)
        if len(data) != 4:
            raise _Malformed
        return int(_FAN_OUT.unpack(data)[0])

    @property
    def _data(self) -> int:
        if self._pack is None:
            self._pack = self._files.open_file(f"{self._path}.pack")
        return self._pack

    def header(self, at: int) -> tuple[int, int]:
        """The kind of an object, and where what follows begins."""
        data = os.pread(self._data, 16, at)
        for number, byte in enumerate(data):
            if byte < 0x80:
                return data[0] >> 4 & 7, at + number + 1
        raise _Malformed

    def offset(self, at: int) -> tuple[int, int]:
        """How far before it the other object is, and where its differences begin."""
        found = -1
        for number, byte in enumerate(os.pread(self._data, 10, at)):
            found = (found + 1) << 7 | byte & 0x7F
            if byte < 0x80:
                return found, at + number + 1
        raise _Malformed

    def name_at(self, at: int) -> bytes:
        data = os.pread(self._data, self._hash, at)
        if len(data) != self._hash:
            raise _Malformed
        return data.hex().encode()

    def inflate(self, at: int, most: int, effort: Effort) -> bytes:
        return _inflated(self._data, at, most, effort)


class _Malformed(Exception):
    """Not what git writes."""


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """What is no file of git's, or none any more, is passed over."""
    try:
        yield
    except (_Malformed, zlib.error):
        pass
    except OSError as error:
        if error.errno not in ENTRY_ERRORS:
            raise


def _inflated(descriptor: int, at: int, most: int, effort: Effort) -> bytes:
    inflating, found = zlib.decompressobj(), bytearray()
    while not inflating.eof:
        data = inflating.unconsumed_tail or os.pread(descriptor, 1 << 14, at)
        if not inflating.unconsumed_tail:
            at += len(data)
        before = len(found)
        found += inflating.decompress(data, most + 1 - len(found))
        effort.spend(1 + (len(found) - before) // BYTES_A_US)
        if not data or len(found) > most:
            raise _Malformed
    return bytes(found)


def _patched(base: bytes, delta: bytes, most: int, effort: Effort) -> bytes:
    """What a delta makes of it. Raises `_Malformed`."""
    try:
        before, at = _size(delta, 0)
        after, at = _size(delta, at)
        if before != len(base) or after > most:
            raise _Malformed
        effort.spend(after // BYTES_A_US)
        found = bytearray()
        while at < len(delta) and len(found) <= after:
            effort.spend(1)
            at = _step(base, delta, at, found)
    except IndexError as error:
        raise _Malformed from error
    if len(found) != after:
        raise _Malformed
    return bytes(found)


def _step(base: bytes, delta: bytes, at: int, found: bytearray) -> int:
    code, at = delta[at], at + 1
    if not code:
        raise _Malformed
    if code < 0x80:
        found += delta[at : at + code]
        return at + code
    start = length = 0
    for bit in range(7):
        if code >> bit & 1:
            if bit < 4:
                start |= delta[at] << 8 * bit
            else:
                length |= delta[at] << 8 * (bit - 4)
            at += 1
    found += base[start : start + (length or 0x10000)]
    return at


def _size(delta: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte, at = delta[at], at + 1
        found |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift > 63:
            return found, at
