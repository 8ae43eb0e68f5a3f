"""One file of a result: how long it is, in which language, and what is in it."""

from __future__ import annotations

import base64
import errno
import os
import stat
from dataclasses import dataclass

from carrel.domain.requests import ResultFile
from carrel.domain.trees import ChangeKind, EntryType
from carrel.trees.folders import Root
from carrel.trees.languages import language_of

MAX_COUNTED = 64 << 20
"""Lines of larger files are not counted: nobody reads them."""
_LOOKED_AT = 8 << 10
"""A zero byte in the beginning makes a file no text, as git has it."""
_CHUNK = 1 << 18
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EIO, errno.ESTALE)
"""What says something of one file, and nothing of us."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One that is not as it was; never a folder."""

    path: str
    change: ChangeKind
    type: EntryType


@dataclass
class _Seen:
    """What is learned of the bytes of one entry; `kept` are those themselves, if wanted."""

    size: int = 0
    executable: bool = False
    text: bool = False
    beginning: bytes = b""
    lines: int | None = None
    kept: list[bytes] | None = None


class Reader:
    def __init__(self, root: Root, content_bytes: int) -> None:
        """At most so many bytes of content are given, of all files together."""
        self._root = root
        self._wanted = content_bytes > 0
        self._left = content_bytes

    def read(self, entry: Entry) -> ResultFile:
        """What went away meanwhile is told without figures."""
        seen = _Seen()
        try:
            if entry.change is ChangeKind.DELETED:
                pass
            elif entry.type is EntryType.SYMLINK:
                seen = self._link(entry.path)
            elif entry.type is EntryType.FILE:
                seen = self._file(entry.path)
        except OSError as error:
            if error.errno not in _GONE:
                raise
        return _told(entry, seen)

    def _link(self, path: str) -> _Seen:
        target = self._root.link(path)
        kept = [target] if self._affords(len(target)) else None
        return _Seen(len(target), text=True, kept=kept)

    def _file(self, path: str) -> _Seen:
        descriptor = self._root.open_file(path)
        try:
            about = os.fstat(descriptor)
            seen = _Seen(
                about.st_size,
                bool(about.st_mode & stat.S_IXUSR),
                kept=[] if self._affords(about.st_size) else None,
            )
            _look_through(descriptor, seen)
        finally:
            os.close(descriptor)
        return seen

    def _affords(self, size: int) -> bool:
        if not self._wanted or size > self._left:
            return False
        self._left -= size
        return True


def _look_through(descriptor: int, seen: _Seen) -> None:
    """Only as far as somebody wants to know; never beyond the size that it had."""
    piece = os.read(descriptor, min(seen.size, _CHUNK))
    seen.beginning = piece[:_LOOKED_AT]
    seen.text = b"\0" not in seen.beginning
    counts = seen.text and seen.size <= MAX_COUNTED
    ends, last, done = 0, b"\n", 0
    while piece and (counts or seen.kept is not None):
        if counts:
            ends += piece.count(b"\n")
            last = piece[-1:]
        if seen.kept is not None:
            seen.kept.append(piece)
        done += len(piece)
        piece = os.read(descriptor, min(seen.size - done, _CHUNK))
    if counts:
        # A last line counts without its end.
        seen.lines = ends + (last != b"\n")


def _told(entry: Entry, seen: _Seen) -> ResultFile:
    content = None if seen.kept is None else b"".join(seen.kept)
    text = _as_text(content) if content is not None and seen.text else None
    coded = None
    if content is not None and text is None:
        coded = base64.b64encode(content).decode()
    link = entry.type is EntryType.SYMLINK
    return ResultFile(
        path=entry.path,
        change=str(entry.change),
        bytes=seen.size,
        lines=seen.lines,
        language="" if link else language_of(entry.path, seen.beginning),
        type=entry.type,
        executable=seen.executable,
        text=text,
        base64=coded,
    )


def _as_text(content: bytes) -> str | None:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None
