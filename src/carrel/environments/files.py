"""The files of a project, as discovery sees them: a folder of the host, or a space's tree."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from carrel.domain.environments import Listing
from carrel.domain.errors import (
    PathDenied,
    PathError,
    PathEscapes,
    PathNotFound,
    PathWrongKind,
    ProjectNotAFolder,
    ProjectNotFound,
    ProjectUnreadable,
)
from carrel.domain.files import Files
from carrel.domain.trees import EntryType
from carrel.linux.openat2 import open_beneath

MAX_NAMES = 50_000
"""The most names of one folder that are looked at: some hundredths of a second."""
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL)
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class FolderFiles:
    """A folder of the host, beneath which everything is opened. `root_fd` stays the
    caller's."""

    def __init__(self, root_fd: int) -> None:
        self._root = root_fd

    def read(self, path: str, limit: int) -> bytes | None:
        with _errors(path), self._opened(path) as place:
            if place is None or not stat.S_ISREG(os.fstat(place).st_mode):
                return None
            # The descriptor is known to be of a regular file, so opening it cannot block.
            with open(os.open(f"/proc/self/fd/{place}", _READ), "rb") as file:
                return file.read(limit)

    def list(self, path: str) -> Listing:
        with _errors(path), self._opened(path) as place:
            if place is None or not stat.S_ISDIR(os.fstat(place).st_mode):
                return Listing()
            folder = os.open(b".", _FOLDER, dir_fd=place)
            try:
                return _list(folder)
            finally:
                os.close(folder)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[int | None]:
        try:
            fd = open_beneath(self._root, os.fsencode(path))
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            yield None
            return
        try:
            yield fd
        finally:
            os.close(fd)


class TreeReads:
    """A space's tree, through what gives its files to people."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def read(self, path: str, limit: int) -> bytes | None:
        try:
            with _errors(path), self._files.open_read(path) as file:
                return file.read(limit)
        except (PathNotFound, PathWrongKind):
            return None

    def list(self, path: str) -> Listing:
        try:
            entries = self._files.list(path)
        except (PathNotFound, PathWrongKind):
            return Listing()
        return Listing(
            tuple(entry.name for entry in entries if entry.type is not EntryType.FOLDER),
            tuple(entry.name for entry in entries if entry.type is EntryType.FOLDER),
        )


@contextlib.contextmanager
def open_folder(root: Path) -> Iterator[FolderFiles]:
    """Raises `ProjectNotFound`, `ProjectNotAFolder`, `ProjectUnreadable`."""
    try:
        fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, ValueError):
        raise ProjectNotFound(f"{root} does not exist.", hint="Check the path.") from None
    except NotADirectoryError:
        raise ProjectNotAFolder(f"{root} is not a folder.", hint="Name its folder.") from None
    except OSError as error:
        raise ProjectUnreadable(
            f"{root} cannot be opened: {error.strerror}.", hint="Check its permissions."
        ) from None
    try:
        yield FolderFiles(fd)
    finally:
        os.close(fd)


def _list(folder: int) -> Listing:
    files: list[str] = []
    folders: list[str] = []
    with os.scandir(folder) as entries:
        for entry in itertools.islice(entries, MAX_NAMES):
            (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
        complete = next(entries, None) is None
    return Listing(tuple(sorted(files)), tuple(sorted(folders)), complete)


@contextlib.contextmanager
def _errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise PathEscapes(f"{path!r} leads out of the project.") from None
        kind = PathDenied if error.errno in (errno.EACCES, errno.EPERM) else PathError
        raise kind(f"{path!r} cannot be read: {error.strerror}.") from None
