"""Paths: checks those that callers give, turns what the kernel says of one into coded errors, and
opens folders below a root so that no symlink is followed and no path is too long.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from carrel.domain.errors import (
    CarrelError,
    InsufficientDisk,
    PathDenied,
    PathEscapes,
    PathExists,
    PathInvalid,
    PathNotFound,
    PathWrongKind,
    TreeError,
)
from carrel.linux.descriptors import Descriptor
from carrel.linux.openat2 import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, openat2, openat2_works

_MAX_NAME = 255
_MAX_PATH = 4095

_KINDS: dict[int, tuple[type[CarrelError], str]] = {
    errno.ENOENT: (PathNotFound, "{} does not exist."),
    errno.EEXIST: (PathExists, "{} exists already."),
    errno.ENOTEMPTY: (PathExists, "{} is a folder that is not empty."),
    errno.ENOTDIR: (PathWrongKind, "{} is not a folder, or leads through something that is none."),
    errno.EISDIR: (PathWrongKind, "{} is a folder."),
    errno.ELOOP: (PathWrongKind, "{} is behind too many symlinks."),
    errno.ENXIO: (PathWrongKind, "{} is not a regular file."),
    errno.EXDEV: (PathEscapes, "{} leads out of the tree."),
    errno.ENAMETOOLONG: (PathInvalid, "{} is too long."),
    errno.EINVAL: (PathInvalid, "{} is not possible."),
    errno.EACCES: (PathDenied, "{} may not be touched."),
    errno.EPERM: (PathDenied, "{} may not be touched."),
    errno.EROFS: (PathDenied, "{} is read-only."),
    errno.EBUSY: (PathDenied, "{} is in use."),
    errno.ENOSPC: (InsufficientDisk, "There is no room on the disk for {}."),
    errno.EDQUOT: (InsufficientDisk, "The disk quota leaves no room for {}."),
    errno.EFBIG: (InsufficientDisk, "{} would be too big."),
}


def check_path(path: str) -> bytes:
    """The path as the kernel takes it. Raises `PathInvalid` and `PathEscapes`."""
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        raise PathInvalid(f"{path!r} cannot be the name of a file.") from None
    if not raw:
        raise PathInvalid("The path is empty.", hint="The root of the tree is '.'.")
    if b"\0" in raw:
        raise PathInvalid(f"{path!r} has a zero byte in it.")
    if len(raw) > _MAX_PATH or any(len(part) > _MAX_NAME for part in raw.split(b"/")):
        raise PathInvalid(f"{path[:80]!r}... is too long.")
    if raw.startswith(b"/"):
        raise PathEscapes(f"{path!r} is absolute.", hint="Give it relative to the tree's root.")
    return raw


def split_path(path: str) -> tuple[str, bytes]:
    """The path of the folder, and the last component, which is a plain name."""
    raw = check_path(path).rstrip(b"/")
    above, _, name = raw.rpartition(b"/")
    if name == b"..":
        raise PathEscapes(f"{path!r} ends in '..'.", hint="Name the entry itself.")
    if name == b".":
        raise PathInvalid(f"{path!r} is a folder, not an entry of one.")
    return os.fsdecode(above) or ".", name


@contextlib.contextmanager
def path_errors(path: str) -> Iterator[None]:
    """Turns what the kernel says of `path` into errors with codes."""
    try:
        yield
    except OSError as error:
        raise path_error(path, error) from error


def path_error(path: str, error: OSError) -> CarrelError:
    """The same, where the time of a context manager for each entry would count."""
    kind, text = _KINDS.get(error.errno or 0, (TreeError, "{}: " + str(error.strerror)))
    return kind(text.format(repr(path)))


# Folders below a root

PATH_LIMIT = 4000
"""Longer paths are not given to the kernel whole: it takes 4095 bytes."""
LONGEST = 32 << 10
"""Bytes of a path below a project or a tree: programs can go as deep as they like, eight times what
they can name, and whoever walks folders holds the paths of all that it is in."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RACES = 32
"""openat2 gives up when a rename raced with it; so often it is asked again."""


def split(path: bytes) -> tuple[bytes, bytes]:
    """The folder and the name."""
    folder, _, name = path.rpartition(b"/")
    return folder, name


def join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder and name else folder or name


def is_below(path: bytes, folder: bytes) -> bool:
    """Whether `path` is `folder` or in it; the root (b"") has everything."""
    return not folder or path == folder or path.startswith(folder + b"/")


def open_folder(root_fd: int, path: bytes) -> int:
    """A folder below `root_fd`, for reading. Raises OSError: ELOOP or ENOTDIR when a
    component is a symlink."""
    if not path:
        return os.open(b".", FOLDER, dir_fd=root_fd)
    fd = -1
    for piece in _pieces(path):
        below = _open_piece(root_fd if fd < 0 else fd, piece, fd)
        fd = below
    return fd


def _open_piece(start: int, piece: bytes, done_with: int) -> int:
    try:
        return _open(start, piece)
    finally:
        if done_with >= 0:
            os.close(done_with)


def _pieces(path: bytes) -> list[bytes]:
    """The path in parts that the kernel takes."""
    if len(path) < PATH_LIMIT:
        return [path]
    pieces: list[bytes] = []
    current = b""
    for name in path.split(b"/"):
        if current and len(current) + len(name) >= PATH_LIMIT:
            pieces.append(current)
            current = name
        else:
            current = join(current, name)
    return [*pieces, current]


def _open(start: int, path: bytes) -> int:
    if not openat2_works():
        return _walk(start, path)
    for _ in range(_RACES):
        try:
            return openat2(start, path, FOLDER, resolve=RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
    return _walk(start, path)


def _walk(start: int, path: bytes) -> int:
    fd = -1
    for name in path.split(b"/"):
        if name == b"..":
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), os.fsdecode(path))
        try:
            below = os.open(name, FOLDER, dir_fd=start if fd < 0 else fd)
        finally:
            if fd >= 0:
                os.close(fd)
        fd = below
    return fd


def sync_folder(folder: Path) -> None:
    """Forces the names in a folder to disk."""
    with Descriptor(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        os.fsync(descriptor)
