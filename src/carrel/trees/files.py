"""Reading and writing in a tree from outside.

What is in a tree was put there by strangers, who may be changing it right now. A path is
therefore resolved to a descriptor beneath the tree's root, and everything is done to that
descriptor, or to one name in the folder that it is. Symlinks inside the tree are followed
on the way; what would lead out is refused.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import functools
import io
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from carrel.domain.errors import (
    InsufficientDisk,
    PathExists,
    PathInvalid,
    PathWrongKind,
    TooLarge,
)
from carrel.domain.files import FileInfo
from carrel.domain.trees import EntryType, Owner, Tree, TreeDriver
from carrel.linux.descriptors import Descriptor
from carrel.linux.ids import may_give
from carrel.linux.libc import AT_EMPTY_PATH, call
from carrel.linux.openat2 import open_beneath
from carrel.trees.paths import FOLDER, check_path, path_errors, split_path
from carrel.trees.removal import remove_entry

MAX_READ = 64 << 20
"""The most that one `read` answers; bigger files are read in parts, or with `open_read`."""
MAX_LISTED = 100_000
"""Of one folder, each some hundred bytes in memory: a hostile one can have millions."""
_MAX_LINKS = 40
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_FREED_S = (0.02, 0.1, 0.4)
"""Until the room of a removed file can be had; a loaded machine takes a tenth of a second."""

Opener = Callable[..., int]


class TreeFiles:
    """Blocking. Paths are relative to the root, as `os.fsdecode` gives them.

    All methods raise `PathError`s: `PathInvalid`, `PathEscapes`, `PathNotFound`,
    `PathDenied`, `PathWrongKind`; and `InsufficientDisk`.
    """

    def __init__(
        self, root_fd: int, owner: Owner | None = None, *, opener: Opener = open_beneath
    ) -> None:
        """`root_fd` stays the caller's. New entries are given to `owner`, by default whom
        the root belongs to. `opener` is there for the tests of the fallback."""
        self._root = root_fd
        status = os.fstat(root_fd)
        self._owner = owner or Owner(status.st_uid, status.st_gid)
        self._opener = opener

    def stat(self, path: str) -> FileInfo:
        with self._opened(path, follow=False) as fd:
            name = os.path.basename(path.rstrip("/"))
            return _describe(name, os.fstat(fd), lambda: os.readlink(b"", dir_fd=fd))

    def list(self, path: str = ".") -> builtins.list[FileInfo]:
        """The entries of a folder, sorted by name. Raises `TooLarge` when they are too many."""
        found = []
        with (
            self._opened(path) as place,
            path_errors(path),
            Descriptor(os.open(b".", _FOLDER, dir_fd=place)) as folder,
            os.scandir(folder) as entries,
        ):
            for entry in entries:
                # What goes away while we look was never there.
                with contextlib.suppress(FileNotFoundError):
                    found.append(_describe_in(folder, entry.name))
                if len(found) > MAX_LISTED:
                    raise TooLarge(
                        f"{path!r} has more than {MAX_LISTED} entries.",
                        hint="List it by a command in the space.",
                    )
        return sorted(found, key=lambda info: info.name)

    def read(self, path: str, offset: int = 0, limit: int = MAX_READ) -> bytes:
        """At most `limit` bytes from `offset`; fewer at the end of the file."""
        if offset < 0 or limit < 0:
            raise PathInvalid("An offset and a limit cannot be negative.")
        with self.open_read(path) as file, path_errors(path):
            file.seek(offset)
            return file.read(min(limit, MAX_READ))

    def open_read(self, path: str) -> BinaryIO:
        """An open regular file; nothing else is ever opened, so nothing can block."""
        with self._opened(path) as place, path_errors(path):
            _expect_regular(path, os.fstat(place))
            fd = os.open(f"/proc/self/fd/{place}", _READ)
        return io.BufferedReader(io.FileIO(fd))

    def write(self, path: str, data: bytes | Iterable[bytes], mode: int | None = None) -> None:
        """Replaces or makes a file, all at once: readers see the old or the new content.

        An existing file keeps its mode unless one is given; a symlink is written through.
        """
        with self._place_to_write(path) as (folder, name), path_errors(path):
            old = status_of(folder, name)
            if old is not None:
                _expect_regular(path, old)
            if mode is None:
                mode = 0o644 if old is None else stat.S_IMODE(old.st_mode)
            chunks = (data,) if isinstance(data, bytes) else data
            fill = functools.partial(_write_all, chunks)
            write_atomically(folder, name, fill, mode=mode & 0o777, owner=self._owner)

    def mkdir(self, path: str, mode: int = 0o755, *, parents: bool = False) -> None:
        """`PathExists` if there is something; with `parents` a folder there is fine."""
        if parents:
            self._make_parents(path, mode)
            return
        with self._parent(path) as (folder, name), path_errors(path):
            make_folder(folder, name, mode=mode & 0o1777, owner=self._owner)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Of a symlink, the link; of a folder only an empty one unless `recursive`."""
        with self._parent(path) as (folder, name), path_errors(path):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                os.unlink(name, dir_fd=folder)
            elif recursive:
                remove_entry(folder, name)
            else:
                _remove_folder(path, folder, name)

    def move(self, source: str, target: str, *, replace: bool = False) -> None:
        """Renames a file, folder or symlink; `PathExists` unless `replace`."""
        with (
            self._parent(source) as (old_folder, old_name),
            self._parent(target) as (new_folder, new_name),
            path_errors(f"{source} -> {target}"),
        ):
            move_entry((old_folder, old_name), (new_folder, new_name), replace=replace)

    @contextlib.contextmanager
    def _opened(self, path: str, *, follow: bool = True) -> Iterator[int]:
        with path_errors(path):
            fd = self._opener(self._root, check_path(path), follow=follow)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, bytes]]:
        """The folder that holds the last component, and that component."""
        above, name = split_path(path)
        with self._opened(above) as fd:
            yield fd, name

    @contextlib.contextmanager
    def _place_to_write(self, path: str) -> Iterator[tuple[int, bytes]]:
        """As `_parent`, of the file that symlinks at the end of the path name at last."""
        for _ in range(_MAX_LINKS):
            with self._parent(path) as (folder, name):
                with path_errors(path):
                    target = _link_target(folder, name)
                if target is None:
                    yield folder, name
                    return
            path = os.path.join(os.path.dirname(path.rstrip("/")), target)
        raise PathWrongKind(f"{path!r} is behind too many symlinks.")

    def _make_parents(self, path: str, mode: int) -> None:
        check_path(path)
        parts = path.rstrip("/").split("/")
        for count in range(1, len(parts) + 1):
            step = "/".join(parts[:count])
            try:
                if parts[count - 1] not in ("", ".", ".."):
                    self.mkdir(step, mode)
            except PathExists:
                with self._opened(step) as fd:
                    if not stat.S_ISDIR(os.fstat(fd).st_mode):
                        raise PathWrongKind(f"{step!r} is not a folder.") from None


@contextlib.contextmanager
def open_files(driver: TreeDriver, tree: Tree) -> Iterator[TreeFiles]:
    """The files of a tree for a while."""
    with Descriptor(driver.open_root(tree)) as root:
        yield TreeFiles(root)


def write_atomically(
    folder: int, name: bytes, fill: Callable[[int], None], *, mode: int, owner: Owner
) -> None:
    """A file without a name takes the place of the wanted one when `fill` has written it;
    raises OSError, and then leaves nothing. Nor does whoever is killed meanwhile."""
    temporary = b".carrel-" + secrets.token_hex(8).encode()
    fd = _open_nameless(folder)
    named = fd is None
    if fd is None:
        fd = os.open(temporary, _NEW, 0o600, dir_fd=folder)
    try:
        try:
            give(fd, owner)
            os.fchmod(fd, mode)
            fill(fd)
            if not named and _name(fd, folder, name):
                return
            named = named or _name(fd, folder, temporary)
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        if named:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
        raise


def once_freed(write: Callable[[], None]) -> None:
    """Writes again, a moment later, where there is no room: what was removed right before is free
    only when the kernel has seen to it. `write` leaves nothing when it fails."""
    for wait_s in _FREED_S:
        try:
            return write()
        except InsufficientDisk:
            pass
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        time.sleep(wait_s)
    return write()


def _open_nameless(folder: int) -> int | None:
    """None where the file system has no such files: an overlay of an older kernel, NFS."""
    try:
        return os.open(b".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
            return None
        raise


def _name(fd: int, folder: int, name: bytes) -> bool:
    """Whether it has this name now, and not something else."""
    try:
        os.link(f"/proc/self/fd/{fd}".encode(), name, dst_dir_fd=folder, follow_symlinks=True)
    except FileExistsError:
        return False
    return True


def _write_all(chunks: Iterable[bytes], fd: int) -> None:
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(fd, rest) :]


def make_folder(folder: int, name: bytes, *, mode: int, owner: Owner) -> None:
    """Raises OSError."""
    os.mkdir(name, 0o700, dir_fd=folder)
    # Opened as a folder, so it is none of the files that somebody might put in its place.
    with Descriptor(os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)) as fd:
        if os.geteuid() == 0 and os.listdir(fd):
            # Nobody else can have put anything into ours: it is another one of root's.
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(name))
        give(fd, owner)
        os.fchmod(fd, mode)


def link_atomically(folder: int, name: bytes, target: bytes, *, owner: Owner) -> None:
    """A link takes the place of what has the name; raises OSError, and then leaves nothing. What
    somebody puts in its place meanwhile is not given to the owner."""
    temporary = b".carrel-" + secrets.token_hex(8).encode()
    os.symlink(target, temporary, dir_fd=folder)
    try:
        if os.geteuid() == 0:
            with Descriptor(os.open(temporary, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)) as fd:
                if not stat.S_ISLNK(os.fstat(fd).st_mode):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
                call("fchownat", fd, b"", owner.uid, owner.gid, AT_EMPTY_PATH)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def give(fd: int, owner: Owner) -> None:
    """Hands over what root has just made; an ordinary user's is already its own."""
    if may_give():
        os.fchown(fd, owner.uid, owner.gid)


def entry_type(mode: int) -> EntryType:
    if stat.S_ISREG(mode):
        return EntryType.FILE
    if stat.S_ISDIR(mode):
        return EntryType.FOLDER
    return EntryType.SYMLINK if stat.S_ISLNK(mode) else EntryType.OTHER


def _describe(name: str, status: os.stat_result, read_link: Callable[[], bytes]) -> FileInfo:
    kind = entry_type(status.st_mode)
    return FileInfo(
        name=name,
        type=kind,
        mode=stat.S_IMODE(status.st_mode),
        size=status.st_size if kind is EntryType.FILE else 0,
        modified_ns=status.st_mtime_ns,
        target=os.fsdecode(read_link()) if kind is EntryType.SYMLINK else None,
    )


def _describe_in(folder: int, name: str) -> FileInfo:
    with Descriptor(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)) as fd:
        return _describe(name, os.fstat(fd), lambda: os.readlink(b"", dir_fd=fd))


def status_of(folder: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _link_target(folder: int, name: bytes) -> str | None:
    try:
        return os.fsdecode(os.readlink(name, dir_fd=folder))
    except OSError as error:
        # EINVAL: something else than a symlink.
        if error.errno not in (errno.EINVAL, errno.ENOENT):
            raise
        return None


def _expect_regular(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise PathWrongKind(f"{path!r} is not a regular file.")


def _remove_folder(path: str, folder: int, name: bytes) -> None:
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise PathWrongKind(
            f"{path!r} is a folder that is not empty.", hint="Delete it recursively."
        ) from None


# Moving an entry, also where the kernel will not rename a folder.
#
# An overlay of an ordinary user cannot rename folders of its lower layers: it answers EXDEV,
# as between two disks. Files it can, so the folder is made anew and what is in it is moved.

Entry = tuple[int, bytes]
"""An open folder, and a name in it."""

_RENAME_NOREPLACE = 1
_MAX_DEPTH = 200
"""Two descriptors are open per level."""


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
    with Descriptor(os.open(old[1], FOLDER, dir_fd=old[0])) as source:
        status = os.fstat(source)
        _make_room(source, new, replace=replace)
        with Descriptor(os.open(new[1], FOLDER, dir_fd=new[0])) as target:
            for name in os.listdir(source):
                raw = os.fsencode(name)
                _move_one((source, raw), (target, raw), depth)
            _take_over(target, status)
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
