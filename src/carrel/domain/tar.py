"""The format of tar: headers of entries, and a reader of archives, for both ends of a copy.

Somebody may have made an archive to do harm. Nothing in it decides how much memory is used:
extended headers and the layouts of sparse files have a bound, and everything else is read in blocks
(`tarfile` has no such bounds). What follows a header has to be there, and the archive has to have
an end. Usual headers are written and read here, since `tarfile` takes ten times as long; `tarfile`
does the others.
"""

from __future__ import annotations

import functools
import os
import re
import struct
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from carrel.domain.errors import ArchiveInvalid

BLOCK = 512
END = bytes(2 * BLOCK)
CHUNK = 1 << 18
"""So much is read at once, and a file up to this size as a whole."""
_MAX_EXTENDED = 1 << 20
"""Of one extended header: names and a few numbers."""
_MAX_LAYOUT = 32 << 20
"""Of one sparse file: a million ranges."""
_MAX_HEADERS = 8
"""Before one entry: its name, its target and its extended header, each once or twice."""
_MAX_REST = 16 << 20
"""Behind the end of an archive: what fills a record, which usually has 10 KiB."""
_HINT = "Pack or copy it again: as tar, plain or with zstd, from within its folder."
_SECOND = 1_000_000_000
_NUMBER = re.compile(rb"[0-9]{1,18}")
_TIME = re.compile(rb"(-?)([0-9]{1,11})(?:\.([0-9]{1,30}))?")
_ONLY_TIME = re.compile(rb"([0-9]{2}) mtime=([0-9.]+)\n")
_ONLY_NANOSECONDS = re.compile(rb"([0-9]{2}) mtime=([0-9]{1,11})\.([0-9]{9})\n")
_MAX_TIME = 10**11
_PLAIN_NAME = re.compile(rb"[^./\0][^/\0]{0,254}(?:/[^./\0][^/\0]{0,254})*")
_LONG = {tarfile.GNUTYPE_LONGNAME: b"path", tarfile.GNUTYPE_LONGLINK: b"linkpath"}
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)


_LEFT_OUT, _MAX_LEFT_OUT = b"carrel left out: ", 64 << 10


# Writing

_MAX_FIELD = 100
_MAX_OCTAL = 8**11
_NO_OWNER = b"0000000\0" * 2
_TAIL = b"ustar\x0000".ljust(255, b"\0")
_EXTENDED: dict[int, bytes] = {}
"""The header of an extended header, by its size: there are a few sizes."""
_LAST: dict[bytes, tuple[bytes, int]] = {}
"""What follows the checksum in the header of an entry without a target, and its sum, by kind."""


def pack_header(
    name: str,
    kind: bytes,
    mode: int,
    mtime_ns: int,
    *,
    size: int = 0,
    target: str = "",
    more: Mapping[str, str] | None = None,
) -> bytes:
    """`more` are records of the extended header. Everything is root's: the users of this
    machine mean nothing elsewhere."""
    seconds, rest = divmod(mtime_ns, _SECOND)
    if kind == tarfile.DIRTYPE:
        name += "/"
    if (
        not more
        and name.isascii()
        and target.isascii()
        and len(name) <= _MAX_FIELD
        and len(target) <= _MAX_FIELD
        and 0 <= seconds < _MAX_OCTAL
        and size < _MAX_OCTAL
    ):
        usual = _block(name.encode(), kind, mode, seconds, size, target.encode())
        return _extended(seconds, rest) + usual if rest else usual
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.size, info.linkname = kind, mode, size, target
    info.mtime = seconds
    info.pax_headers = dict(more or {})
    if rest:
        info.pax_headers["mtime"] = _decimal(mtime_ns)
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def pack_end(left_out: str = "") -> bytes:
    """The end of an archive. `left_out` says what is not in it though it should be; it stands
    behind the end, where other readers do not look."""
    said = _LEFT_OUT + left_out.encode("utf-8", "replace") if left_out else b""
    return END + said.ljust(-(-len(said) // BLOCK) * BLOCK, b"\0")


def _block(name: bytes, kind: bytes, mode: int, seconds: int, size: int, target: bytes) -> bytes:
    first = b"%b%07o\0%b%011o\0%011o\0" % (
        name.ljust(_MAX_FIELD, b"\0"),
        mode,
        _NO_OWNER,
        size,
        seconds,
    )
    known = None if target else _LAST.get(kind)
    if known is None:
        last = kind + target.ljust(_MAX_FIELD, b"\0") + _TAIL
        known = last, _sum(last)
        if not target:
            _LAST[kind] = known
    last, last_sum = known
    return b"%b%06o\0 %b" % (first, _sum_before(first) + last_sum, last)


def _sum_before(first: bytes) -> int:
    """Of all that comes before the checksum, which counts as spaces."""
    return (zlib.adler32(first) & 0xFFFF) - 1 + 8 * 32


def _sum(part: bytes) -> int:
    """Of the bytes, at most 512. The lower half of Adler's checksum is their sum and 1, modulo
    65521, which 256 bytes cannot reach."""
    return (zlib.adler32(part[:256]) & 0xFFFF) + (zlib.adler32(part[256:]) & 0xFFFF) - 2


def _extended(seconds: int, nanoseconds: int) -> bytes:
    """The extended header with the time of an entry to the nanosecond."""
    value = b"mtime=%d.%09d\n" % (seconds, nanoseconds)
    # The length counts itself, and has two digits.
    record = b"%d %b" % (len(value) + 3, value)
    size = len(record)
    if size not in _EXTENDED:
        _EXTENDED[size] = _block(b"././@PaxHeader", tarfile.XHDTYPE, 0, 0, size, b"")
    return _EXTENDED[size] + record.ljust(BLOCK, b"\0")


def _decimal(nanoseconds: int) -> str:
    sign = "-" if nanoseconds < 0 else ""
    seconds, rest = divmod(abs(nanoseconds), _SECOND)
    return f"{sign}{seconds}.{rest:09}"


# Reading


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Member(NamedTuple):
    """One entry; `size` is that of the file. `sparse` are the ranges of a sparse one: where
    each begins, and how long it is. `owner` are a user and a group, -1 for what is no number;
    `attributes` the names of the extended ones."""

    name: bytes
    kind: bytes
    mode: int
    mtime_ns: int
    size: int = 0
    target: bytes = b""
    sparse: tuple[tuple[int, int], ...] | None = None
    owner: tuple[int, int] = (0, 0)
    attributes: tuple[bytes, ...] = ()

    @property
    def is_file(self) -> bool:
        return self.kind in _FILES


class _Header(NamedTuple):
    name: bytes
    kind: bytes
    mode: int
    size: int
    mtime: float
    target: bytes = b""
    owner: tuple[int, int] = (0, 0)


_NOTHING = bytes(BLOCK)
_BINARY = 0x80
"""Begins a number that is too large for digits."""
_ATTRIBUTES = (b"SCHILY.xattr.", b"LIBARCHIVE.xattr.")
_FIELDS = struct.Struct("100s8s16s12s12s8sc100s88x155s12x")
_FIRST = struct.Struct("100s8s16s12s12s8s")
_SUMMED, _PREFIX = 148, 345
"""Where the checksum is in a header, and the beginning of a long name."""
_USUAL = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.XHDTYPE)


def _usual_header(block: bytes) -> _Header | None:
    """None of one that has numbers in another form than digits, a checksum of another form, or
    some other kind."""
    name, mode, owner, size, mtime, checksum, kind, target, prefix = _FIELDS.unpack(block)
    if kind not in _USUAL:
        return None
    try:
        if _octal(checksum) != _sum(block) - sum(checksum) + 8 * 32:
            return None
        numbers = _octal(mode), _octal(size), _octal(mtime)
    except ValueError:
        return None
    name = _text(name)
    if prefix[0]:
        name = _text(prefix) + b"/" + name
    if kind == tarfile.DIRTYPE:
        name = name.rstrip(b"/")
    return _Header(name, kind, *numbers, _text(target), _owner(owner))


@functools.lru_cache(1024)
def _octal(field: bytes) -> int:
    """Those of one archive have few modes, sizes and times."""
    return int(field.rstrip(b"\0 ") or b"0", 8)


@functools.lru_cache(1024)
def _owner(fields: bytes) -> tuple[int, int]:
    uid, gid = (_id(field) for field in (fields[:8], fields[8:]))
    return uid, gid


def _id(field: bytes) -> int:
    if field[0] == _BINARY:
        return int.from_bytes(field[1:], "big")
    try:
        return max(_octal(field), -1)
    except ValueError:
        return -1


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _any_header(block: bytes) -> _Header:
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError, OverflowError) as error:
        raise bad(f"a header is damaged ({error})") from error
    name, target = os.fsencode(info.name), os.fsencode(info.linkname)
    owner = info.uid, info.gid
    return _Header(name, info.type, info.mode, info.size, info.mtime, target, owner)


class TarReader:
    """The members of one archive, once. Raises `ArchiveInvalid`."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._buffer = b""
        self._at = 0
        self._extended = b""
        self._extended_header: _Header | None = None
        self._last = (b"", 0)
        self._left = 0
        self._padding = 0
        self._taken = 0
        self.left_out = ""
        """What its writer says that it lacks; known at its end."""

    def __iter__(self) -> Iterator[Member]:
        while (member := self._similar() or self._next()) is not None:
            yield member
        # Whatever fills the last record; and the checksum of what was compressed.
        rest = len(self._buffer) - self._at
        said = self._buffer[self._at :]
        while piece := self._some():
            rest += len(piece)
            if rest > _MAX_REST:
                raise bad("it goes on behind its end")
            said += piece if len(said) < _MAX_LEFT_OUT else b""
        said = said[:_MAX_LEFT_OUT].strip(b"\0")
        if said.startswith(_LEFT_OUT):
            self.left_out = said.removeprefix(_LEFT_OUT).decode("utf-8", "replace")

    def small(self, member: Member) -> bytes | None:
        """All of the member that came last; None of one that is large or sparse."""
        if member.size > CHUNK or member.sparse is not None:
            return None
        self._left = 0
        return self._exactly(member.size)

    def content(self, member: Member) -> Iterator[tuple[int, bytes]]:
        """Pieces of the member that came last, and where each belongs."""
        ranges = ((0, member.size),) if member.sparse is None else member.sparse
        for start, length in ranges:
            end = start + length
            while start < end:
                piece = self._exactly(min(CHUNK, end - start))
                self._left -= len(piece)
                yield start, piece
                start += len(piece)

    def _similar(self) -> Member | None:
        """The next member, if it is a file, all of its header is in memory, and that differs from
        the one of the file before in name, mode, size and time only. Nearly all do, and nothing
        need be looked at but that; None of every other, and nothing was read then."""
        buffer, start = self._buffer, self._at + self._left + self._padding
        mtime_ns = None
        if self._extended_header and buffer.startswith(self._extended, start):
            size = self._extended_header.size
            only = _ONLY_NANOSECONDS.fullmatch(buffer, start + BLOCK, start + BLOCK + size)
            if only is None or int(only[1]) != size:
                return None
            mtime_ns = int(only[2] + only[3])
            start += 2 * BLOCK
        last, last_sum = self._last
        if not last or not buffer.startswith(last, start + _FIRST.size):
            return None
        name, mode, owner, length, mtime, checksum = _FIRST.unpack_from(buffer, start)
        try:
            found = _octal(mode), _octal(length), _octal(mtime)
            if _octal(checksum) != _sum_before(buffer[start : start + _SUMMED]) + last_sum:
                return None
        except ValueError:
            return None
        size = found[1]
        if size < 0:
            return None
        self._at, self._left, self._padding = start + BLOCK, size, -size % BLOCK
        if mtime_ns is None:
            mtime_ns = found[2] * _SECOND
        ids = _owner(owner)
        return Member(_text(name), tarfile.REGTYPE, found[0], mtime_ns, size, owner=ids)

    def _next(self) -> Member | None:
        self._skip()
        records: dict[bytes, bytes] = {}
        for _ in range(_MAX_HEADERS):
            info = self._header()
            if info is None:
                if records:
                    raise bad("it ends in the middle")
                return None
            if info.kind in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                records |= _records(self._body(info))
            elif info.kind == tarfile.XGLTYPE:
                self._body(info)
            elif info.kind in _LONG:
                records[_LONG[info.kind]] = self._body(info).rstrip(b"\0")
            else:
                return self._member(info, records)
        raise bad("it has more headers than entries")

    def _header(self) -> _Header | None:
        block = self._exactly(BLOCK)
        if block == _NOTHING:
            return None
        if block == self._extended:
            return self._extended_header
        found = _usual_header(block) or _any_header(block)
        if found.size < 0:
            raise bad("a header is damaged (negative size)")
        if found.kind == tarfile.XHDTYPE:
            # Those of one archive are mostly the same, up to the last byte.
            self._extended, self._extended_header = block, found
        if found.kind == tarfile.REGTYPE and not found.target and not block[_PREFIX]:
            self._last = block[_FIRST.size :], _sum(block[_FIRST.size :])
        return found

    def _body(self, info: _Header) -> bytes:
        if info.size > _MAX_EXTENDED:
            raise bad(f"an extended header has {info.size} bytes")
        body = self._exactly(info.size)
        self._exactly(-info.size % BLOCK)
        return body

    def _member(self, info: _Header, records: dict[bytes, bytes]) -> Member:
        name = records.get(b"GNU.sparse.name") or records.get(b"path") or info.name
        target = records.get(b"linkpath") or info.target
        if b"\0" in name or b"\0" in target:
            raise bad(f"{shown(name)} has a zero byte in its name")
        mtime_ns = _time(records[b"mtime"]) if b"mtime" in records else _whole_time(info.mtime)
        stored = _number(records, b"size", info.size)
        owner = _number(records, b"uid", info.owner[0]), _number(records, b"gid", info.owner[1])
        attributes = tuple(
            key.removeprefix(start)
            for key in records
            for start in _ATTRIBUTES
            if key.startswith(start)
        )
        if info.kind not in _FILES:
            # Only files have something after the header, whatever the size says.
            return Member(
                name,
                info.kind,
                info.mode,
                mtime_ns,
                target=target,
                owner=owner,
                attributes=attributes,
            )
        self._left, self._padding = stored, -stored % BLOCK
        sparse = None
        size = stored
        if records and any(key.startswith(b"GNU.sparse.") for key in records):
            size = _number(records, b"GNU.sparse.realsize", 0)
            sparse = self._layout(name, records, size)
        return Member(name, info.kind, info.mode, mtime_ns, size, target, sparse, owner, attributes)

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
        if self._left < BLOCK:
            raise bad("the layout of a sparse file is cut short")
        self._left -= BLOCK
        return self._exactly(BLOCK)

    def _skip(self) -> None:
        """What was not read of the last member."""
        rest = self._left + self._padding
        while rest:
            rest -= len(self._exactly(min(CHUNK, rest)))
        self._left = self._padding = 0

    def _exactly(self, size: int) -> bytes:
        start, end = self._at, self._at + size
        if end <= len(self._buffer):
            self._at = end
            return self._buffer[start:end]
        pieces = [self._buffer[start:]]
        left = end - len(self._buffer)
        while True:
            self._buffer = self._some()
            if not self._buffer:
                raise bad("it ends in the middle")
            pieces.append(self._buffer[:left])
            if left <= len(self._buffer):
                self._at = left
                return b"".join(pieces)
            left -= len(self._buffer)

    @property
    def position(self) -> int:
        """In the archive: right after a header, where its content begins."""
        return self._taken - len(self._buffer) + self._at

    def _some(self) -> bytes:
        try:
            piece = self._stream.read(CHUNK)
            self._taken += len(piece)
            return piece
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
            self._read += BLOCK
            if self._read > _MAX_LAYOUT or len(self._text) > 2 * BLOCK:
                raise bad(f"{shown(self._name)} is sparse in a way that cannot be")
        line, _, self._text = self._text.partition(b"\n")
        if not _NUMBER.fullmatch(line):
            raise bad(f"{shown(self._name)} is sparse in a way that cannot be")
        return int(line)


def _records(body: bytes) -> dict[bytes, bytes]:
    """`length key=value` and a new line, where the length is that of the whole."""
    only = _ONLY_TIME.fullmatch(body)
    if only is not None and int(only[1]) == len(body):
        return {b"mtime": only[2]}
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


def shown(name: bytes) -> str:
    text = repr(os.fsdecode(name))
    return text if len(text) <= 200 else f"{text[:200]}..."


def plain_name(name: bytes) -> bool:
    """Whether it is names with a slash between them, none of which begins with a dot: there is
    nothing to clean, and it leads nowhere else."""
    return _PLAIN_NAME.fullmatch(name) is not None


def bad(why: str, name: bytes = b"", hint: str = _HINT) -> ArchiveInvalid:
    """`name` is that of the entry, where there is one."""
    return ArchiveInvalid(
        f"The archive cannot be used: {why}.",
        hint=hint,
        entry=os.fsdecode(name),
    )
