"""A tar or zip archive as a project."""

from __future__ import annotations

import contextlib
import lzma
import os
import stat
import tarfile
import time
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import IO, Self, cast

import zstandard

from carrel.domain.errors import (
    ArchiveInvalid,
    InsufficientDisk,
    PathError,
    PathWrongKind,
    ProjectInvalid,
    ProjectNotFound,
    ProjectTooLarge,
    ProjectUnreadable,
)
from carrel.domain.projects import BaseRequest, OnProgress, Progress
from carrel.domain.tar import bad, shown
from carrel.domain.trees import Owner, Skipped
from carrel.linux.descriptors import Descriptor
from carrel.linux.openat2 import open_real
from carrel.trees.bases.records import IndexFile
from carrel.trees.contents import BLOCK, ZEROS, write_at
from carrel.trees.extraction import check_link, clean_name
from carrel.trees.git.checkout import Delta
from carrel.trees.writer import TreeWriter

_SECOND = 1_000_000_000
_ZSTD = b"\x28\xb5\x2f\xfd"
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", _ZSTD)
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_USTAR = slice(257, 262)
_SPARE_BYTES = 64 << 20
"""So much room is left on the disk: an archive may claim any size."""
_MODE = 0o777
"""Permissions that archives may give: none to become somebody else."""
_SHOW_S = 0.1
"""Progress is shown ten times a second."""
_KINDS = {
    tarfile.CHRTYPE: "is a character device",
    tarfile.BLKTYPE: "is a block device",
    tarfile.FIFOTYPE: "is a named pipe",
}


def is_archive(path: Path) -> bool:
    """Whether a file is a tar or a zip, by what is in it."""
    try:
        with path.open("rb") as file:
            start = file.read(512)
    except OSError:
        return False
    if start.startswith(_ZIP):
        return zipfile.is_zipfile(path)
    if start[_USTAR] == b"ustar":
        return True
    if not start.startswith(_COMPRESSED):
        return False
    try:
        with _damage_as_error(path), _open_tar(path) as tar:
            return tar.next() is not None
    except ArchiveInvalid:
        return False


@dataclass
class _ProjectUnpacker:
    """Fills one empty folder, and nothing anywhere else. Names come as the archive has them."""

    root: int
    max_files: int | None
    max_bytes: int | None
    on_entry: Callable[[int, int], None]
    skipped: list[Skipped] = field(default_factory=list)
    _files: int = 0
    _bytes: int = 0

    def __post_init__(self) -> None:
        self._writer = TreeWriter(self.root, Owner(os.geteuid(), os.getegid()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._writer.close()

    @property
    def count(self) -> int:
        return self._files + len(self.skipped)

    def folder(self, name: bytes, mode: int, mtime_ns: int) -> None:
        path = clean_name(name, name)
        self._count(0)
        with _misfits(path):
            self._writer.make_folder(path, mode & _MODE | 0o700, mtime_ns)

    def file(self, name: bytes, mode: int, mtime_ns: int, size: int, content: IO[bytes]) -> None:
        def fill(target: int) -> None:
            _copy_out(content, size, target, name)
            os.fchmod(target, mode & _MODE)
            os.utime(target, ns=(mtime_ns, mtime_ns))

        self._put(name, size, lambda path: self._writer.write(path, fill))

    def symlink(self, name: bytes, target: bytes, mtime_ns: int) -> None:
        check_link(clean_name(name, name), target)
        self._put(name, 0, lambda path: self._writer.symlink(path, target, mtime_ns))

    def hard_link(self, name: bytes, target: bytes) -> None:
        first = clean_name(target, name)
        if clean_name(name, name) == first:
            self._count(0)
            return
        if not first or self._writer.status(first) is None:
            raise bad(f"{shown(name)} is a link to {shown(target)}, which it has not", name)
        self._put(name, 0, lambda path: self._writer.link(path, first))

    def skip(self, name: bytes, why: str) -> None:
        self.skipped.append(Skipped(clean_name(name, name), why))

    def finish(self) -> None:
        """Gives the folders their modes and times."""
        self._writer.finish()

    def _put(self, name: bytes, size: int, act: Callable[[str], None]) -> None:
        """Makes an entry, also where a folder is: the last of several with one name counts."""
        path = clean_name(name, name)
        if not path:
            raise bad(f"{shown(name)} names no file", name)
        self._count(size)
        with _misfits(path):
            self._writer.reach(os.path.dirname(path))
            try:
                act(path)
            except PathWrongKind:
                self._writer.remove(path)
                act(path)

    def _count(self, size: int) -> None:
        self._files += 1
        self._bytes += size
        self.on_entry(self._files, self._bytes)
        for found, limit, what in (
            (self._files, self.max_files, "entries"),
            (self._bytes, self.max_bytes, "bytes"),
        ):
            if limit is not None and found > limit:
                raise ProjectTooLarge(
                    f"The archive holds more than the {limit} {what} that were allowed.",
                    hint="Allow more, or give a smaller archive.",
                    limit=limit,
                )
        disk = os.fstatvfs(self.root)
        free = disk.f_bavail * disk.f_frsize
        if size and size + _SPARE_BYTES > free:
            raise InsufficientDisk(
                f"The archive holds a file of {size} bytes, and {free} are free on the disk.",
                hint="Make room, or move the data folder.",
                needed_bytes=size,
                free_bytes=free,
            )


@contextlib.contextmanager
def _misfits(path: str) -> Iterator[None]:
    """Entries that do not fit one another, such as a file in a file, are the archive's fault."""
    try:
        yield
    except PathError as error:
        raise bad(error.message.rstrip("."), os.fsencode(path)) from error


def _copy_out(content: IO[bytes], size: int, target: int, name: bytes) -> None:
    """Blocks of zeros become holes."""
    position = 0
    while position < size:
        data = content.read(min(BLOCK, size - position))
        if not data:
            raise bad(f"{shown(name)} is cut short", name)
        if data != ZEROS:
            write_at(target, data, position)
        position += len(data)
    os.ftruncate(target, size)


class ArchiveProducer:
    indexes: tuple[IndexFile, ...] = ()

    def __init__(self, request: BaseRequest, on_progress: OnProgress) -> None:
        """Raises `ProjectNotFound`, `ProjectInvalid`, `ProjectUnreadable`."""
        location = request.project.location
        self._path = Path(location)
        self._request = request
        self._on_progress = on_progress
        self._shown = 0.0
        try:
            if request.narrow:
                self._hold()
            if not stat.S_ISREG(self._path.stat().st_mode):
                raise ProjectInvalid(
                    f"{location!r} is not an archive but a folder or something else.",
                    hint="Give the path of a tar or zip file, or ask for a folder.",
                )
            with self._path.open("rb"):
                pass
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ProjectNotFound(
                f"There is no archive at {location!r}.", hint="Check the path."
            ) from error
        except OSError as error:
            raise ProjectUnreadable(
                f"The archive {location!r} cannot be read: {error.strerror}.",
                hint="Give yourself the permission to read it.",
            ) from error

    def _hold(self) -> None:
        """Reads the file that is there now, whatever is put in its place later."""
        held = open_real(self._path, os.O_RDONLY | os.O_NONBLOCK)
        weakref.finalize(self, os.close, held)
        self._path = Path(f"/proc/self/fd/{held}")

    def state(self) -> bytes:
        found = self._path.stat()
        facts = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        return repr(facts).encode()

    def update(
        self, before: bytes, find: Callable[[bytes], Path | None], into: Path
    ) -> Delta | None:
        return None

    def produce(self, into: Path) -> tuple[Skipped, ...]:
        """Raises `ArchiveInvalid`, `ProjectTooLarge`, `InsufficientDisk`."""
        limits = (self._request.max_files, self._request.max_bytes)
        if self._request.exclude:
            # What is excluded does not count, and is only known afterwards.
            limits = (None, None)
        with (
            Descriptor(os.open(into, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as root,
            _ProjectUnpacker(root, *limits, self._show) as unpacker,
        ):
            with _damage_as_error(self._path):
                if zipfile.is_zipfile(self._path) and not _looks_like_tar(self._path):
                    self._unzip(unpacker)
                else:
                    self._untar(unpacker)
            unpacker.finish()
        return tuple(unpacker.skipped)

    def _show(self, files: int, count: int) -> None:
        if time.monotonic() - self._shown >= _SHOW_S:
            self._shown = time.monotonic()
            self._on_progress(Progress("unpacking", files, 0, count))

    def _untar(self, unpacker: _ProjectUnpacker) -> None:
        with _open_tar(self._path) as tar:
            while (member := tar.next()) is not None:
                _take_tar_member(unpacker, tar, member)
                tar.members = []  # type: ignore[attr-defined]  # else it keeps every one
            # To the end, where gzip has its checksum.
            rest = cast(IO[bytes], tar.fileobj)
            while rest.read(1 << 20):
                pass
        if not unpacker.count:
            # Empty, or not what it claimed to be: the library does not tell apart.
            _refuse_garbage(self._path)

    def _unzip(self, unpacker: _ProjectUnpacker) -> None:
        with zipfile.ZipFile(self._path) as archive:
            for info in archive.infolist():
                _take_zip_member(unpacker, archive, info)


def _take_tar_member(
    unpacker: _ProjectUnpacker, tar: tarfile.TarFile, member: tarfile.TarInfo
) -> None:
    name = os.fsencode(member.name)
    mtime_ns = _mtime_ns(member)
    if member.isdir():
        unpacker.folder(name, member.mode, mtime_ns)
    elif member.issym():
        unpacker.symlink(name, os.fsencode(member.linkname), mtime_ns)
    elif member.islnk():
        unpacker.hard_link(name, os.fsencode(member.linkname))
    elif member.isreg():
        content = tar.extractfile(member)
        assert content is not None
        with content:
            unpacker.file(name, member.mode, mtime_ns, member.size, content)
    else:
        unpacker.skip(name, _KINDS.get(member.type, "is not a file"))


def _mtime_ns(member: tarfile.TarInfo) -> int:
    """As written; the library's own number is rounded to less than nanoseconds."""
    exact = member.pax_headers.get("mtime")
    return int(Decimal(exact if exact is not None else member.mtime) * _SECOND)


def _take_zip_member(
    unpacker: _ProjectUnpacker, archive: zipfile.ZipFile, info: zipfile.ZipInfo
) -> None:
    name = os.fsencode(info.filename)
    mtime_ns = int(time.mktime((*info.date_time, 0, 0, -1))) * _SECOND
    mode = _unix_mode(info.external_attr, folder=info.is_dir())
    if info.flag_bits & 1:
        raise _unusable(Path(archive.filename or ""), f"{info.filename!r} is encrypted")
    if info.is_dir():
        unpacker.folder(name, mode, mtime_ns)
        return
    with archive.open(info) as content:
        if stat.S_ISLNK(mode):
            unpacker.symlink(name, content.read(4096), mtime_ns)
        elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
            unpacker.file(name, mode, mtime_ns, info.file_size, content)
        else:
            unpacker.skip(name, "is not a file")


@contextlib.contextmanager
def _open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    with path.open("rb") as file:
        if file.read(len(_ZSTD)) != _ZSTD:
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r:*", errorlevel=2) as tar:
                yield tar
            return
        file.seek(0)
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        with reader, tarfile.open(fileobj=cast(IO[bytes], reader), mode="r|") as tar:
            yield tar


@contextlib.contextmanager
def _damage_as_error(path: Path) -> Iterator[None]:
    try:
        yield
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        zstandard.ZstdError,
        EOFError,
        NotImplementedError,
        UnicodeError,
        ValueError,
        OverflowError,
        InvalidOperation,
    ) as error:
        raise _unusable(path, str(error) or "it is damaged") from error
    except OSError as error:
        # gzip and bz2 tell damage like this; the system's own errors have a number.
        if error.errno is None:
            raise _unusable(path, str(error) or "it is damaged") from error
        raise


def _looks_like_tar(path: Path) -> bool:
    """A zip at the end of a tar would make the tar look like a zip."""
    with path.open("rb") as file:
        start = file.read(512)
    return start[_USTAR] == b"ustar" or start.startswith(_COMPRESSED)


def _refuse_garbage(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(512)
    if not start.startswith(_COMPRESSED) and any(start):
        raise _unusable(path, "it is neither tar nor zip")


def _unusable(path: Path, why: str) -> ArchiveInvalid:
    return ArchiveInvalid(
        f"The archive {str(path)!r} cannot be used: {why}.",
        hint="Pack it again, as tar (plain, gz, bz2, xz or zst) or as zip.",
    )


def _unix_mode(attributes: int, *, folder: bool) -> int:
    """Of a zip's entry; those that other systems made have none."""
    mode = attributes >> 16
    if stat.S_IMODE(mode):
        return mode
    return 0o755 if folder else 0o644
