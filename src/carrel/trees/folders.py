"""Reading beneath a folder that strangers may have filled, and may still be filling.

Nothing is followed, only regular files are opened, and only so many descriptors are open
at once, however deep the folders are.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import OrderedDict
from pathlib import Path

from carrel.linux.xattrs import get_xattr
from carrel.trees.bases.places import open_folder

_MAX_OPEN = 16
"""Per root; a base has several. What is closed is opened again from the root."""
_ENTER = stat.S_IRUSR | stat.S_IXUSR
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Root:
    """A real folder. Paths below it are relative, and "" is the folder itself.

    What goes away while it is read is as if it had never been there.
    """

    def __init__(self, descriptor: int) -> None:
        """Takes over the descriptor, which is one of a folder."""
        self._top = descriptor
        self._loosened: list[tuple[str, int]] = []
        self._open: OrderedDict[str, int] = OrderedDict()

    @classmethod
    def at(cls, path: Path) -> Root:
        return cls(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))

    def close(self) -> None:
        self._tighten()
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        os.close(self._top)

    def __enter__(self) -> Root:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def folder(self, path: str) -> int:
        """A descriptor to read the folder with; not the caller's, for immediate use."""
        found = self._open.get(path)
        if found is not None:
            self._open.move_to_end(path)
            return found
        opened = self._open_folder(path)
        self._open[path] = opened
        if len(self._open) > _MAX_OPEN:
            os.close(self._open.popitem(last=False)[1])
        return opened

    def list(self, path: str) -> dict[str, os.stat_result]:
        """The entries of a folder; empty when it is none any more."""
        try:
            folder = self.folder(path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        found = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found[entry.name] = entry.stat(follow_symlinks=False)
        return found

    def status(self, path: str) -> os.stat_result | None:
        try:
            if not path:
                return os.fstat(self._top)
            above, name = split(path)
            return os.stat(name, dir_fd=self.folder(above), follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open_file(self, path: str) -> int:
        """A regular file to read; the caller closes it. Raises FileNotFoundError for
        anything else."""
        above, name = split(path)
        folder = self.folder(above)
        if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise _gone(path)
        try:
            descriptor = _open_file(name, folder)
        except OSError as error:
            # It was another thing than a file by now: a symlink, a socket.
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise _gone(path) from None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise _gone(path)
        return descriptor

    def link(self, path: str) -> bytes:
        """Where a symlink points; empty when it is none any more."""
        above, name = split(path)
        try:
            return os.readlink(os.fsencode(name), dir_fd=self.folder(above))
        except (FileNotFoundError, NotADirectoryError):
            return b""
        except OSError as error:
            if error.errno == errno.EINVAL:
                return b""
            raise

    def xattr(self, path: str, attribute: str) -> bytes | None:
        above, name = split(path)
        return get_xattr(self.folder(above), name or ".", attribute)

    def _open_folder(self, path: str) -> int:
        try:
            opened = self._open_as_it_is(path)
        except PermissionError:
            self._loosen(path)
            return self._open_as_it_is(path)
        status = os.fstat(opened)
        if status.st_mode & _ENTER != _ENTER and 0 != os.geteuid() == status.st_uid:
            self._loosen(path)
        return opened

    def _open_as_it_is(self, path: str) -> int:
        above, name = split(path)
        if not path:
            return os.open(".", _FOLDER, dir_fd=self._top)
        if above in self._open:
            return os.open(name, _FOLDER, dir_fd=self._open[above])
        return open_folder(self._top, os.fsencode(path))

    def _loosen(self, path: str) -> None:
        """Lets us into a folder of our own that its mode keeps us out of, until `close`."""
        place = self._place(path)
        try:
            status = os.fstat(place)
            if status.st_uid != os.geteuid():
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            mode = stat.S_IMODE(status.st_mode)
            os.chmod(f"/proc/self/fd/{place}", mode | _ENTER)
            self._loosened.append((path, mode))
        finally:
            os.close(place)

    def _tighten(self) -> None:
        """From the inside out, since an outer one is the way to the inner ones."""
        for path, mode in reversed(self._loosened):
            with contextlib.suppress(OSError):
                place = self._place(path)
                try:
                    os.chmod(f"/proc/self/fd/{place}", mode)
                finally:
                    os.close(place)
        self._loosened.clear()

    def _place(self, path: str) -> int:
        above, name = split(path)
        folder = self.folder(above) if path else self._top
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name or ".", flags, dir_fd=folder)


def split(path: str) -> tuple[str, str]:
    above, _, name = path.rpartition("/")
    return above, name


def join(above: str, name: str) -> str:
    return f"{above}/{name}" if above else name


def _open_file(name: str, dir_fd: int) -> int:
    """Opens also what its owner, when that is us, took the permission to read from."""
    try:
        return os.open(name, _FILE, dir_fd=dir_fd)
    except PermissionError:
        place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        status = os.fstat(place)
        if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        mode = stat.S_IMODE(status.st_mode)
        path = f"/proc/self/fd/{place}"
        os.chmod(path, mode | stat.S_IRUSR)
        try:
            return os.open(path, _FILE & ~os.O_NOFOLLOW)
        finally:
            os.chmod(path, mode)
    finally:
        os.close(place)


def _gone(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "not a regular file", path)
