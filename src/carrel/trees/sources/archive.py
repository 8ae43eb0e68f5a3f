"""A tar or zip archive as a project."""

from __future__ import annotations

import contextlib
import lzma
import os
import stat
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import IO, cast

import zstandard

from carrel.domain.errors import (
    ArchiveInvalid,
    ProjectInvalid,
    ProjectNotFound,
    ProjectUnreadable,
)
from carrel.domain.projects import BaseRequest, OnProgress, Progress
from carrel.domain.trees import Skipped
from carrel.trees.bases.records import IndexFile
from carrel.trees.bases.views import Update
from carrel.trees.sources.unpacking import Limits, Unpacker, bad_archive, unix_mode

_SECOND = 1_000_000_000
_ZSTD = b"\x28\xb5\x2f\xfd"
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", _ZSTD)
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_USTAR = slice(257, 262)
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

    def state(self) -> bytes:
        found = self._path.stat()
        facts = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        return repr(facts).encode()

    def update(
        self, before: bytes, find: Callable[[bytes], Path | None], into: Path
    ) -> Update | None:
        return None

    def produce(self, into: Path) -> tuple[Skipped, ...]:
        """Raises `ArchiveInvalid`, `ProjectTooLarge`, `InsufficientDisk`."""
        limits = Limits(self._request.max_files, self._request.max_bytes)
        if self._request.exclude:
            # What is excluded does not count, and is only known afterwards.
            limits = Limits()
        root = os.open(into, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            unpacker = Unpacker(root, limits, self._show)
            with _damage_as_error(self._path):
                if zipfile.is_zipfile(self._path) and not _looks_like_tar(self._path):
                    self._unzip(unpacker)
                else:
                    self._untar(unpacker)
            unpacker.finish()
        finally:
            os.close(root)
        return tuple(unpacker.skipped)

    def _show(self, files: int, count: int) -> None:
        if time.monotonic() - self._shown >= _SHOW_S:
            self._shown = time.monotonic()
            self._on_progress(Progress("unpacking", files, 0, count))

    def _untar(self, unpacker: Unpacker) -> None:
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

    def _unzip(self, unpacker: Unpacker) -> None:
        with zipfile.ZipFile(self._path) as archive:
            for info in archive.infolist():
                _take_zip_member(unpacker, archive, info)


def _take_tar_member(unpacker: Unpacker, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
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


def _take_zip_member(unpacker: Unpacker, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    name = os.fsencode(info.filename)
    mtime_ns = int(time.mktime((*info.date_time, 0, 0, -1))) * _SECOND
    mode = unix_mode(info.external_attr, folder=info.is_dir())
    if info.flag_bits & 1:
        raise bad_archive(Path(archive.filename or ""), f"{info.filename!r} is encrypted")
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
        raise bad_archive(path, str(error) or "it is damaged") from error
    except OSError as error:
        # gzip and bz2 tell damage like this; the system's own errors have a number.
        if error.errno is None:
            raise bad_archive(path, str(error) or "it is damaged") from error
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
        raise bad_archive(path, "it is neither tar nor zip")
