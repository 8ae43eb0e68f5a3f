"""An archive into a tree, and nothing of it anywhere else."""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from dataclasses import dataclass

from carrel.domain.errors import CarrelError, PathWrongKind, TooLarge
from carrel.domain.trees import Owner, Tree, TreeDriver
from carrel.linux.openat2 import open_beneath
from carrel.trees.paths import check_path, path_errors
from carrel.trees.tar_reading import Member, Readable, TarReader, bad, shown
from carrel.trees.workplace import Workplace

MAX_ENTRIES = 1_000_000
"""Twenty times a big project; more would fill the disk with names alone."""
MAX_BYTES = 64 << 30
"""The disk and its limits stop most archives before."""
_FILE_BITS = 0o777
_FOLDER_BITS = 0o3777
"""Folders may be sticky, or pass on their group; a file never runs as somebody else."""
_MAX_NAME = 255
_MAX_TARGET = 4095
_KINDS = {
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a named pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file in an old form",
}


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
) -> Unpacked:
    """Puts what a tar holds, plain or compressed with zstd, into a folder that is there.

    Files and symlinks replace such of the same name, folders are merged; through symlinks
    of the tree nothing is written. Raises `ArchiveInvalid` for what is damaged, leads out,
    or is no file, folder or link; `TooLarge`; `InsufficientDisk`; other `PathError`s. What
    came before the entry that the error names is there then.
    """
    root = driver.open_root(tree)
    try:
        status = os.fstat(root)
        with path_errors(into):
            folder = open_beneath(root, check_path(into))
    finally:
        os.close(root)
    try:
        if not stat.S_ISDIR(os.fstat(folder).st_mode):
            raise PathWrongKind(f"{into!r} is not a folder.")
        place = Workplace(folder, Owner(status.st_uid, status.st_gid))
        try:
            unpacker = _Unpacker(place, TarReader(stream), max_entries, max_bytes)
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


@dataclass
class _Unpacker:
    place: Workplace
    reader: TarReader
    max_entries: int
    max_bytes: int
    entries: int = 0
    written: int = 0

    def run(self) -> None:
        for member in self.reader:
            self.entries += 1
            if self.entries > self.max_entries:
                raise self._too_large(member, f"{self.max_entries} entries")
            self._take(member)

    def _take(self, member: Member) -> None:
        path = _clean(member.name, member.name)
        if member.kind == tarfile.DIRTYPE:
            # The folder that was given keeps its mode and time.
            if path:
                self.place.make_folder(path, member.mode & _FOLDER_BITS, member.mtime_ns)
            return
        if not path:
            raise bad(f"{shown(member.name)} names no file", member.name)
        self.place.reach(os.path.dirname(path))
        if member.is_file:
            self._write(path, member)
        elif member.kind == tarfile.SYMTYPE:
            _refuse_escape(path, member)
            self.place.symlink(path, member.target, member.mtime_ns)
        elif member.kind == tarfile.LNKTYPE:
            self._link(path, member)
        else:
            kind = _KINDS.get(member.kind, "something unknown")
            raise bad(f"{shown(member.name)} is {kind}", member.name)

    def _write(self, path: str, member: Member) -> None:
        def fill(target: int) -> None:
            for position, piece in self.reader.content(member):
                self.written += len(piece)
                if self.written > self.max_bytes:
                    raise self._too_large(member, f"{self.max_bytes} bytes")
                _write_at(target, piece, position)
            os.ftruncate(target, member.size)
            os.utime(target, ns=(member.mtime_ns, member.mtime_ns))
            os.fchmod(target, member.mode & _FILE_BITS)

        self.place.write(path, fill)

    def _link(self, path: str, member: Member) -> None:
        first = _clean(member.target, member.name)
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


def _write_at(target: int, piece: bytes, position: int) -> None:
    view = memoryview(piece)
    while view:
        count = os.pwrite(target, view, position)
        view = view[count:]
        position += count


def _clean(name: bytes, entry: bytes) -> str:
    """The path below the folder that a name means; "" is the folder itself."""
    if name.startswith(b"/"):
        raise bad(f"{shown(name)} is an absolute path", entry)
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise bad(f"{shown(name)} leads out of it", entry)
    if any(len(part) > _MAX_NAME for part in parts):
        raise bad(f"{shown(name)} is too long", entry)
    return os.fsdecode(b"/".join(parts))


def _refuse_escape(path: str, member: Member) -> None:
    """A symlink has to stay within what is unpacked. It may go up at its beginning only:
    behind another symlink, nobody knows where `..` is."""
    what = f"{shown(member.name)} is a symlink to {shown(member.target)}"
    if not member.target or len(member.target) > _MAX_TARGET:
        raise bad(f"{what}, which cannot be", member.name)
    parts = [part for part in member.target.split(b"/") if part not in (b"", b".")]
    above = 0
    while above < len(parts) and parts[above] == b"..":
        above += 1
    outside = member.target.startswith(b"/") or above > path.count("/")
    if outside or b".." in parts[above:]:
        raise bad(f"{what}, which leads out of it", member.name)
