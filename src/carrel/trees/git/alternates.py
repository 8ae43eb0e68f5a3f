"""Object stores that borrow from others, and what must come along to stand alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from carrel.trees.git.layout import names, read_small

_FAN_OUT = re.compile(rb"[0-9a-f]{2}")
_LOOSE = re.compile(rb"[0-9a-f]{38}(?:[0-9a-f]{24})?")
# Without bitmaps and indexes over many packs: there can be one of each, and a store has
# its own. They only speed things up.
_PACK = re.compile(rb"pack-[0-9a-f]+\.(?:pack|idx|rev|keep|promisor|mtimes)")


def lenders(objects: bytes) -> tuple[list[bytes], list[bytes]]:
    """The object folders that `objects` borrows from, all the way, and those missing."""
    found: list[bytes] = []
    missing: list[bytes] = []
    seen = {os.path.realpath(objects)}
    pending = list(_listed(objects))
    while pending:
        folder = os.path.realpath(pending.pop(0))
        if folder in seen:
            continue
        seen.add(folder)
        if os.path.isdir(folder):
            found.append(folder)
            pending.extend(_listed(folder))
        else:
            missing.append(folder)
    return found, missing


def object_files(objects: bytes) -> Iterator[bytes]:
    """Every object and pack of a store, relative to it."""
    for folder in names(objects):
        if _FAN_OUT.fullmatch(folder):
            for name in names(os.path.join(objects, folder)):
                if _LOOSE.fullmatch(name):
                    yield os.path.join(folder, name)
    for name in names(os.path.join(objects, b"pack")):
        if _PACK.fullmatch(name):
            yield os.path.join(b"pack", name)


def _listed(objects: bytes) -> Iterator[bytes]:
    content = read_small(os.path.join(objects, b"info", b"alternates")) or b""
    for line in content.split(b"\n"):
        line = _unquoted(line.rstrip(b"\r"))
        if line and not line.startswith(b"#") and b"\0" not in line:
            yield os.path.normpath(os.path.join(objects, line))


def _unquoted(line: bytes) -> bytes:
    """Odd names stand in double quotes, with C's escapes."""
    if not (len(line) > 1 and line.startswith(b'"') and line.endswith(b'"')):
        return line
    simple = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f", b"a": b"\a"}

    def plain(found: re.Match[bytes]) -> bytes:
        code = found[1]
        return bytes([int(code, 8) & 255]) if code.isdigit() else simple.get(code, code)

    return re.sub(rb"\\([0-7]{3}|.)", plain, line[1:-1])
