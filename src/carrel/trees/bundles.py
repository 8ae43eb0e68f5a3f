"""What a tree changed, in one file, and back into a fresh tree of the same base.

A bundle holds the new bytes only: of a file that was moved, its two names; of one whose mode
changed, the mode. It goes into any driver's tree.

To restore one, the whole file is read before the tree is touched. Then the files that moved are
put aside, so that nothing else can take their old or new place, and all changes are made in order.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from carrel.domain.cleanup import Bundle
from carrel.domain.errors import (
    InsufficientDisk,
    PathEscapes,
    PathExists,
    PathInvalid,
    PathNotFound,
    PathWrongKind,
    TreeDamaged,
)
from carrel.domain.trees import Change, ChangeKind, EntryType, Owner, Skipped, Tree, TreeDriver
from carrel.linux.descriptors import Descriptor
from carrel.linux.reflink import clone_file, copy_file
from carrel.trees import bundle_format as records
from carrel.trees.bundle_format import damaged, is_kept, read_attributes
from carrel.trees.contents import data_ranges, write_at
from carrel.trees.drivers.common import tree_errors
from carrel.trees.drivers.copies import OBJECTS
from carrel.trees.folders import Root, split
from carrel.trees.paths import path_errors, sync_folder
from carrel.trees.writer import TreeWriter

__all__ = ["TreeBundler", "pack", "restore"]

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class TreeBundler:
    """The `Bundler` of this room."""

    def pack(
        self, driver: TreeDriver, tree: Tree, base_id: str, target: Path, max_bytes: int
    ) -> Bundle:
        return pack(driver, tree, base_id, target, max_bytes)

    def restore(self, driver: TreeDriver, tree: Tree, bundle: Path) -> None:
        restore(driver, tree, bundle)


def pack(driver: TreeDriver, tree: Tree, base_id: str, target: Path, max_bytes: int) -> Bundle:
    """See `Bundler`. Devices are left out, and told."""
    if base_id != tree.base_id:
        raise TreeDamaged(f"The tree {tree.tree_id} stands on {tree.base_id}, not on {base_id}.")
    # All of them first: finding them opens up folders that their mode would show differently.
    changes = list(driver.changes(tree))
    with _appearing(target) as descriptor:
        writer = records.BundleWriter(descriptor, max_bytes)
        with Root(driver.open_root(tree)) as root:
            packer = _Packer(root, writer)
            writer.write(records.BundleHead(records.VERSION, base_id))
            for change in changes:
                with path_errors(change.path):
                    packer.take(change)
            writer.write(records.BundleTail(len(changes)))
        with tree_errors("keep the changes"):
            writer.finish()
    return Bundle(writer.size, len(changes), tuple(packer.skipped))


@contextlib.contextmanager
def _appearing(target: Path) -> Iterator[int]:
    """A file that gets its name when it is complete and on the disk."""
    temporary = target.with_name(f".{target.name}-{secrets.token_hex(6)}")
    with tree_errors("keep the changes"):
        descriptor = os.open(temporary, _NEW, 0o600)
    try:
        try:
            yield descriptor
            with tree_errors("keep the changes"):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with tree_errors("keep the changes"):
            os.rename(temporary, target)
            sync_folder(target.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@dataclass
class _Packer:
    root: Root
    writer: records.BundleWriter
    skipped: list[Skipped] = field(default_factory=list)
    _told: set[str] = field(default_factory=set)
    _linked: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def take(self, change: Change) -> None:
        self._tell_way(change.path)
        if change.old_path is not None:
            self._tell_way(change.old_path)
        if change.kind is ChangeKind.DELETED or change.new_mode is None:
            self.writer.write(records.Gone(os.fsencode(change.path)))
            return
        try:
            self._take_entry(change, change.new_mode)
        except (FileNotFoundError, NotADirectoryError):
            # It went away since; then there is nothing of it to keep.
            self.writer.write(records.Gone(os.fsencode(change.path)))

    def _tell_way(self, path: str) -> None:
        """The folders that lead there: adding and removing changed their times."""
        untold = []
        while path:
            path, _ = split(path)
            if path in self._told:
                break
            untold.append(path)
        for folder in reversed(untold):
            status = self.root.status(folder)
            if status is None or not stat.S_ISDIR(status.st_mode):
                return
            self._told.add(folder)
            mode = stat.S_IMODE(status.st_mode)
            self.writer.write(records.WayFolder(os.fsencode(folder), mode, status.st_mtime_ns))

    def _take_entry(self, change: Change, mode: int) -> None:
        path = os.fsencode(change.path)
        if change.new_type is EntryType.FILE:
            self._take_file(change, path, mode)
        elif change.new_type is EntryType.FOLDER:
            self._told.add(change.path)
            status = self._status(change.path)
            attributes = records.read_attributes(self.root.folder(change.path))
            self.writer.write(records.Folder(path, mode, status.st_mtime_ns, attributes))
        elif change.new_type is EntryType.SYMLINK:
            status = self._status(change.path)
            target = self.root.link(change.path)
            if not target:
                raise FileNotFoundError
            self.writer.write(records.Symlink(path, target, status.st_mtime_ns))
        else:
            self._take_other(change.path)

    def _take_other(self, path: str) -> None:
        status = self._status(path)
        if stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
            node = records.Node(os.fsencode(path), status.st_mode, status.st_mtime_ns)
            self.writer.write(node)
        else:
            self.skipped.append(Skipped(path, "is a device"))
            self.writer.write(records.Gone(os.fsencode(path)))

    def _take_file(self, change: Change, path: bytes, mode: int) -> None:
        with Descriptor(self.root.open_file(change.path)) as descriptor:
            status = os.fstat(descriptor)
            key = (status.st_dev, status.st_ino)
            attributes = records.read_attributes(descriptor)
            if change.kind is ChangeKind.RENAMED and change.old_path is not None:
                old = os.fsencode(change.old_path)
                moved = records.MovedFile(path, old, mode, status.st_mtime_ns, attributes)
                self.writer.write(moved)
            elif change.kind is ChangeKind.MODE and not _may_be_borrowed(change.path):
                self.writer.write(records.Other(path, mode, status.st_mtime_ns, attributes))
            elif key in self._linked:
                self.writer.write(records.Again(path, self._linked[key]))
            else:
                self.writer.write(records.FileStart(path, mode, status.st_mtime_ns, attributes))
                self._write_content(descriptor, status.st_size)
                if status.st_nlink > 1:
                    self._linked[key] = path

    def _write_content(self, descriptor: int, size: int) -> None:
        for start, end in data_ranges(descriptor, size):
            while start < end:
                data = os.pread(descriptor, min(records.PIECE, end - start), start)
                if not data:
                    break
                self.writer.write(records.FilePiece(start, data))
                start += len(data)
        self.writer.write(records.Size(size))

    def _status(self, path: str) -> os.stat_result:
        status = self.root.status(path)
        if status is None:
            raise FileNotFoundError
        return status


def _may_be_borrowed(path: str) -> bool:
    """A git object may be the base's own in another tree, which then has no file to change."""
    return path.startswith(OBJECTS + "/")


# Restoring

_NO_ATTRIBUTE = frozenset(
    {errno.EOPNOTSUPP, errno.EPERM, errno.E2BIG, errno.ENOSPC, errno.ERANGE, errno.EINVAL}
)
"""What this file system cannot have is no part of the file here."""

_MODE = 0o1777
"""Of a file: none is brought in that runs as its owner."""
_MISFITS = (PathEscapes, PathExists, PathInvalid, PathNotFound, PathWrongKind)
"""In a fresh tree, nothing is in the way but what the bundle itself has put there."""


def restore(driver: TreeDriver, tree: Tree, bundle: Path) -> None:
    """See `Bundler`."""
    found = _survey(bundle, tree)
    with Descriptor(driver.open_root(tree)) as root:
        _check_room(root, found.size)
        status = os.fstat(root)
        place = TreeWriter(root, Owner(status.st_uid, status.st_gid))
        try:
            with _aside(place) as folder:
                restorer = _Restorer(place, bundle, folder)
                restorer.set_aside(found.moved)
                restorer.run()
            place.finish()
        except _MISFITS as error:
            raise damaged(bundle, str(error)) from error
        finally:
            place.close()


@dataclass
class _Survey:
    """What is to be known before anything is done."""

    moved: list[bytes] = field(default_factory=list)
    size: int = 0


def _survey(bundle: Path, tree: Tree) -> _Survey:
    found = _Survey()
    stream = records.read(bundle)
    head = next(stream, None)
    if not isinstance(head, records.BundleHead):
        raise damaged(bundle, "it has no beginning")
    if head.version != records.VERSION:
        raise TreeDamaged(
            f"The kept changes in {str(bundle)!r} were written by another version of Carrel.",
            hint="Bring them back with that version.",
        )
    if head.base_id != tree.base_id:
        raise TreeDamaged(
            f"The kept changes are to base {head.base_id}, and the tree is of {tree.base_id}.",
            hint="Bring them back into a tree of that base.",
        )
    file: _Extent | None = None
    for record in stream:
        if isinstance(record, records.FilePiece | records.Size):
            if file is None or not file.takes(record):
                raise damaged(bundle, "it has bytes that belong nowhere")
            file = None if isinstance(record, records.Size) else file
            found.size += len(record.data) if isinstance(record, records.FilePiece) else 0
            continue
        if file is not None or isinstance(record, records.BundleHead):
            raise damaged(bundle, "a file has no end")
        file = _Extent() if isinstance(record, records.FileStart) else None
        if isinstance(record, records.MovedFile):
            found.moved.append(record.old)
    if len(set(found.moved)) != len(found.moved):
        raise damaged(bundle, "a file was moved twice")
    return found


@dataclass
class _Extent:
    """How far the pieces of a file have come: they are in order."""

    end: int = 0

    def takes(self, record: records.FilePiece | records.Size) -> bool:
        if isinstance(record, records.Size):
            return self.end <= record.size
        if record.position < self.end:
            return False
        self.end = record.position + len(record.data)
        return True


def _check_room(root: int, wanted: int) -> None:
    disk = os.fstatvfs(root)
    free = disk.f_bavail * disk.f_frsize
    if wanted > free:
        raise InsufficientDisk(
            f"The kept changes take {wanted >> 20} MiB, and {free >> 20} MiB are free.",
            hint="Make room, and try again.",
        )


@contextlib.contextmanager
def _aside(place: TreeWriter) -> Iterator[str]:
    """A folder in the tree: only there can files be moved to without copying them."""
    folder = f".carrel-{secrets.token_hex(8)}"
    place.reach(folder, 0o700)
    try:
        yield folder
    finally:
        place.remove(folder)


@dataclass
class _Restorer:
    place: TreeWriter
    bundle: Path
    aside: str

    def set_aside(self, moved: list[bytes]) -> None:
        for number, raw in enumerate(moved):
            path, target = os.fsdecode(raw), f"{self.aside}/{number}"
            self._expect_file(path)
            self.place.move(path, target)

    def run(self) -> None:
        stream = records.read(self.bundle)
        moved = 0
        for record in stream:
            if isinstance(record, records.FileStart):
                self._make_file(record, stream)
            elif isinstance(record, records.MovedFile):
                self._make_moved(record, moved)
                moved += 1
            else:
                self._make(record)

    def _make(self, record: records.Record) -> None:
        place = self.place
        if isinstance(record, records.WayFolder):
            path = os.fsdecode(record.path)
            place.reach(path, record.mode)
            place.note_folder(path, None, record.mtime_ns)
        elif isinstance(record, records.Gone):
            place.remove(os.fsdecode(record.path))
        elif isinstance(record, records.Folder):
            self._make_folder(record)
        elif isinstance(record, records.Symlink):
            path = self._free(record.path)
            place.symlink(path, record.target, record.mtime_ns)
        elif isinstance(record, records.Node):
            path = self._free(record.path)
            place.node(path, record.mode, record.mtime_ns)
        elif isinstance(record, records.Again):
            path = self._free(record.path)
            place.link(path, os.fsdecode(record.first))
        elif isinstance(record, records.Other):
            self._change_mode(record)

    def _free(self, raw: bytes) -> str:
        """Takes away the folder that a file or a symlink has replaced."""
        path = os.fsdecode(raw)
        status = self.place.status(path)
        if status is not None and stat.S_ISDIR(status.st_mode):
            self.place.remove(path)
        return path

    def _make_folder(self, record: records.Folder) -> None:
        path = os.fsdecode(record.path)
        status = self.place.status(path)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            self.place.remove(path)
        self.place.make_folder(path, record.mode, record.mtime_ns)
        self.place.change(path, lambda entry: set_attributes(entry, record.attributes))

    def _make_file(self, record: records.FileStart, stream: Iterator[records.Record]) -> None:
        def fill(target: int) -> None:
            for piece in stream:
                if not isinstance(piece, records.FilePiece):
                    assert isinstance(piece, records.Size), "surveyed before"
                    os.ftruncate(target, piece.size)
                    break
                write_at(target, piece.data, piece.position)
            _finish(target, record)

        self.place.write(self._free(record.path), fill)

    def _make_moved(self, record: records.MovedFile, number: int) -> None:
        source = f"{self.aside}/{number}"
        self._change(source, record)
        self.place.move(source, self._free(record.path))

    def _change_mode(self, record: records.Other) -> None:
        path = os.fsdecode(record.path)
        self._expect_file(path)
        self._change(path, record)

    def _change(self, path: str, record: records.MovedFile | records.Other) -> None:
        """A file with other names, which may be the base's own, is left as it is: a copy
        takes its place, unless there is nothing to change."""
        if not self._is_alone(path):
            if self._is_as_wanted(path, record):
                return
            self._copy(path, path)
        self.place.change(path, lambda entry: _change(entry, record))

    def _is_as_wanted(self, path: str, record: records.MovedFile | records.Other) -> bool:
        status = self.place.status(path)
        assert status is not None, "expected before"
        attributes: list[records.Attributes] = []
        self.place.change(path, lambda entry: attributes.append(read_attributes(entry)))
        return (stat.S_IMODE(status.st_mode), status.st_mtime_ns, attributes[0]) == (
            record.mode,
            record.mtime_ns,
            record.attributes,
        )

    def _copy(self, path: str, target: str) -> None:
        with Descriptor(self.place.open_file(path)) as source:
            size = os.fstat(source).st_size

            def fill(descriptor: int) -> None:
                if not clone_file(source, descriptor):
                    copy_file(source, descriptor, size)

            self.place.write(target, fill)

    def _is_alone(self, path: str) -> bool:
        status = self.place.status(path)
        return status is not None and status.st_nlink == 1

    def _expect_file(self, path: str) -> None:
        status = self.place.status(path)
        if status is None or not stat.S_ISREG(status.st_mode):
            raise damaged(self.bundle, f"{path!r} is no file of the base")


def _finish(target: int, record: records.FileStart) -> None:
    set_attributes(target, record.attributes)
    os.utime(target, ns=(record.mtime_ns, record.mtime_ns))
    os.fchmod(target, record.mode & _MODE)


def _change(entry: str, record: records.MovedFile | records.Other) -> None:
    # Attributes can be set only where one may write.
    os.chmod(entry, 0o600)
    set_attributes(entry, record.attributes)
    os.utime(entry, ns=(record.mtime_ns, record.mtime_ns))
    os.chmod(entry, record.mode & _MODE)


def set_attributes(entry: str | int, wanted: records.Attributes) -> None:
    """These, and no others of those that bundles hold."""
    names = {name for name, _ in wanted}
    with contextlib.suppress(OSError):
        for name in os.listxattr(entry):
            raw = os.fsencode(name)
            if is_kept(raw) and raw not in names:
                os.removexattr(entry, name)
    for raw, value in wanted:
        try:
            os.setxattr(entry, raw, value)
        except OSError as error:
            if error.errno not in _NO_ATTRIBUTE:
                raise
