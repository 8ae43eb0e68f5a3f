"""The files of a version, from a tree or an archive, as git's importer takes them."""

from __future__ import annotations

import errno
import gzip
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from carrel.domain.errors import ArchiveInvalid
from carrel.domain.trees import Tree, TreeDriver
from carrel.trees.contents import digest, digest_of_pieces
from carrel.trees.drivers.common import tree_errors
from carrel.trees.folders import Root, join
from carrel.trees.tar_reading import Member, Readable, TarReader

MAX_COMPARED = 1 << 20
"""Larger files are only told to differ."""
MAX_BYTES = 1 << 30
"""Of one side; what comes then is only told to differ."""
_GZIP = b"\x1f\x8b"
_LINK, _PROGRAM, _PLAIN = b"120000", b"100755", b"100644"
_SPECIAL = re.compile(rb'[\x00-\x1f"\\\x7f-\xff]')
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EIO, errno.ESTALE)


class Importer:
    """Writes the language of `git fast-import`: one commit for each side."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._left = MAX_BYTES

    def begin(self, ref: str) -> None:
        self._left = MAX_BYTES
        self._write(b"commit %s\ncommitter carrel <> 0 +0000\ndata 0\n\n" % ref.encode())

    def takes(self, size: int) -> bool:
        """Whether a file of this size is compared; then it counts."""
        if size > MAX_COMPARED or size > self._left:
            return False
        self._left -= size
        return True

    def file(self, path: bytes, mode: int, content: bytes) -> None:
        self._put(path, _PROGRAM if mode & stat.S_IXUSR else _PLAIN, content)

    def named_only(self, path: bytes, mode: int, told: bytes) -> None:
        """A file of which only `told` is compared. The zero byte makes it no text for git."""
        self.file(path, mode, b"\0" + told)

    def link(self, path: bytes, target: bytes) -> None:
        # Git does not have links of this name: they were used to lead it astray.
        if path.rpartition(b"/")[2].lower() != b".gitmodules":
            self._put(path, _LINK, target)

    def same(self, path: bytes, first: bytes) -> None:
        """A further name of a file that is there."""
        self._write(b"C %s %s\n" % (_quoted(first), _quoted(path)))

    def end(self) -> None:
        self._write(b"done\n")

    def _put(self, path: bytes, mode: bytes, content: bytes) -> None:
        head = b"M %s inline %s\ndata %d\n" % (mode, _quoted(path), len(content))
        self._write(head + content + b"\n")


def _quoted(path: bytes) -> bytes:
    return b'"' + _SPECIAL.sub(lambda found: b"\\%03o" % found[0][0], path) + b'"'


def _usable(path: bytes) -> bool:
    """Git's own files are left out, and what git would take for them."""
    parts = path.lower().split(b"/")
    return not any(part in (b"", b".", b"..", b".git") for part in parts)


def from_tree(
    importer: Importer, driver: TreeDriver, tree: Tree, only: Iterable[str] | None
) -> None:
    """All that is in it, or what is left of `only`. What goes away meanwhile was not there."""
    with Root(driver.open_root(tree)) as root, tree_errors("read the tree"):
        for path in _walk(root) if only is None else only:
            raw = os.fsencode(path)
            if not _usable(raw):
                continue
            try:
                _take(importer, root, path, raw)
            except OSError as error:
                if error.errno not in _GONE:
                    raise


def _walk(root: Root) -> Iterator[str]:
    pending = [""]
    while pending:
        folder = pending.pop()
        for name, status in root.list(folder).items():
            path = join(folder, name)
            if not stat.S_ISDIR(status.st_mode):
                yield path
            elif name != ".git":
                pending.append(path)


def _take(importer: Importer, root: Root, path: str, raw: bytes) -> None:
    status = root.status(path)
    if status is None:
        return
    if stat.S_ISLNK(status.st_mode):
        importer.link(raw, root.link(path))
    if not stat.S_ISREG(status.st_mode):
        return
    descriptor = root.open_file(path)
    try:
        size = os.fstat(descriptor).st_size
        if importer.takes(size):
            importer.file(raw, status.st_mode, os.pread(descriptor, size, 0))
        else:
            importer.named_only(raw, status.st_mode, digest(descriptor, size))
    finally:
        os.close(descriptor)


def from_archive(importer: Importer, path: Path) -> None:
    """Raises `ArchiveInvalid`."""
    with tree_errors("read the archive"), path.open("rb") as file:
        stream: Readable = file
        if file.peek(len(_GZIP)).startswith(_GZIP):
            stream = _Unzipped(gzip.GzipFile(fileobj=file))
        reader = TarReader(stream)
        files: set[bytes] = set()
        for member in reader:
            _take_member(importer, reader, member, files)


def _take_member(importer: Importer, reader: TarReader, member: Member, files: set[bytes]) -> None:
    path = _clean(member.name)
    if not _usable(path):
        return
    if member.kind == tarfile.SYMTYPE:
        importer.link(path, member.target)
    elif member.kind == tarfile.LNKTYPE:
        if (first := _clean(member.target)) in files and first != path:
            importer.same(path, first)
            files.add(path)
    elif member.is_file:
        files.add(path)
        pieces = reader.content(member)
        if importer.takes(member.size):
            importer.file(path, member.mode, _whole(pieces, member.size))
        else:
            importer.named_only(path, member.mode, digest_of_pieces(pieces, member.size))


def _clean(name: bytes) -> bytes:
    return b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))


def _whole(pieces: Iterable[tuple[int, bytes]], size: int) -> bytes:
    content = bytearray(size)
    for position, piece in pieces:
        content[position : position + len(piece)] = piece
    return bytes(content)


class _Unzipped:
    """Tells of damage as `TarReader` expects it of streams."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream = stream

    def read(self, size: int, /) -> bytes:
        try:
            return self._stream.read(size)
        except (EOFError, zlib.error) as error:
            raise ArchiveInvalid(f"The archive is damaged ({error}).", hint="Drop it.") from error
