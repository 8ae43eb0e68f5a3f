"""Local files as a tar.zst for a space, made while it is sent."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable, Iterator

import zstandard

CHUNK = 1 << 18
LEVEL = 3
"""Of zstd: as fast as the disk, and most of what can be saved."""
BLOCK = tarfile.BLOCKSIZE
_SECOND = 1_000_000_000

OnSkip = Callable[[str, str], None]
"""Gets the path of what is left out, and why."""


def pack(source: str, name: str, on_skip: OnSkip) -> Iterator[bytes]:
    """A file, folder or symlink under `name`; for an empty one what is in the folder. What
    is neither, and symlinks that lead out of it, are left out."""
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    chunker = compressor.chunker(chunk_size=CHUNK)
    for piece in _entries(source, name, on_skip):
        yield from chunker.compress(piece)
    yield from chunker.compress(bytes(2 * BLOCK))
    yield from chunker.finish()  # type: ignore[no-untyped-call]


def _entries(source: str, name: str, on_skip: OnSkip) -> Iterator[bytes]:
    waiting = [(source, name)]
    while waiting:
        path, inner = waiting.pop()
        status = os.lstat(path)
        if stat.S_ISDIR(status.st_mode):
            if inner:
                yield _header(inner, status, tarfile.DIRTYPE)
            below = sorted(os.listdir(path), reverse=True)
            prefix = f"{inner}/" if inner else ""
            waiting += [(os.path.join(path, entry), prefix + entry) for entry in below]
        elif stat.S_ISREG(status.st_mode):
            yield from _file(path, inner)
        elif not stat.S_ISLNK(status.st_mode):
            on_skip(path, "neither a file nor a folder")
        elif leads_out(inner, target := os.readlink(path)):
            on_skip(path, f"a symlink to {target}, which leads out")
        else:
            yield _header(inner, status, tarfile.SYMTYPE, target=target)


def _file(source: str, name: str) -> Iterator[bytes]:
    """As long as it was when it was opened, whatever happens to it meanwhile."""
    with open(source, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        left = status.st_size
        yield _header(name, status, tarfile.REGTYPE, size=left)
        while left:
            piece = file.read(min(CHUNK, left)) or bytes(min(CHUNK, left))
            left -= len(piece)
            yield piece
        if over := status.st_size % BLOCK:
            yield bytes(BLOCK - over)


def _header(
    name: str, status: os.stat_result, kind: bytes, *, size: int = 0, target: str = ""
) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, target
    info.mode = stat.S_IMODE(status.st_mode) & 0o777
    info.mtime = status.st_mtime_ns // _SECOND
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def leads_out(name: str, target: str) -> bool:
    """Whether a symlink goes anywhere but within what is packed. It may go up at its
    beginning only: behind another symlink, nobody knows where `..` is."""
    parts = [part for part in target.split("/") if part not in ("", ".")]
    above = 0
    while above < len(parts) and parts[above] == "..":
        above += 1
    depth = len([part for part in name.split("/") if part]) - 1
    return not target or target.startswith("/") or above > depth or ".." in parts[above:]
