"""Archives between this machine and a space: local files are packed as a tar.zst while it is sent,
and one of a space is unpacked into a local folder, and nothing of it anywhere else.

What is in a space is hostile. Names that lead out are refused; no symlink is ever followed
on the way to a file, neither one of the archive nor one that stands there; symlinks that lead
out are left out, and so is what is neither file, folder nor link.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO

import zstandard

from carrel.domain.errors import ArchiveInvalid, PathExists, PathWrongKind

CHUNK = 1 << 18
LEVEL = 3
"""Of zstd: as fast as the disk, and most of what can be saved."""
BLOCK = tarfile.BLOCKSIZE
_SECOND = 1_000_000_000

OnSkip = Callable[[str, str], None]
"""Gets the path of what is left out, and why."""


def pack(source: str, name: str, on_skip: OnSkip) -> Iterator[bytes]:
    """A file, folder or symlink under `name`; for an empty one what is in the folder. What
    is neither, and symlinks that lead out of it, are left out."""
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    chunker = compressor.chunker(chunk_size=CHUNK)
    for piece in _entries(source, name, on_skip):
        yield from chunker.compress(piece)
    yield from chunker.compress(bytes(2 * BLOCK))
    yield from chunker.finish()  # type: ignore[no-untyped-call]


def _entries(source: str, name: str, on_skip: OnSkip) -> Iterator[bytes]:
    waiting = [(source, name)]
    while waiting:
        path, inner = waiting.pop()
        status = os.lstat(path)
        if stat.S_ISDIR(status.st_mode):
            if inner:
                yield _header(inner, status, tarfile.DIRTYPE)
            below = sorted(os.listdir(path), reverse=True)
            prefix = f"{inner}/" if inner else ""
            waiting += [(os.path.join(path, entry), prefix + entry) for entry in below]
        elif stat.S_ISREG(status.st_mode):
            yield from _file(path, inner)
        elif not stat.S_ISLNK(status.st_mode):
            on_skip(path, "neither a file nor a folder")
        elif leads_out(inner, target := os.readlink(path)):
            on_skip(path, f"a symlink to {target}, which leads out")
        else:
            yield _header(inner, status, tarfile.SYMTYPE, target=target)


def _file(source: str, name: str) -> Iterator[bytes]:
    """As long as it was when it was opened, whatever happens to it meanwhile."""
    with open(source, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        left = status.st_size
        yield _header(name, status, tarfile.REGTYPE, size=left)
        while left:
            piece = file.read(min(CHUNK, left)) or bytes(min(CHUNK, left))
            left -= len(piece)
            yield piece
        if over := status.st_size % BLOCK:
            yield bytes(BLOCK - over)


def _header(
    name: str, status: os.stat_result, kind: bytes, *, size: int = 0, target: str = ""
) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, target
    info.mode = stat.S_IMODE(status.st_mode) & 0o777
    info.mtime = status.st_mtime_ns // _SECOND
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def leads_out(name: str, target: str) -> bool:
    """Whether a symlink goes anywhere but within what is packed. It may go up at its
    beginning only: behind another symlink, nobody knows where `..` is."""
    parts = [part for part in target.split("/") if part not in ("", ".")]
    above = 0
    while above < len(parts) and parts[above] == "..":
        above += 1
    depth = len([part for part in name.split("/") if part]) - 1
    return not target or target.startswith("/") or above > depth or ".." in parts[above:]


# Unpacking

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ZEROS = bytes(CHUNK)


def unpack(pieces: Iterable[bytes], target: str, rename: tuple[str, str], on_skip: OnSkip) -> int:
    """Into the folder `target`, which is there. `rename` is a first name and what it becomes.
    Gives the number of files. Raises `ArchiveInvalid`, `PathWrongKind`, `OSError`."""
    with _Place(target) as place:
        try:
            with tarfile.open(fileobj=_plain(pieces), mode="r|", bufsize=CHUNK) as archive:
                unpacker = _Unpacker(place, archive, rename, on_skip)
                for member in archive:
                    unpacker.take(member)
        except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
            raise ArchiveInvalid(
                f"The archive from the space is damaged: {error}.", hint="Try again."
            ) from error
        place.finish()
        return unpacker.files


def unpack_whole(archive: IO[bytes], target: str, on_skip: OnSkip, *, replace: bool) -> list[str]:
    """As `unpack`, from a tar or tar.gz that is here as a whole. Gives the paths of files and
    links. Without `replace`, `PathExists` before anything is written."""
    with _Place(target) as place:
        try:
            if not replace:
                _check_free(archive, place)
            archive.seek(0)
            with tarfile.open(fileobj=archive, mode="r:*") as members:
                unpacker = _Unpacker(place, members, ("", ""), on_skip)
                for member in members:
                    unpacker.take(member)
        except (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError) as error:
            raise ArchiveInvalid(f"The archive is damaged: {error}.", hint="Try again.") from error
        place.finish()
        return unpacker.names


def _check_free(archive: IO[bytes], place: _Place) -> None:
    archive.seek(0)
    with tarfile.open(fileobj=archive, mode="r:*") as members:
        for member in members:
            if not member.isdir() and place.has(parts_of(member.name)):
                raise PathExists(
                    f"{member.name!r} is there already.",
                    hint="Name another folder, or have it replaced.",
                )


def parts_of(name: str) -> tuple[str, ...]:
    """Raises `ArchiveInvalid` for a name that leads out."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts:
        raise ArchiveInvalid(
            f"The archive has an entry outside of the folder: {name!r}.",
            hint="Nothing was unpacked. Try again.",
        )
    return tuple(parts)


class _Unpacker:
    def __init__(
        self,
        place: _Place,
        archive: tarfile.TarFile,
        rename: tuple[str, str],
        on_skip: OnSkip,
    ) -> None:
        self.files = 0
        self.names: list[str] = []
        self._place = place
        self._archive = archive
        self._rename = rename
        self._on_skip = on_skip

    def take(self, member: tarfile.TarInfo) -> None:
        path = self._path(member.name)
        if member.isdir():
            self._place.make_folder(path, member)
            return
        if not path:
            raise ArchiveInvalid(
                f"The archive has an entry without a file name: {member.name!r}.", hint="Try again."
            )
        if member.isreg() or member.issparse():
            content = self._archive.extractfile(member)
            assert content is not None
            with content:
                self._place.write(path, member, content)
            self.files += 1
            self.names.append("/".join(path))
        elif member.issym():
            # What is around a folder that was copied under its name is not part of it.
            inside = path[1:] if self._rename[0] else path
            if leads_out("/".join(inside), member.linkname):
                self._on_skip(member.name, f"a symlink to {member.linkname}, which leads out")
            else:
                self._place.symlink(path, member.linkname)
                self.names.append("/".join(path))
        elif member.islnk():
            self._place.link(path, self._path(member.linkname))
            self.names.append("/".join(path))
        else:
            self._on_skip(member.name, "neither a file nor a folder")

    def _path(self, name: str) -> tuple[str, ...]:
        parts = parts_of(name)
        if self._rename[0] and parts[:1] == (self._rename[0],):
            return (self._rename[1], *parts[1:])
        return parts


class _Place:
    """The folder, reached by descriptors: every step is taken from the one before."""

    def __init__(self, target: str) -> None:
        self._root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._made: dict[tuple[str, ...], tarfile.TarInfo] = {}
        self._open: tuple[tuple[str, ...], int] = ((), -1)

    def __enter__(self) -> _Place:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open[1] >= 0:
            os.close(self._open[1])
        os.close(self._root)

    def folder(self, path: tuple[str, ...]) -> int:
        """The last one stays open: most entries come folder by folder."""
        if self._open[1] >= 0:
            if self._open[0] == path:
                return self._open[1]
            os.close(self._open[1])
            self._open = ((), -1)
        here = os.dup(self._root)
        for part in path:
            try:
                below = _enter(here, part)
            except NotADirectoryError as error:
                raise PathWrongKind(
                    f"{'/'.join(path)!r} cannot be written: a part of this path is not a folder.",
                    hint="Move that part away, or copy to another folder.",
                ) from error
            finally:
                os.close(here)
            here = below
        self._open = (path, here)
        return here

    def has(self, path: tuple[str, ...]) -> bool:
        """Whether something is there; nothing is made or followed to find out."""
        here = os.dup(self._root)
        try:
            for part in path[:-1]:
                below = os.open(part, _FOLDER, dir_fd=here)
                os.close(here)
                here = below
            os.lstat(path[-1], dir_fd=here)
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            return True
        finally:
            os.close(here)
        return True

    def make_folder(self, path: tuple[str, ...], member: tarfile.TarInfo) -> None:
        if path:
            self.folder(path)
            self._made[path] = member

    def write(self, path: tuple[str, ...], member: tarfile.TarInfo, content: IO[bytes]) -> None:
        folder, name = self.folder(path[:-1]), path[-1]
        _clear(folder, name)
        descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=folder)
        try:
            _fill(descriptor, content)
            os.ftruncate(descriptor, member.size)
            os.fchmod(descriptor, member.mode & 0o777)
            os.utime(descriptor, (member.mtime, member.mtime))
        finally:
            os.close(descriptor)

    def symlink(self, path: tuple[str, ...], target: str) -> None:
        folder, name = self.folder(path[:-1]), path[-1]
        _clear(folder, name)
        os.symlink(target, name, dir_fd=folder)

    def link(self, path: tuple[str, ...], first: tuple[str, ...]) -> None:
        source = os.dup(self.folder(first[:-1]))
        try:
            if not stat.S_ISREG(os.lstat(first[-1], dir_fd=source).st_mode):
                raise ArchiveInvalid(f"{'/'.join(first)!r} is no file.", hint="Try again.")
            folder = self.folder(path[:-1])
            _clear(folder, path[-1])
            os.link(
                first[-1], path[-1], src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False
            )
        finally:
            os.close(source)

    def finish(self) -> None:
        """Modes and times of folders come last: a read-only one could not be filled."""
        for path, member in sorted(self._made.items(), reverse=True):
            folder = self.folder(path)
            os.fchmod(folder, member.mode & 0o777)
            os.utime(folder, (member.mtime, member.mtime))


def _enter(here: int, part: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return os.open(part, _FOLDER, dir_fd=here)
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, 0o700, dir_fd=here)
    return os.open(part, _FOLDER, dir_fd=here)


def _clear(folder: int, name: str) -> None:
    """What stands there is replaced, unless it is a folder."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError) as error:
        if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
            raise PathWrongKind(
                f"{name!r} is a folder there, and a file in the space.", hint="Move it away."
            ) from error
        raise


def _fill(descriptor: int, content: IO[bytes]) -> None:
    while piece := content.read(CHUNK):
        if piece == _ZEROS[: len(piece)]:
            os.lseek(descriptor, len(piece), os.SEEK_CUR)
            continue
        view = memoryview(piece)
        while view:
            view = view[os.write(descriptor, view) :]


class _Pieces:
    """An iterator of bytes as a file to read from."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        while not self._rest:
            try:
                self._rest = next(self._pieces)
            except StopIteration:
                return b""
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken


def _plain(pieces: Iterable[bytes]) -> IO[bytes]:
    reader = zstandard.ZstdDecompressor().stream_reader(_Pieces(iter(pieces)), read_size=CHUNK)  # type: ignore[arg-type]
    return reader
