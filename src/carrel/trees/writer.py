"""Writing many entries beneath a folder that strangers may be changing right now.

No symlink is followed at all. What exists is never written to: a new file takes its place,
so that another name of the old one keeps what it had. Folders that their mode protects from
their own owner are opened up while there is work in them. What folders are to be in the end
is only noted, and done last, from the inside out.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from carrel.domain.errors import PathEscapes, PathExists, PathWrongKind
from carrel.domain.trees import Owner
from carrel.linux.descriptors import Descriptor
from carrel.linux.ids import files_as, may_give
from carrel.trees.contents import write_at
from carrel.trees.files import give, write_atomically
from carrel.trees.folders import FolderCache, join, open_own, split
from carrel.trees.new_files import Made, NewFile, SecondProcess, make_new
from carrel.trees.paths import FOLDER, open_folder, path_error, path_errors
from carrel.trees.removal import remove_entry

_ROUNDS = 16
"""How often the folders are finished again, when one had to be opened up to get at others."""
_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_THERE = (FileNotFoundError, NotADirectoryError, PathEscapes)
"""What is behind a symlink is not there either."""

Fill = Callable[[int], None]
"""Writes an open file, and gives it its final mode and times."""


@dataclass
class _Final:
    """What a folder is to have in the end; None is what it has then."""

    mode: int | None = None
    mtime_ns: int | None = None
    owner: Owner | None = None


class TreeWriter(FolderCache):
    """Paths are relative, as `os.fsdecode` gives them, without `.` and `..`; "" is the
    folder itself. Methods raise `PathError`s that name the path, and `InsufficientDisk`."""

    def __init__(self, root: int, owner: Owner, *, umask: bool = True) -> None:
        """`root` stays the caller's. What is made is given to `owner`. Without an `umask` in this
        thread, a new small file has its mode at once."""
        super().__init__()
        self._root = root
        self.give_to(owner)
        self._umask = umask
        self._final: dict[str, _Final] = {}

    def give_to(self, owner: Owner) -> None:
        """What is made from now on."""
        self._owner = owner
        self._gives = may_give() and owner != Owner(os.geteuid(), os.getegid())

    def close(self) -> None:
        self.close_folders()

    def status(self, path: str) -> os.stat_result | None:
        """Of the entry itself; None when it or a folder on the way is missing."""
        with path_errors(path):
            try:
                if not path:
                    return os.fstat(self._root)
                above, name = split(path)
                return os.stat(name, dir_fd=self.folder(above), follow_symlinks=False)
            except _NOT_THERE:
                return None

    def open_file(self, path: str) -> int:
        """A regular file to read; the caller closes it."""
        with path_errors(path), self._place(path) as place:
            _expect_regular(path, place)
            return open_own(place)

    def make_folder(self, path: str, mode: int, mtime_ns: int | None) -> None:
        """Makes it where it is missing. `PathExists` when something else is in its place."""
        self.reach(path)
        self.note_folder(path, mode, mtime_ns)

    def reach(self, path: str, mode: int = 0o755) -> None:
        """Makes a folder, and those on the way to it, where they are missing."""
        if path in self._open:
            return
        above, name = split(path)
        with path_errors(path):
            if path and above in self._open and self._make_missing(above, name, mode):
                # As nearly every folder of an archive.
                return
        missing = []
        done = path
        with path_errors(path):
            while True:
                try:
                    self.folder(done)
                    break
                except FileNotFoundError:
                    if not done:
                        raise
                    done, name = split(done)
                    missing.append(name)
                except NotADirectoryError:
                    raise PathExists(
                        f"{done!r} exists already, and is no folder.", hint="Move it away first."
                    ) from None
            for name in reversed(missing):
                self._make_missing(done, name, mode)
                done = join(done, name)

    def _make_missing(self, above: str, name: str, mode: int) -> bool:
        """Whether it was missing."""
        folder = self.folder(above)
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
        except FileExistsError:
            return False
        path = join(above, name)
        made = os.open(name, FOLDER, dir_fd=folder)
        self.keep_folder(path, made)
        give(made, self._owner)
        os.fchmod(made, 0o700 | mode)
        if mode & 0o700 != 0o700:
            self._final.setdefault(path, _Final(mode))
        return True

    def note_folder(
        self, path: str, mode: int | None, mtime_ns: int | None, owner: Owner | None = None
    ) -> None:
        """For `finish`. As root, one that was there is given to `owner`."""
        noted = self._final.setdefault(path, _Final())
        noted.owner = noted.owner if owner is None else owner
        noted.mode = noted.mode if mode is None else mode
        noted.mtime_ns = noted.mtime_ns if mtime_ns is None else mtime_ns

    def write(self, path: str, fill: Fill) -> None:
        """A new file, all at once. `PathWrongKind` when a folder is in its place."""
        with self._free(path) as (folder, name):
            write_atomically(folder, name, fill, mode=0o600, owner=self._owner)

    def write_small(self, above: str, files: Sequence[NewFile], done: int = 0) -> None:
        """Files of one folder, from `done` on. Those that are new get their names at once, which
        takes half the time; the owner's programs may see one that is not complete yet."""
        while done < len(files):
            done = self._write_new(above, files, done)
            if done < len(files):
                self._replace(above, *files[done])
                done += 1

    def _replace(self, above: str, name: str, data: bytes, mode: int, mtime_ns: int) -> None:
        def fill(target: int) -> None:
            os.fchmod(target, mode)
            write_at(target, data, 0)
            os.utime(target, ns=(mtime_ns, mtime_ns))

        self.write(join(above, name), fill)

    def _write_new(self, above: str, files: Sequence[NewFile], done: int) -> int:
        """Goes on there, to the first that is not new, or that the owner may not make. Root makes
        them as their owner, which is quicker than giving each of them away."""
        folder = self.folder_for_new(above)
        if folder is None:
            return done
        if not self._gives:
            return checked(above, files, make_new(folder, files, done, umask=self._umask))
        with files_as(self._owner.uid, self._owner.gid) as able:
            made = make_new(folder, files, done, umask=self._umask) if able else (done, 0)
        return checked(above, files, made)

    def folder_for_new(self, above: str) -> int | None:
        """A folder, as `folder` gives it, in which new files belong to the owner if the owner makes
        them. None of another."""
        with path_errors(above or "."):
            folder = self.folder(above)
            # New files have the group of this one, whoever makes them.
            passes_group = self._gives and os.fstat(folder).st_mode & stat.S_ISGID
        return None if passes_group else folder

    def second_process(self) -> SecondProcess:
        """That makes new files as `write_small` does. Raises OSError."""
        owner = self._owner
        return SecondProcess((owner.uid, owner.gid) if self._gives else None)

    def symlink(self, path: str, target: bytes, mtime_ns: int) -> None:
        with self._beside(path) as (folder, name):
            os.symlink(target, name, dir_fd=folder)
            self._complete(folder, name, stat.S_IFLNK, mtime_ns)

    def node(self, path: str, mode: int, mtime_ns: int) -> None:
        """A named pipe or a socket that nobody listens on."""
        with self._beside(path) as (folder, name):
            os.mknod(name, mode, dir_fd=folder)
            self._complete(folder, name, mode, mtime_ns)

    def _complete(self, folder: int, name: bytes, mode: int, mtime_ns: int) -> None:
        """Gives away what was just made. Somebody may have put something else in its place;
        what is of the same kind can only be the tree's own."""
        with Descriptor(os.open(name, _PLACE, dir_fd=folder)) as place:
            if stat.S_IFMT(os.fstat(place).st_mode) != stat.S_IFMT(mode):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            if may_give():
                os.chown(_path_of(place), self._owner.uid, self._owner.gid)
            if not stat.S_ISLNK(mode):
                os.chmod(_path_of(place), stat.S_IMODE(mode))
            os.utime(_path_of(place), ns=(mtime_ns, mtime_ns))

    def link(self, path: str, first: str) -> None:
        """A further name of a file that is the owner's; of nothing else."""
        with path_errors(first), self._place(first) as place:
            status = _expect_regular(first, place)
            if status.st_uid != self._owner.uid:
                raise PathWrongKind(f"{first!r} cannot get another name: it is not the tree's own.")
            with self._beside(path) as (folder, name):
                os.link(_path_of(place), name, dst_dir_fd=folder, follow_symlinks=True)

    def move(self, path: str, target: str) -> None:
        """Renames a file; what is in its new place is replaced, unless it is a folder."""
        with path_errors(path):
            above, old = split(path)
            source = os.dup(self.folder(above))
        try:
            with self._free(target) as (folder, name):
                os.rename(old, name, src_dir_fd=source, dst_dir_fd=folder)
        finally:
            os.close(source)

    def change(self, path: str, act: Callable[[str], None]) -> None:
        """`act` is given a path to the entry itself, which is no symlink."""
        with path_errors(path), self._place(path) as place:
            if stat.S_ISLNK(os.fstat(place).st_mode):
                raise PathWrongKind(f"{path!r} is a symlink.")
            act(_path_of(place))

    def remove(self, path: str) -> None:
        """With all that is in it; nothing there is fine."""
        above, name = split(path)
        self._forget(path)
        with path_errors(path), contextlib.suppress(*_NOT_THERE):
            remove_entry(self.folder(above), os.fsencode(name))

    def finish(self) -> None:
        """Gives the folders their modes and times; those that were opened up get back what
        they had."""
        for _ in range(_ROUNDS):
            if not self._final:
                return
            # An inner folder sorts behind the outer ones.
            for path in sorted(self._final, reverse=True):
                with path_errors(path or "."), contextlib.suppress(*_NOT_THERE):
                    self._finish(path)
                self._final.pop(path, None)

    def _finish(self, path: str) -> None:
        folder = self.folder(path)
        final = self._final.pop(path)
        if final.mtime_ns is not None:
            os.utime(folder, ns=(final.mtime_ns, final.mtime_ns))
        if final.owner is not None:
            give(folder, final.owner)
        if final.mode is not None:
            os.fchmod(folder, final.mode)

    @contextlib.contextmanager
    def _place(self, path: str) -> Iterator[int]:
        above, name = split(path)
        with Descriptor(os.open(name or ".", _PLACE, dir_fd=self.folder(above))) as place:
            yield place

    @contextlib.contextmanager
    def _free(self, path: str) -> Iterator[tuple[int, bytes]]:
        """The folder of an entry that is no folder itself, and its name."""
        above, name = split(path)
        with path_errors(path):
            folder = self.folder(above)
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    raise PathWrongKind(
                        f"{path!r} is a folder in the tree.", hint="Move it away first."
                    )
            yield folder, os.fsencode(name)

    @contextlib.contextmanager
    def _beside(self, path: str) -> Iterator[tuple[int, bytes]]:
        """A name for something new beside the wanted one, whose place it takes then."""
        with self._free(path) as (folder, name):
            temporary = b".carrel-" + secrets.token_hex(8).encode()
            try:
                yield folder, temporary
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                # Also when both are names of one file: then renaming does nothing.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)

    def _open_folder(self, path: str) -> int:
        """Raises OSError, and `PathEscapes` for a symlink."""
        above, name = split(path)
        try:
            if path and above in self._open:
                opened = os.open(name, FOLDER, dir_fd=self._open[above])
            else:
                opened = open_folder(self._root, os.fsencode(path))
        except PermissionError:
            self._open_up_way(path)
            opened = open_folder(self._root, os.fsencode(path))
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise PathEscapes(
                    f"{path!r} leads through a symlink.", hint="Give the path it leads to."
                ) from error
            raise
        self._open_up(path, opened)
        return opened

    def _open_up_way(self, path: str) -> None:
        """Every folder from the root to this one."""
        here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root)
        try:
            self._open_up("", here)
            done = ""
            for name in path.split("/") if path else ():
                below = os.open(name, _PLACE | os.O_DIRECTORY, dir_fd=here)
                os.close(here)
                here, done = below, join(done, name)
                self._open_up(done, here)
        finally:
            os.close(here)

    def _open_up(self, path: str, folder: int) -> None:
        status = os.fstat(folder)
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o700 == 0o700 or not 0 != os.geteuid() == status.st_uid:
            return
        noted = self._final.setdefault(path, _Final())
        noted.mode = mode if noted.mode is None else noted.mode
        os.chmod(_path_of(folder), mode | 0o700)

    def _forget(self, path: str) -> None:
        """Closes a folder that goes away, and all in it."""
        for known in [one for one in self._open if f"{one}/".startswith(f"{path}/")]:
            os.close(self._open.pop(known))


def checked(above: str, files: Sequence[NewFile], made: Made) -> int:
    """How many of the files are made. Raises the error of the one that could not be."""
    done, error = made
    if error:
        raise path_error(join(above, files[done][0]), OSError(error, os.strerror(error)))
    return done


def _path_of(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _expect_regular(path: str, place: int) -> os.stat_result:
    status = os.fstat(place)
    if not stat.S_ISREG(status.st_mode):
        raise PathWrongKind(f"{path!r} is not a regular file.")
    return status
