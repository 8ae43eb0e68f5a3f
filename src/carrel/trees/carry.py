"""Taking a tree's changes out: into the project's checkout, or into an export.

What is carried was written by strangers, and where it is carried to belongs to somebody
else. In the destination no symlink is followed at all, what exists keeps its owner, and
what is new is given to the project's owner. Set-user-id bits do not come along.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from carrel.domain.errors import PathEscapes, PathWrongKind
from carrel.domain.trees import Base, Change, ChangeKind, EntryType, Owner, Tree, TreeDriver
from carrel.linux.descriptors import Descriptor
from carrel.linux.reflink import clone_file, copy_file
from carrel.trees.files import link_atomically, make_folder, status_of, write_atomically
from carrel.trees.folders import Root, split
from carrel.trees.paths import FOLDER, open_folder, path_errors

_FILE_BITS = 0o777
_FOLDER_BITS = 0o3777
"""Folders may be sticky, or pass on their group; a file never runs as somebody else."""


def carry_out(
    driver: TreeDriver, tree: Tree, base: Base, destination: Path, changes: Iterable[Change]
) -> None:
    """Makes `destination` differ from what it is as the tree differs from its base.

    `changes` are those of the tree, or some of them: what should not leave it, such as its
    git repository, is for the caller to leave out. Raises `PathError`s. A folder that was
    deleted stays where it has something else in it.
    """
    listed = list(changes)
    with path_errors(str(destination)):
        target = os.open(destination, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with Root(driver.open_root(tree)) as source:
            carrier = _Carrier(source, target, base.project_owner)
            for change in reversed(listed):
                with path_errors(change.path):
                    carrier.take_away(change)
            for change in listed:
                with path_errors(change.path):
                    carrier.bring(change)
    finally:
        os.close(target)


class _Carrier:
    def __init__(self, source: Root, target: int, owner: Owner) -> None:
        self._source = source
        self._target = target
        self._owner = owner
        self._former_owners: dict[str, Owner] = {}

    def take_away(self, change: Change) -> None:
        """Whatever is not where it was; called from the last path to the first."""
        if change.kind is ChangeKind.DELETED:
            self._remove(change.path, change.old_type)
        elif change.kind is ChangeKind.RENAMED and change.old_path is not None:
            with self._folder_of(change.old_path) as (folder, name):
                status = status_of(folder, name)
            if status is not None:
                self._former_owners[change.path] = Owner(status.st_uid, status.st_gid)
            self._remove(change.old_path, EntryType.FILE)
        elif change.kind is ChangeKind.TYPE:
            self._remove(change.path, change.old_type)

    def _remove(self, path: str, kind: EntryType | None) -> None:
        # Where a folder on the way is gone, so is what was in it.
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            self._folder_of(path) as (folder, name),
        ):
            if kind is not EntryType.FOLDER:
                os.unlink(name, dir_fd=folder)
                return
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise

    def bring(self, change: Change) -> None:
        """What is new or different; called from the first path to the last."""
        if change.kind is ChangeKind.DELETED or change.new_mode is None:
            return
        with self._folder_of(change.path) as (folder, name):
            if change.new_type is EntryType.FOLDER:
                self._bring_folder(folder, name, change.new_mode & _FOLDER_BITS)
            elif change.new_type is EntryType.SYMLINK:
                self._bring_link(folder, name, change.path)
            elif change.new_type is EntryType.FILE:
                self._bring_file(folder, name, change)

    def _bring_folder(self, folder: int, name: bytes, mode: int) -> None:
        status = status_of(folder, name)
        if status is None:
            make_folder(folder, name, mode=mode, owner=self._owner)
            return
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        with Descriptor(os.open(name, FOLDER, dir_fd=folder)) as opened:
            os.fchmod(opened, mode)

    def _bring_link(self, folder: int, name: bytes, path: str) -> None:
        owner = self._make_way(folder, name, path)
        link_atomically(folder, name, self._source.link(path), owner=owner)

    def _bring_file(self, folder: int, name: bytes, change: Change) -> None:
        owner = self._make_way(folder, name, change.path)
        with Descriptor(self._source.open_file(change.path)) as source:
            status = os.fstat(source)

            def fill(target: int) -> None:
                if not clone_file(source, target):
                    copy_file(source, target, status.st_size)
                os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))

            mode = (change.new_mode or 0) & _FILE_BITS
            write_atomically(folder, name, fill, mode=mode, owner=owner)

    def _make_way(self, folder: int, name: bytes, path: str) -> Owner:
        """Whose the entry is to be; raises when a folder is in its place."""
        status = status_of(folder, name)
        if status is None:
            return self._former_owners.get(path, self._owner)
        if stat.S_ISDIR(status.st_mode):
            raise PathWrongKind(
                f"{path!r} is a folder in the destination, with something else in it.",
                hint="Move it away first.",
            )
        return Owner(status.st_uid, status.st_gid)

    @contextlib.contextmanager
    def _folder_of(self, path: str) -> Iterator[tuple[int, bytes]]:
        above, name = split(path)
        try:
            folder = open_folder(self._target, os.fsencode(above))
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise PathEscapes(
                    f"{path!r} is behind a symlink in the destination.",
                    hint="Put the folder back that the link has replaced.",
                ) from error
            raise
        try:
            yield folder, os.fsencode(name)
        finally:
            os.close(folder)
