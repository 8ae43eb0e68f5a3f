"""The format of a bundle: records, one after the other, compressed.

    Head, then for each change what there is to do about it, then Tail

A file's bytes follow its record in pieces, each with its place, so that holes stay holes,
and at last its size. The whole has a checksum.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import zstandard

from carrel.domain.errors import TooLarge, TreeDamaged

VERSION = 1
PIECE = 1 << 18
"""The most bytes of a file in one record."""
MAX_ATTRIBUTES = 1 << 20
"""Of one entry, in bytes, in all; few file systems take as much."""

_LEVEL = 3
_MAX_RECORD = 4 << 20
"""A path, its attributes, a piece of a file: each is much less."""
_MAX_WINDOW = 8 << 20
_LENGTH = 4
_MAX_NAME = 255
_OWN = b"user."
_OVERLAYS = b"user.overlay."
_NODES = (stat.S_IFIFO, stat.S_IFSOCK)

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Mode = Annotated[int, msgspec.Meta(ge=0, le=0o7777)]
Attributes = tuple[tuple[bytes, bytes], ...]


class _BundleRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    pass


class BundleHead(_BundleRecord, frozen=True, tag="head"):
    version: int
    base_id: str


class Gone(_BundleRecord, frozen=True, tag="gone"):
    """Whatever was there is not there any more."""

    path: bytes


class WayFolder(_BundleRecord, frozen=True, tag="way"):
    """A folder in which something changed; `mode` is for where the base's is not seen."""

    path: bytes
    mode: Mode
    mtime_ns: int


class Folder(_BundleRecord, frozen=True, tag="folder"):
    path: bytes
    mode: Mode
    mtime_ns: int
    attributes: Attributes


class FileStart(_BundleRecord, frozen=True, tag="file"):
    """Followed by pieces and the size."""

    path: bytes
    mode: Mode
    mtime_ns: int
    attributes: Attributes


class FilePiece(_BundleRecord, frozen=True, tag="piece"):
    position: Count
    data: bytes


class Size(_BundleRecord, frozen=True, tag="size"):
    size: Count


class Again(_BundleRecord, frozen=True, tag="again"):
    """Another name of a file that came before."""

    path: bytes
    first: bytes


class Symlink(_BundleRecord, frozen=True, tag="symlink"):
    path: bytes
    target: bytes
    mtime_ns: int


class Node(_BundleRecord, frozen=True, tag="node"):
    """A named pipe or a socket; `mode` says which."""

    path: bytes
    mode: Count
    mtime_ns: int


class Other(_BundleRecord, frozen=True, tag="other"):
    """A file of the base with another mode."""

    path: bytes
    mode: Mode
    mtime_ns: int
    attributes: Attributes


class MovedFile(_BundleRecord, frozen=True, tag="moved"):
    """A file of the base with another name."""

    path: bytes
    old: bytes
    mode: Mode
    mtime_ns: int
    attributes: Attributes


class BundleTail(_BundleRecord, frozen=True, tag="tail"):
    changes: Count


Record = (
    BundleHead
    | Gone
    | WayFolder
    | Folder
    | FileStart
    | FilePiece
    | Size
    | Again
    | Symlink
    | Node
    | Other
    | MovedFile
    | BundleTail
)


_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


class BundleWriter:
    """Compresses records into an open file."""

    def __init__(self, descriptor: int, max_bytes: int) -> None:
        self._descriptor = descriptor
        self._max_bytes = max_bytes
        self._encoder = msgspec.msgpack.Encoder()
        compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
        self._compressor = compressor.compressobj()
        self.size = 0

    def write(self, record: Record) -> None:
        """Raises `TooLarge`, and OSError."""
        body = self._encoder.encode(record)
        self._put(self._compressor.compress(len(body).to_bytes(_LENGTH, "big") + body))

    def finish(self) -> None:
        self._put(self._compressor.flush())

    def _put(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > self._max_bytes:
            raise TooLarge(
                f"The changes take more than the {self._max_bytes} bytes that may be kept.",
                limit=self._max_bytes,
            )
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]


def read(bundle: Path) -> Iterator[Record]:
    """All records between head and tail, each checked for itself, the head first. Raises
    `TreeDamaged` for whatever this is that was not written here."""
    with _opened(bundle) as file:
        window = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        with window.stream_reader(file) as stream:
            changes = None
            try:
                while (body := _body(stream, bundle)) is not None:
                    if changes is not None:
                        raise damaged(bundle, "something follows its end")
                    record = _decoder.decode(body)
                    _check(record, bundle)
                    changes = record.changes if isinstance(record, BundleTail) else None
                    yield record
            except (msgspec.DecodeError, zstandard.ZstdError) as error:
                raise damaged(bundle, str(error)) from error
    if changes is None:
        raise damaged(bundle, "it ends in the middle")


@contextlib.contextmanager
def _opened(bundle: Path) -> Iterator[BinaryIO]:
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(bundle, flags)
    except OSError as error:
        raise damaged(bundle, f"it cannot be opened ({error.strerror})") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise damaged(bundle, "it is no file")
    with open(descriptor, "rb") as file:
        yield file


def _body(stream: zstandard.ZstdDecompressionReader, bundle: Path) -> bytes | None:
    head = _exactly(stream, _LENGTH)
    if not head:
        return None
    length = int.from_bytes(head, "big")
    if len(head) < _LENGTH or length > _MAX_RECORD:
        raise damaged(bundle, "a record is too long")
    body = _exactly(stream, length)
    if len(body) < length:
        raise damaged(bundle, "it ends in the middle")
    return body


def _exactly(stream: zstandard.ZstdDecompressionReader, size: int) -> bytes:
    """Fewer at the end."""
    found = b""
    while len(found) < size:
        piece = stream.read(size - len(found))
        if not piece:
            break
        found += piece
    return found


def _check(record: Record, bundle: Path) -> None:
    """What the types do not say. Paths stay below the root, and attributes are the user's
    own."""
    for path in _paths(record):
        parts = path.split(b"/")
        if b"\0" in path or any(part in (b"", b".", b"..") for part in parts):
            raise damaged(bundle, f"{os.fsdecode(path)!r} is no path in a tree")
        if any(len(part) > _MAX_NAME for part in parts):
            raise damaged(bundle, "it has a name that is too long")
    if isinstance(record, Folder | FileStart | Other | MovedFile):
        for name, value in record.attributes:
            if not is_kept(name) or b"\0" in name or len(name) + len(value) > MAX_ATTRIBUTES:
                raise damaged(bundle, f"{os.fsdecode(name)!r} is no attribute of a user's")
    if isinstance(record, Symlink) and (not record.target or b"\0" in record.target):
        raise damaged(bundle, "it has a symlink that cannot be")
    if isinstance(record, Node) and stat.S_IFMT(record.mode) not in _NODES:
        raise damaged(bundle, "it has a device in it")


def _paths(record: Record) -> tuple[bytes, ...]:
    if isinstance(record, BundleHead | FilePiece | Size | BundleTail):
        return ()
    if isinstance(record, MovedFile):
        return record.path, record.old
    if isinstance(record, Again):
        return record.path, record.first
    if isinstance(record, WayFolder) and not record.path:
        return ()  # the root itself
    return (record.path,)


def is_kept(attribute: bytes) -> bool:
    """Whether a bundle holds this extended attribute."""
    return attribute.startswith(_OWN) and not attribute.startswith(_OVERLAYS)


def read_attributes(entry: int | str) -> Attributes:
    """Those that a bundle holds, by name. What cannot be read is no part of the entry."""
    found: dict[bytes, bytes] = {}
    size = 0
    with contextlib.suppress(OSError):
        for name in os.listxattr(entry):
            raw = os.fsencode(name)
            if is_kept(raw):
                value = os.getxattr(entry, name)
                size += len(raw) + len(value)
                if size > MAX_ATTRIBUTES:
                    break
                found[raw] = value
    return tuple(sorted(found.items()))


def damaged(bundle: Path, why: str) -> TreeDamaged:
    return TreeDamaged(
        f"The kept changes in {str(bundle)!r} are damaged: {why}.",
        hint="They cannot be brought back; remove them.",
    )
