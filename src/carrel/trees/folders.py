"""Reading beneath a folder that strangers may have filled, and may still be filling.

Nothing is followed, only regular files are opened, and only so many descriptors are open
at once, however deep the folders are.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from carrel.domain.errors import PathInvalid
from carrel.linux.descriptors import Descriptor
from carrel.linux.files import get_xattr
from carrel.trees.paths import FOLDER, LONGEST, open_folder

_MAX_OPEN = 16
"""Per root; a base has several. What is closed is opened again from the root."""
ENTRY_ERRORS = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EIO, errno.ESTALE}
)
"""What says something of one entry, and nothing of us."""
_SHOWN = 60
"""Letters of a name in an error."""
_ENTER = stat.S_IRUSR | stat.S_IXUSR
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


DEEPEST = 2000
"""Levels of folders: whoever walks them holds the path of each, which takes the square of that.
A project has 1000 at most (`bases/scan.py`), and a space can add to it."""


MOST_ENTRIES = 250_000
"""Of one folder: whoever looks at it holds a kilobyte of each."""


class HeldPaths:
    """Counts the long ones among paths of which any number is held. Those of ordinary length take
    no more than the rest that is held of an entry; for the others there is this much. A letter can
    take four bytes."""

    MOST = 64 << 20
    ORDINARY = 500

    def __init__(self) -> None:
        self._left = self.MOST

    def add(self, path: str) -> None:
        """Raises `PathInvalid` when it is too much."""
        self._left -= max(0, sys.getsizeof(path) - self.ORDINARY)
        if self._left < 0:
            raise too_long(path)


def too_long(path: str) -> PathInvalid:
    top, _, rest = path.partition("/")
    return PathInvalid(
        f"Folders are nested too deep, or too many files in deep ones, to be looked at: "
        f"{top[:_SHOWN]!r} and {rest.count('/') + 1} levels below it.",
        hint=f"Remove {top[:_SHOWN]!r} in the space, or what is deep in it.",
    )


def too_many(path: str) -> PathInvalid:
    return PathInvalid(
        f"There are more than {MOST_ENTRIES:,} entries in the folder {path[:_SHOWN]!r}: too many to"
        " be looked at.",
        hint="Remove some of them in the space.",
    )


class FolderCache(ABC):
    """Descriptors of folders below a root, of which only so many are open at once. Paths are
    relative, and "" is the root itself."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()

    @abstractmethod
    def _open_folder(self, path: str) -> int: ...

    def folder(self, path: str) -> int:
        """A descriptor to read the folder with; not the caller's, for immediate use."""
        found = self._open.get(path)
        if found is not None:
            self._open.move_to_end(path)
            return found
        if len(path) > LONGEST or path.count("/") >= DEEPEST:
            raise too_long(path)
        opened = self._open_folder(path)
        self.keep_folder(path, opened)
        return opened

    def keep_folder(self, path: str, opened: int) -> None:
        """Takes over the descriptor of a folder that is not kept yet."""
        self._open[path] = opened
        if len(self._open) > _MAX_OPEN:
            os.close(self._open.popitem(last=False)[1])

    def close_folders(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()


class Root(FolderCache):
    """A real folder. Paths below it are relative, and "" is the folder itself.

    What goes away while it is read is as if it had never been there.
    """

    def __init__(self, descriptor: int, *, loosens: bool = True) -> None:
        """Takes over the descriptor, which is one of a folder. Without `loosens`, folders that
        their mode keeps us out of raise PermissionError, and nothing of any is changed."""
        super().__init__()
        self._loosens = loosens
        self._top = descriptor
        self._loosened: list[tuple[str, int]] = []
        self._held = HeldPaths()

    @classmethod
    def at(cls, path: Path, *, loosens: bool = True) -> Root:
        opened = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return cls(opened, loosens=loosens)

    def close(self) -> None:
        self._tighten()
        self.close_folders()
        os.close(self._top)

    def __enter__(self) -> Root:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def list(self, path: str) -> dict[str, os.stat_result]:
        """The entries of a folder; empty when it is none any more. Raises `PathInvalid` when they
        are too many."""
        try:
            folder = self.folder(path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        found = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found[entry.name] = entry.stat(follow_symlinks=False)
                if len(found) > MOST_ENTRIES:
                    raise too_many(path)
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
        status = self.status(path)
        if status is None or not stat.S_ISREG(status.st_mode):
            raise _gone(path)
        return self.open_regular(path)[0]

    def open_regular(self, path: str) -> tuple[int, os.stat_result]:
        """As `open_file`, of what was a regular file a moment ago: what is opened is looked at
        again, and nothing else is ever read."""
        above, name = split(path)
        try:
            descriptor = _open_file(name, self.folder(above))
        except OSError as error:
            # It was another thing than a file by now: a symlink, a socket; or the folder was.
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENOTDIR):
                raise _gone(path) from None
            raise
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise _gone(path)
        return descriptor, status

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
        except OSError as error:
            if error.errno == errno.ELOOP:
                # A symlink is no folder, neither at the end of a path nor on the way.
                raise NotADirectoryError(errno.ENOTDIR, "not a folder", path) from None
            raise
        ours = 0 != os.geteuid() == os.fstat(opened).st_uid
        # Asked of the kernel: an overlay goes by the mode that it knew, and tells the one that the
        # folder has below, where another root may have let us in meanwhile.
        if ours and not os.access(".", os.X_OK, dir_fd=opened):
            self._loosen(path)
        return opened

    def _open_as_it_is(self, path: str) -> int:
        above, name = split(path)
        if not path:
            return os.open(".", FOLDER, dir_fd=self._top)
        if above in self._open and name != "..":
            return os.open(name, FOLDER, dir_fd=self._open[above])
        return open_folder(self._top, os.fsencode(path))

    def _loosen(self, path: str) -> None:
        """Lets us into a folder of our own that its mode keeps us out of, until `close`."""
        with Descriptor(self._place(path)) as place:
            status = os.fstat(place)
            if status.st_uid != os.geteuid() or not self._loosens:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            self._held.add(path)
            mode = stat.S_IMODE(status.st_mode)
            os.chmod(f"/proc/self/fd/{place}", mode | _ENTER)
            if mode & _ENTER != _ENTER:
                self._loosened.append((path, mode))

    def _tighten(self) -> None:
        """From the inside out, since an outer one is the way to the inner ones."""
        for path, mode in reversed(self._loosened):
            with contextlib.suppress(OSError), Descriptor(self._place(path)) as place:
                os.chmod(f"/proc/self/fd/{place}", mode)
        self._loosened.clear()

    def _place(self, path: str) -> int:
        if not path:
            # Not by `.`, which is looked up in the folder itself: its mode may forbid that.
            return os.dup(self._top)
        above, name = split(path)
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, dir_fd=self.folder(above))


class FoundEntry(NamedTuple):
    """One entry."""

    path: str
    status: os.stat_result


def walk(
    root: Root, enters: Callable[[FoundEntry], bool] = lambda _folder: True
) -> Iterator[FoundEntry]:
    """Every entry below, sorted by path. `enters` says whether to look into a folder."""
    stack = [("", _listed(root, ""))]
    while stack:
        above, entries = stack[-1]
        while entries:
            name, status = entries.pop()
            found = FoundEntry(join(above, name.removesuffix("/")), status)
            if name[-1] != "/":
                yield found
            elif enters(found):
                stack.append((found.path, _listed(root, found.path)))
                break
        else:
            stack.pop()


def _listed(root: Root, path: str) -> list[tuple[str, os.stat_result]]:
    """The names in a folder, the last one first. What is in a folder sorts by the slash, so
    a folder comes twice: as itself, and once more, with the slash, for what is in it."""
    found = list(root.list(path).items())
    found += [(f"{name}/", status) for name, status in found if stat.S_ISDIR(status.st_mode)]
    found.sort(key=itemgetter(0), reverse=True)
    return found


def split(path: str) -> tuple[str, str]:
    """Raises `PathInvalid` for a path that leads up: where a folder is open already, the kernel
    would follow it out of the tree."""
    above, _, name = path.rpartition("/")
    if name == "..":
        raise PathInvalid("The path leads out of its folder.", hint="Use a path without `..`.")
    return above, name


def join(above: str, name: str) -> str:
    return f"{above}/{name}" if above else name


def _open_file(name: str, dir_fd: int) -> int:
    """Opens also what its owner, when that is us, took the permission to read from."""
    try:
        return os.open(name, _FILE, dir_fd=dir_fd)
    except PermissionError:
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        with Descriptor(os.open(name, flags, dir_fd=dir_fd)) as place:
            status = os.fstat(place)
            if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name) from None
            return open_own(place)


def open_own(place: int) -> int:
    """Opens a file to read of which there is an O_PATH descriptor. When its mode forbids that, it
    is changed for the moment, which only the owner and root may do."""
    path = f"/proc/self/fd/{place}"
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except PermissionError:
        mode = stat.S_IMODE(os.fstat(place).st_mode)
        os.chmod(path, mode | stat.S_IRUSR)
        try:
            return os.open(path, flags)
        finally:
            os.chmod(path, mode)


def _gone(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "not a regular file", path)
