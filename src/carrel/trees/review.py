"""What a tree changed, sorted for whoever reviews it, and what of that somebody has taken out.

There are three sorts of changes: of the project's files, of files that git ignores, and of git's
own files, from which the commits are read. A file was taken out when somebody outside says that it
has all of it, alone or from an archive, and it is still the same file: its size and times, as they
were when it was opened to be sent, are written down in the folder of the space then. A program in
the space can set a file's mtime, but not its ctime.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import msgspec

from carrel.domain.trees import (
    Change,
    ChangeKind,
    Commit,
    EntryType,
    Review,
    ReviewQuery,
    Skipped,
    Tree,
    TreeDriver,
)
from carrel.trees.archives import SPECIAL
from carrel.trees.drivers.common import (
    Comparable,
    DriverBases,
    note_prefix,
    open_roots,
    tree_errors,
)
from carrel.trees.folders import HeldPaths, Root, join, split
from carrel.trees.git.history import new_commits
from carrel.trees.git.object_store import Effort, HistoryUnread, LayerGitFiles, TreeGitFiles
from carrel.trees.git.staged import Staged, only_staged
from carrel.trees.ignored import IgnoredFiles
from carrel.trees.layers import Layers

GIT = ".git"
_NOTES = frozenset(
    {
        *("index", "logs", "FETCH_HEAD", "ORIG_HEAD", "AUTO_MERGE", "COMMIT_EDITMSG"),
        *("description", "branches", "gc.log", "gc.pid", "gitdir", "commondir"),
    }
)
"""What git writes by the way. Whatever else is in its folder somebody may miss."""
_MOST_REPOSITORIES = 20
"""Of one tree, whose commits are read."""
_MOST_SEEN = 1000
"""Git folders of one tree; a stranger can make any number."""
_SHOWN_LEFT = 20
"""Of what nobody took out; an error has no room for more."""
_UNREAD = "unread"
"""Instead of the id of commits that could not be read; never taken."""
_TAKEN = "taken"
"""The file in a space's folder."""
_MAX_TAKEN = 64 << 20
"""Bytes of that file: what is taken then counts as not taken. A million paths have room."""
_MOST_LEFT_OUT = 1000
"""Of one archive. One that lacks more counts as not taken at all."""
_COARSE_NS = 20_000_000
"""The kernel's clock for files is behind by a tick, which is 10 ms at most."""


class Sort(StrEnum):
    FILE = "file"
    IGNORED = "ignored"
    GIT = "git"


def is_git(path: str) -> bool:
    return GIT in path and GIT in path.split("/")


def is_bookkeeping(change: Change, folder: str) -> bool:
    """Of git's own files, in this git folder: what it writes by the way, and nobody would miss."""
    inside = change.path.removeprefix(folder).split("/")[1:]
    while len(inside) > 2 and inside[0] == "worktrees":
        inside = inside[2:]
    if inside[:1] == ["objects"]:
        # What was only staged is there and nowhere else.
        return change.kind is not ChangeKind.ADDED
    return not inside or inside[0] in _NOTES


class TreeReviews:
    """Implements `carrel.domain.collaborators.Reviews`."""

    def __init__(self, bases: DriverBases, personal: Callable[[], bytes]) -> None:
        """`personal` gives what the owner's git ignores in every repository."""
        self._bases = bases
        self._personal = personal

    def review(self, driver: TreeDriver, tree: Tree, query: ReviewQuery) -> Review:
        with self.look(driver, tree, query) as look:
            tally = _Tally(query)
            for change, sort in look.changes():
                lost = sort is Sort.FILE and not driver.capabilities.stays
                folder = look.git_folder(change.path) if sort is Sort.GIT else ""
                stays = not lost or look.taken.has(look.root, change)
                tally.count(change, sort, folder, left=not stays)
            read = not (driver.capabilities.stays or query.rough)
            commits = look.commits(tally.git.seen, tally.git.grown) if read else ()
            left = [one for one in commits if one.id not in look.taken.commits]
            for one in look.staged:
                if one.oid not in look.taken.commits:
                    tally.leave(f"staged {one.path}")
            return tally.result(commits, left)

    def taking(self, driver: TreeDriver, tree: Tree, path: str, query: ReviewQuery) -> Sending:
        top = _normal(path)
        sending = Sending(tree, top)
        if driver.capabilities.stays:
            sending.noted = None
            return sending
        repositories = set()
        with self.look(driver, tree, query) as look:
            # Where a file was before is taken out as what it is: a deletion.
            for change in look.without_added():
                was_folder = change.old_type is EntryType.FOLDER
                if change.new_type is EntryType.FOLDER and not was_folder:
                    repositories |= look.repositories_in(change.path)
                if is_git(change.path):
                    repositories.add(look.git_folder(change.path))
                    continue
                gone = change.kind is ChangeKind.DELETED and not was_folder
                if gone and _is_below(change.path, top) and look.sort(change.path) is Sort.FILE:
                    sending.note(change.path, ())
            whole = {one for one in repositories if _is_below(one, top)}
            made = [one.id for one in look.commits(whole, whole) if one.id != _UNREAD]
            made += [one.oid for one in look.staged]
            sending.commits = [_line("", (number,)) for number in made]
            sending.inside = _is_in_new(look.root, top, sending.since_ns)
        return sending

    def sent(self, tree: Tree, path: str, status: os.stat_result) -> bytes:
        # What is older than the tree is as it was in the project.
        if status.st_ctime_ns <= tree.created_ns or is_git(path):
            return b""
        return _line(_normal(path), _identity(status))

    def took(self, tree: Tree, sent: bytes) -> None:
        _append(tree, sent)

    def forget_taken(self, tree: Tree) -> None:
        with tree_errors("forget what was taken"):
            _place(tree).unlink(missing_ok=True)

    @contextmanager
    def look(self, driver: TreeDriver, tree: Tree, query: ReviewQuery) -> Iterator[Look]:
        with ExitStack() as stack, tree_errors("compare the tree"):
            yield Look(self._bases, self._personal, driver, tree, query, stack)


@dataclass
class Look:
    """One look at a tree. What it is compared by is read once something has changed."""

    bases: DriverBases
    personal: Callable[[], bytes]
    driver: TreeDriver
    tree: Tree
    query: ReviewQuery
    stack: ExitStack
    """What is open until the look is over."""
    staged: list[Staged] = field(default_factory=list)
    """What only an index has, of the repositories whose commits were read."""
    _heads: dict[str, bool] = field(default_factory=dict)
    """Whether there is a HEAD in a folder, now or in the base."""

    @cached_property
    def root(self) -> Root:
        return self.stack.enter_context(Root(self.driver.open_root(self.tree)))

    @cached_property
    def files(self) -> TreeGitFiles:
        return TreeGitFiles(self.root)

    @cached_property
    def base_layers(self) -> Layers:
        stays = self.driver.capabilities.stays
        layers = () if stays else self.bases.get(self.tree.base_id).layers
        roots = self.stack.enter_context(open_roots(layers))
        return Layers(roots, note_prefix())

    @cached_property
    def base(self) -> LayerGitFiles:
        return LayerGitFiles(self.base_layers)

    @cached_property
    def ignored(self) -> IgnoredFiles | None:
        if self.query.rough:
            return None
        personal = self.personal() if self.query.personal else b""
        return IgnoredFiles(self.files, self.base, personal)

    @cached_property
    def taken(self) -> _Taken:
        return _read_taken(self.tree)

    def sort(self, path: str) -> Sort:
        if is_git(path):
            return Sort.GIT
        if self.ignored is not None and self.ignored.has(path):
            return Sort.IGNORED
        return Sort.FILE

    def git_folder(self, path: str) -> str:
        """The repository that a file of git's belongs to: a submodule's is within another's, and
        its name may have slashes, or be like those of git's own files."""
        parts = path.split("/")
        end = parts.index(GIT) + 1
        while parts[end : end + 1] == ["modules"]:
            above = ("/".join(parts[:at]) for at in range(end + 2, len(parts)))
            found = next(filter(self._has_head, above), "")
            if not found:
                break
            end = found.count("/") + 1
        return "/".join(parts[:end])

    def _has_head(self, folder: str) -> bool:
        known = self._heads.get(folder)
        if known is None:
            if len(self._heads) >= _MOST_SEEN:
                self._heads.clear()
            with suppress(OSError):
                known = any(files.mode(f"{folder}/HEAD") for files in (self.files, self.base))
            self._heads[folder] = known = bool(known)
        return known

    def repositories_in(self, top: str) -> set[str]:
        """Of a new folder; only git's own files are looked at, by their names."""
        found: set[str] = set()
        folders, held = [top], HeldPaths()
        while folders and len(found) < _MOST_SEEN:
            path = folders.pop()
            with suppress(OSError), os.scandir(self.root.folder(path)) as entries:
                for entry in entries:
                    inside = join(path, entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        held.add(inside)
                        folders.append(inside)
                    elif is_git(inside):
                        found.add(self.git_folder(inside))
        return found

    def without_added(self) -> Iterator[Change]:
        """Nothing is told as renamed, and nothing of what is in new folders."""
        if isinstance(self.driver, Comparable):
            return self.driver.compare(self.tree, links=False, renames=None, into_added=False)
        return self.driver.changes(self.tree)

    def changes(self, *, renames: bool = True) -> Iterator[tuple[Change, Sort]]:
        """Sorted by path, without folders. Only the project's files are told as renamed; without
        `renames` none is, and each is told as it is found."""
        if isinstance(self.driver, Comparable):
            paired = (lambda path: self.sort(path) is Sort.FILE) if renames else None
            found = self.driver.compare(self.tree, links=False, renames=paired)
        else:
            found = self.driver.changes(self.tree)
        for change in found:
            if {change.old_type, change.new_type} - {None, EntryType.FOLDER}:
                yield change, self.sort(change.path)

    def commits(self, folders: set[str], grown: set[str]) -> tuple[Commit, ...]:
        """Where they cannot be read there are some, as far as anybody knows. Only those that have
        `grown` have what was staged and is not in the base."""
        found: list[Commit] = []
        effort, place = Effort(), ""
        try:
            for number, folder in enumerate(sorted(folders)):
                place = _checkout_of(folder)
                if number >= _MOST_REPOSITORIES:
                    raise HistoryUnread
                made = new_commits(self.files, self.base, folder, effort)
                found += [Commit(one.oid, one.subject, place) for one in made]
                if folder in grown:
                    self.staged += only_staged(self.files, self.base, folder, effort)
        except HistoryUnread:
            found.append(Commit(_UNREAD, "(there may be more, which cannot be read)", place))
        return tuple(found)


def _checkout_of(folder: str) -> str:
    """A submodule is named as in the repository around it, mostly by its path."""
    above, _, within = f"/{folder}/".partition(f"/{GIT}/")
    names = within.removeprefix("modules/").replace("/modules/", "/")
    return f"{above}/{names}".strip("/")


@dataclass
class GitFolders:
    """The git folders in which something changed."""

    seen: set[str] = field(default_factory=set)
    grown: set[str] = field(default_factory=set)
    """Those of them with new objects."""

    def see(self, change: Change, folder: str) -> None:
        if len(self.seen) < _MOST_SEEN:
            self.seen.add(folder)
            if change.kind is ChangeKind.ADDED and change.path.startswith(f"{folder}/objects/"):
                self.grown.add(folder)


@dataclass
class _Tally:
    query: ReviewQuery
    counts: dict[Sort, int] = field(default_factory=lambda: dict.fromkeys(Sort, 0))
    listed: list[Change] = field(default_factory=list)
    total: int = 0
    left: list[str] = field(default_factory=list)
    left_files: int = 0
    git: GitFolders = field(default_factory=GitFolders)
    worth_keeping: bool = False

    def count(self, change: Change, sort: Sort, folder: str, *, left: bool) -> None:
        """`folder` is the git folder, for git's own files."""
        self.counts[sort] += 1
        if sort is Sort.GIT:
            self.git.see(change, folder)
        self.worth_keeping |= sort is not Sort.GIT or not is_bookkeeping(change, folder)
        if left:
            self.leave(f"{change.kind} {change.path}")
        wanted = {Sort.FILE: True, Sort.IGNORED: self.query.ignored, Sort.GIT: self.query.git}
        if wanted[sort]:
            self.total += 1
            if len(self.listed) < self.query.most:
                self.listed.append(change)

    def leave(self, words: str) -> None:
        self.left_files += 1
        if len(self.left) < _SHOWN_LEFT:
            self.left.append(words)

    def result(self, commits: tuple[Commit, ...], left: list[Commit]) -> Review:
        words = [f"commit {one.id[:12]} {one.subject}" for one in left]
        return Review(
            files=self.counts[Sort.FILE],
            ignored=self.counts[Sort.IGNORED],
            git=self.counts[Sort.GIT],
            commits=commits,
            listed=tuple(self.listed),
            total=self.total,
            left_files=self.left_files,
            left_commits=len(left),
            left=tuple([*self.left, *words][:_SHOWN_LEFT]),
            worth_keeping=self.worth_keeping or bool(commits or self.left_files),
        )


# What was taken out


Identity = tuple[int | str, ...]
"""Of a file its type, size and times; nothing for one that is gone. Of a commit its id."""


@dataclass
class _Taken:
    files: dict[str, Identity] = field(default_factory=dict)
    commits: set[str] = field(default_factory=set)

    def has(self, root: Root, change: Change) -> bool:
        if change.path not in self.files:
            return False
        gone = change.kind is ChangeKind.DELETED
        return self.files[change.path] == (() if gone else _identity(root.status(change.path)))


def _identity(status: os.stat_result | None) -> Identity:
    if status is None:
        return ()
    kind = stat.S_IFMT(status.st_mode)
    return (kind, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


_decode = msgspec.json.Decoder(list[int | str]).decode
"""Raises `msgspec.DecodeError`, a `ValueError`."""


class Sending:
    """Implements `carrel.domain.collaborators.Taking`. Only what may have changed is noted: a file
    has a newer ctime than the tree then, or is in a folder that has, since it was moved."""

    def __init__(self, tree: Tree, top: str) -> None:
        self.since_ns = tree.created_ns - _COARSE_NS
        self.noted: dict[str, bytes] | None = {}
        """None: nothing, since it would be too much."""
        self.commits: list[bytes] = []
        self.inside: str | None = None
        """The new folder that is sent now."""
        self._above = split(top)[0]
        self._left_out: set[str] = set()
        self._room = _MAX_TAKEN

    def sends(self, path: str, status: os.stat_result) -> None:
        path = join(self._above, path)
        inside = self.inside is not None and path.startswith(self.inside)
        if not inside and status.st_ctime_ns <= self.since_ns:
            return
        if not inside and stat.S_ISDIR(status.st_mode):
            self.inside = f"{path}/"
        if not is_git(path):
            self.note(path, _identity(status))

    def note(self, path: str, identity: Identity) -> None:
        if self.noted is not None:
            self.noted[path] = line = _line(path, identity)
            self._room -= len(line)
            if self._room < 0:
                self.noted = None

    def skips(self, skipped: Skipped) -> None:
        if skipped.why != SPECIAL and len(self._left_out) <= _MOST_LEFT_OUT:
            self._left_out.add(join(self._above, skipped.path))

    def only_commits(self, oids: Collection[str]) -> None:
        self.commits = [_line("", (oid,)) for oid in oids]

    def done(self) -> bytes:
        left = self._left_out
        if self.noted is None or len(left) > _MOST_LEFT_OUT:
            return b""
        sent = [line for one, line in self.noted.items() if not (left and is_in(one, left))]
        return b"".join(sent if any(map(is_git, left)) else sent + self.commits)


def _is_in_new(root: Root, path: str, since_ns: int) -> str | None:
    """The uppermost folder on the way to a path that is new, or was moved."""
    names = path.split("/")[:-1]
    for count in range(1, len(names) + 1):
        above = "/".join(names[:count])
        status = root.status(above)
        if status is not None and status.st_ctime_ns > since_ns:
            return f"{above}/"
    return None


def _normal(path: str) -> str:
    return posixpath.normpath(f"/{path}").lstrip("/")


def _is_below(path: str, top: str) -> bool:
    return not top or path == top or path.startswith(f"{top}/")


def is_in(path: str, tops: set[str]) -> bool:
    """Whether it is one of these, or below one."""
    while path and path not in tops:
        path = split(path)[0]
    return bool(path)


def _line(path: str, identity: Identity) -> bytes:
    """One of the file; its newest line counts. Names are bytes, of which JSON knows nothing."""
    return msgspec.json.encode((os.fsencode(path).decode("latin-1"), *identity)) + b"\n"


def _append(tree: Tree, added: bytes) -> None:
    """Neither synced nor insisted on: what a crash or a full disk loses counts as not taken, which
    loses nothing, and whoever reads files has them. When there is no room, only the newest line of
    each path stays."""
    place = _place(tree)
    with suppress(OSError):
        if added and place.exists() and place.stat().st_size + len(added) > _MAX_TAKEN:
            known = _read_taken(tree)
            kept = [_line(path, identity) for path, identity in known.files.items()]
            kept += [_line("", (commit,)) for commit in known.commits]
            draft = place.with_suffix(".new")
            draft.write_bytes(b"".join(kept))
            draft.replace(place)
        if added and (not place.exists() or place.stat().st_size < _MAX_TAKEN):
            with place.open("ab", buffering=0) as file:
                file.write(added)


def _read_taken(tree: Tree) -> _Taken:
    found = _Taken()
    with suppress(FileNotFoundError), _place(tree).open("rb") as file:
        for line in file:
            # One may be without its end.
            with suppress(ValueError):
                path, *identity = _decode(line)
                if path:
                    found.files[os.fsdecode(str(path).encode("latin-1"))] = tuple(identity)
                else:
                    found.commits.update(map(str, identity))
    return found


def _place(tree: Tree) -> Path:
    return tree.folder / _TAKEN
