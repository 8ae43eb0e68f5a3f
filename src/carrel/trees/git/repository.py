"""Reads how a repository lies on disk: git folders, pointers to them, what is private; and decides
what may be read outside of the project.

Pure Python on untrusted files: only regular files are read, only their beginning, and only
in folders that a `RepositoryReader` was given. All paths are bytes, as the kernel has them.

What a project's content names is no word of its owner's: an agent may have written it. The
owner has said so when the repository out there names the project's checkout itself (as the
one of a linked worktree or a submodule does), or by `--follow-git`, which is remembered for
the project and just these folders.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from carrel.domain.errors import ProjectInvalid
from carrel.domain.projects import GitReach
from carrel.linux.descriptors import Descriptor
from carrel.linux.openat2 import open_beneath, open_real
from carrel.trees.git import config

_MAX_SMALL_FILE = 4 << 20
"""Pointers are a line, configurations some kilobytes."""
_READ_AT_ONCE = (
    *(b"HEAD", b"config", b"config.worktree", b"commondir", b"shallow"),
    *(b"objects/info/alternates", b"info/grafts"),
)
"""By every git, as a whole; lists of refs are mapped."""

_PSEUDO_REF = re.compile(rb"[A-Z][A-Z_]*")
_STATE_NAMES = frozenset(
    {
        b"index",
        b"rebase-merge",
        b"rebase-apply",
        b"sequencer",
        b"info/sparse-checkout",
        b"logs/HEAD",
        b"refs/bisect",
        b"refs/rewritten",
        b"refs/worktree",
        b"logs/refs/bisect",
        b"logs/refs/rewritten",
        b"logs/refs/worktree",
    }
)
"""What a checkout has of its own, and needs to go on with what was begun in it."""
_PLACE_NAMES = frozenset(
    {b"config.worktree", b"worktrees", b"modules", b"gitdir", b"commondir", b"locked", b"gc.pid"}
)
SHARED_NAMES = (
    b"packed-refs",
    b"refs",
    b"logs",
    b"shallow",
    b"info/exclude",
    b"info/attributes",
    b"info/grafts",
)
"""What all checkouts of a repository share, but for its objects and its configuration. Hooks,
LFS files and whatever else a repository elsewhere keeps are none of what git needs."""


class RepositoryReader:
    """Reads in the folders that it was given, and nowhere else.

    In the first, the project, links count as long as they stay in it. In others, which a
    project's content named, no link is followed at all. It judges what it has opened, so
    nothing can be exchanged between the look and the use. All paths are absolute.
    """

    def __init__(self, project: bytes) -> None:
        """Raises OSError. `project` is a real path."""
        self.project = project
        self._roots: dict[bytes, int] = {}
        self.grant(project)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for root in self._roots.values():
            os.close(root)
        self._roots.clear()

    def grant(self, folder: bytes) -> None:
        """Opens one more folder (or a file), by its real path. Raises OSError."""
        if folder not in self._roots:
            self._roots[folder] = open_real(folder, os.O_PATH)

    def open(self, path: bytes, *, follow: bool = True) -> int:
        """An O_PATH descriptor. Raises OSError: EXDEV for what is in no folder of ours."""
        for spelling in _spellings(path):
            root = self._root_of(spelling)
            if root is None:
                continue
            rest = spelling[len(root) :].lstrip(b"/") or b"."
            try:
                found = open_beneath(self._roots[root], rest, follow=follow)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                continue
            if root == self.project or self._name(found, root) == os.path.normpath(spelling):
                return found
            os.close(found)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fsdecode(path))
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), os.fsdecode(path))

    def leads_out(self, path: bytes) -> bool:
        """Whether it is outside of all folders, or a link on it leads out of them."""
        try:
            os.close(self.open(path))
        except OSError as error:
            return error.errno == errno.EXDEV
        return False

    def real(self, path: bytes) -> bytes | None:
        """The path without links; None for what is not there or outside."""
        with suppress(OSError), Descriptor(self.open(path)) as found:
            for root in sorted(self._roots, key=len, reverse=True):
                name = self._name(found, root)
                if name == root or name.startswith(root.rstrip(b"/") + b"/"):
                    return name
        return None

    def mode(self, path: bytes, *, follow: bool = True) -> int:
        """The mode of what is there; 0 for nothing, or what is outside."""
        try:
            found = self.open(path, follow=follow)
        except OSError:
            return 0
        try:
            return os.fstat(found).st_mode
        finally:
            os.close(found)

    def is_folder(self, path: bytes) -> bool:
        return stat.S_ISDIR(self.mode(path))

    def link(self, path: bytes) -> bytes | None:
        """Where a symlink points; None for anything else."""
        with suppress(OSError), Descriptor(self.open(path, follow=False)) as found:
            return os.readlink(b"", dir_fd=found)
        return None

    def read(self, path: bytes) -> bytes | None:
        """The beginning of a regular file; None for anything else."""
        try:
            found = self.open(path)
        except OSError:
            return None
        try:
            shown = os.fstat(found)
            if not stat.S_ISREG(shown.st_mode):
                return None
            with Descriptor(
                os.open(b"/proc/self/fd/%d" % found, os.O_RDONLY | os.O_CLOEXEC)
            ) as file:
                return os.read(file, min(shown.st_size, _MAX_SMALL_FILE))
        except OSError:
            return None
        finally:
            os.close(found)

    def names(self, folder: bytes) -> list[bytes]:
        """What a folder holds, sorted; nothing when it cannot be read."""
        return sorted(name for name, _ in self.entries(folder))

    def links(self, folder: bytes) -> list[bytes]:
        """The names of the symlinks in a folder, sorted."""
        found = self._scan(folder, lambda entry: (entry.name, entry.is_symlink()))
        return sorted(name for name, is_link in found if is_link)

    def entries(self, folder: bytes) -> list[tuple[bytes, bool]]:
        """Names, and whether each is a folder."""
        return self._scan(folder, lambda entry: (entry.name, entry.is_dir(follow_symlinks=False)))

    def _scan(
        self, folder: bytes, told: Callable[[os.DirEntry[bytes]], tuple[bytes, bool]]
    ) -> list[tuple[bytes, bool]]:
        try:
            found = self.open(folder)
        except OSError:
            return []
        try:
            with os.scandir(b"/proc/self/fd/%d" % found) as entries:
                return [told(entry) for entry in entries]
        except OSError:
            return []
        finally:
            os.close(found)

    def _root_of(self, path: bytes) -> bytes | None:
        found = [root for root in self._roots if is_within(path, root)]
        return max(found, key=len, default=None)

    def _name(self, found: int, root: bytes) -> bytes:
        """What the kernel calls it, with the root's name as we know it."""
        name = os.readlink(b"/proc/self/fd/%d" % found)
        shown = os.readlink(b"/proc/self/fd/%d" % self._roots[root])
        return root + name[len(shown) :] if is_within(name, shown) else name


def _spellings(path: bytes) -> Iterator[bytes]:
    """As it is, and without what leads out of a folder and back."""
    yield path
    normal = os.path.normpath(path)
    if normal != path:
        yield normal


def is_within(path: bytes, folder: bytes) -> bool:
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")


def find_roots(files: RepositoryReader) -> list[bytes]:
    """Every folder of the project that holds an entry `.git`, outermost first."""
    roots: list[bytes] = []
    pending = [b""]
    while pending:
        relative = pending.pop()
        for name, is_folder in files.entries(os.path.join(files.project, relative)):
            if name == b".git":
                roots.append(relative)
            elif is_folder:
                pending.append(os.path.join(relative, name))
    return sorted(roots)


def pointed_folder(files: RepositoryReader, entry: bytes) -> bytes | None:
    """Where an entry `.git` leads, as it is written there: itself when it is a folder, the
    target of a link or of a `gitdir:` file; None when it is nothing of these."""
    target = files.link(entry)
    if target is None and stat.S_ISDIR(files.mode(entry, follow=False)):
        return entry
    if target is None:
        content = files.read(entry)
        if content is None or not content.startswith(b"gitdir:"):
            return None
        target = content[len(b"gitdir:") :].strip(b" \t").rstrip(b"\r\n")
    if not target or b"\0" in target:
        return None
    return os.path.join(os.path.dirname(entry), target)


def common_folder(files: RepositoryReader, git_folder: bytes) -> bytes:
    """The folder whose objects and refs it uses: its own, but for a linked worktree. As it
    is written there."""
    content = files.read(os.path.join(git_folder, b"commondir"))
    if not content or b"\0" in content:
        return git_folder
    return os.path.join(git_folder, content.rstrip(b"\r\n"))


def is_git_folder(files: RepositoryReader, folder: bytes, common: bytes) -> bool:
    """As git decides it: HEAD, and objects and refs here or in the common folder."""
    return files.mode(os.path.join(folder, b"HEAD"), follow=False) != 0 and all(
        files.mode(os.path.join(common, part), follow=False) != 0 for part in (b"objects", b"refs")
    )


def private_paths(files: RepositoryReader, common: bytes) -> Iterator[bytes]:
    """What in a common folder belongs to its main worktree alone, relative to it."""
    for name in files.names(common):
        if name.startswith(b"sharedindex.") or _PSEUDO_REF.fullmatch(name):
            yield name
    yield from sorted(_STATE_NAMES | _PLACE_NAMES)


def state_paths(files: RepositoryReader, git_folder: bytes) -> Iterator[bytes]:
    """What a checkout's git folder has of its own, relative to it, as far as it is there."""
    for name in files.names(git_folder):
        if name.startswith(b"sharedindex.") or _PSEUDO_REF.fullmatch(name):
            yield name
    for path in sorted(_STATE_NAMES):
        if files.mode(os.path.join(git_folder, path), follow=False):
            yield path


def lock_files(files: RepositoryReader, git_folder: bytes) -> Iterator[bytes]:
    """Locks and half-written packs of a git that is running or died, relative."""
    pending = [b""]
    while pending:
        relative = pending.pop()
        for name, is_folder in files.entries(os.path.join(git_folder, relative)):
            path = os.path.join(relative, name)
            if is_folder:
                if path not in (b"objects", b"modules", b"lfs", b"worktrees"):
                    pending.append(path)
            elif name.endswith(b".lock"):
                yield path
    for folder in (b"objects/pack", b"objects/info"):
        for name in files.names(os.path.join(git_folder, folder)):
            if name.endswith(b".lock") or name.startswith(b"tmp_"):
                yield os.path.join(folder, name)


# Object stores that borrow from others

Admit = Callable[[bytes], bytes | None]
"""Asked for a folder that the reader may not read: its real path if it may now, else None."""

_MAX_LENDERS = 64
"""Git gives up at a chain of five; each of these can name several."""


def lenders(
    files: RepositoryReader, objects: bytes, admit: Admit
) -> tuple[list[bytes], list[bytes]]:
    """The object folders that `objects` borrows from, all the way, by their real paths; and
    those, as they are named, that are missing or not to be read."""
    found: list[bytes] = []
    lost: list[bytes] = []
    seen = {objects}
    pending = list(_listed(files, objects))
    while pending and len(seen) <= _MAX_LENDERS:
        named = pending.pop(0)
        if named in seen:
            continue
        seen.add(named)
        folder = admit(named) if files.leads_out(named) else files.real(named)
        if folder is None or not files.is_folder(folder):
            lost.append(os.path.normpath(named))
        elif folder not in seen or folder == named:
            seen.add(folder)
            found.append(folder)
            pending.extend(_listed(files, folder))
    return found, lost


def _listed(files: RepositoryReader, objects: bytes) -> Iterator[bytes]:
    content = files.read(os.path.join(objects, b"info", b"alternates")) or b""
    for line in content.split(b"\n"):
        line = _unquoted(line.rstrip(b"\r"))
        if line and not line.startswith(b"#") and b"\0" not in line:
            yield os.path.join(objects, line)


def _unquoted(line: bytes) -> bytes:
    """Odd names stand in double quotes, with C's escapes."""
    if not (len(line) > 1 and line.startswith(b'"') and line.endswith(b'"')):
        return line
    simple = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f", b"a": b"\a"}

    def plain(found: re.Match[bytes]) -> bytes:
        code = found[1]
        return bytes([int(code, 8) & 255]) if code.isdigit() else simple.get(code, code)

    return re.sub(rb"\\([0-7]{3}|.)", plain, line[1:-1])


# What the owner allows outside of the project

FOLDER = "followed-git"
"""In the data folder: a file for each project whose owner has agreed to something."""


class _Agreed(msgspec.Struct, frozen=True):
    project: bytes
    folders: list[bytes]


@dataclass
class OutsideAccess:
    """The owner's word for one project (a real path), in one look at it."""

    project: bytes
    allowed: GitReach
    data: Path
    left_out: list[bytes] = field(default_factory=list)
    """As they are named; not looked at."""
    _agreed: set[bytes] = field(default_factory=set)
    _repositories: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        with suppress(FileNotFoundError, msgspec.MsgspecError):
            if self.allowed is not GitReach.NONE:
                found = msgspec.json.decode(self._file.read_bytes(), type=_Agreed)
                if found.project == self.project:
                    self._agreed = set(found.folders)

    def reach(self, files: RepositoryReader, entry: bytes) -> tuple[bytes, bytes] | None:
        """The git folder that an entry `.git` leads to, and the one whose objects it shares,
        mostly the same, by their real paths. None when it leads to no repository, or to one
        that is not to be read: then that is in `left_out`."""
        named = pointed_folder(files, entry)
        if named is None:
            return None
        target = files.real(named)
        if target is None or not self._is_open(target):
            if target is None and not files.leads_out(named):
                return None
            target = self._admit_repository(files, named, named, entry)
            if target is None:
                return None
        named = common_folder(files, target)
        if files.leads_out(named):
            # Only agreed to as a whole: the folder and the one that it shares.
            if self._admit_repository(files, target, named, entry) is None:
                return None
            named = os.path.realpath(named)
        common = files.real(named)
        if common is None or not is_git_folder(files, target, common):
            return None
        return target, common

    def _is_open(self, path: bytes) -> bool:
        """Whether it is the project's, or in a repository that was opened, as the one of a
        worktree's submodule is."""
        return any(is_within(path, folder) for folder in (self.project, *self._repositories))

    def _admit_repository(
        self, files: RepositoryReader, folder: bytes, named: bytes, entry: bytes
    ) -> bytes | None:
        """Opens a git folder, and the one whose objects it shares, to the reader. Gives its
        real path; None, with what was `named` left out."""
        if self.allowed is not GitReach.NONE:
            target = os.path.realpath(folder)
            with suppress(OSError), RepositoryReader(target) as there:
                common = os.path.realpath(common_folder(there, target))
                back = self._names_back(there, target, common, entry)
                wanted = {common} if is_within(target, common) else {target, common}
                outside = {one for one in wanted if not is_within(one, self.project)}
                there.grant(common)
                if is_git_folder(there, target, common) and all(
                    back or self._may(one) for one in outside
                ):
                    for one in outside:
                        self._refuse_own(one)
                        files.grant(one)
                    self._repositories |= outside
                    return target
        self._leave_out(named)
        return None

    def admit_objects(self, files: RepositoryReader, named: bytes) -> bytes | None:
        """Opens a store of objects that another one borrows from, or a file of settings that
        another one includes. Gives its real path; None when it is left out."""
        if self.allowed is not GitReach.NONE:
            folder = os.path.realpath(named)
            with suppress(OSError):
                if self._may(folder):
                    self._refuse_own(folder)
                    files.grant(folder)
                    return folder
        self._leave_out(named)
        return None

    def _leave_out(self, named: bytes) -> None:
        """When all was agreed to, it is just not there."""
        if self.allowed is not GitReach.AGREE:
            self.left_out.append(named)

    def remember(self) -> None:
        """Writes down what was agreed to."""
        if self.allowed is not GitReach.AGREE or not self._agreed:
            return
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._file.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(msgspec.json.encode(_Agreed(self.project, sorted(self._agreed))))
        fresh.replace(self._file)

    @property
    def _file(self) -> Path:
        return self.data / FOLDER / hashlib.sha256(self.project).hexdigest()

    def _may(self, folder: bytes) -> bool:
        if self.allowed is GitReach.AGREE and os.path.exists(folder):
            self._refuse_own(folder)
            self._agreed.add(folder)
        return folder in self._agreed

    def _names_back(
        self, there: RepositoryReader, target: bytes, common: bytes, checkout: bytes
    ) -> bool:
        """Whether the repository itself says that this is a checkout of it. Who can write
        in the project cannot write there: it belongs to the daemon's user or, for root, to
        whom the project belongs to."""
        if target == common:
            items = config.parse(there.read(os.path.join(target, b"config")) or b"")
            named = config.last(items, "core.worktree")
            place = os.path.dirname(checkout)
        else:
            if os.path.dirname(target) != os.path.join(common, b"worktrees"):
                return False
            named = (there.read(os.path.join(target, b"gitdir")) or b"").rstrip(b"\r\n")
            place = checkout
        if not named or b"\0" in named or not self._is_owners(common):
            return False
        named = os.path.normpath(os.path.join(target, named))
        # The entry itself may be a link: only the folder that it is in has a real path.
        folder, name = (named, b"") if place != checkout else os.path.split(named)
        return os.path.join(os.path.realpath(folder), name).rstrip(b"/") == place

    def _is_owners(self, folder: bytes) -> bool:
        mine = {os.geteuid()}
        if os.geteuid() == 0:
            mine.add(os.lstat(self.project).st_uid)
        return os.lstat(folder).st_uid in mine

    def _refuse_own(self, folder: bytes) -> None:
        data = os.path.realpath(os.fsencode(self.data))
        if is_within(folder, data) or is_within(data, folder):
            raise ProjectInvalid(
                f"A git repository of the project leads to {os.fsdecode(folder)!r}, where "
                "Carrel's own data is.",
                hint="Look at its `.git` and `objects/info/alternates`.",
            )


def endless_file(folder: bytes) -> bytes | None:
    """Which file of a git folder would keep git for ever, a pipe say, or take all memory, as
    /dev/zero does and a file with a hole. None: no such."""
    for name in _READ_AT_ONCE:
        path = os.path.join(folder, name)
        try:
            found = os.stat(path)
        except OSError:
            continue
        is_file = stat.S_ISREG(found.st_mode) and found.st_size <= _MAX_SMALL_FILE
        if not is_file and not stat.S_ISDIR(found.st_mode):
            return path
    return None
