"""An archive in tar's format, plain or compressed with zstd, into a tree and nothing of it anywhere
else.

Somebody may have made it to do harm; `carrel.domain.tar` bounds what is read of it. `clean_name`
and `check_link` are the one rule about names and links, also for archives that are projects.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import zstandard

from carrel.domain.errors import CarrelError, PathWrongKind, TooLarge
from carrel.domain.tar import Member, Readable, TarReader, bad, plain_name, shown
from carrel.domain.trees import Owner, Tree, TreeDriver
from carrel.linux.descriptors import Descriptor
from carrel.linux.namespaces import leave_umask
from carrel.linux.openat2 import open_beneath
from carrel.trees.contents import write_at
from carrel.trees.folders import split
from carrel.trees.host_edits import unwatched
from carrel.trees.new_files import NewFile, SecondProcess
from carrel.trees.paths import check_path, path_errors
from carrel.trees.writer import TreeWriter, checked

_MAGIC = b"\x28\xb5\x2f\xfd"
_MAX_WINDOW = 8 << 20
"""What every reader of zstd is to manage, and so what writers keep to."""
_MAX_NAME = 255
_MAX_TARGET = 4095
_REPACK = "Pack it again from within its folder, without links that lead out."


@dataclass
class JoinedStream:
    """A stream whose beginning was read already."""

    beginning: bytes
    rest: Readable

    def read(self, size: int, /) -> bytes:
        if self.beginning:
            piece, self.beginning = self.beginning[:size], self.beginning[size:]
            return piece
        return self.rest.read(size)


@dataclass
class _Decompressed:
    stream: Readable

    def read(self, size: int, /) -> bytes:
        try:
            return self.stream.read(size)
        except zstandard.ZstdError as error:
            raise bad(f"it cannot be decompressed ({error})") from error


def tar_reader(stream: Readable) -> TarReader:
    """Of an archive that is plain, or compressed with zstd."""
    return TarReader(_decompressed(stream))


def _decompressed(stream: Readable) -> Readable:
    beginning = b""
    while len(beginning) < len(_MAGIC):
        try:
            piece = stream.read(len(_MAGIC) - len(beginning))
        except OSError as error:
            raise bad(f"it broke off ({error})") from error
        if not piece:
            break
        beginning += piece
    joined = JoinedStream(beginning, stream)
    if beginning != _MAGIC:
        return joined
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    reader = decompressor.stream_reader(joined, read_across_frames=True)  # type: ignore[arg-type]
    return _Decompressed(reader)


def clean_name(name: bytes, entry: bytes) -> str:
    """The path below the folder that a name means; "" is the folder itself. Raises
    `ArchiveInvalid`, which tells the `entry`."""
    if plain_name(name):
        return os.fsdecode(name)
    if name.startswith(b"/"):
        raise bad(f"{shown(name)} is an absolute path", entry, _REPACK)
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise bad(f"{shown(name)} leads out of it", entry, _REPACK)
    if b"\0" in name or any(len(part) > _MAX_NAME for part in parts):
        raise bad(f"{shown(name)} cannot be the name of a file", entry, _REPACK)
    return os.fsdecode(b"/".join(parts))


def check_link(path: str, target: bytes) -> None:
    """A symlink has to stay within what is unpacked. It may go up at its beginning only:
    behind another symlink, nobody knows where `..` is. Raises `ArchiveInvalid`."""
    entry = os.fsencode(path)
    what = f"{shown(entry)} is a symlink to {shown(target)}"
    if not target or len(target) > _MAX_TARGET or b"\0" in target:
        raise bad(f"{what}, which cannot be", entry, _REPACK)
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    above = 0
    while above < len(parts) and parts[above] == b"..":
        above += 1
    outside = target.startswith(b"/") or above > path.count("/")
    if outside or b".." in parts[above:]:
        raise bad(f"{what}, which leads out of it", entry, _REPACK)


# Unpacking

MAX_ENTRIES = 1_000_000
"""Twenty times a big project; more would fill the disk with names alone."""
MAX_BYTES = 64 << 30
"""The disk and its limits stop most archives before."""
_FILE_BITS = 0o777
_FOLDER_BITS = 0o3777
"""Folders may be sticky, or pass on their group; a file never runs as somebody else."""
_AT_ONCE, _AT_ONCE_BYTES = 256, 1 << 20
"""Small files of one folder, which are written together."""
_MANY = 300
"""Small files from which on a second process helps: its start takes as long as making these."""
_KINDS = {
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a named pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file in an old form",
}


ENTRY_BYTES = 4096
"""What one takes by itself: its name, its mode, its time."""


@dataclass(frozen=True)
class Unpacked:
    entries: int
    bytes_written: int


def unpack(
    driver: TreeDriver,
    tree: Tree,
    stream: Readable,
    into: str = ".",
    *,
    max_entries: int = MAX_ENTRIES,
    max_bytes: int = MAX_BYTES,
    check: Callable[[int], None] = lambda _: None,
) -> Unpacked:
    """Puts what a tar holds, plain or compressed with zstd, into a folder that is there.

    Files and symlinks replace such of the same name, folders are merged; through symlinks
    of the tree nothing is written. Raises `ArchiveInvalid` for what is damaged, leads out,
    or is no file, folder or link; `TooLarge`; `InsufficientDisk`; other `PathError`s; and what
    `check` raises, which is called with the size of each piece before that is written. What
    came before the entry that the error names is there then.
    """
    limits = max_entries, max_bytes
    # In a thread of its own, which has no umask.
    with ThreadPoolExecutor(1, "carrel-unpack") as pool:
        return pool.submit(_unpack, driver, tree, stream, into, limits, check).result()


def _unpack(
    driver: TreeDriver,
    tree: Tree,
    stream: Readable,
    into: str,
    limits: tuple[int, int],
    check: Callable[[int], None],
) -> Unpacked:
    with Descriptor(unwatched(tree, driver.open_root(tree))) as root:
        status = os.fstat(root)
        with path_errors(into):
            folder = open_beneath(root, check_path(into))
    try:
        if not stat.S_ISDIR(os.fstat(folder).st_mode):
            raise PathWrongKind(f"{into!r} is not a folder.")
        place = TreeWriter(folder, Owner(status.st_uid, status.st_gid), umask=not leave_umask())
        try:
            with contextlib.closing(_SmallFiles(place)) as small:
                unpacker = _TarUnpacker(place, small, tar_reader(stream), *limits, check)
                try:
                    unpacker.run()
                except BaseException:
                    # Folders get back the modes they had; what went wrong first is told.
                    with contextlib.suppress(CarrelError):
                        place.finish()
                    raise
            place.finish()
        finally:
            place.close()
    finally:
        os.close(folder)
    return Unpacked(unpacker.entries, unpacker.written)


class _SmallFiles:
    """Makes them in lots, and when they are many lets a second process make some of the lots at the
    same time. Other entries see the names in their order all the same: see `reach` and `settle`.
    Methods raise as those of `TreeWriter` do."""

    def __init__(self, place: TreeWriter) -> None:
        self._place = place
        self._second: SecondProcess | None = None
        self._alone = len(os.sched_getaffinity(0)) < 2
        self._seen = 0
        self._given: deque[tuple[str, list[NewFile]]] = deque()
        """Lots of which the second process has not said what became of them."""

    def close(self) -> None:
        if self._second is not None:
            self._second.close()
            self._second = None

    def reach(self, path: str) -> None:
        """Makes a folder where it is missing, after every file that was to have its name, or the
        name of a folder on the way."""
        for above, files in self._given:
            way = path if not above else path[len(above) + 1 :] if _is_in(path, above) else ""
            first = way.partition("/")[0]
            if first and any(first == file[0] for file in files):
                self.settle()
                break
        self._place.reach(path)

    def write(self, above: str, files: list[NewFile], size: int) -> None:
        """Those of a folder that is there, which take so much."""
        self._seen += len(files)
        if self._second is None and self._seen > _MANY and not self._alone:
            self._alone = True
            # Where the machine has no process left, all is done here.
            with contextlib.suppress(OSError):
                self._second = self._place.second_process()
        self._collect(wait=False)
        if self._second is not None and self._second.has_room(size):
            folder = self._place.folder_for_new(above)
            if folder is not None:
                self._give(above, folder, files, size)
                return
        if any(above == given for given, _ in self._given):
            # One that was given before can have the same name.
            self.settle()
        self._place.write_small(above, files)

    def _give(self, above: str, folder: int, files: list[NewFile], size: int) -> None:
        assert self._second is not None
        self._given.append((above, files))
        try:
            self._second.give(folder, files, size)
        except OSError:
            self._lose()

    def settle(self) -> None:
        """Until all that were given are made. Raises the error of the first that could not be."""
        while self._given:
            self._collect(wait=True)

    def _collect(self, *, wait: bool) -> None:
        while self._given and self._second is not None:
            try:
                made = self._second.take(wait=wait)
            except OSError:
                self._lose()
                return
            if made is None:
                return
            above, files = self._given.popleft()
            try:
                self._place.write_small(above, files, checked(above, files, made))
            except BaseException:
                # What came later is not made by others either.
                self._given.clear()
                self.close()
                raise

    def _lose(self) -> None:
        """It was killed. Whatever it has made of the lots is made once more."""
        self.close()
        while self._given:
            self._place.write_small(*self._given.popleft())


def _is_in(path: str, above: str) -> bool:
    return path.startswith(above) and path[len(above) : len(above) + 1] == "/"


@dataclass
class _TarUnpacker:
    place: TreeWriter
    small: _SmallFiles
    reader: TarReader
    max_entries: int
    max_bytes: int
    check: Callable[[int], None]
    entries: int = 0
    written: int = 0
    _above: str = ""
    _small: list[NewFile] = field(default_factory=list)
    """Those of the folder `_above` that came last."""
    _small_bytes: int = 0

    def run(self) -> None:
        try:
            for member in self.reader:
                self.entries += 1
                if self.entries > self.max_entries:
                    raise self._too_large(member, f"{self.max_entries} entries")
                self._take(member)
        except BaseException:
            # The error of an entry that came before is the one to tell.
            self.small.settle()
            with contextlib.suppress(CarrelError):
                self._flush()
                self.small.settle()
            raise
        self._flush()
        self.small.settle()

    def _take(self, member: Member) -> None:
        path = clean_name(member.name, member.name)
        if path and member.is_file and (data := self.reader.small(member)) is not None:
            self._keep(path, member, data)
            return
        self._flush()
        self.check(ENTRY_BYTES)
        if member.kind == tarfile.DIRTYPE:
            # The folder that was given keeps its mode and time.
            if path:
                self.small.reach(path)
                self.place.note_folder(path, member.mode & _FOLDER_BITS, member.mtime_ns)
            return
        self.small.settle()
        if not path:
            raise bad(f"{shown(member.name)} names no file", member.name)
        self.place.reach(split(path)[0])
        if member.is_file:
            self._write(path, member)
        elif member.kind == tarfile.SYMTYPE:
            check_link(path, member.target)
            self.place.symlink(path, member.target, member.mtime_ns)
        elif member.kind == tarfile.LNKTYPE:
            self._link(path, member)
        else:
            kind = _KINDS.get(member.kind, "something unknown")
            raise bad(f"{shown(member.name)} is {kind}", member.name)

    def _keep(self, path: str, member: Member, data: bytes) -> None:
        above, name = split(path)
        full = self._small_bytes > _AT_ONCE_BYTES or len(self._small) >= _AT_ONCE
        if above != self._above or full:
            self._flush()
            self._above = above
        self.written += len(data)
        if self.written > self.max_bytes:
            raise self._too_large(member, f"{self.max_bytes} bytes")
        self._small.append((name, data, member.mode & _FILE_BITS, member.mtime_ns))
        self._small_bytes += len(data)

    def _flush(self) -> None:
        if self._small:
            small, size = self._small, self._small_bytes
            self._small, self._small_bytes = [], 0
            size += ENTRY_BYTES * len(small)
            self.check(size)
            self.small.reach(self._above)
            self.small.write(self._above, small, size)

    def _write(self, path: str, member: Member) -> None:
        def fill(target: int) -> None:
            for position, piece in self.reader.content(member):
                self._count(member, len(piece))
                write_at(target, piece, position)
            os.ftruncate(target, member.size)
            os.utime(target, ns=(member.mtime_ns, member.mtime_ns))
            os.fchmod(target, member.mode & _FILE_BITS)

        self.place.write(path, fill)

    def _count(self, member: Member, size: int) -> None:
        self.written += size
        if self.written > self.max_bytes:
            raise self._too_large(member, f"{self.max_bytes} bytes")
        self.check(size)

    def _link(self, path: str, member: Member) -> None:
        first = clean_name(member.target, member.name)
        status = self.place.status(first) if first else None
        if status is None or not stat.S_ISREG(status.st_mode):
            what = f"{shown(member.name)} is a link to {shown(member.target)}"
            raise bad(f"{what}, which is no file before it", member.name)
        if first != path:
            self.place.link(path, first)

    def _too_large(self, member: Member, limit: str) -> TooLarge:
        return TooLarge(
            f"The archive holds more than the {limit} that were allowed, at {shown(member.name)}.",
            hint="Allow more, or send less.",
            entry=os.fsdecode(member.name),
        )
