"""What files hold: where there is data in them, and whether two hold the same.

Holes are skipped, so that a file of terabytes that is nearly empty costs nearly nothing.
"""

from __future__ import annotations

import errno
import hashlib
import heapq
import os
from collections.abc import Iterable, Iterator

BLOCK = 1 << 16
"""Files are compared in blocks of this size; blocks of zeros are as holes."""
ZEROS = bytes(BLOCK)
STAT_BLOCK = 512
"""The unit of `st_blocks`, on every file system."""


def may_have_holes(status: os.stat_result) -> bool:
    return status.st_blocks * STAT_BLOCK < status.st_size


def data_ranges(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Beginnings and ends of data within the first `size` bytes, in order. A file that is
    cut short meanwhile has no more; a file system without holes has one range."""
    position = 0
    while position < size:
        try:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            start, end = position, size
        if start >= size:
            return
        yield start, min(end, size)
        position = end


def data_blocks(descriptor: int, size: int) -> Iterator[int]:
    """Where the blocks begin that have data in them, in order; multiples of `BLOCK`."""
    position = 0
    for start, end in data_ranges(descriptor, size):
        position = max(position, start - start % BLOCK)
        while position < end:
            yield position
            position += BLOCK


def same_bytes(one: int, other: int, size: int) -> bool:
    """Compares `size` bytes of two open files."""
    done = 0
    for position in heapq.merge(data_blocks(one, size), data_blocks(other, size)):
        if position < done:
            continue
        done = position + BLOCK
        length = min(BLOCK, size - position)
        if os.pread(one, length, position) != os.pread(other, length, position):
            return False
    return True


def digest(descriptor: int, size: int) -> bytes:
    """Names the first `size` bytes; the same for holes and for zeros that were written."""
    hashed = hashlib.sha256()
    for position in data_blocks(descriptor, size):
        block = os.pread(descriptor, min(BLOCK, size - position), position)
        if not block:
            break
        if block != ZEROS[: len(block)]:
            hashed.update(position.to_bytes(8, "big"))
            hashed.update(block)
    hashed.update(size.to_bytes(8, "big"))
    return hashed.digest()


def digest_of_pieces(pieces: Iterable[tuple[int, bytes]], size: int) -> bytes:
    """As `digest`, of bytes that come one after the other, each with its place."""
    hashed = hashlib.sha256()
    block, start = bytearray(BLOCK), 0

    def add() -> None:
        content = block[: min(BLOCK, size - start)]
        if content != ZEROS[: len(content)]:
            hashed.update(start.to_bytes(8, "big"))
            hashed.update(content)

    for position, piece in pieces:
        done = 0
        while done < len(piece):
            inside = (position + done) % BLOCK
            if position + done - inside != start:
                add()
                block, start = bytearray(BLOCK), position + done - inside
            length = min(BLOCK - inside, len(piece) - done)
            block[inside : inside + length] = piece[done : done + length]
            done += length
    add()
    hashed.update(size.to_bytes(8, "big"))
    return hashed.digest()


def write_at(descriptor: int, data: bytes, position: int) -> None:
    """Writes all of it, however little the kernel takes at once."""
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, position)
        view = view[count:]
        position += count
