"""Puts single entries of a project into a layer.

A file is read only as long as it is the file that was seen: looked at before and after,
it must not have changed. Everything stored belongs to the store's owner and keeps its
mode, its time, its extended attributes (the user's own) and its holes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from carrel.domain.trees import Owner, Skipped
from carrel.linux.statx import Row
from carrel.trees.bases.contents import (
    Pulse,
    ReadFailed,
    digest_bytes,
    read_attributes,
    store_bytes,
    with_attributes,
)
from carrel.trees.bases.manifest import DIGEST, Item
from carrel.trees.bases.places import FOLDER
from carrel.trees.removal import remove_entry

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MOVED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ESTALE})
_NO_ATTRIBUTE = frozenset(
    {errno.EOPNOTSUPP, errno.EPERM, errno.E2BIG, errno.ENOSPC, errno.ERANGE, errno.EINVAL}
)


class Moved(Exception):
    """The entry is not what it was when it was looked at."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An entry to take: where it is, and as what it was seen (None: take it as it is)."""

    folder: int
    name: bytes
    row: Row | None
    path: bytes
    """In the base, for reports."""
    ours: bool = False
    """It is Carrel's, so that permissions to read it may be taken for a moment."""


def ignore_skipped(_skipped: Skipped) -> None:
    pass


@dataclass
class Copier:
    """One per thread. `no_clone` are devices whose files share no blocks with the store:
    not all that are other devices, since every subvolume of btrfs is one."""

    owner: Owner
    layer: int
    pulse: Pulse
    no_clone: set[int] = field(default_factory=set)
    on_skip: Callable[[Skipped], None] = ignore_skipped

    def store_file(self, wanted: Wanted, folder: int, name: bytes) -> Item:
        """Raises `Moved`; `ReadFailed` for trouble on the project's side; OSError for
        trouble on the store's."""
        source = open_source(wanted)
        try:
            found = check(wanted, source)
            target = self._create(folder, name)
            try:
                clone = found.st_dev not in self.no_clone
                digest, shared = store_bytes(source, found, target, clone=clone, pulse=self.pulse)
                if clone and found.st_size and not shared:
                    self.no_clone.add(found.st_dev)
                attributes = self._copy_attributes(source, target, wanted.path)
                check(wanted, source)
                self._finish(target, found.st_mode, found.st_mtime_ns)
                kept = os.fstat(target)
            finally:
                os.close(target)
        finally:
            os.close(source)
        return Item(
            found.st_mode,
            kept.st_size,
            found.st_mtime_ns,
            with_attributes(digest, attributes),
            self.layer,
            kept.st_ino,
            kept.st_ctime_ns,
        )

    def digest(self, wanted: Wanted, mode: int) -> bytes:
        """The digest that storing it would give. Raises `Moved`, `ReadFailed`."""
        if stat.S_ISLNK(mode):
            return digest_of(read_link(wanted)[0])
        source = open_source(wanted)
        try:
            found = check(wanted, source)
            digest = digest_bytes(source, found, self.pulse)
            attributes = read_attributes(source)
            check(wanted, source)
        finally:
            os.close(source)
        return with_attributes(digest, attributes)

    def store_link(self, wanted: Wanted, folder: int, name: bytes) -> Item:
        """A symlink. Raises as `store_file`."""
        target, found = read_link(wanted)
        try:
            os.symlink(target, name, dir_fd=folder)
        except FileExistsError:
            remove_entry(folder, name)
            os.symlink(target, name, dir_fd=folder)
        if os.geteuid() == 0:
            owner = self.owner
            os.chown(name, owner.uid, owner.gid, dir_fd=folder, follow_symlinks=False)
        times = (found.st_mtime_ns, found.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)
        kept = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return Item(
            found.st_mode,
            len(target),
            found.st_mtime_ns,
            digest_of(target),
            self.layer,
            kept.st_ino,
            kept.st_ctime_ns,
        )

    def adopt(self, wanted: Wanted, folder: int, name: bytes) -> Item:
        """Takes over an entry that is ours: moves it to its place and digests it there."""
        found = os.stat(wanted.name, dir_fd=wanted.folder, follow_symlinks=False)
        try:
            _move(wanted, folder, name)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            if stat.S_ISLNK(found.st_mode):
                return self.store_link(wanted, folder, name)
            return self.store_file(wanted, folder, name)
        here = Wanted(folder, name, None, wanted.path, ours=True)
        if stat.S_ISLNK(found.st_mode):
            digest = digest_of(read_link(here)[0])
        else:
            digest = self.digest(here, found.st_mode)
        if os.geteuid() == 0:
            owner = self.owner
            os.chown(name, owner.uid, owner.gid, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode) and found.st_mode & 0o6000:
                os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=folder)
        kept = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return Item(
            found.st_mode,
            found.st_size,
            found.st_mtime_ns,
            digest,
            self.layer,
            kept.st_ino,
            kept.st_ctime_ns,
        )

    def write_file(self, content: bytes, mtime_ns: int, folder: int, name: bytes) -> Item:
        """A file that is made up, with mode 0644."""
        target = self._create(folder, name)
        mode = stat.S_IFREG | 0o644
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(target, view) :]
            self._finish(target, mode, mtime_ns)
            kept = os.fstat(target)
        finally:
            os.close(target)
        return Item(
            mode,
            len(content),
            mtime_ns,
            digest_of(content),
            self.layer,
            kept.st_ino,
            kept.st_ctime_ns,
        )

    def finish_folder(self, folder: int, mode: int, mtime_ns: int) -> None:
        """Last of all: the mode may forbid to write in it."""
        self._finish(folder, mode, mtime_ns)

    def copy_folder_attributes(self, source: int, target: int, path: bytes) -> None:
        with suppress(ReadFailed):
            self._copy_attributes(source, target, path)

    def _finish(self, target: int, mode: int, mtime_ns: int) -> None:
        if os.geteuid() == 0:
            os.fchown(target, self.owner.uid, self.owner.gid)
        os.fchmod(target, stat.S_IMODE(mode))
        os.utime(target, ns=(mtime_ns, mtime_ns))

    def _create(self, folder: int, name: bytes) -> int:
        try:
            return os.open(name, _CREATE, 0o600, dir_fd=folder)
        except FileExistsError:
            # Of an earlier round, an earlier start, or the base that this one began as.
            remove_entry(folder, name)
            return os.open(name, _CREATE, 0o600, dir_fd=folder)

    def _copy_attributes(self, source: int, target: int, path: bytes) -> dict[str, bytes]:
        attributes = read_attributes(source)
        for name, value in attributes.items():
            try:
                os.setxattr(target, name, value)
            except OSError as error:
                if error.errno not in _NO_ATTRIBUTE:
                    raise
                why = f"its extended attribute {name} cannot be kept: {error.strerror}"
                self.on_skip(Skipped(os.fsdecode(path), why))
        return attributes


def _move(wanted: Wanted, folder: int, name: bytes) -> None:
    try:
        os.rename(wanted.name, name, src_dir_fd=wanted.folder, dst_dir_fd=folder)
    except (IsADirectoryError, NotADirectoryError):
        remove_entry(folder, name)
        os.rename(wanted.name, name, src_dir_fd=wanted.folder, dst_dir_fd=folder)


def make_folder(parent: int, name: bytes) -> int:
    """A folder that can be filled, made where it is missing; gives a descriptor."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            remove_entry(parent, name)
            os.mkdir(name, 0o700, dir_fd=parent)
        elif found.st_mode & 0o700 != 0o700:
            os.chmod(name, 0o700, dir_fd=parent)
    return os.open(name, FOLDER, dir_fd=parent)


def digest_of(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST).digest()


def open_source(wanted: Wanted) -> int:
    """Opens a regular file to read, without marking it as read where that is allowed."""
    try:
        try:
            return os.open(wanted.name, _READ | os.O_NOATIME, dir_fd=wanted.folder)
        except PermissionError:
            if wanted.ours:
                return _open_ours(wanted)
            return os.open(wanted.name, _READ, dir_fd=wanted.folder)
    except OSError as error:
        if error.errno in _MOVED:
            raise Moved(wanted.path) from error
        raise ReadFailed from error


def _open_ours(wanted: Wanted) -> int:
    try:
        return os.open(wanted.name, _READ, dir_fd=wanted.folder)
    except PermissionError:
        place = os.open(wanted.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=wanted.folder)
    try:
        found = os.fstat(place)
        if not stat.S_ISREG(found.st_mode):
            raise Moved(wanted.path)
        path = f"/proc/self/fd/{place}"
        os.chmod(path, found.st_mode & 0o7777 | 0o400)
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.chmod(path, found.st_mode & 0o7777)
    finally:
        os.close(place)


def check(wanted: Wanted, source: int) -> os.stat_result:
    """Raises `Moved` when the open file is not the one that was seen."""
    try:
        found = os.fstat(source)
    except OSError as error:
        raise ReadFailed from error
    if not stat.S_ISREG(found.st_mode) or not fits(wanted.row, found):
        raise Moved(wanted.path)
    return found


def fits(row: Row | None, found: os.stat_result) -> bool:
    return row is None or (
        found.st_ino == row.inode
        and found.st_size == row.size
        and found.st_ctime_ns == row.ctime_ns
        and found.st_mtime_ns == row.mtime_ns
        and found.st_mode == row.mode
    )


def read_link(wanted: Wanted) -> tuple[bytes, os.stat_result]:
    """Where a symlink points. Raises `Moved`, `ReadFailed`."""
    try:
        target = os.readlink(wanted.name, dir_fd=wanted.folder)
        found = os.stat(wanted.name, dir_fd=wanted.folder, follow_symlinks=False)
    except OSError as error:
        if error.errno in _MOVED or error.errno == errno.EINVAL:
            raise Moved(wanted.path) from error
        raise ReadFailed from error
    if not stat.S_ISLNK(found.st_mode) or not fits(wanted.row, found):
        raise Moved(wanted.path)
    return target, found
