"""Puts single entries of a project into a layer, and names their bytes by a digest.

A file is read only as long as it is the file that was seen: looked at before and after,
it must not have changed. Everything stored belongs to the store's owner and keeps its
mode, its time, its extended attributes (the user's own) and its holes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from carrel.domain.trees import Owner, Skipped
from carrel.linux.descriptors import Descriptor
from carrel.linux.reflink import clone_file
from carrel.linux.statx import Row
from carrel.trees.bases.manifest import DIGEST, StoredItem
from carrel.trees.contents import BLOCK, ZEROS, data_blocks, data_ranges, may_have_holes, write_at
from carrel.trees.folders import open_own
from carrel.trees.paths import FOLDER
from carrel.trees.removal import remove_entry

Pulse = Callable[[int], None]
"""Told how many bytes were moved, now and then; may raise to stop."""

_WHOLE = 1 << 20
"""Files up to this size are read at once: read, digest, write."""
_CHUNK = 16 << 20
"""Of a big file, so much is copied by the kernel between two looks at the clock."""
_NOT_HERE = frozenset(
    {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM}
)
_SETTLED_NS = 2_000_000_000
"""Longer than a step of the clock of any file system."""
_ATTRIBUTES = "user."
_OVERLAY = "user.overlay."
"""These would mean something in a layer, so no project brings its own."""


class ReadFailed(Exception):
    """The project's side failed, not the store's; `__cause__` is the OSError."""


def is_sparse(found: os.stat_result) -> bool:
    return found.st_size >= BLOCK and may_have_holes(found)


def store_bytes(
    source: int, found: os.stat_result, target: int, *, clone: bool, pulse: Pulse
) -> tuple[bytes, bool]:
    """Fills an empty file with the first `found.st_size` bytes of another. Gives the
    digest of what was stored, and whether the bytes are shared with the source's."""
    if clone and found.st_size and _clone(source, target):
        # Reading the source is reading memory; the clone would come from the disk. Both
        # are the same if the source has not changed meanwhile, which the caller sees by
        # its times, unless it was being written just now.
        settled = time.time_ns() - found.st_ctime_ns > _SETTLED_NS
        return digest_bytes(source if settled else target, found, pulse), True
    if found.st_size <= _WHOLE and not is_sparse(found):
        return _store_whole(source, found.st_size, target, pulse), False
    ranges = data_ranges(source, found.st_size) if is_sparse(found) else [(0, found.st_size)]
    for start, end in ranges:
        _copy_range(source, target, start, end, pulse)
    os.ftruncate(target, found.st_size)
    return digest_bytes(target, found, pulse), False


def digest_bytes(source: int, found: os.stat_result, pulse: Pulse) -> bytes:
    """Of the first `found.st_size` bytes. The same for zeros and holes in sparse files."""
    if is_sparse(found):
        return _digest_sparse(source, found, pulse)
    digest = hashlib.blake2b(digest_size=DIGEST)
    position = 0
    while position < found.st_size:
        data = _read(source, min(_WHOLE, found.st_size - position), position)
        if not data:
            break
        digest.update(data)
        position += len(data)
        pulse(0)
    return digest.digest()


def with_attributes(digest: bytes, attributes: dict[str, bytes]) -> bytes:
    """The digest of a file that has extended attributes."""
    if not attributes:
        return digest
    mixed = hashlib.blake2b(digest, digest_size=DIGEST, person=b"attributes")
    for name in sorted(attributes):
        for piece in (os.fsencode(name), attributes[name]):
            mixed.update(len(piece).to_bytes(4, "little"))
            mixed.update(piece)
    return mixed.digest()


def read_attributes(source: int) -> dict[str, bytes]:
    """The extended attributes that a base keeps: the user's own."""
    try:
        names = os.listxattr(source)
    except OSError as error:
        if error.errno in _NOT_HERE:
            return {}
        raise ReadFailed from error
    found = {}
    for name in names:
        if name.startswith(_ATTRIBUTES) and not name.startswith(_OVERLAY):
            try:
                found[name] = os.getxattr(source, name)
            except OSError as error:
                if error.errno != errno.ENODATA:
                    raise ReadFailed from error
    return found


def _clone(source: int, target: int) -> bool:
    try:
        return clone_file(source, target)
    except OSError as error:
        if error.errno == errno.EIO:
            raise ReadFailed from error
        raise


def _store_whole(source: int, size: int, target: int, pulse: Pulse) -> bytes:
    data = _read(source, size, 0) if size else b""
    while data and len(data) < size:
        more = _read(source, size - len(data), len(data))
        if not more:
            break
        data += more
    write_at(target, data, 0)
    pulse(len(data))
    return hashlib.blake2b(data, digest_size=DIGEST).digest()


def _read(source: int, length: int, position: int) -> bytes:
    try:
        return os.pread(source, length, position)
    except OSError as error:
        raise ReadFailed from error


def _copy_range(source: int, target: int, start: int, end: int, pulse: Pulse) -> None:
    position = start
    in_kernel = True
    while position < end:
        count = -1
        if in_kernel:
            count = _copy_in_kernel(source, target, position, min(end - position, _CHUNK))
            in_kernel = count >= 0
        if count < 0:
            data = _read(source, min(end - position, _WHOLE), position)
            write_at(target, data, position)
            count = len(data)
        if count == 0:
            return
        position += count
        pulse(count)


def _copy_in_kernel(source: int, target: int, position: int, length: int) -> int:
    """How many bytes; -1 where it is not possible between these two."""
    try:
        return os.copy_file_range(source, target, length, position, position)
    except OSError as error:
        if error.errno in _NOT_HERE:
            return -1
        if error.errno == errno.EIO:
            raise ReadFailed from error
        raise


def _digest_sparse(source: int, found: os.stat_result, pulse: Pulse) -> bytes:
    digest = hashlib.blake2b(
        found.st_size.to_bytes(8, "little"), digest_size=DIGEST, person=b"sparse"
    )
    for position in data_blocks(source, found.st_size):
        block = _read(source, min(BLOCK, found.st_size - position), position)
        if not block:
            break
        if block != ZEROS[: len(block)]:
            digest.update(position.to_bytes(8, "little"))
            digest.update(block)
        pulse(0)
    return digest.digest()


# Entries

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MOVED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ESTALE})
_NO_ATTRIBUTE = frozenset(
    {errno.EOPNOTSUPP, errno.EPERM, errno.E2BIG, errno.ENOSPC, errno.ERANGE, errno.EINVAL}
)


class EntryMoved(Exception):
    """The entry is not what it was when it was looked at."""


@dataclass(frozen=True, slots=True)
class WantedEntry:
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

    def store_file(self, wanted: WantedEntry, folder: int, name: bytes) -> StoredItem:
        """Raises `EntryMoved`; `ReadFailed` for trouble on the project's side; OSError for
        trouble on the store's."""
        with Descriptor(open_source(wanted)) as source:
            found = check(wanted, source)
            with Descriptor(self._create(folder, name)) as target:
                clone = found.st_dev not in self.no_clone
                digest, shared = store_bytes(source, found, target, clone=clone, pulse=self.pulse)
                if clone and found.st_size and not shared:
                    self.no_clone.add(found.st_dev)
                attributes = self._copy_attributes(source, target, wanted.path)
                check(wanted, source)
                self._finish(target, found.st_mode, found.st_mtime_ns)
                kept = os.fstat(target)
        return self._item(
            found.st_mode,
            kept.st_size,
            found.st_mtime_ns,
            with_attributes(digest, attributes),
            kept,
        )

    def digest(self, wanted: WantedEntry, mode: int) -> bytes:
        """The digest that storing it would give. Raises `EntryMoved`, `ReadFailed`."""
        if stat.S_ISLNK(mode):
            return digest_of(read_link(wanted)[0])
        with Descriptor(open_source(wanted)) as source:
            found = check(wanted, source)
            digest = digest_bytes(source, found, self.pulse)
            attributes = read_attributes(source)
            check(wanted, source)
        return with_attributes(digest, attributes)

    def store_link(self, wanted: WantedEntry, folder: int, name: bytes) -> StoredItem:
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
        return self._item(found.st_mode, len(target), found.st_mtime_ns, digest_of(target), kept)

    def adopt(self, wanted: WantedEntry, folder: int, name: bytes) -> StoredItem:
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
        here = WantedEntry(folder, name, None, wanted.path, ours=True)
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
        return self._item(found.st_mode, found.st_size, found.st_mtime_ns, digest, kept)

    def write_file(self, content: bytes, mtime_ns: int, folder: int, name: bytes) -> StoredItem:
        """A file that is made up, with mode 0644."""
        mode = stat.S_IFREG | 0o644
        with Descriptor(self._create(folder, name)) as target:
            write_at(target, content, 0)
            self._finish(target, mode, mtime_ns)
            kept = os.fstat(target)
        return self._item(mode, len(content), mtime_ns, digest_of(content), kept)

    def _item(
        self, mode: int, size: int, mtime_ns: int, digest: bytes, kept: os.stat_result
    ) -> StoredItem:
        """What is noted of an entry; `kept` is what the store has now."""
        return StoredItem(mode, size, mtime_ns, digest, self.layer, kept.st_ino, kept.st_ctime_ns)

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


def _move(wanted: WantedEntry, folder: int, name: bytes) -> None:
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


def open_source(wanted: WantedEntry) -> int:
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
            raise EntryMoved(wanted.path) from error
        raise ReadFailed from error


def _open_ours(wanted: WantedEntry) -> int:
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    with Descriptor(os.open(wanted.name, flags, dir_fd=wanted.folder)) as place:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise EntryMoved(wanted.path)
        return open_own(place)


def check(wanted: WantedEntry, source: int) -> os.stat_result:
    """Raises `EntryMoved` when the open file is not the one that was seen."""
    try:
        found = os.fstat(source)
    except OSError as error:
        raise ReadFailed from error
    if not stat.S_ISREG(found.st_mode) or not fits(wanted.row, found):
        raise EntryMoved(wanted.path)
    return found


def fits(row: Row | None, found: os.stat_result) -> bool:
    return row is None or (
        found.st_ino == row.inode
        and found.st_size == row.size
        and found.st_ctime_ns == row.ctime_ns
        and found.st_mtime_ns == row.mtime_ns
        and found.st_mode == row.mode
    )


def read_link(wanted: WantedEntry) -> tuple[bytes, os.stat_result]:
    """Where a symlink points. Raises `EntryMoved`, `ReadFailed`."""
    try:
        target = os.readlink(wanted.name, dir_fd=wanted.folder)
        found = os.stat(wanted.name, dir_fd=wanted.folder, follow_symlinks=False)
    except OSError as error:
        if error.errno in _MOVED or error.errno == errno.EINVAL:
            raise EntryMoved(wanted.path) from error
        raise ReadFailed from error
    if not stat.S_ISLNK(found.st_mode) or not fits(wanted.row, found):
        raise EntryMoved(wanted.path)
    return target, found
