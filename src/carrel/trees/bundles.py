"""What a tree changed, in one file, and back into a fresh tree of the same base.

A bundle holds the new bytes only: of a file that was moved, its two names; of one whose mode
changed, the mode. It goes into any driver's tree.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from carrel.domain.errors import TreeDamaged
from carrel.domain.trash import Bundle
from carrel.domain.trees import Change, ChangeKind, EntryType, Skipped, Tree, TreeDriver
from carrel.trees import bundle_records as records
from carrel.trees.bundle_restoring import restore
from carrel.trees.drivers.common import tree_errors
from carrel.trees.drivers.sharing import OBJECTS
from carrel.trees.folders import Root, split
from carrel.trees.holes import data_ranges
from carrel.trees.paths import path_errors

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
        writer = records.Writer(descriptor, max_bytes)
        with Root(driver.open_root(tree)) as root:
            packer = _Packer(root, writer)
            writer.write(records.Head(records.VERSION, base_id))
            for change in changes:
                with path_errors(change.path):
                    packer.take(change)
            writer.write(records.Tail(len(changes)))
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
            _sync_folder(target.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass
class _Packer:
    root: Root
    writer: records.Writer
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
            self.writer.write(records.Way(os.fsencode(folder), mode, status.st_mtime_ns))

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
        descriptor = self.root.open_file(change.path)
        try:
            status = os.fstat(descriptor)
            key = (status.st_dev, status.st_ino)
            attributes = records.read_attributes(descriptor)
            if change.kind is ChangeKind.RENAMED and change.old_path is not None:
                old = os.fsencode(change.old_path)
                moved = records.Moved(path, old, mode, status.st_mtime_ns, attributes)
                self.writer.write(moved)
            elif change.kind is ChangeKind.MODE and not _may_be_borrowed(change.path):
                self.writer.write(records.Other(path, mode, status.st_mtime_ns, attributes))
            elif key in self._linked:
                self.writer.write(records.Again(path, self._linked[key]))
            else:
                self.writer.write(records.File(path, mode, status.st_mtime_ns, attributes))
                self._write_content(descriptor, status.st_size)
                if status.st_nlink > 1:
                    self._linked[key] = path
        finally:
            os.close(descriptor)

    def _write_content(self, descriptor: int, size: int) -> None:
        for start, end in data_ranges(descriptor, size):
            while start < end:
                data = os.pread(descriptor, min(records.PIECE, end - start), start)
                if not data:
                    break
                self.writer.write(records.Piece(start, data))
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
