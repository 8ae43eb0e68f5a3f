"""lstat of many files, with as little Python between the calls as can be.

A project of 50,000 files is looked at in a tenth of a second: the kernel's answers stay
in one buffer and are cut to rows by strided copies, so no object is made per file.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

ROW = 64
"""Bytes per file."""
_BATCH = 2048
"""Answers kept at once: half a megabyte, which fits the processor's cache."""
_ANSWER = 256
_WORDS = _ANSWER // 8
# The words (of eight bytes) of the kernel's answer that a row consists of: links and
# uid, gid and mode, inode, size, ctime (two), mtime (two).
_WANTED = (2, 3, 4, 5, 12, 13, 14, 15)
_DEVICE_WORD = 17
_FLAGS = 0x100 | 0x800  # AT_SYMLINK_NOFOLLOW, AT_NO_AUTOMOUNT
_BASIC = 0x7FF
_LAYOUT = struct.Struct("=IIIHHQQqIIqII")


class Row(NamedTuple):
    """What is known of one file. `mount` numbers the file systems of one project: 0 is
    that of its root. `spare` words are the kernel's padding."""

    links: int
    uid: int
    gid: int
    mode: int
    mount: int
    inode: int
    size: int
    ctime_s: int
    ctime_frac: int
    spare: int
    mtime_s: int
    mtime_frac: int
    spare2: int

    @property
    def mtime_ns(self) -> int:
        return self.mtime_s * 1_000_000_000 + self.mtime_frac

    @property
    def ctime_ns(self) -> int:
        return self.ctime_s * 1_000_000_000 + self.ctime_frac


def unpack_row(rows: bytes | bytearray, index: int) -> Row:
    return Row(*_LAYOUT.unpack_from(rows, index * ROW))


def row_of(found: os.stat_result) -> Row:
    """The row that `StatBatch` would give for a file, with `mount` 0."""
    ids = (found.st_nlink, found.st_uid, found.st_gid, found.st_mode)
    changed, written = (divmod(ns, 1_000_000_000) for ns in (found.st_ctime_ns, found.st_mtime_ns))
    return Row(*ids, 0, found.st_ino, found.st_size, *changed, 0, *written, 0)


class Answers(NamedTuple):
    """Rows in the order of the paths. Rows of `failed` paths are zeros; `foreign` gives
    the device of those that are not on the device that was asked about."""

    rows: bytearray
    failed: list[int]
    foreign: dict[int, int]


class StatBatch:
    """Keeps the buffer between calls; not for two threads at once."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        try:
            self._statx = library.statx
        except AttributeError as error:
            raise OSError(errno.ENOSYS, "the C library has no statx") from error
        self._make_room(1)

    def _make_room(self, count: int) -> None:
        """A small project is looked at in less time than a whole buffer takes to be made."""
        self._buffer = ctypes.create_string_buffer(count * _ANSWER)
        start = ctypes.addressof(self._buffer)
        self._places = [ctypes.c_void_p(start + at * _ANSWER) for at in range(count)]
        self._words = memoryview(self._buffer).cast("B").cast("Q")

    def run(self, dir_fd: int, paths: Sequence[bytes], device: int) -> Answers:
        """Looks at paths relative to `dir_fd`; `device` is the st_dev that most have."""
        answers = Answers(bytearray(ROW * len(paths)), [], {})
        words = memoryview(answers.rows).cast("Q")
        packed = os.major(device) | os.minor(device) << 32
        if len(self._places) < min(len(paths), _BATCH):
            self._make_room(min(2 * len(paths), _BATCH))
        for start in range(0, len(paths), _BATCH):
            batch = paths[start : start + _BATCH]
            results = list(
                map(
                    self._statx,
                    repeat(dir_fd),
                    batch,
                    repeat(_FLAGS),
                    repeat(_BASIC),
                    self._places,
                )
            )
            self._cut(words[start * 8 : (start + len(batch)) * 8], len(batch))
            self._note_foreign(answers, start, len(batch), packed)
            if any(results):
                _note_failed(answers, start, results)
        return answers

    def _cut(self, words: memoryview, count: int) -> None:
        end = count * _WORDS
        for at, word in enumerate(_WANTED):
            words[at::8] = self._words[word:end:_WORDS]

    def _note_foreign(self, answers: Answers, start: int, count: int, packed: int) -> None:
        devices = self._words[_DEVICE_WORD : count * _WORDS : _WORDS]
        if devices.tobytes() == packed.to_bytes(8, sys.byteorder) * count:
            return
        for at, found in enumerate(devices.tolist()):
            if found != packed:
                answers.foreign[start + at] = os.makedev(found & 0xFFFFFFFF, found >> 32)


def _note_failed(answers: Answers, start: int, results: list[int]) -> None:
    for at, result in enumerate(results):
        if result:
            index = start + at
            answers.failed.append(index)
            answers.foreign.pop(index, None)
            answers.rows[index * ROW : (index + 1) * ROW] = bytes(ROW)
