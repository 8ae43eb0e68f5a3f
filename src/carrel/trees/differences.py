"""How the files of two versions differ, in git's words.

Both sides are given to git's importer as they are read, from a tree or an archive, so no path of
theirs is ever made on the disk: what strangers called their files can lead nowhere. The repository
that this takes is one for each comparison, and is gone afterwards.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import secrets
import stat
import tarfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path

from carrel.domain.errors import ArchiveInvalid
from carrel.domain.requests import VersionFiles
from carrel.domain.tar import Member, Readable, TarReader
from carrel.domain.trees import Tree, TreeDriver
from carrel.linux.descriptors import Descriptor
from carrel.trees.contents import digest, digest_of_pieces
from carrel.trees.drivers.common import tree_errors
from carrel.trees.extraction import tar_reader
from carrel.trees.folders import ENTRY_ERRORS, Root, split, walk
from carrel.trees.git.process import feed_git, read_git, run_git
from carrel.trees.removal import remove_tree

MAX_COMPARED = 1 << 20
"""Larger files are only told to differ."""
MAX_BYTES = 256 << 20
"""Of one side, which is on the disk while the difference is read; what comes then is only told
to differ."""
_GZIP = b"\x1f\x8b"
_LINK, _PROGRAM, _PLAIN = b"120000", b"100755", b"100644"
_SPECIAL = re.compile(rb'[\x00-\x1f"\\\x7f-\xff]')


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
        self._write(b"C %s %s\n" % (quoted(first), quoted(path)))

    def end(self) -> None:
        self._write(b"done\n")

    def _put(self, path: bytes, mode: bytes, content: bytes) -> None:
        head = b"M %s inline %s\ndata %d\n" % (mode, quoted(path), len(content))
        self._write(head + content + b"\n")


def quoted(path: bytes) -> bytes:
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
        if only is None:
            only = (found.path for found in walk(root, lambda one: split(one.path)[1] != ".git"))
        for path in only:
            raw = os.fsencode(path)
            if not _usable(raw):
                continue
            try:
                _take(importer, root, path, raw)
            except OSError as error:
                if error.errno not in ENTRY_ERRORS:
                    raise


def _take(importer: Importer, root: Root, path: str, raw: bytes) -> None:
    status = root.status(path)
    if status is None:
        return
    if stat.S_ISLNK(status.st_mode):
        importer.link(raw, root.link(path))
    if not stat.S_ISREG(status.st_mode):
        return
    with Descriptor(root.open_file(path)) as descriptor:
        size = os.fstat(descriptor).st_size
        if importer.takes(size):
            importer.file(raw, status.st_mode, os.pread(descriptor, size, 0))
        else:
            importer.named_only(raw, status.st_mode, digest(descriptor, size))


def from_archive(importer: Importer, path: Path) -> None:
    """Raises `ArchiveInvalid`."""
    with tree_errors("read the archive"), path.open("rb") as file:
        stream: Readable = file
        if file.peek(len(_GZIP)).startswith(_GZIP):
            stream = _Unzipped(gzip.GzipFile(fileobj=file))
        reader = tar_reader(stream)
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


# Comparing

_PREFIX = ".diff-"
_BEFORE, _AFTER = "refs/heads/before", "refs/heads/after"
_INIT_S = 30.0
_IMPORT_S = 600.0
"""For a hundred thousand files it takes ten seconds; the rest is for a slow disk."""
_IDLE_S = 120.0
"""Two files of the most that is compared take git a second at worst."""
_IMPORT = (
    *("-c", "fastimport.unpackLimit=0", "-c", "core.compression=0", "-c", "pack.compression=0"),
    *("-c", "core.fsync=none", "-c", "core.protectNTFS=false", "-c", "core.protectHFS=false"),
    *("fast-import", "--quiet", "--done", "--depth=0"),
)
_DIFF = (
    *("-c", "core.quotePath=false"),
    *("diff-tree", "-r", "-p", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames"),
    *("--src-prefix=a/", "--dst-prefix=b/", _BEFORE, _AFTER, "--"),
)


class GitDiffs:
    """Implements `carrel.domain.requests.Differing`."""

    def __init__(self, work: Path) -> None:
        """A folder of our own for what is needed meanwhile; made when it is missing."""
        self._work = work

    def diff(
        self, before: VersionFiles | None, after: VersionFiles
    ) -> Generator[bytes, None, None]:
        """Nothing is done before it is first read. Who stops early closes it."""
        with self._repository() as folder:
            only = _changed_in_either(before, after)
            with feed_git(_IMPORT, folder=folder, timeout_s=_IMPORT_S) as write:
                importer = Importer(write)
                importer.begin(_BEFORE)
                if before is not None:
                    _import(importer, before, only)
                importer.begin(_AFTER)
                _import(importer, after, only)
                importer.end()
            yield from read_git(_DIFF, folder=folder, idle_s=_IDLE_S)

    def sweep(self) -> None:
        """What a process that was killed has left. Nobody may be comparing meanwhile."""
        with tree_errors("clear the work folder"):
            for folder in self._work.glob(f"{_PREFIX}*"):
                remove_tree(folder)

    @contextlib.contextmanager
    def _repository(self) -> Iterator[Path]:
        folder = self._work / (_PREFIX + secrets.token_hex(8))
        with tree_errors("compare two versions"):
            self._work.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
        try:
            run_git(["init", "--quiet", "--bare", "--template=", str(folder)], timeout_s=_INIT_S)
            yield folder
        finally:
            with tree_errors("clear the work folder"):
                remove_tree(folder)


def _import(importer: Importer, files: VersionFiles, only: list[str] | None) -> None:
    if files.archive is not None:
        from_archive(importer, files.archive)
        return
    driver, tree = _tree(files)
    from_tree(importer, driver, tree, only)


def _tree(files: VersionFiles) -> tuple[TreeDriver, Tree]:
    if files.driver is None or files.tree is None:
        raise ValueError("a version is in a tree or in an archive")
    return files.driver, files.tree


def _changed_in_either(before: VersionFiles | None, after: VersionFiles) -> list[str] | None:
    """The paths that can differ when both stand on one base; None: any."""
    if before is None or before.archive is not None or after.archive is not None:
        return None
    sides = [_tree(before), _tree(after)]
    if len({tree.base_id for _, tree in sides}) > 1:
        return None
    if any(driver.capabilities.stays for driver, _ in sides):
        # What such a one changed is not told from its base.
        return None
    found: set[str] = set()
    for driver, tree in sides:
        for change in driver.changes(tree):
            found.add(change.path)
            if change.old_path is not None:
                found.add(change.old_path)
    return sorted(found)
