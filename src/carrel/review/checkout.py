"""The checkout of a project, brought along when its branch moves.

Only files that differ between the two commits are written, and only if each of them is as the first
commit has it: what a person changed stays, and nothing moves. The files are written here and not by
git, so that no filter or hook sees an agent's content; git's index is told what they are.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

from carrel.domain.errors import CarrelError, LandingHalfDone, LandingRefused
from carrel.domain.trees import Owner
from carrel.linux.descriptors import Descriptor
from carrel.review.project import ProjectRepository, held, locked, zero_ended
from carrel.review.states import GITLINK, LINK, MAX_CONVERTED
from carrel.trees.files import (
    link_atomically,
    make_folder,
    once_freed,
    status_of,
    write_atomically,
)
from carrel.trees.folders import Root
from carrel.trees.paths import FOLDER, open_folder, path_errors

_RAW = re.compile(rb":(\d{6}) (\d{6}) ([0-9a-f]+) ([0-9a-f]+) [A-Z]\d*")
_PROGRAM = 0o100755
_SHOWN = 10
"""Files that an error names."""
_PIECE = 1 << 20
_LONGEST_LINK = 4096


@dataclass(frozen=True)
class Version:
    """What a commit has at a path; a mode of 0: nothing."""

    mode: int
    oid: str


@dataclass(frozen=True)
class CheckoutFile:
    path: str
    old: Version
    new: Version


class ProjectCheckout:
    """`folder` is the git folder with the index of the checkout at `place`; None: it has none, and
    `repository` is ours, which has its files byte by byte. One that is on another branch, and is
    given the files all the same, is `loose`: its index stays as it is. `hold` opens another folder
    than that of a project. Blocking. Raises `GitFailed`, `GitTimeout`, `InsufficientDisk`,
    `PathError`s."""

    def __init__(
        self,
        repository: ProjectRepository,
        folder: Path | None,
        place: Path,
        hold: Callable[[], AbstractContextManager[tuple[int, Owner]]] | None = None,
        *,
        loose: bool = False,
    ) -> None:
        self._loose = loose
        self._repository = repository
        self._folder = folder
        self._place = place
        self._hold = hold or partial(held, place)

    def check(self, before: str, after: str) -> None:
        """Raises `LandingRefused` when a person's own changes or git at work are in the way."""
        if self._indexed is not None and os.path.lexists(self._indexed / "index.lock"):
            raise locked()
        files = self.moved(before, after)
        staged = {one.path: one.old for one in files} if self._folder is None else self._staged()
        going = {one.path for one in files if one.old.mode}
        with self._hold() as (top, _), Root(os.dup(top)) as root:
            dirty = [
                one.path
                for one in files
                if not self._is_staged(one, staged)
                or _as(root, one, exact=self._folder is None) != "old"
                or (one.new.mode and _is_kept(root, one.path, going))
            ]
        if dirty:
            raise self._refusal(dirty)

    def _is_staged(self, file: CheckoutFile, staged: Mapping[str, Version]) -> bool:
        known = staged.get(file.path, Version(0, ""))
        # What comes loose is staged by nobody, and may have been staged by a person when it goes.
        return known == file.old or (self._loose and known == file.new)

    def _refusal(self, dirty: Sequence[str]) -> LandingRefused:
        names = ", ".join(dirty[:3]) + (", …" if len(dirty) > 3 else "")
        return LandingRefused(
            f"The project has changes of its own in files that differ: {names}.",
            hint="Commit or stash them, or land on another branch: carrel land --into BRANCH"
            if self._folder is not None
            else "Take the space's versions out with `carrel cp`, and merge them by hand.",
            files=list(dirty[:_SHOWN]),
        )

    def bring_or_leave(self, before: str, after: str) -> None:
        """Brings all of it. When that fails, or a person changes one of the files meanwhile, what
        was done is taken back. Raises `LandingHalfDone` when that fails too."""
        try:
            self.bring(before, after, whole=True)
        except (CarrelError, OSError) as why:
            try:
                # The index is told last: who could not lock it has not changed it.
                is_told = not (isinstance(why, LandingRefused) and why.details.get("locked"))
                self.bring(after, before, tell=is_told)
            except (CarrelError, OSError) as error:
                raise LandingHalfDone(
                    f"Some files of the project are changed and others are not: {why}",
                    hint="Make room on its disk, and land or undo again: what was begun is"
                    " finished then, or by the next daemon.",
                ) from error
            raise

    def bring(self, before: str, after: str, *, whole: bool = False, tell: bool = True) -> None:
        """Writes what is still as `before` has it, and is idempotent: what a person changed since
        stays as it is; with `whole`, that is a `LandingRefused`. `tell`: git's index is told."""
        files = self.moved(before, after)
        told = []
        with self._hold() as (top, owner), self._repository.contents() as copy:
            writer = CheckoutWriter(top, owner, copy, exact=self._folder is None)
            # What goes makes room for what comes: a file may become a folder.
            for one in sorted(files, key=lambda file: file.new.mode != 0):
                try:
                    writer.bring(one)
                except ChangedMeanwhile:
                    if whole:
                        raise self._refusal([one.path]) from None
                    continue
                row = b"%06o %s\t%s\0" % (one.new.mode, _name(one).encode(), os.fsencode(one.path))
                told.append(row)
        if tell and self._indexed is not None:
            self._git("update-index", "-z", "--index-info", input=b"".join(told))

    @property
    def _indexed(self) -> Path | None:
        """Where an index is that goes along."""
        return None if self._loose else self._folder

    def _git(self, *words: str, input: bytes = b"") -> bytes:
        where = ("-c", "core.bare=false", f"--work-tree={self._place}")
        return self._repository.run(*where, *words, input=input, folder=self._folder)

    def moved(self, before: str, after: str) -> list[CheckoutFile]:
        words = ("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", before, after)
        fields = zero_ended(self._repository.run(*words))
        found = []
        for about in fields:
            if row := _RAW.fullmatch(about):
                old = Version(int(row[1], 8), row[3].decode() if int(row[1], 8) else "")
                new = Version(int(row[2], 8), row[4].decode() if int(row[2], 8) else "")
                found.append(CheckoutFile(os.fsdecode(next(fields, b"")), old, new))
        for one in found:
            expect_below(one.path)
            if GITLINK in (one.old.mode, one.new.mode):
                raise LandingRefused(
                    f"{one.path!r} is a submodule.", hint="Land on another branch: --into BRANCH"
                )
        return found

    def _staged(self) -> dict[str, Version]:
        """What the index has; of a file with a conflict, something that no commit has."""
        found: dict[str, Version] = {}
        for row in zero_ended(self._git("ls-files", "-s", "-v", "-z")):
            about, _, name = row.partition(b"\t")
            if not name:
                continue
            letter, mode, oid, stage = about.decode().split(" ")
            plain = stage == "0" and letter == "H"
            found[os.fsdecode(name)] = Version(int(mode, 8) if plain else -1, oid)
        return found


def expect_below(path: str) -> None:
    """Git takes every name that a tree has, and looks at no tree twice: whose the repository is can
    exchange it after it was checked. Raises `LandingRefused`."""
    if {"", ".", "..", ".git"} & set(path.split("/")):
        raise LandingRefused(
            f"The project's git names {path[:200]!r}, which is not in the project.",
            hint="Have its objects checked: git fsck",
        )


class ChangedMeanwhile(Exception):
    """A file is neither as it was nor as it becomes."""


@dataclass(frozen=True)
class CheckoutWriter:
    """Works in one folder, whatever is put in its place meanwhile. `copy` writes an object's
    content into a file."""

    top: int
    owner: Owner
    copy: Callable[[str, int], None]
    exact: bool = False
    """Line ends are no matter of git's here."""

    def bring(self, file: CheckoutFile) -> None:
        """Raises `ChangedMeanwhile`, OSError, `PathError`s."""
        now = self._now(file)
        if not now:
            raise ChangedMeanwhile
        if now == "new":
            return
        if file.new.mode:
            self._write(file)
        else:
            self.remove(file.path)

    def _now(self, file: CheckoutFile) -> str:
        with Root(os.dup(self.top)) as root:
            return _as(root, file, exact=self.exact)

    def _expect_old(self, file: CheckoutFile) -> None:
        """Right before it is replaced: a large file took a while to write."""
        if self._now(file) != "old":
            raise ChangedMeanwhile

    @contextlib.contextmanager
    def _above(self, path: str, *, make: bool = False) -> Iterator[tuple[int, bytes]]:
        """The folder that a path is in, reached without following a link."""
        above, _, name = path.rpartition("/")
        if make:
            _make_folders(self.top, above, self.owner)
        with Descriptor(open_folder(self.top, os.fsencode(above))) as folder:
            yield folder, os.fsencode(name)

    def remove(self, path: str) -> None:
        gone = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
        with contextlib.suppress(*gone), self._above(path) as (folder, name):
            os.unlink(name, dir_fd=folder)
        # As git does: no folder is left empty.
        while path := path.rpartition("/")[0]:
            try:
                with self._above(path) as (folder, name):
                    os.rmdir(name, dir_fd=folder)
            except OSError:
                return

    def _write(self, file: CheckoutFile) -> None:
        with path_errors(file.path), self._above(file.path, make=True) as (folder, name):
            if file.new.mode == LINK:
                target = self._content(file)
                self._expect_old(file)
                link_atomically(folder, name, target, owner=self.owner)
                return
            other_ends = self._has_other_ends(file)

            def fill(target: int) -> None:
                self.copy(file.new.oid, target)
                if other_ends and os.fstat(target).st_size <= MAX_CONVERTED:
                    _convert(target)
                self._expect_old(file)

            mode = _mode(folder, name, file)
            write = partial(write_atomically, folder, name, fill, mode=mode, owner=self.owner)
            once_freed(write)

    def _content(self, file: CheckoutFile) -> bytes:
        with TemporaryFile(buffering=0) as read:
            self.copy(file.new.oid, read.fileno())
            return os.pread(read.fileno(), _LONGEST_LINK + 1, 0)

    def _has_other_ends(self, file: CheckoutFile) -> bool:
        if self.exact:
            return False
        with Root(os.dup(self.top)) as root:
            status = root.status(file.path)
            if status is None or not stat.S_ISREG(status.st_mode) or not file.old.mode:
                return False
            with Descriptor(root.open_file(file.path)) as opened:
                return _other_ends(opened, status.st_size, file.old.oid)


def _convert(file: int) -> None:
    content = os.pread(file, MAX_CONVERTED, 0).replace(b"\n", b"\r\n")
    view, at = memoryview(content), 0
    while view:
        done = os.pwrite(file, view[:_PIECE], at)
        view, at = view[done:], at + done


def _as(root: Root, file: CheckoutFile, *, exact: bool) -> str:
    """Whether the checkout has it as it was (`old`), as it becomes (`new`), or neither."""
    for word, version in (("old", file.old), ("new", file.new)):
        if _is(root, file.path, version, exact=exact):
            return word
    return ""


def _is(root: Root, path: str, version: Version, *, exact: bool) -> bool:
    status = root.status(path)
    if status is None or stat.S_ISDIR(status.st_mode):
        return not version.mode
    if stat.S_ISLNK(status.st_mode):
        return version.mode == LINK and hashed(root.link(path), version.oid) == version.oid
    if not stat.S_ISREG(status.st_mode) or version.mode in (0, LINK):
        return False
    if is_program(status.st_mode) != (version.mode == _PROGRAM):
        return False
    with Descriptor(root.open_file(path)) as file:
        if hash_of(file, status.st_size, version.oid) == version.oid:
            return True
        return not exact and _other_ends(file, status.st_size, version.oid)


def is_program(mode: int) -> bool:
    return bool(mode & stat.S_IXUSR)


def _other_ends(file: int, size: int, oid: str) -> bool:
    """Whether it differs by its line ends only, as a checkout of another system's does."""
    if size > MAX_CONVERTED:
        return False
    content = os.pread(file, size, 0)
    return b"\r\n" in content and hashed(content.replace(b"\r\n", b"\n"), oid) == oid


def _is_kept(root: Root, path: str, going: set[str]) -> bool:
    """Whether a folder stands there with something in it that does not go."""
    status = root.status(path)
    if status is None or not stat.S_ISDIR(status.st_mode):
        return False
    pending = [path]
    while pending:
        above = pending.pop()
        for name, found in root.list(above).items():
            inside = f"{above}/{name}"
            if stat.S_ISDIR(found.st_mode):
                pending.append(inside)
            elif inside not in going:
                return True
    return False


def _mode(folder: int, name: bytes, file: CheckoutFile) -> int:
    """As it was, but for what git knows of it: whether it is a program."""
    status = status_of(folder, name)
    was = 0o644
    if status is not None and stat.S_ISREG(status.st_mode):
        was = stat.S_IMODE(status.st_mode) & 0o666
    return was | (was & 0o444) >> 2 if file.new.mode == _PROGRAM else was


def _make_folders(top: int, path: str, owner: Owner) -> None:
    held = os.dup(top)
    try:
        for name in filter(None, path.split("/")):
            raw = os.fsencode(name)
            if raw == b"..":
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
            with contextlib.suppress(FileExistsError):
                make_folder(held, raw, mode=0o755, owner=owner)
            below = os.open(raw, FOLDER, dir_fd=held)
            os.close(held)
            held = below
    finally:
        os.close(held)


def _name(file: CheckoutFile) -> str:
    return file.new.oid or "0" * len(file.old.oid)


def hashed(content: bytes, like: str) -> str:
    hasher = hashlib.sha256 if len(like) == 64 else hashlib.sha1
    return hasher(b"blob %d\0" % len(content) + content).hexdigest()


def hash_of(file: int, size: int, like: str) -> str:
    hasher = (hashlib.sha256 if len(like) == 64 else hashlib.sha1)(b"blob %d\0" % size)
    at = 0
    while piece := os.pread(file, _PIECE, at):
        hasher.update(piece)
        at += len(piece)
    return hasher.hexdigest()
