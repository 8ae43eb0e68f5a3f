"""Mounts, through the calls of Linux 5.2 and later, with the older ones where those fall short.

Paths are given to overlayfs as `/proc/self/fd/N`: no path is then too long for an option,
nor has a comma, a colon or a backslash that it would misread.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import stat
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from carrel.linux.libc import AT_EMPTY_PATH, AT_FDCWD, call, syscall

MS_NOSUID = 2
MS_NODEV = 4
MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8

_OPEN_TREE_CLONE = 1
_AT_RECURSIVE = 0x8000
_MOVE_MOUNT_F_EMPTY_PATH = 4
_FSOPEN_CLOEXEC = 1
_FSMOUNT_CLOEXEC = 1
_FSCONFIG_SET_FLAG = 0
_FSCONFIG_SET_STRING = 1
_FSCONFIG_CMD_CREATE = 6
_MOUNT_ATTR_RDONLY = 1
_MOUNT_ATTR_NOSUID = 2
_MOUNT_ATTR_NODEV = 4
_MOUNT_ATTR_IDMAP = 0x00100000
_MS_PRIVATE = 1 << 18
_LAYER_BY_LAYER = (6, 5)
"""The first Linux that takes lower layers one at a time; before, all in one option."""
_PATH = os.O_PATH | os.O_CLOEXEC


class Overlay(NamedTuple):
    """Descriptors of the layers, the uppermost lower one first, and options such as
    `("metacopy", "on")` or `("userxattr", "")`. `source` is what mount tables show."""

    lowers: tuple[int, ...]
    upper: int
    work: int
    options: tuple[tuple[str, str], ...] = ()
    source: str = "carrel"


def mount_overlay(overlay: Overlay, target: str) -> None:
    """Mounts it without set-user-id programs and devices. Raises OSError with the kernel's
    own reason where it gives one."""
    if kernel_version() >= _LAYER_BY_LAYER:
        mount = _overlay_by_layer(overlay)
        try:
            attach(mount, target)
        finally:
            os.close(mount)
    else:
        mount_overlay_at_once(overlay, target)


def mount_overlay_at_once(overlay: Overlay, target: str) -> None:
    """The one call that every kernel has; its options must fit one page."""
    options = [
        "lowerdir=" + ":".join(map(descriptor_path, overlay.lowers)),
        "upperdir=" + descriptor_path(overlay.upper),
        "workdir=" + descriptor_path(overlay.work),
    ]
    options += [f"{key}={value}" if value else key for key, value in overlay.options]
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV)
    data = ",".join(options).encode()
    call("mount", overlay.source.encode(), os.fsencode(target), b"overlay", flags, data)


def _overlay_by_layer(overlay: Overlay) -> int:
    context = syscall("fsopen", b"overlay", _FSOPEN_CLOEXEC)
    try:
        _set(context, "source", overlay.source)
        for lower in overlay.lowers:
            _set(context, "lowerdir+", descriptor_path(lower))
        _set(context, "upperdir", descriptor_path(overlay.upper))
        _set(context, "workdir", descriptor_path(overlay.work))
        for key, value in overlay.options:
            _set(context, key, value)
        syscall("fsconfig", context, _FSCONFIG_CMD_CREATE, None, None, 0)
        attributes = _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV
        return syscall("fsmount", context, _FSMOUNT_CLOEXEC, attributes)
    except OSError as error:
        reason = "; ".join(_complaints(context))
        if reason:
            raise OSError(error.errno, f"{error.strerror} ({reason})") from None
        raise
    finally:
        os.close(context)


def _set(context: int, key: str, value: str) -> None:
    kind = _FSCONFIG_SET_STRING if value else _FSCONFIG_SET_FLAG
    syscall("fsconfig", context, kind, key.encode(), value.encode() if value else None, 0)


def _complaints(context: int) -> Iterator[str]:
    """What the kernel had to say, one sentence a read."""
    while True:
        try:
            line = os.read(context, 1024)
        except OSError:
            return
        yield line.decode(errors="replace").strip().removeprefix("e ")


def descriptor_path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def clone_mount(path: str | int, *, read_only: bool = False, recursive: bool = False) -> int:
    """A detached copy of the mount that `path` (or a descriptor) is in, with `path` as its
    root. It goes away with the descriptor, and what is mounted below it shows nowhere else: where
    systemd runs, a copy would be the other side of the host's own mount. `read_only`: nobody
    writes through it. `recursive`: with what is mounted below it now."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    if isinstance(path, int):
        clone = syscall("open_tree", path, b"", flags | AT_EMPTY_PATH)
    else:
        clone = syscall("open_tree", AT_FDCWD, os.fsencode(path), flags)
    try:
        wanted = _MOUNT_ATTR_RDONLY if read_only else 0
        _set_attributes(clone, wanted, propagation=_MS_PRIVATE)
    except OSError:
        os.close(clone)
        raise
    return clone


def map_ids(mount: int, user_namespace: int) -> None:
    """Shows the ids of a detached mount as the user namespace maps them."""
    _set_attributes(mount, _MOUNT_ATTR_IDMAP, user_namespace=user_namespace)


def distrust(mount: int) -> None:
    """A detached mount's set-user-id programs and devices are plain files."""
    _set_attributes(mount, _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV)


def _set_attributes(
    mount: int, wanted: int = 0, *, propagation: int = 0, user_namespace: int = 0
) -> None:
    """`struct mount_attr`: what is set, what is cleared, propagation, user namespace."""
    attributes = struct.pack("=QQQQ", wanted, 0, propagation, user_namespace)
    syscall("mount_setattr", mount, b"", AT_EMPTY_PATH, attributes, len(attributes))


def attach(mount: int, target: str) -> None:
    """Puts a detached mount on a folder."""
    flags = _MOVE_MOUNT_F_EMPTY_PATH
    syscall("move_mount", mount, b"", AT_FDCWD, os.fsencode(target), flags)


def unmount(target: str, flags: int = 0) -> None:
    call("umount2", os.fsencode(target), flags | UMOUNT_NOFOLLOW)


def detach_all(target: str) -> bool:
    """Takes off whatever is mounted on `target`, also what is in use; says whether there
    was anything."""
    found = False
    while True:
        try:
            unmount(target, MNT_DETACH)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return found
            raise
        found = True


def mount_points() -> list[str]:
    """Of this namespace, in the order of the mount table."""
    with open("/proc/self/mountinfo", "rb") as file:
        escaped = [line.split()[4] for line in file]
    return [os.fsdecode(name.decode("unicode_escape").encode("latin-1")) for name in escaped]


def is_mounted(folder: str | os.PathLike[str]) -> bool:
    """Whether a file system of its own is mounted on the folder. Looks at two folders only,
    however many mounts there are, so it cannot see a folder bound onto its own disk."""
    with contextlib.suppress(FileNotFoundError):
        here, above = os.lstat(folder), os.lstat(os.path.dirname(os.fspath(folder)))
        return here.st_dev != above.st_dev
    return False


def open_layers(paths: Sequence[str | os.PathLike[str]]) -> list[int]:
    """Descriptors for `Overlay`; none stays open when one fails."""
    opened: list[int] = []
    try:
        opened.extend(os.open(path, _PATH | os.O_DIRECTORY) for path in paths)
    except OSError:
        close_all(opened)
        raise
    return opened


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def kernel_version() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


# Places to mount at

_FOLDER = _PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LONGEST_NAME = 255


def make_mount_point(above: str, path: str, *, folder: bool, uid: int, gid: int) -> None:
    """Makes a folder, or an empty file, at a path below a folder that others may write, and no link
    on the way leads elsewhere: what is in its place is put aside, under a name that is free. The
    owner gets back its permissions for the folders on the way. Raises OSError. Nobody may write
    there meanwhile, nor until something is mounted."""
    parts = path.split("/")
    here = os.open(above, _FOLDER)
    try:
        _allow(here)
        for part in parts if folder else parts[:-1]:
            below = _enter(here, part, uid, gid)
            os.close(here)
            here = below
            _allow(here)
        if not folder:
            _make_file(here, parts[-1], uid, gid)
    finally:
        os.close(here)


def make_link(above: str, path: str, target: str, *, uid: int, gid: int) -> None:
    """As `make_mount_point`, a symlink; one that is there already stays."""
    *way, name = path.split("/")
    here = os.open(above, _FOLDER)
    try:
        for part in way:
            _allow(here)
            below = _enter(here, part, uid, gid)
            os.close(here)
            here = below
        _allow(here)
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=here, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode) and os.readlink(name, dir_fd=here) == target:
                return
            _put_aside(here, name)
        os.symlink(target, name, dir_fd=here)
        _give(here, name, uid, gid)
    finally:
        os.close(here)


def _enter(above: int, name: str, uid: int, gid: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
            _put_aside(above, name)
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=above)
        _give(above, name, uid, gid)
    return os.open(name, _FOLDER, dir_fd=above)


def _make_file(above: int, name: str, uid: int, gid: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISREG(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
            return
        _put_aside(above, name)
    os.close(os.open(name, _NEW_FILE, 0o644, dir_fd=above))
    _give(above, name, uid, gid)


def _put_aside(above: int, name: str) -> None:
    """The new name cannot be foreseen, so whoever wrote here has nothing there that a rename would
    replace or be refused for."""
    ending = f".aside-{os.urandom(8).hex()}"
    short = os.fsdecode(os.fsencode(name)[: _LONGEST_NAME - len(ending)])
    os.rename(name, short + ending, src_dir_fd=above, dst_dir_fd=above)


def _allow(folder: int) -> None:
    mode = stat.S_IMODE(os.fstat(folder).st_mode)
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        os.chmod(descriptor_path(folder), mode | stat.S_IRWXU)


def _give(above: int, name: str, uid: int, gid: int) -> None:
    if (uid, gid) != (os.geteuid(), os.getegid()):
        os.chown(name, uid, gid, dir_fd=above, follow_symlinks=False)
