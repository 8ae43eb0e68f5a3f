"""A root file system that is being made, entry by entry, of what strangers have packed.

The folder is new and nobody else's, so only the entries themselves can do harm. Folders are opened
below the root, and a symlink is never followed, whatever it leads to: where an entry lies behind
one, a folder takes the link's place, as in an overlay. An entry replaces what has its name, and is
never written into it. Folders get their owners, modes and times last.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from carrel.domain.errors import CarrelError, ImageInvalid, InsufficientDisk, TooLarge
from carrel.domain.images import IDS, ImageLimits, ImageNote
from carrel.domain.systems import IdMap
from carrel.domain.tar import CHUNK, shown
from carrel.linux.descriptors import Descriptor
from carrel.linux.ids import may_give
from carrel.trees.contents import write_at
from carrel.trees.folders import FolderCache, join, split
from carrel.trees.paths import FOLDER, open_folder, path_error
from carrel.trees.removal import remove_entry

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ZEROS = bytes(CHUNK)
"""Of large files, what holds nothing takes no room."""
_MAX_NAME = 255
_MAX_PATH = 4000
_MAX_TARGET = 4095
_MAX_DEPTH = 512
"""Levels of folders; packages nest some fifty."""
_SPARE_BYTES = 64 << 20
"""So much room is left on the disk: an archive may claim any size."""
_LOOK_BYTES = 16 << 20
"""After so many bytes it is looked at how much room there is."""
_NAMED = 5
"""So many names a note has."""
_MANY_LINKS = "has more names than the file system can give to a file"
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_SET_IDS = stat.S_ISUID | stat.S_ISGID

DEVICES = "devices are left out: a space has its own"
SOCKETS = "sockets are left out: nobody listens on them"
CAPABILITIES = "capabilities of files are left out"
ATTRIBUTES = "extended attributes are left out"
OWNERS = "users and groups of files are left out: everything belongs to you"
SET_IDS = "set-user-id and set-group-id bits are left out"
BEHIND_LINKS = "symlinks with entries behind them became folders"
MOUNTS = "what is mounted in the folder is left out"
ODD_IDS = f"users and groups above {IDS - 1} became root"


class EntryFacts(NamedTuple):
    """Of an entry, whatever its kind."""

    mode: int
    owner: tuple[int, int]
    mtime_ns: int


IMPLICIT = EntryFacts(0o755, (0, 0), 0)
"""A folder that is only on the way to an entry."""


def image_name(name: bytes) -> str:
    """The path below the root; "" is the root itself. An absolute one begins there too. Raises
    `ImageInvalid`."""
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise refused(name, "leads out of the image")
    if b"\0" in name or any(len(part) > _MAX_NAME for part in parts):
        raise refused(name, "cannot be the name of a file")
    if len(parts) > _MAX_DEPTH or len(name) > _MAX_PATH:
        raise refused(name, f"is nested more than {_MAX_DEPTH} folders deep, or too long")
    return os.fsdecode(b"/".join(parts))


def refused(name: bytes, why: str) -> ImageInvalid:
    return ImageInvalid(
        f"The image cannot be used: its entry {shown(name)} {why}.",
        hint="Build the image again, or get it from somebody you trust.",
        entry=os.fsdecode(name).encode(errors="backslashreplace").decode(),
    )


class Notes:
    """What was left out, counted."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, list[str]]] = {}

    def add(self, what: str, path: str = "") -> None:
        count, names = self._found.get(what, (0, []))
        if path and len(names) < _NAMED:
            names.append(
                path if path.isprintable() and len(path) < 200 else shown(os.fsencode(path))
            )
        self._found[what] = count + 1, names

    def all(self) -> tuple[ImageNote, ...]:
        found = sorted(self._found.items())
        return tuple(ImageNote(what, count, tuple(names)) for what, (count, names) in found)


@dataclass
class _Layer:
    """What the layer that is unpacked now has made or passed through: what deletes only deletes
    what is of layers below."""

    made: set[str] = field(default_factory=set)
    opaque: set[str] = field(default_factory=set)


class RootBuilder(FolderCache):
    """Paths are as `image_name` gives them. Raises `ImageInvalid`, `TooLarge`,
    `InsufficientDisk`."""

    def __init__(
        self,
        root: int,
        limits: ImageLimits,
        on_entry: Callable[[int, int], None],
        ids: IdMap | None = None,
    ) -> None:
        """`root` stays the caller's. `on_entry` is called with the entries and bytes so far. `ids`:
        as whose files are kept, where those are not an image's own numbers."""
        super().__init__()
        self.notes = Notes()
        self.entries = 0
        self.bytes_written = 0
        self._root = root
        self._limits = limits
        self._on_entry = on_entry
        self._keeps_owners = may_give()
        self._ids = ids
        self._own = os.geteuid(), os.getegid()
        self._folders = {"": self._allowed("", IMPLICIT)}
        """What they are to be; also of some that are gone."""
        self._skipped: set[str] = set()
        self._layer = _Layer()
        self._looked = 0
        self._way = ""

    def next_layer(self) -> None:
        self._layer = _Layer()
        self._way = ""

    # Entries

    def make_folder(self, path: str, about: EntryFacts) -> None:
        with self._errors(path):
            self._count(path, 0)
            self._reach(path)
            self._folders[path] = self._allowed(path, about)

    def write(
        self, path: str, about: EntryFacts, size: int, pieces: Iterable[tuple[int, bytes]]
    ) -> None:
        """`pieces` of the file, each with its place; the rest is empty."""

        def fill(target: int) -> None:
            for position, piece in pieces:
                self._look(len(piece))
                if piece != _ZEROS:
                    write_at(target, piece, position)
            os.ftruncate(target, size)

        self.fill(path, about, size, fill)

    def fill(self, path: str, about: EntryFacts, size: int, fill: Callable[[int], None]) -> None:
        """A new file of this size, that `fill` writes."""
        about = self._allowed(path, about)
        with self._errors(path):
            self._count(path, size)
            with Descriptor(self._new_file(path)) as target:
                fill(target)
                if about.owner != self._own:
                    os.fchown(target, *about.owner)
                os.fchmod(target, about.mode)
                os.utime(target, ns=(about.mtime_ns, about.mtime_ns))

    def symlink(self, path: str, target: bytes, about: EntryFacts) -> None:
        """Whatever it leads to: it means something within a space only."""
        if not target or len(target) > _MAX_TARGET or b"\0" in target:
            raise refused(os.fsencode(path), f"is a symlink to {shown(target)}, which cannot be")
        about = self._allowed(path, about)
        with self._errors(path):
            self._count(path, 0)
            folder, name = self._free(path)
            os.symlink(target, name, dir_fd=folder)
            self._finish_node(folder, name, about)

    def fifo(self, path: str, about: EntryFacts) -> None:
        about = self._allowed(path, about)
        with self._errors(path):
            self._count(path, 0)
            folder, name = self._free(path)
            os.mkfifo(name, 0o600, dir_fd=folder)
            self._finish_node(folder, name, about)
            # No symlink: it was made just now, and nobody else is here.
            os.chmod(name, about.mode, dir_fd=folder)

    def link(self, path: str, first: str) -> None:
        """A further name of an entry that is there, and is no folder."""
        if first in self._skipped:
            self.skip(path, DEVICES)
            return
        with self._errors(path):
            self._count(path, 0)
            if path == first:
                return
            folder, name = self._free(path)
            if self._kind(first) in (None, stat.S_IFDIR):
                raise refused(
                    os.fsencode(path), f"is a link to {shown(os.fsencode(first))}, which it has not"
                )
            above, old = split(first)
            source = os.dup(self.folder(above))
            with Descriptor(source):
                folder = self.folder(split(path)[0])
                os.link(old, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)

    def skip(self, path: str, why: str) -> None:
        """What has that name in a layer below is gone all the same."""
        self.notes.add(why, path)
        with self._errors(path):
            self._count(path, 0)
            self._free(path)
            self._layer.made.discard(path)
            self._skipped.add(path)

    # Deletions

    def delete(self, path: str) -> None:
        """What layers below have there; nothing is fine."""
        with self._errors(path):
            self._count(path, 0)
            if path in self._layer.made:
                self._hide(path)
                return
            above, name = split(path)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if self._kind(path) is not None:
                    self._remove(path, self.folder(above), name)

    def hide(self, path: str) -> None:
        """All that layers below have in a folder."""
        with self._errors(path):
            self._count(path, 0)
            self._reach(path)
            self._hide(path)

    def _hide(self, path: str) -> None:
        made, opaque = self._layer.made, self._layer.opaque
        waiting = [path]
        while waiting:
            here = waiting.pop()
            if here in opaque or self._kind(here) != stat.S_IFDIR:
                continue
            opaque.add(here)
            for name in os.listdir(self.folder(here)):
                entry = join(here, name)
                if entry in made:
                    waiting.append(entry)
                else:
                    self._remove(entry, self.folder(here), name)

    # Ending

    def finish(self) -> None:
        """Gives the folders their owners, modes and times, the inner ones first."""
        self.close_folders()
        for path in sorted(self._folders, reverse=True):
            about = self._folders[path]
            with self._errors(path):
                self._finish_folder(path, about)

    def _finish_folder(self, path: str, about: EntryFacts) -> None:
        try:
            folder = open_folder(self._root, os.fsencode(path))
        except OSError as error:
            if error.errno in _GONE:
                return  # it was removed again
            raise
        with Descriptor(folder) as opened:
            if about.owner != self._own:
                os.fchown(opened, *about.owner)
            os.fchmod(opened, about.mode)
            os.utime(opened, ns=(about.mtime_ns, about.mtime_ns))

    # The way to an entry

    def _open_folder(self, path: str) -> int:
        above, name = split(path)
        if path and above in self._open:
            return os.open(name, FOLDER, dir_fd=self._open[above])
        return open_folder(self._root, os.fsencode(path))

    def _reach(self, path: str) -> None:
        """Makes the folder, and those on the way to it, where they are missing."""
        if path == self._way:
            return
        made = self._layer.made
        done = ""
        for name in path.split("/") if path else ():
            above, done = done, join(done, name)
            if done not in made or self._kind(done) != stat.S_IFDIR:
                self._reach_one(above, done, name)
                made.add(done)
        self._way = path

    def _reach_one(self, above: str, path: str, name: str) -> None:
        kind = self._kind(path)
        if kind == stat.S_IFDIR:
            return
        folder = self.folder(above)
        if kind is not None:
            if kind == stat.S_IFLNK:
                self.notes.add(BEHIND_LINKS, path)
            os.unlink(name, dir_fd=folder)
        self._count(path, 0)
        os.mkdir(name, 0o700, dir_fd=folder)
        self._folders[path] = self._allowed("", IMPLICIT)

    def _free(self, path: str) -> tuple[int, str]:
        """The folder of an entry in which its name is free, and the name."""
        above, name = split(path)
        if not name:
            raise refused(b"/", "is the root, and no folder")
        self._reach(above)
        folder = self.folder(above)
        if self._kind(path) is not None:
            self._remove(path, folder, name)
        self._note(path)
        return folder, name

    def _new_file(self, path: str) -> int:
        """As `_free`, where nothing of that name is to be expected."""
        above, name = split(path)
        if name:
            self._reach(above)
            with contextlib.suppress(FileExistsError):
                target = os.open(name, _NEW, 0o600, dir_fd=self.folder(above))
                self._note(path)
                return target
        folder, name = self._free(path)
        return os.open(name, _NEW, 0o600, dir_fd=folder)

    def _note(self, path: str) -> None:
        self._layer.made.add(path)
        self._skipped.discard(path)

    def _kind(self, path: str) -> int | None:
        """None of what is not there, or behind a symlink."""
        above, name = split(path)
        try:
            if not path:
                return stat.S_IFDIR
            found = os.stat(name, dir_fd=self.folder(above), follow_symlinks=False)
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise
        return stat.S_IFMT(found.st_mode)

    def _remove(self, path: str, folder: int, name: str) -> None:
        for known in [one for one in self._open if f"{one}/".startswith(f"{path}/")]:
            os.close(self._open.pop(known))
        if f"{self._way}/".startswith(f"{path}/"):
            self._way = ""
        remove_entry(folder, os.fsencode(name))

    # What an entry may be

    def _allowed(self, path: str, about: EntryFacts) -> EntryFacts:
        mode, owner, mtime_ns = about
        if not self._keeps_owners:
            if mode & _SET_IDS:
                self.notes.add(SET_IDS, path)
            if owner != (0, 0):
                self.notes.add(OWNERS, path)
            return EntryFacts(mode & 0o1777, self._own, mtime_ns)
        if not (0 <= owner[0] < IDS and 0 <= owner[1] < IDS):
            # Nothing may run as root that belonged to somebody else.
            self.notes.add(ODD_IDS, path)
            mode, owner = mode & ~_SET_IDS, (0, 0)
        if self._ids is not None:
            owner = self._ids.shown(*owner)
        return EntryFacts(mode & 0o7777, owner, mtime_ns)

    def _finish_node(self, folder: int, name: str, about: EntryFacts) -> None:
        if about.owner != self._own:
            os.chown(name, *about.owner, dir_fd=folder, follow_symlinks=False)
        times = about.mtime_ns, about.mtime_ns
        os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)

    # How much

    def _count(self, path: str, size: int) -> None:
        self.entries += 1
        self.bytes_written += size
        for found, limit, what in (
            (self.entries, self._limits.max_entries, "entries"),
            (self.bytes_written, self._limits.max_bytes, "bytes"),
        ):
            if found > limit:
                raise TooLarge(
                    f"The image holds more than the {limit} {what} that are allowed, at "
                    f"{shown(os.fsencode(path))}.",
                    hint="Make the image smaller.",
                    limit=limit,
                )
        self._look(0)
        self._on_entry(self.entries, self.bytes_written)

    def _look(self, size: int) -> None:
        self._looked += size + 4096
        if self._looked < _LOOK_BYTES:
            return
        self._looked = 0
        check_spare(self._root)

    @contextlib.contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except CarrelError:
            raise
        except OSError as error:
            if error.errno == errno.EMLINK:
                raise refused(os.fsencode(path), _MANY_LINKS) from error
            raise path_error(path, error) from error


def check_spare(descriptor: int) -> None:
    """Raises `InsufficientDisk` before the disk is full."""
    disk = os.fstatvfs(descriptor)
    free = disk.f_bavail * disk.f_frsize
    if free < _SPARE_BYTES:
        raise InsufficientDisk(
            f"The image does not fit on the disk: {free} bytes are free.",
            hint="Make room, remove images with carrel image prune, or move the data folder.",
            free_bytes=free,
        )
