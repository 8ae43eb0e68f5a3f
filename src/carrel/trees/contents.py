"""Whether two files hold the same bytes. Holes are skipped, so that a file of terabytes
that is nearly empty costs nearly nothing."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable

_BLOCK = 1 << 16
_ZEROS = bytes(_BLOCK)


def same_bytes(one: int, other: int, size: int) -> bool:
    """Compares `size` bytes of two open files."""
    position = 0
    while position < size:
        start = min(_next_data(one, position, size), _next_data(other, position, size))
        if start >= size:
            return True
        # Blocks stay aligned, as in `digest`.
        position = start - start % _BLOCK
        length = min(_BLOCK, size - position)
        if os.pread(one, length, position) != os.pread(other, length, position):
            return False
        position += length
    return True


def digest(descriptor: int, size: int) -> bytes:
    """Names the first `size` bytes; the same for holes and for zeros that were written."""
    hashed = hashlib.sha256()
    position = 0
    while position < size:
        position = _next_data(descriptor, position, size)
        position -= position % _BLOCK
        if position >= size:
            break
        block = os.pread(descriptor, min(_BLOCK, size - position), position)
        if not block:
            break
        if block != _ZEROS[: len(block)]:
            hashed.update(position.to_bytes(8, "big"))
            hashed.update(block)
        position += _BLOCK
    hashed.update(size.to_bytes(8, "big"))
    return hashed.digest()


def digest_of_pieces(pieces: Iterable[tuple[int, bytes]], size: int) -> bytes:
    """As `digest`, of bytes that come one after the other, each with its place."""
    hashed = hashlib.sha256()
    block, start = bytearray(_BLOCK), 0

    def add() -> None:
        content = block[: min(_BLOCK, size - start)]
        if content != _ZEROS[: len(content)]:
            hashed.update(start.to_bytes(8, "big"))
            hashed.update(content)

    for position, piece in pieces:
        done = 0
        while done < len(piece):
            inside = (position + done) % _BLOCK
            if position + done - inside != start:
                add()
                block, start = bytearray(_BLOCK), position + done - inside
            length = min(_BLOCK - inside, len(piece) - done)
            block[inside : inside + length] = piece[done : done + length]
            done += length
    add()
    hashed.update(size.to_bytes(8, "big"))
    return hashed.digest()


def _next_data(descriptor: int, position: int, size: int) -> int:
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError as error:
        # No data any more; file systems without holes answer otherwise.
        return size if error.errno == errno.ENXIO else position
