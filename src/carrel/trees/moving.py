"""Moving an entry within a tree, also where the kernel will not rename a folder.

An overlay of an ordinary user cannot rename folders of its lower layers: it answers EXDEV,
as between two disks. Files it can, so the folder is made anew and what is in it is moved.
"""

from __future__ import annotations

import errno
import os
import stat

from carrel.linux.libc import call

Entry = tuple[int, bytes]
"""An open folder, and a name in it."""

_RENAME_NOREPLACE = 1
_MAX_DEPTH = 200
"""Two descriptors are open per level."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def move_entry(old: Entry, new: Entry, *, replace: bool) -> None:
    """Raises OSError; EEXIST without `replace` when there is something."""
    try:
        _rename(old, new, replace=replace)
    except OSError as error:
        if error.errno != errno.EXDEV or not _is_folder(old):
            raise
        _move_contents(old, new, replace=replace, depth=0)


def _rename(old: Entry, new: Entry, *, replace: bool) -> None:
    if not replace:
        try:
            call("renameat2", old[0], old[1], new[0], new[1], _RENAME_NOREPLACE)
            return
        except AttributeError:
            pass  # a C library without it
        except OSError as error:
            # EINVAL: a file system that cannot. It is also for a folder moved into itself,
            # which the plain call refuses too.
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
        if _exists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    os.rename(old[1], new[1], src_dir_fd=old[0], dst_dir_fd=new[0])


def _move_contents(old: Entry, new: Entry, *, replace: bool, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    source = os.open(old[1], _FOLDER, dir_fd=old[0])
    try:
        status = os.fstat(source)
        _make_room(source, new, replace=replace)
        target = os.open(new[1], _FOLDER, dir_fd=new[0])
        try:
            for name in os.listdir(source):
                raw = os.fsencode(name)
                _move_one((source, raw), (target, raw), depth)
            _take_over(target, status)
        finally:
            os.close(target)
    finally:
        os.close(source)
    os.rmdir(old[1], dir_fd=old[0])


def _move_one(old: Entry, new: Entry, depth: int) -> None:
    try:
        os.rename(old[1], new[1], src_dir_fd=old[0], dst_dir_fd=new[0])
    except OSError as error:
        if error.errno != errno.EXDEV or not _is_folder(old):
            raise
        _move_contents(old, new, replace=False, depth=depth + 1)


def _make_room(source: int, new: Entry, *, replace: bool) -> None:
    if _is_below(new[0], source):
        raise OSError(errno.EINVAL, "a folder cannot be moved into itself")
    if replace and _exists(new):
        # As rename(2): only an empty folder gives way to a folder.
        os.rmdir(new[1], dir_fd=new[0])
    os.mkdir(new[1], 0o700, dir_fd=new[0])


def _take_over(target: int, status: os.stat_result) -> None:
    if os.geteuid() == 0:
        os.fchown(target, status.st_uid, status.st_gid)
    os.fchmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _is_below(folder: int, above: int) -> bool:
    """Whether `folder` is `above`, or in it. Going up ends at a folder that is its own parent."""
    wanted = os.fstat(above)
    fd = os.dup(folder)
    try:
        for _ in range(4096):
            here = os.fstat(fd)
            if os.path.samestat(here, wanted):
                return True
            parent = os.open(b"..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = parent
            if os.path.samestat(os.fstat(fd), here):
                return False
        return True
    finally:
        os.close(fd)


def _is_folder(entry: Entry) -> bool:
    return stat.S_ISDIR(os.stat(entry[1], dir_fd=entry[0], follow_symlinks=False).st_mode)


def _exists(entry: Entry) -> bool:
    try:
        os.stat(entry[1], dir_fd=entry[0], follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
