"""A copy of a project to build from: what an engine reads must not change meanwhile, and no link in
it is followed, neither by us nor out of its sandbox."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from carrel.domain.errors import EnvironmentRefused, ProjectNotAFolder, ProjectNotFound
from carrel.linux.descriptors import Descriptor

MOST_BYTES = 16 << 30
MOST_FILES = 500_000
"""More is no project that a person sends to an engine."""
MOST_DEPTH = 200
ASK_S = 0.2
_PIECE = 8 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def stage_project(project: Path, target: Path, check: Callable[[], None]) -> None:
    """Copies files, folders and links; what is neither is left out, and what vanishes meanwhile.
    `check` is asked now and then, and may raise. Raises `EnvironmentRefused` when it is too much,
    `ProjectNotFound`, `ProjectNotAFolder`."""
    try:
        source = os.open(project, _FOLDER & ~os.O_NOFOLLOW)
    except FileNotFoundError:
        raise ProjectNotFound(f"{project} does not exist.", hint="Check the path.") from None
    except NotADirectoryError:
        raise ProjectNotAFolder(f"{project} is not a folder.", hint="Name its folder.") from None
    except OSError as error:
        raise EnvironmentRefused(f"{project} cannot be read: {error.strerror}.") from None
    target.mkdir(mode=0o755)
    with Descriptor(source) as source, Descriptor(os.open(target, _FOLDER)) as into:
        _Staging(check).folder(source, into, 0)


def staged_mode(mode: int) -> int:
    """What a copy has of a file's or folder's mode: it can be read whatever that is."""
    return mode & 0o777 | (0o700 if stat.S_ISDIR(mode) else 0o400)


class _Staging:
    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._asked = 0.0
        self._bytes = self._files = 0

    def folder(self, source: int, into: int, depth: int) -> None:
        if depth > MOST_DEPTH:
            raise EnvironmentRefused("The project's folders are nested too deeply.")
        for name in os.listdir(source):
            self._count()
            try:
                self._entry(source, into, name, depth)
            except FileNotFoundError:
                continue

    def _entry(self, source: int, into: int, name: str, depth: int) -> None:
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=into)
        elif stat.S_ISDIR(status.st_mode):
            with Descriptor(_opened(name, _FOLDER, source)) as inner:
                os.mkdir(name, 0o700, dir_fd=into)
                with Descriptor(os.open(name, _FOLDER, dir_fd=into)) as below:
                    self.folder(inner, below, depth + 1)
                    os.fchmod(below, staged_mode(status.st_mode))
        elif stat.S_ISREG(status.st_mode):
            with Descriptor(_opened(name, _FILE, source)) as reading:
                self._file(reading, into, name)

    def _file(self, reading: int, into: int, name: str) -> None:
        status = os.fstat(reading)
        if not stat.S_ISREG(status.st_mode):
            return
        with Descriptor(os.open(name, _NEW, 0o600, dir_fd=into)) as writing:
            left = status.st_size
            while left > 0:
                copied = _copy(reading, writing, min(left, _PIECE))
                if not copied:
                    break
                left -= copied
                self._count(copied)
            os.fchmod(writing, staged_mode(status.st_mode))
            os.utime(writing, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _count(self, size: int = 0) -> None:
        self._files += not size
        self._bytes += size
        if self._bytes > MOST_BYTES or self._files > MOST_FILES:
            raise EnvironmentRefused(
                f"The project has more than {MOST_BYTES >> 30} GiB or {MOST_FILES:,} files.",
                hint="Build the image with an engine yourself, and name it with --image.",
            )
        if time.monotonic() - self._asked > ASK_S:
            self._asked = time.monotonic()
            self._check()


def _opened(name: str, flags: int, folder: int) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise EnvironmentRefused(
            f"{name!r} of the project cannot be read: {error.strerror}.",
            hint="Check its permissions.",
        ) from None


def _copy(reading: int, writing: int, size: int) -> int:
    """Shares the blocks where the file system can."""
    try:
        return os.copy_file_range(reading, writing, size)
    except OSError:
        piece = os.read(reading, min(size, 1 << 20))
        os.write(writing, piece)
        return len(piece)
