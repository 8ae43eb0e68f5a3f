"""Removing a folder whatever is in it.

What belongs to other ids of an ordinary user only a process can remove that has all of them.

What is removed was written by strangers: it may be nested deeper than any path can be
long, hold folders without permissions, and symlinks to anywhere. Nothing is ever
followed, no path is ever built, a mount is never entered, and only a bounded number of
descriptors is open at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from carrel.linux.descriptors import Descriptor
from carrel.linux.ids import may_give
from carrel.linux.openat2 import open_same_mount
from carrel.linux.processes import python
from carrel.linux.subids import enter, granted
from carrel.trees.paths import FOLDER

_MAX_OPEN = 64
"""Folders held open at once. What is deeper is moved up to the top first."""
_ROUNDS = 16
"""How often a folder is emptied again when something appears in it meanwhile."""


def remove_tree(path: Path) -> None:
    """Removes a file or a folder with all that is in it; nothing there is fine.

    Raises OSError: EBUSY when something is mounted in it, ENOTEMPTY when it is still
    being written to.
    """
    try:
        parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        remove_entry(parent, os.fsencode(path.name))
    finally:
        os.close(parent)


def remove_entry(dir_fd: int, name: bytes) -> None:
    """As `remove_tree`, for one entry of an open folder."""
    try:
        _remove(dir_fd, name)
    except PermissionError:
        if may_give() or granted() is None:
            raise
        _ask_for_removal(dir_fd, name)


def _remove(dir_fd: int, name: bytes) -> None:
    try:
        mode = os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        _unlink(dir_fd, name)
        return
    with contextlib.suppress(FileNotFoundError):
        _Removal().remove(dir_fd, name)


def _ask_for_removal(dir_fd: int, name: bytes) -> None:
    argv = [*python("carrel.trees.removal"), str(dir_fd), os.fsdecode(name)]
    null = subprocess.DEVNULL
    done = subprocess.run(
        argv,
        stdin=null,
        stdout=null,
        stderr=null,
        pass_fds=(dir_fd,),
        cwd="/",
        check=False,
    )
    if done.returncode:
        number = done.returncode if done.returncode in errno.errorcode else errno.EACCES
        raise OSError(number, os.strerror(number), os.fsdecode(name))


def main() -> int:
    """Removes the second argument from the folder that is open as the first."""
    try:
        enter()
        _remove(int(sys.argv[1]), os.fsencode(sys.argv[2]))
    except OSError as error:
        return error.errno or errno.EACCES
    return 0


@dataclass
class _Folder:
    fd: int
    name: bytes
    parent: int
    rounds: int = 0
    folders: list[bytes] = field(default_factory=list)


class _Removal:
    def __init__(self) -> None:
        self._stack: list[_Folder] = []
        self._moved = 0

    def remove(self, dir_fd: int, name: bytes) -> None:
        try:
            self._enter(dir_fd, name)
            while self._stack:
                self._step()
        finally:
            for folder in self._stack:
                os.close(folder.fd)

    def _step(self) -> None:
        folder = self._stack[-1]
        if not folder.folders:
            self._leave(folder)
        elif len(self._stack) < _MAX_OPEN:
            with contextlib.suppress(FileNotFoundError):
                self._enter(folder.fd, folder.folders.pop())
        else:
            self._move_up(folder, folder.folders.pop())

    def _enter(self, dir_fd: int, name: bytes) -> None:
        folder = _Folder(_open_folder(dir_fd, name), name, dir_fd)
        self._stack.append(folder)
        _empty(folder)

    def _leave(self, folder: _Folder) -> None:
        try:
            os.rmdir(folder.name, dir_fd=folder.parent)
        except FileNotFoundError:
            pass
        except OSError as error:
            # Some file systems skip entries when others are removed while reading.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or folder.rounds >= _ROUNDS:
                raise
            _empty(folder)
            return
        self._stack.pop()
        os.close(folder.fd)

    def _move_up(self, folder: _Folder, name: bytes) -> None:
        # Opening it makes it writable, which moving a folder asks for.
        os.close(_open_folder(folder.fd, name))
        top = self._stack[0]
        self._moved += 1
        moved = b".carrel-removing-%d-%d" % (os.getpid(), self._moved)
        try:
            os.rename(name, moved, src_dir_fd=folder.fd, dst_dir_fd=top.fd)
        except OSError as error:
            # A folder of an overlay's lower layer cannot be moved: then it is as deep as it is.
            if error.errno != errno.EXDEV:
                raise
            self._enter(folder.fd, name)
        else:
            top.folders.append(moved)


def _empty(folder: _Folder) -> None:
    """Unlinks all but folders, and notes those."""
    folder.rounds += 1
    with os.scandir(folder.fd) as entries:
        for entry in entries:
            name = os.fsencode(entry.name)
            if entry.is_dir(follow_symlinks=False):
                folder.folders.append(name)
            else:
                with contextlib.suppress(FileNotFoundError):
                    _unlink(folder.fd, name, folder)


def _unlink(dir_fd: int, name: bytes, folder: _Folder | None = None) -> None:
    try:
        os.unlink(name, dir_fd=dir_fd)
    except IsADirectoryError:
        if folder is None:
            raise
        folder.folders.append(name)


def _open_folder(dir_fd: int, name: bytes) -> int:
    """Opens a folder so that it can be emptied, giving its owner the permissions."""
    try:
        try:
            fd = open_same_mount(dir_fd, name, FOLDER)
        except PermissionError:
            _allow(dir_fd, name)
            fd = open_same_mount(dir_fd, name, FOLDER)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise OSError(errno.EBUSY, "something is mounted here", os.fsdecode(name)) from None
        raise
    status = os.fstat(fd)
    if status.st_mode & stat.S_IRWXU != stat.S_IRWXU and status.st_uid == os.geteuid():
        os.fchmod(fd, stat.S_IRWXU)
    return fd


def _allow(dir_fd: int, name: bytes) -> None:
    with Descriptor(open_same_mount(dir_fd, name, os.O_PATH | os.O_DIRECTORY)) as fd:
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IRWXU)


if __name__ == "__main__":
    raise SystemExit(main())
