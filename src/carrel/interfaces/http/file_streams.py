"""One file out, or a part of it."""

from __future__ import annotations

import os
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import BinaryIO

from starlette.responses import Response

from carrel.domain.errors import PathNotFound
from carrel.interfaces.http.background import Background
from carrel.interfaces.http.byte_streams import ByteStream, Source
from carrel.interfaces.http.encoding import bytes_answer
from carrel.interfaces.http.problems import RangeNotSatisfiable, problem_response
from carrel.interfaces.http.ranges import part_of

PIECE = 256 * 1024


@dataclass(frozen=True)
class Reading:
    """A file, or a part of it, of which the beginning was read."""

    file: BinaryIO
    size: int
    part: tuple[int, int] | None
    first: bytes

    @property
    def length(self) -> int:
        return self.size if self.part is None else self.part[1] - self.part[0]


def begin(file: BinaryIO, range_header: str | None) -> Reading:
    """In a worker thread. Most files are done with the first piece, and closed then. Raises
    `RangeNotSatisfiable`."""
    try:
        size = os.fstat(file.fileno()).st_size
        part = part_of(range_header, size)
        begins, ends = part or (0, size)
        file.seek(begins)
        first = file.read(min(PIECE, ends - begins))
    except BaseException:
        file.close()
        raise
    if len(first) == ends - begins:
        file.close()
    return Reading(file, size, part, first)


async def file_answer(beginning: Awaitable[Reading], background: Background) -> Response:
    try:
        reading = await beginning
    except RangeNotSatisfiable as error:
        return problem_response(error, {"Content-Range": f"bytes */{error.details['size']}"})
    headers = {"Accept-Ranges": "bytes", "Content-Length": str(reading.length)}
    if reading.part is not None:
        begins, ends = reading.part
        headers["Content-Range"] = f"bytes {begins}-{ends - 1}/{reading.size}"
    status = 200 if reading.part is None else 206
    if len(reading.first) == reading.length:
        return bytes_answer(reading.first, headers, status)
    headers["X-Content-Type-Options"] = "nosniff"
    return ByteStream(_source(reading), background, status=status, headers=headers)


def _source(reading: Reading) -> Source:
    left = reading.length - len(reading.first)

    def read() -> bytes:
        nonlocal left
        piece = reading.file.read(min(PIECE, left))
        if left and not piece:
            # Somebody cut it short while it was sent.
            raise PathNotFound("The file became shorter.")
        left -= len(piece)
        return piece

    return Source(reading.first, read, reading.file.close)
