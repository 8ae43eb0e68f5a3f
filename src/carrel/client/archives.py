"""Archives between this machine and a space: local files are packed as a tar.zst while it is sent,
and one of a space is unpacked into a local folder, and nothing of it anywhere else.

What is in a space is hostile. Names that lead out are refused; no symlink is ever followed
on the way to a file, neither one of the archive nor one that stands there; symlinks that lead
out are left out, and so is what is neither file, folder nor link. What comes is open for writing to
no more accounts than the umask has, and folders that stand there keep their modes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator

from carrel.domain.errors import ArchiveInvalid, PathExists, PathWrongKind
from carrel.domain.tar import (
    BLOCK,
    CHUNK,
    END,
    Member,
    Readable,
    TarReader,
    pack_header,
    plain_name,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

LEVEL = 3
"""Of zstd: as fast as the disk, and most of what can be saved."""
_SECOND = 1_000_000_000

OnSkip = Callable[[str, str], None]
"""Gets the path of what is left out, and why."""


def pack(source: str, name: str, on_skip: OnSkip, *, plain: bool = False) -> Iterator[bytes]:
    """A folder under `name`; for an empty one what is in the folder. What is neither a file, a
    folder nor a symlink, and symlinks that lead out of it, are left out. With `plain` it is not
    compressed: on one machine that would only take time."""
    pieces = _gathered(_Packer(source, name, on_skip).entries())
    if plain:
        yield from pieces
        return
    # Takes longer to load than a small folder to pack.
    import zstandard

    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    chunker = compressor.chunker(chunk_size=CHUNK)
    for piece in pieces:
        yield from chunker.compress(piece)
    yield from chunker.finish()  # type: ignore[no-untyped-call]


def _gathered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Headers are small, and handing on costs. The end of the archive follows."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= CHUNK:
            yield b"".join(waiting)
            waiting.clear()
            size = 0
    yield b"".join((*waiting, END))


class _Packer:
    """Every entry is reached from the open folder that has it, so that a folder or file which
    becomes a symlink meanwhile leads nowhere."""

    def __init__(self, source: str, name: str, on_skip: OnSkip) -> None:
        self._source = source
        self._name = name
        self._on_skip = on_skip
        self._stack: list[tuple[int, str, Iterator[tuple[str, bool]]]] = []

    def entries(self) -> Iterator[bytes]:
        try:
            top = os.open(self._source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            yield self._enter(top, self._name)
            while self._stack:
                folder, prefix, names = self._stack[-1]
                for entry, is_file in names:
                    path = prefix + entry
                    if is_file:
                        whole = _small_file(folder, entry, path)
                        if whole is not None:
                            yield whole
                        else:
                            yield from _file(folder, entry, path)
                        continue
                    yield self._other(folder, entry, path)
                    if self._stack[-1][0] != folder:
                        break
                else:
                    self._stack.pop()
                    os.close(folder)
        finally:
            for folder, _, _ in self._stack:
                os.close(folder)

    def _enter(self, folder: int, path: str) -> bytes:
        with os.scandir(folder) as entries:
            names = sorted((one.name, one.is_file(follow_symlinks=False)) for one in entries)
        self._stack.append((folder, f"{path}/" if path else "", iter(names)))
        return _header(path, os.fstat(folder), tarfile.DIRTYPE) if path else b""

    def _other(self, folder: int, entry: str, path: str) -> bytes:
        """The header of what is no regular file; nothing for what is left out."""
        status = os.lstat(entry, dir_fd=folder)
        if stat.S_ISDIR(status.st_mode):
            return self._enter(os.open(entry, _FOLDER, dir_fd=folder), path)
        if not stat.S_ISLNK(status.st_mode):
            self._skip(path, "neither a file nor a folder")
            return b""
        target = os.readlink(entry, dir_fd=folder)
        if leads_out(path, target):
            self._skip(path, f"a symlink to {target}, which leads out")
            return b""
        return _header(path, status, tarfile.SYMTYPE, target=target)

    def _skip(self, path: str, why: str) -> None:
        """Tells of an entry by its path on this machine."""
        self._on_skip(os.path.join(self._source, path[len(self._name) :].lstrip("/")), why)


def _small_file(folder: int, entry: str, name: str) -> bytes | None:
    """With its header. None of one that has to be read in pieces, or is none any more."""
    file = os.open(entry, _OLD_FILE, dir_fd=folder)
    try:
        status = os.fstat(file)
        size = status.st_size
        if size > CHUNK or not stat.S_ISREG(status.st_mode):
            return None
        data = os.read(file, size) if size else b""
    finally:
        os.close(file)
    if len(data) < size:
        return None
    return _header(name, status, tarfile.REGTYPE, size=size) + data + _ZEROS[: -size % BLOCK]


def _file(folder: int, entry: str, name: str) -> Iterator[bytes]:
    """As long as it was when it was opened, whatever happens to it meanwhile."""
    file = os.open(entry, _OLD_FILE, dir_fd=folder)
    try:
        status = os.fstat(file)
        left = status.st_size if stat.S_ISREG(status.st_mode) else 0
        yield _header(name, status, tarfile.REGTYPE, size=left)
        padding = -left % BLOCK
        while left:
            piece = os.read(file, min(CHUNK, left)) or bytes(min(CHUNK, left))
            left -= len(piece)
            yield piece if left else piece + _ZEROS[:padding]
    finally:
        os.close(file)


def _header(
    name: str, status: os.stat_result, kind: bytes, *, size: int = 0, target: str = ""
) -> bytes:
    seconds = status.st_mtime_ns // _SECOND * _SECOND
    return pack_header(name, kind, status.st_mode & 0o777, seconds, size=size, target=target)


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
_OLD_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ZEROS = bytes(CHUNK)
_LEVELS = 16
"""Folders on the way to an entry that stay open."""
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


def unpack(
    pieces: Iterable[bytes],
    target: str,
    rename: tuple[str, str],
    on_skip: OnSkip,
    on_done: Callable[[], None] = lambda: None,
) -> int:
    """Into the folder `target`, which is there. `rename` is the first name of all that is in it,
    and what that becomes; empty where the target itself is meant. `on_done` is called when all that
    came is there, also if its writer could not read something. Gives the number of files.
    Raises `ArchiveInvalid`, `PathWrongKind`, `OSError`."""
    with _Place(target) as place:
        unpacker = _Unpacker(place, TarReader(_plain(pieces)), rename, on_skip)
        unpacker.run()
        place.finish()
        on_done()
        unpacker.check_whole()
        return unpacker.files


def unpack_whole(archive: IO[bytes], target: str, on_skip: OnSkip, *, replace: bool) -> list[str]:
    """As `unpack`, from a tar or tar.gz that is here as a whole. Gives the paths of files and
    links. Without `replace`, `PathExists` before anything is written."""
    import gzip

    with _Place(target) as place:
        try:
            if not replace:
                _check_free(archive, place)
            unpacker = _Unpacker(place, TarReader(_from_start(archive)), ("", ""), on_skip)
            unpacker.run()
        except (zlib.error, gzip.BadGzipFile, EOFError) as error:
            raise ArchiveInvalid(f"The archive is damaged: {error}.", hint="Try again.") from error
        place.finish()
        unpacker.check_whole()
        return unpacker.names


def _from_start(archive: IO[bytes]) -> Readable:
    import gzip

    archive.seek(0)
    beginning = archive.read(len(_GZIP))
    archive.seek(0)
    return gzip.GzipFile(fileobj=archive, mode="rb") if beginning == _GZIP else archive


def _check_free(archive: IO[bytes], place: _Place) -> None:
    for member in TarReader(_from_start(archive)):
        name = os.fsdecode(member.name)
        if member.kind != tarfile.DIRTYPE and place.has(parts_of(name)):
            raise PathExists(
                f"{name!r} is there already.", hint="Name another folder, or have it replaced."
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
        self, place: _Place, reader: TarReader, rename: tuple[str, str], on_skip: OnSkip
    ) -> None:
        self.files = 0
        self.names: list[str] = []
        """Of files and links. Files have the names of the archive, which are those here where
        nothing is renamed."""
        self._place = place
        self._reader = reader
        self._rename = rename
        self._on_skip = on_skip
        self._above = ""
        self._folder: tuple[str, ...] = ()
        """Where files of the folder `_above` of the archive go."""

    def run(self) -> None:
        for member in self._reader:
            self._take(member)

    def check_whole(self) -> None:
        """Raises `ArchiveInvalid` when its writer could not read something."""
        if self._reader.left_out:
            raise ArchiveInvalid(
                f"The copy is not complete. In the space, {self._reader.left_out}.",
                hint="Everything else was copied. What is missing counts as not copied out.",
            )

    def _take(self, member: Member) -> None:
        name = os.fsdecode(member.name)
        plain = plain_name(member.name)
        if plain and member.is_file and "/" in name:
            self._take_file(name, member)
            return
        path = self._renamed(tuple(name.split("/")) if plain else parts_of(name))
        if member.kind == tarfile.DIRTYPE:
            self._place.make_folder(path, member)
            return
        if not path:
            raise ArchiveInvalid(
                f"The archive has an entry without a file name: {name!r}.", hint="Try again."
            )
        if member.is_file:
            self._place.write(path[:-1], path[-1], member, self._reader)
            self.files += 1
        elif member.kind == tarfile.SYMTYPE:
            # What is around a folder that was copied under its name is not part of it.
            inside = path[1:] if self._rename[0] else path
            target = os.fsdecode(member.target)
            if leads_out("/".join(inside), target):
                self._on_skip(name, f"a symlink to {target}, which leads out")
                return
            self._place.symlink(path, target)
        elif member.kind == tarfile.LNKTYPE:
            first = self._renamed(parts_of(os.fsdecode(member.target)))
            self._place.link(path, first)
        else:
            self._on_skip(name, "neither a file nor a folder")
            return
        self.names.append("/".join(path))

    def _take_file(self, name: str, member: Member) -> None:
        """As nearly all are: in a folder, mostly that of the one before."""
        above, _, last = name.rpartition("/")
        if above != self._above:
            self._folder, self._above = self._renamed(tuple(above.split("/"))), above
        self._place.write(self._folder, last, member, self._reader)
        self.files += 1
        self.names.append(name)

    def _renamed(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """Beside the folder that was asked for lies what is not the sender's to write."""
        first, becomes = self._rename
        if not first:
            return parts
        if parts[:1] != (first,):
            raise ArchiveInvalid(
                f"The archive has an entry outside of {first!r}: {'/'.join(parts)!r}.",
                hint="What came before it was copied. Do not trust this daemon.",
            )
        return (becomes, *parts[1:])


class _Place:
    """The folder, reached by descriptors: every step is taken from the one before."""

    def __init__(self, target: str) -> None:
        self._root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._made: dict[tuple[str, ...], Member] = {}
        self._new: set[tuple[str, ...]] = set()
        """Folders that were not there before."""
        self._path: tuple[str, ...] = ()
        self._open: list[int] = []
        """The first folders on the way there; the last one is that itself."""
        self._umask = own_umask()

    def __enter__(self) -> _Place:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave(0)
        os.close(self._root)

    def _leave(self, level: int) -> None:
        while len(self._open) > level:
            os.close(self._open.pop())

    def folder(self, path: tuple[str, ...]) -> int:
        """The last one stays open, and some on the way: most entries come folder by folder."""
        if path != self._path:
            pairs = zip(path, self._path, strict=False)
            level = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            # Of a deep one, those in the middle were closed.
            self._leave(level if len(self._path) <= _LEVELS else min(level, _LEVELS - 1))
            self._path = path[: len(self._open)]
            try:
                for part in path[len(self._open) :]:
                    self._enter(part)
            except NotADirectoryError as error:
                raise PathWrongKind(
                    f"{'/'.join(path)!r} cannot be written: a part of this path is not a folder.",
                    hint="Move that part away, or copy to another folder.",
                ) from error
        return self._open[-1] if path else self._root

    def _enter(self, part: str) -> None:
        here, is_new = _enter(self._open[-1] if self._open else self._root, part)
        if len(self._path) >= _LEVELS:
            os.close(self._open.pop())
        self._open.append(here)
        self._path = (*self._path, part)
        if is_new:
            self._new.add(self._path)

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

    def make_folder(self, path: tuple[str, ...], member: Member) -> None:
        if path:
            self.folder(path)
            self._made[path] = member

    def write(self, above: tuple[str, ...], name: str, member: Member, reader: TarReader) -> None:
        folder, mode = self.folder(above), allowed_mode(member.mode, self._umask)
        # Most modes are not touched by the umask, and can be had at once.
        exact = not mode & self._umask
        first = mode if exact else 0o600
        try:
            descriptor = os.open(name, _NEW_FILE, first, dir_fd=folder)
        except FileExistsError:
            _clear(folder, name)
            descriptor = os.open(name, _NEW_FILE, first, dir_fd=folder)
        try:
            small = reader.small(member)
            if small is None:
                _fill(descriptor, reader.content(member))
                os.ftruncate(descriptor, member.size)
            else:
                if small and os.write(descriptor, small) < len(small):
                    _write_at(descriptor, small, 0)
            if not exact:
                os.fchmod(descriptor, mode)
            os.utime(descriptor, ns=(member.mtime_ns, member.mtime_ns))
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
        """Modes and times of new folders come last: a read-only one could not be filled."""
        for path, member in sorted(self._made.items(), reverse=True):
            if path in self._new:
                folder = self.folder(path)
                os.fchmod(folder, allowed_mode(member.mode, self._umask))
                os.utime(folder, ns=(member.mtime_ns, member.mtime_ns))


def _enter(here: int, part: str) -> tuple[int, bool]:
    """With whether it was made."""
    is_new = False
    with contextlib.suppress(FileNotFoundError):
        return os.open(part, _FOLDER, dir_fd=here), is_new
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, 0o700, dir_fd=here)
        is_new = True
    return os.open(part, _FOLDER, dir_fd=here), is_new


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


def _fill(descriptor: int, content: Iterable[tuple[int, bytes]]) -> None:
    for position, piece in content:
        if piece != _ZEROS[: len(piece)]:
            _write_at(descriptor, piece, position)


def _write_at(descriptor: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, position)
        view, position = view[count:], position + count


def allowed_mode(mode: int, umask: int) -> int:
    """The mode that a space gives to a file. Code there does not decide which other accounts of
    this machine may write it."""
    return mode & 0o777 & ~(umask & 0o022)


def own_umask() -> int:
    """The process's own, which can only be read by changing it, or from here."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077


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


def _plain(pieces: Iterable[bytes]) -> Readable:
    """The tar, which may be compressed."""
    rest = iter(pieces)
    beginning = b""
    for piece in rest:
        beginning += piece
        if len(beginning) >= len(_ZSTD):
            break
    stream = _Pieces(itertools.chain((beginning,), rest))
    return _Decompressed(stream) if beginning.startswith(_ZSTD) else stream


class _Decompressed:
    def __init__(self, stream: _Pieces) -> None:
        import zstandard

        self._error = zstandard.ZstdError
        decompressor = zstandard.ZstdDecompressor()
        self._reader = decompressor.stream_reader(stream, read_size=CHUNK)  # type: ignore[arg-type]

    def read(self, size: int, /) -> bytes:
        try:
            return self._reader.read(size)
        except self._error as error:
            raise ArchiveInvalid(
                f"The archive from the space is damaged: {error}.", hint="Try again."
            ) from error
