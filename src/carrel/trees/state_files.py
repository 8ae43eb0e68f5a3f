"""How the files of a state are kept, and how a folder is made what a state says.

Bytes of files go into a folder of their own, under names without a meaning; states name them. One
that has not been touched is not read again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from carrel.domain.errors import InsufficientDisk, TooLarge
from carrel.linux.descriptors import Descriptor
from carrel.linux.files import begin_write_out
from carrel.linux.ids import may_give
from carrel.linux.reflink import clone_file, copy_file
from carrel.linux.reserve import free_room
from carrel.trees.bundle_format import read_attributes
from carrel.trees.bundles import set_attributes
from carrel.trees.contents import STAT_BLOCK
from carrel.trees.drivers.common import settle
from carrel.trees.drivers.written import ReadableFiles
from carrel.trees.files import once_freed
from carrel.trees.folders import Root, open_own, split
from carrel.trees.kept import KeptEntries, StateEntry, by_path, mark_of
from carrel.trees.layers import TRUSTED
from carrel.trees.parts import Ids, Seen
from carrel.trees.writer import TreeWriter

LEFT_FREE = 256 << 20
"""On the disk: states are a comfort, and fill no disk."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINK = (errno.EXDEV, errno.EMLINK, errno.EPERM)
_KEPT = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK, stat.S_ISFIFO, stat.S_ISSOCK)


def is_kept(status: os.stat_result) -> bool:
    return any(kind(status.st_mode) for kind in _KEPT)


class FileKeeping:
    """Copies of files, of one state that is being kept."""

    def __init__(self, objects: Path, max_bytes: int) -> None:
        self._objects = objects
        self._left = max_bytes
        self._going: Root | None = None
        self._clones = True
        """The disk has not refused yet to share blocks."""
        self.sure: set[bytes] = set()
        """Copies that were begun after their files had been touched last, by us: an ordinary user
        is let into a file without permissions by a new mode alone."""
        self._made: dict[bytes, int] = {}
        """The names of the copies, and what each takes."""
        self._linked: dict[tuple[int, int], bytes] = {}
        """Of files with several names, by their inode."""

    @contextlib.contextmanager
    def taking_over(self, folder: Path) -> Iterator[None]:
        """Within, files of this folder are not copied, but get a further name: of a space that
        goes, in which nothing runs any more."""
        with Root.at(folder) as going:
            self._going = going
            try:
                yield
            finally:
                self._going = None

    def _take_over(self, path: str, status: os.stat_result, target: str) -> bool:
        """Not what has its bytes elsewhere: in the image, after a change of its mode say."""
        going = self._going
        there = going.status(path) if going is not None else None
        if going is None or there is None or not stat.S_ISREG(there.st_mode):
            return False
        bare = there.st_size != status.st_size or there.st_mtime_ns != status.st_mtime_ns
        if bare or going.xattr(path, f"{TRUSTED}metacopy") is not None:
            return False
        above, name = split(path)
        try:
            os.link(name, target, src_dir_fd=going.folder(above), follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            return False
        return True

    @property
    def bytes_new(self) -> int:
        return sum(self._made.values())

    def all(
        self, root: ReadableFiles, seen: Iterable[Seen], before: Iterable[StateEntry], ids: Ids
    ) -> tuple[StateEntry, ...]:
        known = by_path(before)
        found = (self._one(root, path, status, known.get(path), ids) for path, status in seen)
        return tuple(one for one in found if one is not None)

    def _one(
        self,
        root: ReadableFiles,
        path: str,
        status: os.stat_result | None,
        known: StateEntry | None,
        ids: Ids,
    ) -> StateEntry | None:
        if status is None:
            return StateEntry(os.fsencode(path))
        if not is_kept(status):
            return None
        if known is not None and known.mark == mark_of(status):
            if known.is_file and status.st_nlink > 1:
                self._linked[status.st_dev, status.st_ino] = known.content
            return known
        content = b""
        if stat.S_ISLNK(status.st_mode):
            content = root.link(path)
        elif stat.S_ISREG(status.st_mode):
            content, status = self._file(root, path, ids)
        return StateEntry(
            os.fsencode(path),
            status.st_mode,
            status.st_mtime_ns,
            status.st_size if stat.S_ISREG(status.st_mode) else 0,
            content,
            mark_of(status),
            ids.inside(status),
        )

    def _file(self, root: ReadableFiles, path: str, ids: Ids) -> tuple[bytes, os.stat_result]:
        source, status = root.open_regular(path)
        with Descriptor(source):
            inode = (status.st_dev, status.st_ino)
            if status.st_nlink > 1 and inode in self._linked:
                return self._linked[inode], status
            name = secrets.token_hex(10).encode()
            # Of a file whose mode alone was changed, the bytes are elsewhere.
            blocks = status.st_blocks or os.fstat(source).st_blocks
            self._count(name, blocks * STAT_BLOCK)
            target = os.path.join(self._objects, os.fsdecode(name))
            if self._take_over(path, status, target):
                self._note_linked(inode, status, name)
                return name, status
            status = self._calm(source, status, name)
            # Begins to write it out. Until then a program that has it mapped can write to it again
            # without a new ctime.
            begin_write_out(source, status.st_size)
            with Descriptor(os.open(target, _NEW, 0o600)) as copy:
                self._clones = self._clones and clone_file(source, copy)
                if not self._clones:
                    copy_file(source, copy, status.st_size)
                if found := read_attributes(source):
                    set_attributes(copy, found)
                os.utime(copy, ns=(status.st_mtime_ns, status.st_mtime_ns))
                if may_give():
                    owner = ids.stored(ids.inside(status))
                    os.fchown(copy, owner.uid, owner.gid)
                os.fchmod(copy, status.st_mode & ids.bits)
        self._note_linked(inode, status, name)
        return name, status

    def _calm(self, source: int, status: os.stat_result, name: bytes) -> os.stat_result:
        if may_give() or status.st_mode & stat.S_IRUSR:
            return status
        settle(self._objects.parent)
        now = os.fstat(source)
        if now.st_ctime_ns == status.st_ctime_ns:
            self.sure.add(name)
        return now

    def _note_linked(self, inode: tuple[int, int], status: os.stat_result, name: bytes) -> None:
        if status.st_nlink > 1:
            self._linked[inode] = name

    def _count(self, name: bytes, size: int) -> None:
        self._made[name] = size
        self.count(size)
        if size > 1 << 20 and free_room(self._objects).bytes < size + LEFT_FREE:
            raise InsufficientDisk(
                "There is no room on the disk to keep the state.", hint="Make room: carrel gc"
            )

    def count(self, size: int) -> None:
        """Raises `TooLarge` when it is more than may be kept."""
        self._left -= size
        if self._left < 0:
            raise TooLarge(
                "The space has changed more than may be kept of it.",
                hint="Remove what need not be kept, or let it be: carrel config",
            )

    def forget(self, *, but: Collection[bytes] = ()) -> None:
        """The copies that nobody needs."""
        self._linked.clear()
        for name in [one for one in self._made if one not in but]:
            (self._objects / os.fsdecode(name)).unlink(missing_ok=True)
            self._left += self._made.pop(name)


class Restoring:
    """One folder, made what a state says. What the state does not name is as the base has it."""

    def __init__(
        self,
        writer: TreeWriter,
        objects: Path,
        now: Mapping[str, os.stat_result | None],
        wanted: KeptEntries,
        ids: Ids,
        stays: Collection[str] = (),
    ) -> None:
        """Folders that `stays` names are not removed."""
        self._writer = writer
        self._objects = objects
        self._now = now
        self._wanted = wanted
        self._ids = ids
        self._stays = stays
        self._linked: dict[bytes, str] = {}

    def run(self) -> None:
        paths = sorted({*self._now, *self._wanted.named})
        todo = [path for path in paths if not self._is_as_wanted(path)]
        for path in reversed(todo):
            there = self._writer.status(path)
            if there is None or path in self._stays:
                continue
            if self._is_in_the_way(there, self._mode(path)):
                self._writer.remove(path)
        for path in todo:
            once_freed(partial(self._make, path))

    def _is_as_wanted(self, path: str) -> bool:
        wanted, status = self._wanted.get(path), self._now.get(path)
        if wanted is None or status is None or wanted.mark != mark_of(status):
            return False
        if wanted.is_file:
            self._linked.setdefault(wanted.content, path)
        return True

    def _mode(self, path: str) -> int:
        """What is to be there; 0: nothing."""
        if (wanted := self._wanted.get(path)) is not None:
            return wanted.mode
        found = self._wanted.in_base(path)
        return found.status.st_mode if found is not None else 0

    def _is_in_the_way(self, there: os.stat_result, mode: int) -> bool:
        return not mode or stat.S_ISDIR(there.st_mode) != stat.S_ISDIR(mode)

    def _make(self, path: str) -> None:
        wanted = self._wanted.get(path)
        if wanted is None:
            self._make_as_base(path)
            return
        owner = self._ids.outside(wanted.owner)
        self._writer.give_to(owner)
        if stat.S_ISDIR(wanted.mode):
            self._writer.reach(path)
            mode = wanted.mode & self._ids.folder_bits
            self._writer.note_folder(path, mode, wanted.mtime_ns, owner)
        elif wanted.is_file:
            self._make_file(path, wanted)
        elif wanted.mode:
            make_other(self._writer, path, wanted)

    def _make_file(self, path: str, wanted: StateEntry) -> None:
        if (first := self._linked.setdefault(wanted.content, path)) != path:
            self._writer.link(path, first)
            return
        with Descriptor(open_kept(self._objects / os.fsdecode(wanted.content))) as source:
            mode = wanted.mode & self._ids.bits
            self._writer.write(path, lambda target: _copy(source, target, mode))

    def _make_as_base(self, path: str) -> None:
        found = self._wanted.in_base(path)
        if found is None:
            return
        mode, mtime_ns = found.status.st_mode, found.status.st_mtime_ns
        content = found.content
        owner = self._ids.outside(self._ids.inside(found.status))
        self._writer.give_to(owner)
        if found.is_folder:
            self._writer.reach(path)
            self._writer.note_folder(path, stat.S_IMODE(mode), mtime_ns, owner)
        elif found.is_file:
            bits = mode & self._ids.bits
            with Descriptor(content.root.open_file(content.path)) as source:
                self._writer.write(path, lambda target: _copy(source, target, bits, mtime_ns))
        elif stat.S_ISLNK(mode):
            self._writer.symlink(path, content.root.link(content.path), mtime_ns)


def open_kept(path: Path) -> int:
    """A kept file, which has the mode of the one that it is a copy of."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError:
        with Descriptor(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)) as place:
            return open_own(place)


def _copy(source: int, target: int, mode: int, mtime_ns: int | None = None) -> None:
    status = os.fstat(source)
    if not clone_file(source, target):
        copy_file(source, target, status.st_size)
    set_attributes(target, read_attributes(source))
    when = status.st_mtime_ns if mtime_ns is None else mtime_ns
    os.utime(target, ns=(when, when))
    os.fchmod(target, mode)


def make_other(writer: TreeWriter, path: str, one: StateEntry) -> None:
    if stat.S_ISLNK(one.mode):
        writer.symlink(path, one.content, one.mtime_ns)
    else:
        writer.node(path, one.mode, one.mtime_ns)
