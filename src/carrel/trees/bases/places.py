"""Opening folders below a root: no symlink is followed, no path is too long."""

from __future__ import annotations

import errno
import os

from carrel.linux.openat2 import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, openat2, openat2_works

PATH_LIMIT = 4000
"""Longer paths are not given to the kernel whole: it takes 4095 bytes."""
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
