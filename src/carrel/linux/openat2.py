"""Opening a path that is not allowed to leave a folder.

By openat2 where the kernel has it, else by walking: every component is opened with
O_NOFOLLOW and symlinks are resolved here. Neither leaves a moment between looking at a
path and using it, since what is used is the descriptor.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat

from carrel.linux.libc import AT_FDCWD, syscall

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08

_RACES = 32
"""openat2 gives up when a rename raced with a `..`; so often it is asked again."""
_MAX_LINKS = 40
"""As the kernel: more symlinks on the way are a loop."""
_MAX_STEPS = 4096
"""A path of the longest kind has half as many components; `..` walks some again."""
_PATH = os.O_PATH | os.O_CLOEXEC
_FOLDER = _PATH | os.O_DIRECTORY | os.O_NOFOLLOW


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def openat2(dir_fd: int, path: bytes, flags: int, *, mode: int = 0, resolve: int = 0) -> int:
    """The system call; the descriptor is not inherited."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    return syscall("openat2", dir_fd, path, ctypes.byref(how), ctypes.sizeof(how))


@functools.cache
def openat2_works() -> bool:
    """False on kernels before 5.6 and under filters that forbid it."""
    try:
        os.close(openat2(AT_FDCWD, b"/", os.O_PATH))
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return False
        raise
    return True


def open_beneath(root_fd: int, path: bytes, *, follow: bool = True) -> int:
    """An O_PATH descriptor of `path` below `root_fd`; `follow` is for a last component that
    is a symlink. Raises OSError: EXDEV for what would lead out."""
    if openat2_works():
        flags = os.O_PATH if follow else os.O_PATH | os.O_NOFOLLOW
        for _ in range(_RACES):
            try:
                resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS
                return openat2(root_fd, path, flags, resolve=resolve)
            except OSError as error:
                if error.errno != errno.EAGAIN:
                    raise
    return walk_beneath(root_fd, path, follow=follow)


def open_real(path: bytes | os.PathLike[str], flags: int = os.O_PATH | os.O_DIRECTORY) -> int:
    """Opens the real path of something: a symlink on the way was put there since, to lead
    elsewhere. Raises OSError: ELOOP (or ENOTDIR) for one."""
    raw = os.fsencode(path)
    if openat2_works():
        return openat2(AT_FDCWD, raw, flags, resolve=RESOLVE_NO_SYMLINKS)
    *folders, name = [part for part in raw.split(b"/") if part] or [b"."]
    here = os.open(b"/", _FOLDER)
    for part in folders:
        try:
            below = os.open(part, _FOLDER, dir_fd=here)
        finally:
            os.close(here)
        here = below
    try:
        found = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    finally:
        os.close(here)
    if stat.S_ISLNK(os.fstat(found).st_mode):
        os.close(found)
        raise _error(errno.ELOOP, raw)
    return found


def walk_beneath(root_fd: int, path: bytes, *, follow: bool = True) -> int:
    """As `open_beneath`, on every kernel."""
    return _Walk(root_fd, path, follow).run()


class _Walk:
    """One resolution. Only the folder it stands in is open; `..` starts again from the
    root with the names that led here, which hold no symlinks."""

    def __init__(self, root_fd: int, path: bytes, follow: bool) -> None:
        self._root = root_fd
        self._follow = follow
        self._todo: list[bytes] = []
        self._here: list[bytes] = []
        self._links = 0
        self._steps = 0
        self._push(path)
        self._fd = os.open(b".", _FOLDER, dir_fd=root_fd)

    def run(self) -> int:
        try:
            while self._todo:
                self._step(self._todo.pop())
        except BaseException:
            os.close(self._fd)
            raise
        return self._fd

    def _push(self, path: bytes) -> None:
        if path.startswith(b"/"):
            raise _error(errno.EXDEV, path)
        parts = [part for part in path.split(b"/") if part not in (b"", b".")]
        if path.endswith((b"/", b"/.")):
            parts.append(b".")  # asks for a folder
        self._todo.extend(reversed(parts))

    def _step(self, name: bytes) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise _error(errno.ELOOP, name)
        if name == b"..":
            self._up()
            return
        # "." is only left at an end that must be a folder.
        flags = _FOLDER if name == b"." else _PATH | os.O_NOFOLLOW
        found = os.open(name, flags, dir_fd=self._fd)
        if stat.S_ISLNK(os.fstat(found).st_mode) and (self._todo or self._follow):
            try:
                target = os.readlink(b"", dir_fd=found)
            finally:
                os.close(found)
            self._links += 1
            if self._links > _MAX_LINKS:
                raise _error(errno.ELOOP, name)
            self._push(target)
            return
        self._stand_in(found)
        self._here.append(name)

    def _up(self) -> None:
        if not stat.S_ISDIR(os.fstat(self._fd).st_mode):
            raise _error(errno.ENOTDIR, b"..")
        while self._here and self._here[-1] == b".":
            self._here.pop()
        if not self._here:
            raise _error(errno.EXDEV, b"..")
        self._here.pop()
        self._stand_in(os.open(b".", _FOLDER, dir_fd=self._root))
        for name in self._here:
            self._steps += 1
            self._stand_in(os.open(name, _FOLDER, dir_fd=self._fd))

    def _stand_in(self, fd: int) -> None:
        os.close(self._fd)
        self._fd = fd


def _error(number: int, path: bytes) -> OSError:
    return OSError(number, os.strerror(number), os.fsdecode(path))


def open_same_mount(dir_fd: int, name: bytes, flags: int) -> int:
    """Opens an entry of a folder; EXDEV when something is mounted on it."""
    flags |= os.O_NOFOLLOW
    if openat2_works():
        return openat2(dir_fd, name, flags, resolve=RESOLVE_NO_XDEV)
    fd = os.open(name, flags, dir_fd=dir_fd)
    if _mount_id(fd) != _mount_id(dir_fd):
        os.close(fd)
        raise _error(errno.EXDEV, name)
    return fd


def _mount_id(fd: int) -> str:
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("mnt_id:"):
                return line
    raise OSError(errno.ENOSYS, "the kernel names no mount ids")
