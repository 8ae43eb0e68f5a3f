"""Paths that callers give, and what the kernel says of them, in coded errors."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

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
        kind, text = _KINDS.get(error.errno or 0, (TreeError, "{}: " + str(error.strerror)))
        raise kind(text.format(repr(path))) from error
