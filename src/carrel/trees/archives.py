"""A tree, or a part of it, as a stream in tar's format: POSIX headers, and for sparse files the
form of GNU (1.0).

The tree may be changing while it is read, by people who would like to read more than their
tree. Nothing is followed, only regular files are opened, and whatever goes away, shrinks or
cannot be read, the archive stays whole: what is missing is told. Every file is root's in the
archive, and none is to run as its owner.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tarfile
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import zstandard

from carrel.domain.errors import PathNotFound, PathWrongKind
from carrel.domain.tar import BLOCK, CHUNK, pack_end, pack_header
from carrel.domain.trees import Skipped, Tree, TreeDriver
from carrel.linux.descriptors import Descriptor
from carrel.linux.openat2 import open_beneath
from carrel.trees.contents import data_ranges, may_have_holes
from carrel.trees.folders import Root
from carrel.trees.paths import check_path, path_errors, split_path

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
    bits = _FOLDER_BITS if kind == tarfile.DIRTYPE else _FILE_BITS
    mode, mtime_ns = status.st_mode & bits, status.st_mtime_ns
    return pack_header(path, kind, mode, mtime_ns, size=size, target=target, more=more)


@dataclass(frozen=True)
class FileEntry:
    """An open file. `ranges` are the beginnings and ends of what is sent of it, one after
    the other; `layout` says so to the reader of a sparse file, and is empty else."""

    descriptor: int
    status: os.stat_result
    ranges: array[int]
    layout: bytes

    @classmethod
    def of(cls, descriptor: int, status: os.stat_result) -> FileEntry:
        """The descriptor stays the caller's."""
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


# Packing


LEVEL = 3
"""Of zstd: as fast as the disk, and most of what can be saved."""
_MAX_PATH = 16 << 10
"""Four times what a program can name at once; what is deeper costs ever more to reach."""
_GONE = "went away while it was read"
SPECIAL = "is no file, folder or symlink"
_QUIET = (_GONE, SPECIAL)
"""Nobody misses these in an archive of a tree that is in use."""
_TOLD, _MOST_TOLD = 80, 20
"""Letters of a path, and paths, that an archive says it lacks."""
_REASONS = {
    errno.ENOENT: _GONE,
    errno.ENOTDIR: _GONE,
    errno.ELOOP: _GONE,
    errno.ENXIO: _GONE,
    errno.ESTALE: _GONE,
    errno.EACCES: "may not be read",
    errno.EPERM: "may not be read",
    errno.EIO: "cannot be read: the disk fails",
}
"""What says something of an entry, and nothing of us."""

OnSkip = Callable[[Skipped], None]
OnSend = Callable[[str, os.stat_result], None]
"""Hears of what is sent, before its bytes are read."""


def ignore_skipped(_skipped: Skipped) -> None:
    """The listener of callers that do not ask what is missing."""


def ignore_sent(_path: str, _status: os.stat_result) -> None:
    """The listener of callers that do not ask what is there."""


@dataclass
class LeftOut:
    """The listener of one archive, at whose end what is missing is told."""

    on_skip: OnSkip = ignore_skipped
    count: int = 0
    first: list[str] = field(default_factory=list)

    def __call__(self, skipped: Skipped) -> None:
        self.on_skip(skipped)
        if skipped.why in _QUIET:
            return
        self.count += 1
        if self.count <= _MOST_TOLD:
            path = skipped.path
            shown = path if len(path) <= _TOLD else f"{path[:_TOLD]}..."
            self.first.append(f"{shown!r} {skipped.why}")

    def end(self) -> bytes:
        more = [f"and {self.count - _MOST_TOLD} more"] if self.count > _MOST_TOLD else []
        return pack_end("; ".join([*self.first, *more]))


def archive(
    driver: TreeDriver,
    tree: Tree,
    path: str = ".",
    *,
    zstd: bool = True,
    on_skip: OnSkip = ignore_skipped,
    on_send: OnSend = ignore_sent,
) -> Generator[bytes, None, None]:
    """A folder, a file or a symlink of the tree, under its own name; for `.` all that is in
    the root. Symlinks on the way to `path` are followed within the tree.

    Raises `PathError`s at once, not when it is first read. Who stops early closes it.
    """
    with _opened(driver, tree, path) as (root, name):
        _top_names(root, name, path)
    blocks = gather(_pieces(driver, tree, path, on_skip, on_send))
    return _compress(blocks) if zstd else blocks


def _compress(blocks: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    chunker = compressor.chunker(chunk_size=CHUNK)
    with contextlib.closing(blocks):
        for block in blocks:
            yield from chunker.compress(block)
    yield from chunker.finish()  # type: ignore[no-untyped-call]


def gather(pieces: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    """Headers are small, and handing on costs."""
    waiting: list[bytes] = []
    size = 0
    with contextlib.closing(pieces):
        for piece in pieces:
            waiting.append(piece)
            size += len(piece)
            if size >= CHUNK:
                yield b"".join(waiting)
                waiting.clear()
                size = 0
    yield b"".join(waiting)


def _pieces(
    driver: TreeDriver, tree: Tree, path: str, on_skip: OnSkip, on_send: OnSend
) -> Generator[bytes, None, None]:
    left_out = LeftOut(on_skip)
    with _opened(driver, tree, path) as (root, name):
        yield from Packer(root, left_out, on_send=on_send).pack(_top_names(root, name, path))
    yield left_out.end()


@contextlib.contextmanager
def _opened(driver: TreeDriver, tree: Tree, path: str) -> Iterator[tuple[Root, str]]:
    """The folder to start in, and the name of one entry of it, or "" for all."""
    raw = check_path(path)
    if any(part not in (b"", b".") for part in raw.split(b"/")):
        above, name = split_path(path)
    else:
        above, name = ".", b""
    with Descriptor(driver.open_root(tree)) as top, path_errors(path):
        # With a slash, since it has to be a folder.
        folder = open_beneath(top, os.fsencode(above) + b"/")
    with Root(folder) as root:
        yield root, os.fsdecode(name)


def _top_names(root: Root, name: str, path: str) -> list[_Name]:
    with path_errors(path):
        if not name:
            return _names(root, "")
        status = root.status(name)
    if status is None:
        raise PathNotFound(f"{path!r} does not exist.")
    if not _is_packed(status.st_mode):
        raise PathWrongKind(f"{path!r} is no file, folder or symlink.")
    return [(name, False)]


_Name = tuple[str, bool]
"""In a folder, and whether the folder says that it is a regular file: then it can be opened
without another look before."""


def _names(root: Root, path: str) -> list[_Name]:
    with os.scandir(root.folder(path)) as entries:
        return sorted((entry.name, entry.is_file(follow_symlinks=False)) for entry in entries)


def _is_packed(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)


@dataclass
class _Names:
    """A file with several names: where the first is, and how many are still to come."""

    first: str
    left: int


class _Begun(NamedTuple):
    """A header, and what follows it: the names in a folder, or the bytes of a file. A small file
    is behind its header already. A tuple, since making one takes a tenth of the time."""

    header: bytes = b""
    names: Sequence[_Name] = ()
    file: FileEntry | None = None


def _small_file(descriptor: int, status: os.stat_result) -> bytes | None:
    """All of a file that one reading gives whole; None of any other."""
    size = status.st_size
    if size > CHUNK or may_have_holes(status):
        return None
    data = _read(descriptor, size, 0) if size else b""
    return data if len(data) == size else None


@dataclass
class Packer:
    """One archive. In memory are the names in the folders on the way down, and of the files
    with several names those whose others are still to come."""

    root: Root
    on_skip: OnSkip
    leave_out: Callable[[str], bool] = lambda _path: False
    on_send: OnSend = ignore_sent
    _linked: dict[tuple[int, int], _Names] = field(default_factory=dict)

    def pack_all(self) -> Generator[bytes, None, None]:
        """Everything in the root."""
        yield from self.pack(_names(self.root, ""))

    def pack_each(self, paths: list[str]) -> Generator[bytes, None, None]:
        """Only these, without what is in the folders among them."""
        for path in paths:
            yield from self._entry(path, self._begin(path, False))

    def pack(self, names: list[_Name]) -> Generator[bytes, None, None]:
        """These of the root, each with what is in it."""
        stack = [("", iter(names))]
        while stack:
            prefix, rest = stack[-1]
            for name, is_file in rest:
                path = prefix + name
                if self.leave_out(path):
                    continue
                begun = self._begin(path, is_file)
                if begun.names:
                    stack.append((f"{path}/", iter(begun.names)))
                if begun.file is None:
                    yield begun.header
                else:
                    yield from self._whole(path, begun.header, begun.file)
                if begun.names:
                    break
            else:
                stack.pop()

    def _entry(self, path: str, begun: _Begun) -> Generator[bytes, None, None]:
        if begun.file is None:
            yield begun.header
        else:
            yield from self._whole(path, begun.header, begun.file)

    def _whole(self, path: str, header: bytes, file: FileEntry) -> Generator[bytes, None, None]:
        try:
            yield header
            complete = yield from file.content()
        finally:
            os.close(file.descriptor)
        if not complete:
            self.on_skip(Skipped(path, "was cut short while it was read; the rest is zeros"))

    def _begin(self, path: str, is_file: bool) -> _Begun:
        if len(path) > _MAX_PATH // 4 and len(os.fsencode(path)) > _MAX_PATH:
            self.on_skip(Skipped(path, "is nested deeper than a path can be long"))
            return _Begun()
        try:
            return self._look_at_file(path) if is_file else self._look(path)
        except OSError as error:
            why = _REASONS.get(error.errno or 0)
            if why is None:
                with path_errors(path):
                    raise
            self.on_skip(Skipped(path, why))
            return _Begun()

    def _look(self, path: str) -> _Begun:
        status = self.root.status(path)
        if status is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if stat.S_ISREG(status.st_mode):
            return self._look_at_file(path)
        self.on_send(path, status)
        if stat.S_ISDIR(status.st_mode):
            names = _names(self.root, path)
            return _Begun(header(path, status, tarfile.DIRTYPE), names)
        if stat.S_ISLNK(status.st_mode):
            target = os.fsdecode(self.root.link(path))
            if not target:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return _Begun(header(path, status, tarfile.SYMTYPE, target=target))
        self.on_skip(Skipped(path, SPECIAL))
        return _Begun()

    def _look_at_file(self, path: str) -> _Begun:
        descriptor, status = self.root.open_regular(path)
        self.on_send(path, status)
        try:
            first = self._first_name(path, status) if status.st_nlink > 1 else None
            if first is not None:
                begun = _Begun(header(path, status, tarfile.LNKTYPE, target=first))
            elif (small := _small_file(descriptor, status)) is not None:
                top = header(path, status, tarfile.REGTYPE, size=len(small))
                begun = _Begun(top + small + _ZEROS[: -len(small) % BLOCK])
            else:
                file = FileEntry.of(descriptor, status)
                return _Begun(file.header(path), file=file)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return begun

    def _first_name(self, path: str, status: os.stat_result) -> str | None:
        """Of a file with several; None when it is the first itself."""
        key = (status.st_dev, status.st_ino)
        known = self._linked.get(key)
        if known is None:
            self._linked[key] = _Names(path, status.st_nlink - 1)
            return None
        known.left -= 1
        if known.left <= 0:
            del self._linked[key]
        return known.first
