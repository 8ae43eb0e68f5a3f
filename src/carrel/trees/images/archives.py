"""Archives of images, as files in them that can be read one by one: a tar, plain or compressed, or
a folder with the layout of OCI.

An archive that is compressed, or that comes as a stream, is written to a file first, since what
says how to read it may stand at its end. Nothing in it decides how much memory is used.
"""

from __future__ import annotations

import bz2
import contextlib
import hashlib
import lzma
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import zstandard

from carrel.domain.errors import ArchiveInvalid, ImageInvalid, TooLarge
from carrel.domain.images import ImageLimits
from carrel.domain.tar import BLOCK, CHUNK, Readable, TarReader
from carrel.linux.openat2 import open_beneath
from carrel.trees.extraction import JoinedStream
from carrel.trees.images.root import check_spare

_MAX_WINDOW = 128 << 20
"""What the program zstd reads without being told to."""
_MAX_XZ = 256 << 20
_MAX_FILES = 10_000
"""Of an archive with images: each has a file or three for a layer. More is a root file system."""
_MAX_LINKS = 8
"""Older dockers save a layer that two images share once, and a symlink to it."""
_LOOK_BYTES = 64 << 20
_MAX_REST = 16 << 20
"""Behind the end of what is compressed."""

OnBytes = Callable[[int], None]
"""Hears how many more bytes of an archive were read."""


def broken(why: str, hint: str = "Save the image again, and import that.") -> ImageInvalid:
    return ImageInvalid(f"The archive cannot be used as an image: {why}.", hint=hint)


@contextlib.contextmanager
def archive_errors(where: str) -> Iterator[None]:
    """What is wrong with a tar is wrong with the image."""
    try:
        yield
    except ArchiveInvalid as error:
        what = error.message.removeprefix("The archive cannot be used: ").rstrip(".")
        raise broken(f"{where}: {what}") from error


# Compression


class _Gzip:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    def take(self, data: bytes) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, CHUNK)

    @property
    def hungry(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def ended(self) -> bytes | None:
        return self._inner.unused_data if self._inner.eof else None


class _Xz:
    def __init__(self) -> None:
        self._inner = lzma.LZMADecompressor(lzma.FORMAT_XZ, _MAX_XZ)

    def take(self, data: bytes) -> bytes:
        return self._inner.decompress(data, CHUNK)

    @property
    def hungry(self) -> bool:
        return self._inner.needs_input

    @property
    def ended(self) -> bytes | None:
        return self._inner.unused_data if self._inner.eof else None


class _Bzip2:
    def __init__(self) -> None:
        self._inner = bz2.BZ2Decompressor()

    def take(self, data: bytes) -> bytes:
        return self._inner.decompress(data, CHUNK)

    @property
    def hungry(self) -> bool:
        return self._inner.needs_input

    @property
    def ended(self) -> bytes | None:
        return self._inner.unused_data if self._inner.eof else None


_Inner = _Gzip | _Xz | _Bzip2
_ZSTD = b"\x28\xb5\x2f\xfd"
_MAGIC: tuple[tuple[bytes, type[_Inner]], ...] = (
    (b"\x1f\x8b", _Gzip),
    (b"\xfd7zXZ\0", _Xz),
    (b"BZh", _Bzip2),
)
_BEGINNING = 6
_DAMAGE = (zlib.error, lzma.LZMAError, zstandard.ZstdError, EOFError, MemoryError)


class _Compressed:
    """What was compressed, of which there may be several pieces one behind the other."""

    def __init__(self, source: Readable, kind: type[_Inner]) -> None:
        self._source = source
        self._kind = kind
        self._inner: _Inner | None = kind()
        self._rest = b""

    def read(self, size: int, /) -> bytes:
        while self._inner is not None:
            hungry, data = self._inner.hungry, b""
            if hungry:
                data, self._rest = self._rest or self._source.read(CHUNK), b""
            found = self._inner.take(data)
            ended = self._inner.ended
            if hungry and not data and not found and ended is None:
                raise EOFError("it ends in the middle")
            if ended is not None:
                self._next(ended)
            if found:
                return found
        return b""

    def _next(self, ended: bytes) -> None:
        """What follows is one more piece, or zeros up to a round size."""
        rest = ended.lstrip(b"\0") or self._source.read(CHUNK).lstrip(b"\0")
        self._inner = self._kind() if rest else None
        self._rest = rest


class PlainStream:
    """The bytes of an archive or a layer, whatever they are compressed with."""

    def __init__(self, source: Readable) -> None:
        """Raises `ArchiveInvalid`."""
        beginning = b""
        while len(beginning) < _BEGINNING:
            piece = source.read(_BEGINNING - len(beginning))
            if not piece:
                break
            beginning += piece
        joined = JoinedStream(beginning, source)
        self.compressed = True
        self._stream: Readable = joined
        if beginning.startswith(_ZSTD):
            decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
            self._stream = decompressor.stream_reader(
                joined,  # type: ignore[arg-type]
                read_across_frames=True,
            )
            return
        for magic, kind in _MAGIC:
            if beginning.startswith(magic):
                self._stream = _Compressed(joined, kind)
                return
        self.compressed = False

    def read(self, size: int, /) -> bytes:
        try:
            return self._stream.read(size)
        except _DAMAGE as error:
            why = f"it cannot be decompressed ({str(error) or 'it takes too much memory'})"
            raise ArchiveInvalid(f"The archive cannot be used: {why}.") from error
        except OSError as error:
            if error.errno is not None:
                raise
            # bz2 tells damage like this.
            raise ArchiveInvalid(f"The archive cannot be used: it is damaged ({error}).") from error


@dataclass
class Hashed:
    """Names what goes through it, in the words of OCI."""

    source: Readable
    algorithm: str = "sha256"

    def __post_init__(self) -> None:
        self._hash = hashlib.new(self.algorithm)

    def read(self, size: int, /) -> bytes:
        piece = self.source.read(size)
        self._hash.update(piece)
        return piece

    def drain(self) -> None:
        rest = 0
        while piece := self.read(CHUNK):
            rest += len(piece)
            if rest > _MAX_REST:
                raise broken("a layer goes on behind its end")

    @property
    def digest(self) -> str:
        return f"{self.algorithm}:{self._hash.hexdigest()}"


# Files of an archive


@dataclass
class FilePart:
    """A part of an open file, read from its beginning; the descriptor stays its owner's."""

    descriptor: int
    start: int
    size: int
    on_bytes: OnBytes = lambda _: None
    _done: int = 0

    def read(self, size: int, /) -> bytes:
        wanted = min(size, self.size - self._done)
        if not wanted:
            return b""
        data = os.pread(self.descriptor, wanted, self.start + self._done)
        if not data:
            raise broken("it became shorter while it was read", "Leave it alone, and try again.")
        self._done += len(data)
        self.on_bytes(len(data))
        return data


class ImageFiles(Protocol):
    """The files of an archive with images."""

    def find(self, name: str, on_bytes: OnBytes = lambda _: None) -> FilePart | None:
        """None for what it has not."""
        ...


class LayoutFolder:
    """A folder with the layout of OCI. Its files are opened beneath it."""

    def __init__(self, folder: Path, keep: contextlib.ExitStack) -> None:
        self._keep = keep
        self._root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        keep.callback(os.close, self._root)

    def find(self, name: str, on_bytes: OnBytes = lambda _: None) -> FilePart | None:
        try:
            place = open_beneath(self._root, os.fsencode(name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise broken(f"{name!r} leads out of it, or cannot be read") from error
        self._keep.callback(os.close, place)
        status = os.fstat(place)
        if not stat.S_ISREG(status.st_mode):
            return None
        opened = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)
        self._keep.callback(os.close, opened)
        return FilePart(opened, 0, status.st_size, on_bytes)


@dataclass
class TarFile:
    """An archive that is open and not compressed, with where its files are. `files` is None for one
    with so many that it can only be a root file system."""

    descriptor: int
    size: int
    files: dict[str, tuple[int, int]] | None = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)

    def find(self, name: str, on_bytes: OnBytes = lambda _: None) -> FilePart | None:
        for _ in range(_MAX_LINKS):
            if name not in self.links:
                break
            name = _leads_to(name, self.links[name])
        found = (self.files or {}).get(name)
        return None if found is None else FilePart(self.descriptor, *found, on_bytes)

    def whole(self, on_bytes: OnBytes) -> FilePart:
        return FilePart(self.descriptor, 0, self.size, on_bytes)

    def index(self) -> None:
        reader = TarReader(self.whole(lambda _: None))
        files: dict[str, tuple[int, int]] = {}
        for member in reader:
            name = _plain(os.fsdecode(member.name))
            if member.kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                target = os.fsdecode(member.target)
                hard = member.kind == tarfile.LNKTYPE
                self.links[name] = "/" + target if hard else target
            elif member.is_file and member.sparse is None:
                files[name] = reader.position, member.size
            if len(files) + len(self.links) > _MAX_FILES:
                self.files = None
                self.links.clear()
                return
        self.files = files


def _plain(name: str) -> str:
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def _leads_to(name: str, target: str) -> str:
    """Only within the archive: these are keys, and no paths."""
    parts = [] if target.startswith("/") else name.split("/")[:-1]
    for part in target.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def open_tar(
    source: Path | Readable,
    spool: Callable[[], int],
    limits: ImageLimits,
    keep: contextlib.ExitStack,
    on_bytes: OnBytes,
) -> TarFile:
    """`spool` opens a new file in the store, for what has to be written down first."""
    if isinstance(source, Path):
        opened = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        keep.callback(os.close, opened)
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            raise broken(f"{str(source)!r} is neither a file nor a folder", "Name an archive.")
        whole = FilePart(opened, 0, status.st_size, on_bytes)
        plain = PlainStream(whole)
        if not plain.compressed:
            return _indexed(TarFile(opened, status.st_size))
    else:
        plain = PlainStream(source)
    target = spool()
    keep.callback(os.close, target)
    return _indexed(TarFile(target, _write_down(plain, target, limits)))


def _indexed(found: TarFile) -> TarFile:
    beginning = os.pread(found.descriptor, BLOCK, 0)
    if len(beginning) < BLOCK or not (beginning[257:262] == b"ustar" or _is_old_tar(beginning)):
        raise broken(
            "it is no tar, plain or compressed with gzip, zstd, xz or bzip2",
            "Give an archive of docker save, podman save, or a tar with a root file system.",
        )
    found.index()
    return found


def _is_old_tar(block: bytes) -> bool:
    """Of the seventh Unix, and an empty one."""
    with contextlib.suppress(tarfile.HeaderError, ValueError):
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        return True
    return False


def _write_down(plain: PlainStream, target: int, limits: ImageLimits) -> int:
    size = looked = 0
    while piece := plain.read(CHUNK):
        size += len(piece)
        if size > limits.max_bytes:
            raise TooLarge(
                f"The archive holds more than the {limits.max_bytes} bytes that are allowed.",
                hint="Make the image smaller.",
                limit=limits.max_bytes,
            )
        if size - looked >= _LOOK_BYTES:
            looked = size
            check_spare(target)
        view = memoryview(piece)
        while view:
            view = view[os.write(target, view) :]
    return size
