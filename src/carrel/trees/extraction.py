"""An archive in tar's format, plain or compressed with zstd, into a tree and nothing of it anywhere
else.

Somebody may have made it to do harm. Nothing in it decides how much memory is used: extended
headers and the layouts of sparse files have a bound, and everything else is read in blocks
(`tarfile` has no such bounds). What follows a header has to be there, and the archive has to have
an end. `clean_name` and `check_link` are the one rule about names and links, also for archives
that are projects.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import zstandard

from carrel.domain.errors import ArchiveInvalid, CarrelError, PathWrongKind, TooLarge
from carrel.domain.trees import Owner, Tree, TreeDriver
from carrel.linux.descriptors import Descriptor
from carrel.linux.openat2 import open_beneath
from carrel.trees.contents import write_at
from carrel.trees.paths import check_path, path_errors
from carrel.trees.writer import TreeWriter

_BLOCK = 512
_CHUNK = 1 << 18
_MAGIC = b"\x28\xb5\x2f\xfd"
_MAX_WINDOW = 8 << 20
"""What every reader of zstd is to manage, and so what writers keep to."""
_MAX_EXTENDED = 1 << 20
"""Of one extended header: names and a few numbers."""
_MAX_LAYOUT = 32 << 20
"""Of one sparse file: a million ranges."""
_MAX_HEADERS = 8
"""Before one entry: its name, its target and its extended header, each once or twice."""
_MAX_NAME = 255
_MAX_TARGET = 4095
_HINT = "Pack it again as tar, plain or with zstd, from within its folder."
_REPACK = "Pack it again from within its folder, without links that lead out."
_MAX_REST = 16 << 20
"""Behind the end of an archive: what fills a record, which usually has 10 KiB."""
_SECOND = 1_000_000_000
_NUMBER = re.compile(rb"[0-9]{1,18}")
_TIME = re.compile(rb"(-?)([0-9]{1,11})(?:\.([0-9]{1,30}))?")
_MAX_TIME = 10**11
_LONG = {tarfile.GNUTYPE_LONGNAME: b"path", tarfile.GNUTYPE_LONGLINK: b"linkpath"}
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Member:
    """One entry; `size` is that of the file. `sparse` are the ranges of a sparse one: where
    each begins, and how long it is."""

    name: bytes
    kind: bytes
    mode: int
    mtime_ns: int
    size: int = 0
    target: bytes = b""
    sparse: tuple[tuple[int, int], ...] | None = None

    @property
    def is_file(self) -> bool:
        return self.kind in _FILES


class TarReader:
    """The members of one archive, once; plain or compressed with zstd. Raises
    `ArchiveInvalid`."""

    def __init__(self, stream: Readable) -> None:
        self._stream = _decompressed(stream)
        self._left = 0
        self._padding = 0

    def __iter__(self) -> Iterator[Member]:
        while (member := self._next()) is not None:
            yield member
        # Whatever fills the last record; and the checksum of what was compressed.
        rest = 0
        while piece := self._some(_CHUNK):
            rest += len(piece)
            if rest > _MAX_REST:
                raise bad("it goes on behind its end")

    def content(self, member: Member) -> Iterator[tuple[int, bytes]]:
        """Pieces of the member that came last, and where each belongs."""
        ranges = ((0, member.size),) if member.sparse is None else member.sparse
        for start, length in ranges:
            end = start + length
            while start < end:
                piece = self._exactly(min(_CHUNK, end - start))
                self._left -= len(piece)
                yield start, piece
                start += len(piece)

    def _next(self) -> Member | None:
        self._skip()
        records: dict[bytes, bytes] = {}
        for _ in range(_MAX_HEADERS):
            info = self._header()
            if info is None:
                if records:
                    raise bad("it ends in the middle")
                return None
            if info.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                records |= _records(self._body(info))
            elif info.type == tarfile.XGLTYPE:
                self._body(info)
            elif info.type in _LONG:
                records[_LONG[info.type]] = self._body(info).rstrip(b"\0")
            else:
                return self._member(info, records)
        raise bad("it has more headers than entries")

    def _header(self) -> tarfile.TarInfo | None:
        block = self._exactly(_BLOCK)
        if block == bytes(_BLOCK):
            return None
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError, OverflowError) as error:
            raise bad(f"a header is damaged ({error})") from error
        if info.size < 0:
            raise bad("a header is damaged (negative size)")
        return info

    def _body(self, info: tarfile.TarInfo) -> bytes:
        if info.size > _MAX_EXTENDED:
            raise bad(f"an extended header has {info.size} bytes")
        body = self._exactly(info.size)
        self._exactly(-info.size % _BLOCK)
        return body

    def _member(self, info: tarfile.TarInfo, records: dict[bytes, bytes]) -> Member:
        name = records.get(b"GNU.sparse.name") or records.get(b"path") or os.fsencode(info.name)
        target = records.get(b"linkpath") or os.fsencode(info.linkname)
        if b"\0" in name or b"\0" in target:
            raise bad(f"{shown(name)} has a zero byte in its name")
        mtime_ns = _time(records[b"mtime"]) if b"mtime" in records else _whole_time(info.mtime)
        stored = _number(records, b"size", info.size)
        if info.type not in _FILES:
            # Only files have something after the header, whatever the size says.
            return Member(name, info.type, info.mode, mtime_ns, target=target)
        self._left, self._padding = stored, -stored % _BLOCK
        sparse = None
        size = stored
        if any(key.startswith(b"GNU.sparse.") for key in records):
            size = _number(records, b"GNU.sparse.realsize", 0)
            sparse = self._layout(name, records, size)
        return Member(name, info.type, info.mode, mtime_ns, size, target, sparse)

    def _layout(
        self, name: bytes, records: dict[bytes, bytes], size: int
    ) -> tuple[tuple[int, int], ...]:
        if (records.get(b"GNU.sparse.major"), records.get(b"GNU.sparse.minor")) != (b"1", b"0"):
            raise bad(f"{shown(name)} is sparse in an old form")
        lines = _Lines(self, name)
        numbers = [next(lines) for _ in range(2 * next(lines))]
        ranges = tuple(zip(numbers[::2], numbers[1::2], strict=True))
        end = 0
        for start, length in ranges:
            if start < end or start + length > size:
                raise bad(f"{shown(name)} is sparse in a way that cannot be")
            end = start + length
        if sum(length for _, length in ranges) != self._left:
            raise bad(f"{shown(name)} does not have the bytes that its header promises")
        return ranges

    def layout_block(self) -> bytes:
        """The next block of a sparse file's layout."""
        if self._left < _BLOCK:
            raise bad("the layout of a sparse file is cut short")
        self._left -= _BLOCK
        return self._exactly(_BLOCK)

    def _skip(self) -> None:
        """What was not read of the last member."""
        rest = self._left + self._padding
        while rest:
            rest -= len(self._exactly(min(_CHUNK, rest)))
        self._left = self._padding = 0

    def _exactly(self, size: int) -> bytes:
        pieces = []
        left = size
        while left:
            piece = self._some(left)
            if not piece:
                raise bad("it ends in the middle")
            pieces.append(piece)
            left -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _some(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except zstandard.ZstdError as error:
            raise bad(f"it cannot be decompressed ({error})") from error
        except OSError as error:
            raise bad(f"it broke off ({error})") from error


class _Lines:
    """The numbers of a layout, which fills whole blocks."""

    def __init__(self, reader: TarReader, name: bytes) -> None:
        self._reader = reader
        self._name = name
        self._text = b""
        self._read = 0

    def __next__(self) -> int:
        while b"\n" not in self._text:
            self._text += self._reader.layout_block()
            self._read += _BLOCK
            if self._read > _MAX_LAYOUT or len(self._text) > 2 * _BLOCK:
                raise bad(f"{shown(self._name)} is sparse in a way that cannot be")
        line, _, self._text = self._text.partition(b"\n")
        if not _NUMBER.fullmatch(line):
            raise bad(f"{shown(self._name)} is sparse in a way that cannot be")
        return int(line)


@dataclass
class _Joined:
    """A stream whose beginning was read already."""

    beginning: bytes
    rest: Readable

    def read(self, size: int, /) -> bytes:
        if self.beginning:
            piece, self.beginning = self.beginning[:size], self.beginning[size:]
            return piece
        return self.rest.read(size)


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
    joined = _Joined(beginning, stream)
    if beginning != _MAGIC:
        return joined
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    return decompressor.stream_reader(joined, read_across_frames=True)  # type: ignore[arg-type]


def _records(body: bytes) -> dict[bytes, bytes]:
    """`length key=value` and a new line, where the length is that of the whole."""
    found = {}
    position = 0
    while position < len(body):
        digits = body[position : position + 8].partition(b" ")[0]
        if not _NUMBER.fullmatch(digits):
            raise bad("an extended header is damaged")
        end = position + int(digits)
        record = body[position + len(digits) + 1 : end]
        if end <= position or end > len(body) or not record.endswith(b"\n"):
            raise bad("an extended header is damaged")
        key, equals, value = record[:-1].partition(b"=")
        if not equals:
            raise bad("an extended header is damaged")
        found[key] = value
        position = end
    return found


def _number(records: dict[bytes, bytes], key: bytes, usual: int) -> int:
    value = records.get(key)
    if value is None:
        return usual
    if not _NUMBER.fullmatch(value):
        raise bad(f"an extended header is damaged ({os.fsdecode(key)})")
    return int(value)


def _time(text: bytes) -> int:
    """In nanoseconds."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise bad("an extended header is damaged (mtime)")
    sign, seconds, fraction = match.groups()
    found = int(seconds) * _SECOND + int((fraction or b"0").ljust(9, b"0")[:9])
    return -found if sign else found


def _whole_time(seconds: float) -> int:
    if abs(seconds) >= _MAX_TIME:
        raise bad("a header is damaged (mtime)")
    return int(seconds) * _SECOND


def clean_name(name: bytes, entry: bytes) -> str:
    """The path below the folder that a name means; "" is the folder itself. Raises
    `ArchiveInvalid`, which tells the `entry`."""
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


def shown(name: bytes) -> str:
    text = repr(os.fsdecode(name))
    return text if len(text) <= 200 else f"{text[:200]}..."


def bad(why: str, name: bytes = b"", hint: str = _HINT) -> ArchiveInvalid:
    """`name` is that of the entry, where there is one."""
    return ArchiveInvalid(
        f"The archive cannot be used: {why}.",
        hint=hint,
        entry=os.fsdecode(name),
    )


# Unpacking

MAX_ENTRIES = 1_000_000
"""Twenty times a big project; more would fill the disk with names alone."""
MAX_BYTES = 64 << 30
"""The disk and its limits stop most archives before."""
_FILE_BITS = 0o777
_FOLDER_BITS = 0o3777
"""Folders may be sticky, or pass on their group; a file never runs as somebody else."""
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
    with Descriptor(driver.open_root(tree)) as root:
        status = os.fstat(root)
        with path_errors(into):
            folder = open_beneath(root, check_path(into))
    try:
        if not stat.S_ISDIR(os.fstat(folder).st_mode):
            raise PathWrongKind(f"{into!r} is not a folder.")
        place = TreeWriter(folder, Owner(status.st_uid, status.st_gid))
        try:
            unpacker = _TarUnpacker(place, TarReader(stream), max_entries, max_bytes)
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
class _TarUnpacker:
    place: TreeWriter
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
        path = clean_name(member.name, member.name)
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
            check_link(path, member.target)
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
                write_at(target, piece, position)
            os.ftruncate(target, member.size)
            os.utime(target, ns=(member.mtime_ns, member.mtime_ns))
            os.fchmod(target, member.mode & _FILE_BITS)

        self.place.write(path, fill)

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
