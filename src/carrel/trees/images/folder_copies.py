"""A folder that holds a root file system, copied as an image.

Nothing in it is followed, and what is mounted in it is left out. Its files may belong to anybody;
they share their blocks with the copies where the file system can. What names the image is all
that was copied: names, kinds, modes, owners, targets, and bytes, but not times.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from carrel.domain.errors import ImageInvalid
from carrel.domain.tar import shown
from carrel.linux.descriptors import Descriptor
from carrel.linux.openat2 import open_same_mount
from carrel.linux.reflink import clone_file, copy_file
from carrel.trees.contents import digest
from carrel.trees.folders import join
from carrel.trees.images.root import (
    ATTRIBUTES,
    CAPABILITIES,
    DEVICES,
    MOUNTS,
    SOCKETS,
    EntryFacts,
    RootBuilder,
    refused,
)
from carrel.trees.paths import FOLDER

_MAX_DEPTH = 512
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_CAPABILITY = "security.capability"


Owners = Callable[[str, os.stat_result], tuple[int, int]]
"""Whom an entry belongs to in the image, by its path there and what is seen of it."""


def as_seen(_path: str, status: os.stat_result) -> tuple[int, int]:
    return status.st_uid, status.st_gid


class FolderCopy:
    def __init__(
        self, builder: RootBuilder, source: Path, data: Path, owners: Owners = as_seen
    ) -> None:
        """`data` is Carrel's own data folder, which is left out."""
        self._owners = owners
        self._builder = builder
        self._source = source
        self._data = data.stat()
        self._hash = hashlib.sha256()
        self._links: dict[tuple[int, int], str] = {}

    def run(self) -> str:
        """The digest of what was copied. Raises `ImageInvalid` and what the builder raises."""
        try:
            with Descriptor(
                os.open(self._source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            ) as top:
                self._folder(top, "", 0)
        except PermissionError as error:
            raise _unreadable(str(self._source)) from error
        return f"sha256:{self._hash.hexdigest()}"

    def _folder(self, folder: int, path: str, depth: int) -> None:
        status = os.fstat(folder)
        if depth > _MAX_DEPTH:
            raise refused(os.fsencode(path), f"is nested more than {_MAX_DEPTH} folders deep")
        self._builder.make_folder(path, self._facts(path, status, b"folder"))
        for name in sorted(os.listdir(folder)):
            entry = join(path, name)
            try:
                self._entry(folder, name, entry, depth)
            except PermissionError as error:
                raise _unreadable(entry) from error
            except OSError as error:
                # It went away, or is being replaced: as if it had not been there.
                if error.errno not in _GONE:
                    raise

    def _entry(self, folder: int, name: str, path: str, depth: int) -> None:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            self._below(folder, name, path, depth)
        elif status.st_nlink > 1 and (status.st_dev, status.st_ino) in self._links:
            first = self._links[status.st_dev, status.st_ino]
            self._note(path, b"link", os.fsencode(first))
            self._builder.link(path, first)
        elif kind == stat.S_IFREG:
            self._file(folder, name, path)
        elif kind == stat.S_IFLNK:
            target = os.fsencode(os.readlink(name, dir_fd=folder))
            facts = self._facts(path, status, b"symlink", target)
            self._builder.symlink(path, target, facts)
            self._first(path, status)
        elif kind == stat.S_IFIFO:
            self._builder.fifo(path, self._facts(path, status, b"pipe"))
            self._first(path, status)
        else:
            self._builder.skip(path, SOCKETS if kind == stat.S_IFSOCK else DEVICES)

    def _below(self, folder: int, name: str, path: str, depth: int) -> None:
        try:
            opened = open_same_mount(folder, os.fsencode(name), FOLDER)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._mounted(path)
            return
        with Descriptor(opened):
            if os.path.samestat(os.fstat(opened), self._data):
                self._mounted(path)
                return
            self._folder(opened, path, depth + 1)

    def _mounted(self, path: str) -> None:
        """Whoever looks for it finds a folder."""
        self._builder.notes.add(MOUNTS, path)
        self._note(path, b"mount")
        self._builder.make_folder(path, EntryFacts(0o755, (0, 0), 0))

    def _file(self, folder: int, name: str, path: str) -> None:
        with Descriptor(os.open(name, _FILE, dir_fd=folder)) as source:
            status = os.fstat(source)
            if not stat.S_ISREG(status.st_mode):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            self._attributes(source, path)
            named = b""

            def fill(target: int) -> None:
                nonlocal named
                if not clone_file(source, target):
                    copy_file(source, target, status.st_size)
                os.ftruncate(target, status.st_size)
                named = digest(target, status.st_size)

            self._builder.fill(path, self._about(path, status), status.st_size, fill)
        self._facts(path, status, b"file", named)
        self._first(path, status)

    def _attributes(self, source: int, path: str) -> None:
        with contextlib.suppress(OSError):
            for attribute in os.listxattr(source):
                if not attribute.startswith(("security.selinux", "system.")):
                    what = CAPABILITIES if attribute == _CAPABILITY else ATTRIBUTES
                    self._builder.notes.add(what, path)

    def _first(self, path: str, status: os.stat_result) -> None:
        if status.st_nlink > 1:
            self._links[status.st_dev, status.st_ino] = path

    def _about(self, path: str, status: os.stat_result) -> EntryFacts:
        mode, owner = stat.S_IMODE(status.st_mode), self._owners(path, status)
        return EntryFacts(mode, owner, status.st_mtime_ns)

    def _facts(
        self, path: str, status: os.stat_result, kind: bytes, content: bytes = b""
    ) -> EntryFacts:
        facts = self._about(path, status)
        numbers = b"%o %d %d" % (facts.mode, *facts.owner)
        self._note(path, kind, numbers, content)
        return facts

    def _note(self, path: str, *facts: bytes) -> None:
        for fact in (os.fsencode(path), *facts):
            self._hash.update(len(fact).to_bytes(8, "big") + fact)
        self._hash.update(b"\n")


def _unreadable(path: str) -> ImageInvalid:
    return ImageInvalid(
        f"The folder cannot be imported: {shown(os.fsencode(path))} may not be read.",
        hint="Pack it with sudo tar, and import that, or run the daemon as root.",
    )
