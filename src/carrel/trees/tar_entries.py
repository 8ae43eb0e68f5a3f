"""Entries in tar's format: POSIX headers, and for sparse files the form of GNU (1.0)."""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from array import array
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from carrel.trees.holes import data_ranges, may_have_holes

BLOCK = 512
CHUNK = 1 << 18
"""So much is read at once."""
END = bytes(2 * BLOCK)

_SECOND = 1_000_000_000
_ZEROS = bytes(CHUNK)
_FILE_BITS = 0o777
_FOLDER_BITS = 0o3777
"""Folders may be sticky, or pass on their group; a file never runs as somebody else, least
of all as whoever unpacks it."""
_MAX_RANGES = 1 << 18
"""Of data in one sparse file; from there on its holes are sent as zeros."""
_SPARSE_NAME = "GNUSparseFile.0/file"
"""What readers that know no sparse files see; the others find the name beside it."""


def header(
    path: str,
    status: os.stat_result,
    kind: bytes,
    *,
    size: int = 0,
    target: str = "",
    more: dict[str, str] | None = None,
) -> bytes:
    """`more` are records of the extended header. Everything is root's: the users of this
    machine mean nothing elsewhere."""
    info = tarfile.TarInfo(path)
    info.type = kind
    bits = _FOLDER_BITS if kind == tarfile.DIRTYPE else _FILE_BITS
    info.mode = stat.S_IMODE(status.st_mode) & bits
    info.size = size
    info.linkname = target
    info.mtime = status.st_mtime_ns // _SECOND
    info.pax_headers = dict(more or {})
    if status.st_mtime_ns % _SECOND:
        info.pax_headers["mtime"] = _decimal(status.st_mtime_ns)
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _decimal(nanoseconds: int) -> str:
    sign = "-" if nanoseconds < 0 else ""
    seconds, rest = divmod(abs(nanoseconds), _SECOND)
    return f"{sign}{seconds}.{rest:09}"


@dataclass(frozen=True)
class FileEntry:
    """An open file. `ranges` are the beginnings and ends of what is sent of it, one after
    the other; `layout` says so to the reader of a sparse file, and is empty else."""

    descriptor: int
    status: os.stat_result
    ranges: array[int]
    layout: bytes

    @classmethod
    def of(cls, descriptor: int) -> FileEntry:
        """The descriptor stays the caller's."""
        status = os.fstat(descriptor)
        size = status.st_size
        if not may_have_holes(status):
            return cls(descriptor, status, array("Q", (0, size)), b"")
        ranges = array("Q")
        for start, end in data_ranges(descriptor, size):
            if len(ranges) == 2 * _MAX_RANGES:
                ranges[-1] = size
                break
            ranges.extend((start, end))
        if ranges == array("Q", (0, size)):
            return cls(descriptor, status, ranges, b"")
        return cls(descriptor, status, ranges, _layout(ranges, size))

    @property
    def size(self) -> int:
        """Of what follows the header, without the padding."""
        return len(self.layout) + sum(end - start for start, end in self._pairs())

    def header(self, path: str) -> bytes:
        if not self.layout:
            return header(path, self.status, tarfile.REGTYPE, size=self.size)
        sparse = {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": path,
            "GNU.sparse.realsize": str(self.status.st_size),
        }
        return header(_SPARSE_NAME, self.status, tarfile.REGTYPE, size=self.size, more=sparse)

    def content(self) -> Generator[bytes, None, bool]:
        """As many bytes as the header promises; returns whether the file had them all."""
        yield self.layout
        complete = True
        for start, end in self._pairs():
            while start < end:
                length = min(CHUNK, end - start)
                piece = _read(self.descriptor, length, start) if complete else b""
                complete = bool(piece)
                yield piece or _ZEROS[:length]
                start += len(piece) or length
        yield bytes(-self.size % BLOCK)
        return complete

    def _pairs(self) -> Iterator[tuple[int, int]]:
        return zip(self.ranges[::2], self.ranges[1::2], strict=True)


def _layout(ranges: array[int], size: int) -> bytes:
    """How many ranges there are, where each begins and how long it is, and at last where
    the file ends."""
    lines = [b"%d\n" % (len(ranges) // 2 + 1)]
    for start, end in zip(ranges[::2], ranges[1::2], strict=True):
        lines.append(b"%d\n%d\n" % (start, end - start))
    lines.append(b"%d\n0\n" % size)
    text = b"".join(lines)
    return text + bytes(-len(text) % BLOCK)


def _read(descriptor: int, length: int, position: int) -> bytes:
    try:
        return os.pread(descriptor, length, position)
    except OSError as error:
        if error.errno in (errno.EIO, errno.ESTALE):
            return b""
        raise
