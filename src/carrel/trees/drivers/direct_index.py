"""What a folder held at one moment, and how it differs from that now.

The folder is somebody's own, so there is no copy to compare it with. What the kernel alone
writes (the ctime) says of most files that nobody touched them; of those that were, a digest
says whether their bytes are others. Both lists are in the order of their paths, and are read
side by side: neither is ever in memory as a whole.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from carrel.domain.errors import TreeDamaged
from carrel.domain.trees import Change, ChangeKind
from carrel.linux.openat2 import open_same_mount
from carrel.trees.contents import digest
from carrel.trees.files import entry_type
from carrel.trees.folders import Root, join

DIGEST_FILE_BYTES = 4 << 20
"""Larger files go by size and ctime: reading them takes longer than most requests."""
DIGEST_BYTES = 512 << 20
"""Of all files together: about a second."""
_GIT = ".git"
_LENGTH = struct.Struct("<I")
_PLACE = os.O_PATH | os.O_DIRECTORY
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EIO, errno.ESTALE)
"""What says something of one entry, and nothing of us."""


class Noted(msgspec.Struct, array_like=True, frozen=True):
    """One entry. `size` of a device is its number. Without a `digest` only times tell."""

    path: bytes
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Found:
    path: str
    status: os.stat_result


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Noted)


def walk(root: Root) -> Iterator[Found]:
    """Every entry below, sorted by path. What is mounted in there is not part of it."""
    top = root.status("")
    device = top.st_dev if top is not None else 0
    stack = [_listed(root, "")]
    while stack:
        found = next(stack[-1], None)
        if found is None:
            stack.pop()
        elif not found.path.endswith("/"):
            yield found
        elif found.status.st_dev == device or _same_mount(root, found.path[:-1]):
            stack.append(_listed(root, found.path[:-1]))


def _listed(root: Root, path: str) -> Iterator[Found]:
    """What is in a folder sorts by the slash, so a folder comes twice: once as itself, and
    once, with the slash, for what is in it."""
    found = []
    with contextlib.suppress(PermissionError):
        for name, status in root.list(path).items():
            below = join(path, name)
            found.append(Found(below, status))
            if stat.S_ISDIR(status.st_mode):
                found.append(Found(below + "/", status))
    return iter(sorted(found, key=lambda one: one.path))


def _same_mount(root: Root, path: str) -> bool:
    """Another device on the same mount is a subvolume of btrfs."""
    above, _, name = path.rpartition("/")
    try:
        os.close(open_same_mount(root.folder(above), os.fsencode(name), _PLACE))
    except OSError as error:
        if error.errno == errno.EXDEV or error.errno in _GONE:
            return False
        raise
    return True


def write_index(root: Root, target: Path) -> None:
    """What the folder holds now. Raises OSError."""
    left = DIGEST_BYTES
    with target.open("xb") as file:
        for found in walk(root):
            told = b""
            if _digested(found) and found.status.st_size <= left:
                told = content_digest(root, found)
                left -= found.status.st_size
            status = found.status
            raw = _encoder.encode(
                Noted(
                    os.fsencode(found.path),
                    status.st_mode,
                    _size(status),
                    status.st_mtime_ns,
                    status.st_ctime_ns,
                    status.st_ino,
                    told,
                )
            )
            file.write(_LENGTH.pack(len(raw)) + raw)


def _digested(found: Found) -> bool:
    """Git's own files never change (its objects), or all the time."""
    mode = found.status.st_mode
    if stat.S_ISLNK(mode):
        return True
    small = stat.S_ISREG(mode) and found.status.st_size <= DIGEST_FILE_BYTES
    return small and _GIT not in found.path.split("/")


def content_digest(root: Root, found: Found) -> bytes:
    """Of a file's bytes or a link's target; empty when it cannot be read."""
    try:
        if stat.S_ISLNK(found.status.st_mode):
            return hashlib.sha256(root.link(found.path)).digest()
        descriptor = root.open_file(found.path)
    except OSError as error:
        if error.errno in _GONE:
            return b""
        raise
    try:
        return digest(descriptor, found.status.st_size)
    finally:
        os.close(descriptor)


def read_index(source: Path) -> Iterator[Noted]:
    """Raises `TreeDamaged`, OSError."""
    with source.open("rb") as file:
        while length := file.read(_LENGTH.size):
            yield _read(file, length)


def _read(file: BinaryIO, length: bytes) -> Noted:
    try:
        (size,) = _LENGTH.unpack(length)
        return _decoder.decode(file.read(size))
    except (struct.error, msgspec.MsgspecError) as error:
        raise TreeDamaged(
            "The list of what a folder held cannot be read.", hint="Remove the space."
        ) from error


def changes(root: Root, source: Path) -> Iterator[Change]:
    """Sorted by path. A file that was moved is a deleted and an added one."""
    before = _named(read_index(source))
    old = next(before, None)
    for found in walk(root):
        while old is not None and old[0] < found.path:
            yield _deleted(*old)
            old = next(before, None)
        if old is None or old[0] != found.path:
            yield _change(found, ChangeKind.ADDED)
            continue
        kind = _kind(root, found, old[1])
        if kind is not None:
            yield _change(found, kind, old[1])
        old = next(before, None)
    while old is not None:
        yield _deleted(*old)
        old = next(before, None)


def _named(entries: Iterator[Noted]) -> Iterator[tuple[str, Noted]]:
    return ((os.fsdecode(noted.path), noted) for noted in entries)


def _kind(root: Root, found: Found, old: Noted) -> ChangeKind | None:
    status = found.status
    if stat.S_IFMT(status.st_mode) != stat.S_IFMT(old.mode):
        return ChangeKind.TYPE
    if not _same_content(root, found, old):
        return ChangeKind.MODIFIED
    return ChangeKind.MODE if stat.S_IMODE(status.st_mode) != stat.S_IMODE(old.mode) else None


def _same_content(root: Root, found: Found, old: Noted) -> bool:
    status = found.status
    if stat.S_ISDIR(status.st_mode):
        return True
    if _size(status) != old.size:
        return False
    touched = (status.st_ctime_ns, status.st_ino) != (old.ctime_ns, old.inode)
    if not touched or not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
        return True
    return bool(old.digest) and content_digest(root, found) == old.digest


def _size(status: os.stat_result) -> int:
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        return status.st_rdev
    return status.st_size if not stat.S_ISDIR(status.st_mode) else 0


def _change(found: Found, kind: ChangeKind, old: Noted | None = None) -> Change:
    mode = found.status.st_mode
    return Change(
        path=found.path,
        kind=kind,
        old_type=None if old is None else entry_type(old.mode),
        new_type=entry_type(mode),
        old_mode=None if old is None else stat.S_IMODE(old.mode),
        new_mode=stat.S_IMODE(mode),
        size=found.status.st_size if stat.S_ISREG(mode) else 0,
    )


def _deleted(path: str, old: Noted) -> Change:
    return Change(
        path=path,
        kind=ChangeKind.DELETED,
        old_type=entry_type(old.mode),
        old_mode=stat.S_IMODE(old.mode),
        size=old.size if stat.S_ISREG(old.mode) else 0,
    )
