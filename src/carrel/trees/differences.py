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
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path

from carrel.domain.errors import ArchiveInvalid
from carrel.domain.requests import VersionFiles
from carrel.domain.tar import Member, Readable, TarReader
from carrel.domain.trees import Tree, TreeDriver
from carrel.linux.descriptors import Descriptor
from carrel.trees.contents import digest, digest_of_pieces
from carrel.trees.drivers.common import tree_errors
from carrel.trees.drivers.written import ReadableFiles
from carrel.trees.extraction import tar_reader
from carrel.trees.folders import ENTRY_ERRORS, Root, split, walk
from carrel.trees.git.packs import BLOB, PackedTree, PackWriter, writing
from carrel.trees.git.process import feed_git, read_git
from carrel.trees.removal import remove_tree

MAX_COMPARED = 1 << 20
"""Larger files are only told to differ."""
MAX_BYTES = 256 << 20
"""Of one side, which is on the disk while the difference is read; what comes then is only told
to differ."""
_GZIP = b"\x1f\x8b"
_LINK, _PROGRAM, _PLAIN = b"120000", b"100755", b"100644"
_SPECIAL = re.compile(rb'[\x00-\x1f"\\\x7f-\xff]')
_ODD = re.compile(rb"(?<![^/])\.git(?![^/])", re.IGNORECASE)
NOT_TAKEN = b" (a name that git does not take)"
"""Put behind names that git refuses, so that nothing is hidden by such a name."""
_MARKED = re.compile(rb"(?<![^/])(\.git(?:modules)?)" + re.escape(NOT_TAKEN), re.IGNORECASE)
BEFORE, AFTER = b"before", b"after"
_REF = "refs/heads/both"
_NOTHING = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""Git's name for a folder with nothing in it, which it knows without having it."""


class Importer(ABC):
    """Is told of the files of both sides, of which no list is held."""

    def __init__(self) -> None:
        self._side = BEFORE
        self._left = {BEFORE: MAX_BYTES, AFTER: MAX_BYTES}

    @abstractmethod
    def _put(self, path: bytes, mode: bytes, content: bytes) -> None: ...

    @property
    @abstractmethod
    def sides(self) -> tuple[str, str]:
        """What git is to compare, when it has all."""

    def turn_to(self, side: bytes) -> None:
        """Whose files come next: `BEFORE` or `AFTER`."""
        self._side = side

    def takes(self, size: int) -> bool:
        """Whether a file of this size is compared; then it counts."""
        if size > MAX_COMPARED or size > self._left[self._side]:
            return False
        self._left[self._side] -= size
        return True

    def file(self, path: bytes, mode: int, content: bytes) -> None:
        self._put(path, _PROGRAM if mode & stat.S_IXUSR else _PLAIN, content)

    def named_only(self, path: bytes, mode: int, told: bytes) -> None:
        """A file of which only `told` is compared. The zero byte makes it no text for git."""
        self.file(path, mode, b"\0" + told)

    def link(self, path: bytes, target: bytes) -> None:
        # Git does not have links of this name: they were used to lead it astray.
        if path.rpartition(b"/")[2].lower() == b".gitmodules":
            path += NOT_TAKEN
        self._put(path, _LINK, target)


class AnyOrder(Importer):
    """Writes the language of `git fast-import`: one commit, with the files of each side in a folder
    of its own."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        super().__init__()
        self._write = write
        self._filled: set[bytes] = set()
        write(b"commit %s\ncommitter carrel <> 0 +0000\ndata 0\n\n" % _REF.encode())

    def same(self, path: bytes, first: bytes) -> None:
        """A further name of a file that is there."""
        self._write(b"C %s %s\n" % (self._quoted(first), self._quoted(path)))

    def end(self) -> None:
        self._write(b"done\n")

    @property
    def sides(self) -> tuple[str, str]:
        before, after = (
            f"{_REF}:{side.decode()}" if side in self._filled else _NOTHING
            for side in (BEFORE, AFTER)
        )
        return before, after

    def _put(self, path: bytes, mode: bytes, content: bytes) -> None:
        self._filled.add(self._side)
        head = b"M %s inline %s\ndata %d\n" % (mode, self._quoted(path), len(content))
        self._write(head + content + b"\n")

    def _quoted(self, path: bytes) -> bytes:
        return quoted(b"%s/%s" % (self._side, marked(path)))


class Sorted(Importer):
    """Takes files in the order of their paths, those in a folder together: both sides of one file
    can be told together."""

    def __init__(self, packs: PackWriter) -> None:
        super().__init__()
        self._packs = packs
        self._trees = {BEFORE: PackedTree(packs), AFTER: PackedTree(packs)}
        self._sides: tuple[str, str] | None = None

    def end(self) -> None:
        before, after = (self._trees[side].end().hex() for side in (BEFORE, AFTER))
        self._sides = before, after

    @property
    def sides(self) -> tuple[str, str]:
        assert self._sides is not None, "it has come to its end"
        return self._sides

    def _put(self, path: bytes, mode: bytes, content: bytes) -> None:
        self._trees[self._side].put(marked(path), mode, self._packs.add(BLOB, content))


def quoted(path: bytes) -> bytes:
    """As the importer takes names with special characters."""
    return b'"%s"' % _SPECIAL.sub(lambda found: b"\\%03o" % found[0][0], path)


def marked(path: bytes) -> bytes:
    return _ODD.sub(rb"\g<0>" + NOT_TAKEN, path)


def unmarked(path: bytes) -> bytes:
    """The name without the note that it was given here."""
    return _MARKED.sub(rb"\1", path)


def usable(path: bytes) -> bool:
    """Git's own files are left out."""
    return not any(part in (b"", b".", b"..", b".git") for part in path.split(b"/"))


def from_tree(
    importer: Importer, driver: TreeDriver, tree: Tree, only: Iterable[str] | None
) -> None:
    """All that is in it, or what is left of `only`. What goes away meanwhile was not there."""
    with Root(driver.open_root(tree)) as root, tree_errors("read the tree"):
        if only is None:
            only = (found.path for found in walk(root, lambda one: split(one.path)[1] != ".git"))
        for path in only:
            raw = os.fsencode(path)
            if not usable(raw):
                continue
            with if_there():
                take(importer, raw, root, path)


@contextlib.contextmanager
def if_there() -> Iterator[None]:
    """What goes away while it is read was not there."""
    try:
        yield
    except OSError as error:
        if error.errno not in ENTRY_ERRORS:
            raise


def take(
    importer: Importer,
    raw: bytes,
    root: ReadableFiles,
    place: str,
    status: os.stat_result | None = None,
) -> None:
    """Tells of the entry `raw`, whose bytes are at `place` in `root`, if it is a file or a link.
    `status` is what it is, where that is not what is there. Raises OSError."""
    status = status or root.status(place)
    if status is None:
        return
    if stat.S_ISLNK(status.st_mode):
        importer.link(raw, root.link(place))
    elif stat.S_ISREG(status.st_mode):
        with Descriptor(root.open_regular(place)[0]) as descriptor:
            _take_file(importer, raw, status.st_mode, descriptor)


def _take_file(importer: Importer, raw: bytes, mode: int, descriptor: int) -> None:
    size = os.fstat(descriptor).st_size
    if importer.takes(size):
        importer.file(raw, mode, os.pread(descriptor, size, 0))
    else:
        importer.named_only(raw, mode, digest(descriptor, size))


def from_archive(importer: AnyOrder, path: Path) -> None:
    """Raises `ArchiveInvalid`."""
    with tree_errors("read the archive"), path.open("rb") as file:
        stream: Readable = file
        if file.peek(len(_GZIP)).startswith(_GZIP):
            stream = _Unzipped(gzip.GzipFile(fileobj=file))
        reader = tar_reader(stream)
        files: set[bytes] = set()
        for member in reader:
            _take_member(importer, reader, member, files)


def _take_member(importer: AnyOrder, reader: TarReader, member: Member, files: set[bytes]) -> None:
    path = _clean(member.name)
    if not usable(path):
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
_SETTINGS = b"[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
_IMPORT_S = 600.0
"""For a hundred thousand files it takes ten seconds; the rest is for a slow disk."""
_IDLE_S = 120.0
"""Two files of the most that is compared take git a second at worst."""
_IMPORT = (
    *("-c", "fastimport.unpackLimit=0", "-c", "core.compression=0", "-c", "pack.compression=0"),
    *("-c", "core.fsync=none", "-c", "core.protectNTFS=false", "-c", "core.protectHFS=false"),
    *("fast-import", "--quiet", "--done", "--depth=0"),
)
_DIFF = ("-c", "core.quotePath=false", "diff-tree", "-r", "--no-ext-diff", "--no-textconv")
PATCH = ("-p", "--no-color", "--src-prefix=a/", "--dst-prefix=b/")
"""As people read it."""


class Both:
    """Two sides that git has read, to be compared in any number of ways."""

    def __init__(self, folder: Path, sides: tuple[str, str]) -> None:
        self._folder = folder
        self._sides = sides

    def compare(self, *options: str) -> Generator[bytes, None, None]:
        """What `git diff-tree` prints with these options. Who stops early closes it."""
        words = (*_DIFF, *options, *self._sides, "--")
        return read_git(words, folder=self._folder, idle_s=_IDLE_S)


class DiffRepositories:
    """Makes a repository for one comparison, which is gone afterwards."""

    def __init__(self, work: Path) -> None:
        """A folder of our own for what is needed meanwhile; made when it is missing."""
        self._work = work

    @contextlib.contextmanager
    def both(self, fill: Callable[[Sorted], None]) -> Iterator[Both]:
        """`fill` tells the importer of both sides, in the order of paths."""
        with self._repository() as folder:
            with tree_errors("compare two versions"), writing(folder / "objects" / "pack") as packs:
                importer = Sorted(packs)
                fill(importer)
                importer.end()
            yield Both(folder, importer.sides)

    @contextlib.contextmanager
    def both_in_any_order(self, fill: Callable[[AnyOrder], None]) -> Iterator[Both]:
        """As `both`, by git's own importer, which takes longer."""
        with self._repository() as folder:
            with feed_git(_IMPORT, folder=folder, timeout_s=_IMPORT_S) as write:
                importer = AnyOrder(write)
                fill(importer)
                importer.end()
            yield Both(folder, importer.sides)

    def sweep(self) -> None:
        """What a process that was killed has left. Nobody may be comparing meanwhile."""
        with tree_errors("clear the work folder"):
            for folder in self._work.glob(f"{_PREFIX}*"):
                remove_tree(folder)

    @contextlib.contextmanager
    def _repository(self) -> Iterator[Path]:
        folder = self._work / (_PREFIX + secrets.token_hex(8))
        try:
            with tree_errors("compare two versions"):
                self._work.mkdir(mode=0o700, parents=True, exist_ok=True)
                _make_repository(folder)
            yield folder
        finally:
            with tree_errors("clear the work folder"):
                remove_tree(folder)


def _make_repository(folder: Path) -> None:
    """As `git init --bare` does: another process would take longer than most comparisons."""
    for name in ("", "objects", "refs"):
        (folder / name).mkdir(mode=0o700)
    # Not at what is compared: some versions of git take attributes from there.
    (folder / "HEAD").write_text("ref: refs/heads/none\n")
    (folder / "config").write_bytes(_SETTINGS)


class GitDiffs(DiffRepositories):
    """Implements `carrel.domain.requests.Differing`."""

    def diff(
        self, before: VersionFiles | None, after: VersionFiles
    ) -> Generator[bytes, None, None]:
        """Nothing is done before it is first read. Who stops early closes it."""

        def fill(importer: AnyOrder) -> None:
            only = _changed_in_either(before, after)
            if before is not None:
                _import(importer, before, only)
            importer.turn_to(AFTER)
            _import(importer, after, only)

        with self.both_in_any_order(fill) as both:
            yield from both.compare(*PATCH, "--no-renames")


def _import(importer: AnyOrder, files: VersionFiles, only: list[str] | None) -> None:
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
