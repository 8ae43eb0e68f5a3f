"""Building a plain folder that shows what a base's layers show."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable

from carrel.domain.trees import Owner
from carrel.trees.files import give
from carrel.trees.folders import Root, join, split
from carrel.trees.layers import Entry, Layers

Fill = Callable[[int, int, int], None]
"""Gives an empty file (the second descriptor) the bytes of another; the third is its size."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
Share = Callable[[str, os.stat_result], bool]
"""Whether a file is to be the base's own under another name, instead of a copy."""

_KEPT = "user."
_NOT_KEPT = "user.overlay."
"""The attributes that are the project's, and those of them that are an overlay's notes."""


class Assembly:
    """One copy. `sources` remembers the stat of what each file was made from."""

    def __init__(self, base: Layers, target: Root, owner: Owner, fill: Fill, share: Share) -> None:
        self._base = base
        self._target = target
        self._owner = owner
        self._fill = fill
        self._share = share
        self._linked: dict[tuple[int, int], str] = {}
        self.sources: dict[str, os.stat_result] = {}

    def build(self, leave_out: Callable[[str], bool]) -> None:
        """Raises OSError; the caller removes what there is then."""
        top = self._base.top()
        folders: list[tuple[str, os.stat_result]] = []
        pending = [("", top)]
        while pending:
            path, folder = pending.pop()
            folders.append((path, folder.status))
            for name, entry in self._base.children(folder).items():
                below = join(path, name)
                if leave_out(below):
                    continue
                if entry.is_folder:
                    os.mkdir(name, 0o700, dir_fd=self._target.folder(path))
                    pending.append((below, entry))
                else:
                    self._make(below, entry)
        # From the inside out: filling a folder changes its time, and a folder may lose the
        # permission to be entered.
        for path, status in reversed(folders):
            self._finish(self._target.folder(path), status)

    def _make(self, path: str, entry: Entry) -> None:
        above, name = split(path)
        folder = self._target.folder(above)
        if entry.is_file:
            self._make_file(path, name, folder, entry)
        elif stat.S_ISLNK(entry.status.st_mode):
            os.symlink(entry.content.root.link(entry.content.path), name, dir_fd=folder)
            if os.geteuid() == 0:
                owner = self._owner
                os.chown(name, owner.uid, owner.gid, dir_fd=folder, follow_symlinks=False)
            times = (entry.status.st_atime_ns, entry.status.st_mtime_ns)
            os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)
        else:
            return  # bases hold nothing else
        self.sources[path] = entry.status

    def _make_file(self, path: str, name: str, folder: int, entry: Entry) -> None:
        if self._share(path, entry.status) and _link_to_base(name, folder, entry):
            return
        if entry.status.st_nlink > 1 and self._make_link(path, name, folder, entry):
            return
        source = entry.content.root.open_file(entry.content.path)
        try:
            target = os.open(name, _NEW, 0o600, dir_fd=folder)
            try:
                self._fill(source, target, entry.status.st_size)
                _copy_attributes(source, target)
                self._finish(target, entry.status)
            finally:
                os.close(target)
        finally:
            os.close(source)

    def _make_link(self, path: str, name: str, folder: int, entry: Entry) -> bool:
        """For the second and later names of a file."""
        first = self._linked.setdefault(entry.key, path)
        if first == path:
            return False
        above, old_name = split(first)
        source = os.dup(self._target.folder(above))
        try:
            # Asked for again: opening the other folder may have closed it.
            folder = self._target.folder(split(path)[0])
            os.link(old_name, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(source)
        return True

    def _finish(self, descriptor: int, status: os.stat_result) -> None:
        give(descriptor, self._owner)
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
        os.utime(descriptor, ns=(status.st_atime_ns, status.st_mtime_ns))


def _link_to_base(name: str, folder: int, entry: Entry) -> bool:
    above, base_name = split(entry.content.path)
    source = entry.content.root.folder(above)
    try:
        os.link(base_name, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        # So many names as a file may have, or a file system without: then it is copied.
        if error.errno in (errno.EMLINK, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP):
            return False
        raise
    return True


def _copy_attributes(source: int, target: int) -> None:
    try:
        names = os.listxattr(source)
    except OSError:
        return
    for name in names:
        if name.startswith(_KEPT) and not name.startswith(_NOT_KEPT):
            # What this file system or user cannot have is no part of the file.
            with contextlib.suppress(OSError):
                os.setxattr(target, name, os.getxattr(source, name))
