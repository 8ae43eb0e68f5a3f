"""Parts of files, as `Range` asks for them."""

from __future__ import annotations

import re

from carrel.interfaces.http.problems import RangeNotSatisfiable

_RANGE = re.compile(r"bytes=(\d*)-(\d*)", re.ASCII)


def part_of(header: str | None, size: int) -> tuple[int, int] | None:
    """First byte and the one after the last; None for the whole. What is not understood, and
    several ranges at once, are answered with the whole, as RFC 9110 allows.
    Raises `RangeNotSatisfiable`."""
    match = None if header is None else _RANGE.fullmatch(header.strip())
    if match is None or match[0] == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        begin, end = max(0, size - int(last[:20])), size
    else:
        begin = int(first[:20])
        end = min(size, int(last[:20]) + 1) if last else size
        if last and int(last[:20]) < begin:
            return None
    if begin >= size or begin >= end:
        raise RangeNotSatisfiable(
            f"The file has {size} bytes.", hint="Ask for a part that is there.", size=size
        )
    return begin, end
