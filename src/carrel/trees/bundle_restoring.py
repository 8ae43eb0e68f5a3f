"""From a bundle into a fresh tree.

The whole file is read before the tree is touched. Then the files that moved are put aside,
so that nothing else can take their old or new place, and all changes are made in order.
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

from carrel.domain.errors import (
    InsufficientDisk,
    PathEscapes,
    PathExists,
    PathInvalid,
    PathNotFound,
    PathWrongKind,
    TreeDamaged,
)
from carrel.domain.trees import Owner, Tree, TreeDriver
from carrel.linux.reflink import clone_file, copy_file
from carrel.trees import bundle_records as records
from carrel.trees.bundle_records import damaged, is_kept, read_attributes
from carrel.trees.workplace import Workplace

_NO_ATTRIBUTE = frozenset(
    {errno.EOPNOTSUPP, errno.EPERM, errno.E2BIG, errno.ENOSPC, errno.ERANGE, errno.EINVAL}
)
"""What this file system cannot have is no part of the file here."""

_MISFITS = (PathEscapes, PathExists, PathInvalid, PathNotFound, PathWrongKind)
"""In a fresh tree, nothing is in the way but what the bundle itself has put there."""


def restore(driver: TreeDriver, tree: Tree, bundle: Path) -> None:
    """See `Bundler`."""
    found = _survey(bundle, tree)
    root = driver.open_root(tree)
    try:
        _check_room(root, found.size)
        status = os.fstat(root)
        place = Workplace(root, Owner(status.st_uid, status.st_gid))
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
    finally:
        os.close(root)


@dataclass
class _Survey:
    """What is to be known before anything is done."""

    moved: list[bytes] = field(default_factory=list)
    size: int = 0


def _survey(bundle: Path, tree: Tree) -> _Survey:
    found = _Survey()
    stream = records.read(bundle)
    head = next(stream, None)
    if not isinstance(head, records.Head):
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
        if isinstance(record, records.Piece | records.Size):
            if file is None or not file.takes(record):
                raise damaged(bundle, "it has bytes that belong nowhere")
            file = None if isinstance(record, records.Size) else file
            found.size += len(record.data) if isinstance(record, records.Piece) else 0
            continue
        if file is not None or isinstance(record, records.Head):
            raise damaged(bundle, "a file has no end")
        file = _Extent() if isinstance(record, records.File) else None
        if isinstance(record, records.Moved):
            found.moved.append(record.old)
    if len(set(found.moved)) != len(found.moved):
        raise damaged(bundle, "a file was moved twice")
    return found


@dataclass
class _Extent:
    """How far the pieces of a file have come: they are in order."""

    end: int = 0

    def takes(self, record: records.Piece | records.Size) -> bool:
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
def _aside(place: Workplace) -> Iterator[str]:
    """A folder in the tree: only there can files be moved to without copying them."""
    folder = f".carrel-{secrets.token_hex(8)}"
    place.reach(folder, 0o700)
    try:
        yield folder
    finally:
        place.remove(folder)


@dataclass
class _Restorer:
    place: Workplace
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
            if isinstance(record, records.File):
                self._make_file(record, stream)
            elif isinstance(record, records.Moved):
                self._make_moved(record, moved)
                moved += 1
            else:
                self._make(record)

    def _make(self, record: records.Record) -> None:
        place = self.place
        if isinstance(record, records.Way):
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
        self.place.change(path, lambda entry: _set_attributes(entry, record.attributes))

    def _make_file(self, record: records.File, stream: Iterator[records.Record]) -> None:
        def fill(target: int) -> None:
            for piece in stream:
                if not isinstance(piece, records.Piece):
                    assert isinstance(piece, records.Size), "surveyed before"
                    os.ftruncate(target, piece.size)
                    break
                _write_at(target, piece.data, piece.position)
            _finish(target, record)

        self.place.write(self._free(record.path), fill)

    def _make_moved(self, record: records.Moved, number: int) -> None:
        source = f"{self.aside}/{number}"
        self._change(source, record)
        self.place.move(source, self._free(record.path))

    def _change_mode(self, record: records.Other) -> None:
        path = os.fsdecode(record.path)
        self._expect_file(path)
        self._change(path, record)

    def _change(self, path: str, record: records.Moved | records.Other) -> None:
        """A file with other names, which may be the base's own, is left as it is: a copy
        takes its place, unless there is nothing to change."""
        if not self._is_alone(path):
            if self._is_as_wanted(path, record):
                return
            self._copy(path, path)
        self.place.change(path, lambda entry: _change(entry, record))

    def _is_as_wanted(self, path: str, record: records.Moved | records.Other) -> bool:
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
        source = self.place.open_file(path)
        try:
            size = os.fstat(source).st_size

            def fill(descriptor: int) -> None:
                if not clone_file(source, descriptor):
                    copy_file(source, descriptor, size)

            self.place.write(target, fill)
        finally:
            os.close(source)

    def _is_alone(self, path: str) -> bool:
        status = self.place.status(path)
        return status is not None and status.st_nlink == 1

    def _expect_file(self, path: str) -> None:
        status = self.place.status(path)
        if status is None or not stat.S_ISREG(status.st_mode):
            raise damaged(self.bundle, f"{path!r} is no file of the base")


def _finish(target: int, record: records.File) -> None:
    _set_attributes(target, record.attributes)
    os.utime(target, ns=(record.mtime_ns, record.mtime_ns))
    os.fchmod(target, record.mode)


def _change(entry: str, record: records.Moved | records.Other) -> None:
    # Attributes can be set only where one may write.
    os.chmod(entry, 0o600)
    _set_attributes(entry, record.attributes)
    os.utime(entry, ns=(record.mtime_ns, record.mtime_ns))
    os.chmod(entry, record.mode)


def _set_attributes(entry: str | int, wanted: records.Attributes) -> None:
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


def _write_at(target: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(target, view, position)
        view = view[count:]
        position += count
