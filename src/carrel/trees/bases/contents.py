"""Moving the bytes of one file into the store, and naming them by a digest."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator

from carrel.linux.reflink import clone_file
from carrel.trees.bases.manifest import DIGEST

Pulse = Callable[[int], None]
"""Told how many bytes were moved, now and then; may raise to stop."""

_WHOLE = 1 << 20
"""Files up to this size are read at once: read, digest, write."""
_CHUNK = 16 << 20
"""Of a big file, so much is copied by the kernel between two looks at the clock."""
_BLOCK = 1 << 16
"""Sparse files are digested in blocks of this size; blocks of zeros are as holes."""
_ZEROS = bytes(_BLOCK)
_NOT_HERE = frozenset(
    {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM}
)
_SETTLED_NS = 2_000_000_000
"""Longer than a step of the clock of any file system."""
_ATTRIBUTES = "user."
_OVERLAY = "user.overlay."
"""These would mean something in a layer, so no project brings its own."""


class ReadFailed(Exception):
    """The project's side failed, not the store's; `__cause__` is the OSError."""


def is_sparse(found: os.stat_result) -> bool:
    return found.st_size >= _BLOCK and found.st_blocks * 512 < found.st_size


def store_bytes(
    source: int, found: os.stat_result, target: int, *, clone: bool, pulse: Pulse
) -> tuple[bytes, bool]:
    """Fills an empty file with the first `found.st_size` bytes of another. Gives the
    digest of what was stored, and whether the bytes are shared with the source's."""
    if clone and found.st_size and _clone(source, target):
        # Reading the source is reading memory; the clone would come from the disk. Both
        # are the same if the source has not changed meanwhile, which the caller sees by
        # its times, unless it was being written just now.
        settled = time.time_ns() - found.st_ctime_ns > _SETTLED_NS
        return digest_bytes(source if settled else target, found, pulse), True
    if found.st_size <= _WHOLE and not is_sparse(found):
        return _store_whole(source, found.st_size, target, pulse), False
    for start, end in _segments(source, found):
        _copy_range(source, target, start, end, pulse)
    os.ftruncate(target, found.st_size)
    return digest_bytes(target, found, pulse), False


def digest_bytes(source: int, found: os.stat_result, pulse: Pulse) -> bytes:
    """Of the first `found.st_size` bytes. The same for zeros and holes in sparse files."""
    if is_sparse(found):
        return _digest_sparse(source, found, pulse)
    digest = hashlib.blake2b(digest_size=DIGEST)
    position = 0
    while position < found.st_size:
        data = _read(source, min(_WHOLE, found.st_size - position), position)
        if not data:
            break
        digest.update(data)
        position += len(data)
        pulse(0)
    return digest.digest()


def with_attributes(digest: bytes, attributes: dict[str, bytes]) -> bytes:
    """The digest of a file that has extended attributes."""
    if not attributes:
        return digest
    mixed = hashlib.blake2b(digest, digest_size=DIGEST, person=b"attributes")
    for name in sorted(attributes):
        for piece in (os.fsencode(name), attributes[name]):
            mixed.update(len(piece).to_bytes(4, "little"))
            mixed.update(piece)
    return mixed.digest()


def read_attributes(source: int) -> dict[str, bytes]:
    """The extended attributes that a base keeps: the user's own."""
    try:
        names = os.listxattr(source)
    except OSError as error:
        if error.errno in _NOT_HERE:
            return {}
        raise ReadFailed from error
    found = {}
    for name in names:
        if name.startswith(_ATTRIBUTES) and not name.startswith(_OVERLAY):
            try:
                found[name] = os.getxattr(source, name)
            except OSError as error:
                if error.errno != errno.ENODATA:
                    raise ReadFailed from error
    return found


def _clone(source: int, target: int) -> bool:
    try:
        return clone_file(source, target)
    except OSError as error:
        if error.errno == errno.EIO:
            raise ReadFailed from error
        raise


def _store_whole(source: int, size: int, target: int, pulse: Pulse) -> bytes:
    data = _read(source, size, 0) if size else b""
    while data and len(data) < size:
        more = _read(source, size - len(data), len(data))
        if not more:
            break
        data += more
    _write(target, data, 0)
    pulse(len(data))
    return hashlib.blake2b(data, digest_size=DIGEST).digest()


def _read(source: int, length: int, position: int) -> bytes:
    try:
        return os.pread(source, length, position)
    except OSError as error:
        raise ReadFailed from error


def _write(target: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(target, view, position)
        view = view[written:]
        position += written


def _segments(source: int, found: os.stat_result) -> Iterator[tuple[int, int]]:
    """Where there is data; all of it for a file without holes."""
    size = found.st_size
    if not is_sparse(found):
        yield 0, size
        return
    position = 0
    while position < size:
        try:
            start = os.lseek(source, position, os.SEEK_DATA)
            end = os.lseek(source, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            # A file system that knows no holes.
            start, end = position, size
        if start >= size:
            return
        yield start, min(end, size)
        position = end


def _copy_range(source: int, target: int, start: int, end: int, pulse: Pulse) -> None:
    position = start
    in_kernel = True
    while position < end:
        count = -1
        if in_kernel:
            count = _copy_in_kernel(source, target, position, min(end - position, _CHUNK))
            in_kernel = count >= 0
        if count < 0:
            data = _read(source, min(end - position, _WHOLE), position)
            _write(target, data, position)
            count = len(data)
        if count == 0:
            return
        position += count
        pulse(count)


def _copy_in_kernel(source: int, target: int, position: int, length: int) -> int:
    """How many bytes; -1 where it is not possible between these two."""
    try:
        return os.copy_file_range(source, target, length, position, position)
    except OSError as error:
        if error.errno in _NOT_HERE:
            return -1
        if error.errno == errno.EIO:
            raise ReadFailed from error
        raise


def _digest_sparse(source: int, found: os.stat_result, pulse: Pulse) -> bytes:
    digest = hashlib.blake2b(
        found.st_size.to_bytes(8, "little"), digest_size=DIGEST, person=b"sparse"
    )
    done = 0
    for start, end in _segments(source, found):
        position = max(done, start - start % _BLOCK)
        while position < end:
            block = _read(source, min(_BLOCK, found.st_size - position), position)
            if not block:
                break
            if block != _ZEROS[: len(block)]:
                digest.update(position.to_bytes(8, "little"))
                digest.update(block)
            position += _BLOCK
            pulse(0)
        done = position
    return digest.digest()
