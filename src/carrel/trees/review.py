"""What a tree changed, sorted for whoever reviews it, and what of that somebody has taken out.

There are three sorts of changes: of the project's files, of files that git ignores, and of git's
own files, from which the commits are read. A file was taken out when all of it was sent to somebody
outside, alone or in an archive, and is still the same file: its size and times are written down in
the folder of the space. A program in the space can set a file's mtime, but not its ctime.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
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
from carrel.trees.folders import Root, join, split
from carrel.trees.git.history import new_commits
from carrel.trees.git.object_store import Effort, HistoryUnread, LayerGitFiles, TreeGitFiles
from carrel.trees.ignored import IgnoredFiles
from carrel.trees.layers import Layers

GIT = ".git"
_WORK = ("HEAD", "packed-refs", "refs", "config", "hooks", "MERGE_HEAD", "CHERRY_PICK_HEAD")
_OF_A_REPOSITORY = (
    *(
        "HEAD",
        "ORIG_HEAD",
        "FETCH_HEAD",
        "COMMIT_EDITMSG",
        "packed-refs",
        "refs",
        "objects",
        "logs",
    ),
    *("index", "info", "config", "hooks", "description", "branches", "modules", "worktrees"),
)
"""What is in every git folder."""
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


class Sort(StrEnum):
    FILE = "file"
    IGNORED = "ignored"
    GIT = "git"


def is_git(path: str) -> bool:
    return GIT in path and GIT in path.split("/")


def is_bookkeeping(change: Change) -> bool:
    """Of git's own files: what it writes by the way, and nobody would miss."""
    parts = change.path.split("/")
    inside = parts[parts.index(GIT) + 1 :]
    while len(inside) >= 2 and inside[0] in ("modules", "worktrees"):
        inside = inside[2:]
    if inside[:1] == ["objects"]:
        # What was only staged is there and nowhere else.
        return change.kind is not ChangeKind.ADDED
    if not inside or inside[0] not in _WORK:
        return True
    # Folders of references are made and removed as references come and go.
    return inside == ["refs"]


class TreeReviews:
    """Implements `carrel.domain.collaborators.Reviews`."""

    def __init__(self, bases: DriverBases, personal: Callable[[], bytes]) -> None:
        """`personal` gives what the owner's git ignores in every repository."""
        self._bases = bases
        self._personal = personal

    def review(self, driver: TreeDriver, tree: Tree, query: ReviewQuery) -> Review:
        with self._look(driver, tree, query) as look:
            taken = look.taken
            tally = _Tally(query)
            for change, sort in look.changes():
                lost = sort is Sort.FILE and not driver.capabilities.stays
                tally.count(change, sort, left=lost and not taken.has(look.root, change))
            read = not (driver.capabilities.stays or query.rough)
            commits = look.commits(tally.repositories) if read else ()
            return tally.result(commits, [one for one in commits if one.id not in taken.commits])

    def taking(
        self, driver: TreeDriver, tree: Tree, path: str, query: ReviewQuery
    ) -> Callable[[Set[Skipped]], None]:
        if driver.capabilities.stays:
            return lambda _skipped: None
        top = _normal(path)
        files: dict[str, bytes] = {}
        repositories = set()
        with self._look(driver, tree, query) as look:
            # Where a file was before is taken out as what it is: a deletion.
            for change, sort in look.changes(renames=False):
                if not _is_below(change.path, top):
                    continue
                if sort is Sort.FILE:
                    files[change.path] = _line(
                        change.path, _identity(look.root.status(change.path))
                    )
                elif sort is Sort.GIT:
                    repositories.add(_git_folder(change.path))
            whole = {one for one in repositories if _is_below(one, top)}
            made = [one for one in look.commits(whole) if one.id != _UNREAD]
            commits = [_line("", (commit.id,)) for commit in made]

        def took(skipped: Set[Skipped]) -> None:
            left = {join(split(top)[0], one.path) for one in skipped if one.why != SPECIAL}
            sent = [line for one, line in files.items() if not (left and _is_in(one, left))]
            _append(tree, sent if any(map(is_git, left)) else sent + commits)

        return took

    def took(self, tree: Tree, path: str, status: os.stat_result) -> None:
        # What is older than the tree is as it was in the project.
        if status.st_ctime_ns > tree.created_ns and not is_git(path):
            _append(tree, [_line(_normal(path), _identity(status))])

    @contextmanager
    def _look(self, driver: TreeDriver, tree: Tree, query: ReviewQuery) -> Iterator[_Look]:
        stays = driver.capabilities.stays
        layers = () if stays else self._bases.get(tree.base_id).layers
        with ExitStack() as stack, tree_errors("compare the tree"):
            root = stack.enter_context(Root(driver.open_root(tree)))
            roots = stack.enter_context(open_roots(layers))
            files = TreeGitFiles(root)
            base = LayerGitFiles(Layers(roots, note_prefix()))
            personal = self._personal() if query.personal else b""
            ignored = None if query.rough else IgnoredFiles(files, base, personal)
            yield _Look(driver, tree, root, files, base, ignored, _read_taken(tree))


@dataclass(frozen=True)
class _Look:
    driver: TreeDriver
    tree: Tree
    root: Root
    files: TreeGitFiles
    base: LayerGitFiles
    ignored: IgnoredFiles | None
    taken: _Taken

    def sort(self, path: str) -> Sort:
        if is_git(path):
            return Sort.GIT
        if self.ignored is not None and self.ignored.has(path):
            return Sort.IGNORED
        return Sort.FILE

    def changes(self, *, renames: bool = True) -> Iterator[tuple[Change, Sort]]:
        """Sorted by path, without folders. Only the project's files are told as renamed."""
        if isinstance(self.driver, Comparable):
            paired = (lambda path: self.sort(path) is Sort.FILE) if renames else None
            found = self.driver.compare(self.tree, links=False, renames=paired)
        else:
            found = self.driver.changes(self.tree)
        for change in found:
            if {change.old_type, change.new_type} - {None, EntryType.FOLDER}:
                yield change, self.sort(change.path)

    def commits(self, folders: set[str]) -> tuple[Commit, ...]:
        """Where they cannot be read there are some, as far as anybody knows."""
        found: list[Commit] = []
        effort, place = Effort(), ""
        try:
            for number, folder in enumerate(sorted(folders)):
                place = folder.partition(f"{GIT}/")[0].rstrip("/").removesuffix(f"/{GIT}")
                place = "" if place == GIT else place
                if number >= _MOST_REPOSITORIES:
                    raise HistoryUnread
                made = new_commits(self.files, self.base, folder, effort)
                found += [Commit(one.oid, one.subject, place) for one in made]
        except HistoryUnread:
            found.append(Commit(_UNREAD, "(there may be more, which cannot be read)", place))
        return tuple(found)


@dataclass
class _Tally:
    query: ReviewQuery
    counts: dict[Sort, int] = field(default_factory=lambda: dict.fromkeys(Sort, 0))
    listed: list[Change] = field(default_factory=list)
    total: int = 0
    left: list[str] = field(default_factory=list)
    left_files: int = 0
    repositories: set[str] = field(default_factory=set)
    worth_keeping: bool = False

    def count(self, change: Change, sort: Sort, *, left: bool) -> None:
        self.counts[sort] += 1
        if sort is Sort.GIT and len(self.repositories) < _MOST_SEEN:
            self.repositories.add(_git_folder(change.path))
        self.worth_keeping |= sort is not Sort.GIT or not is_bookkeeping(change)
        if left:
            self.left_files += 1
            if len(self.left) < _SHOWN_LEFT:
                self.left.append(f"{change.kind} {change.path}")
        wanted = {Sort.FILE: True, Sort.IGNORED: self.query.ignored, Sort.GIT: self.query.git}
        if wanted[sort]:
            self.total += 1
            if len(self.listed) < self.query.most:
                self.listed.append(change)

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
            worth_keeping=self.worth_keeping or bool(commits),
        )


def _git_folder(path: str) -> str:
    """The repository that a file of git's belongs to: a submodule's is within another's."""
    parts = path.split("/")
    end = parts.index(GIT) + 1
    while parts[end : end + 1] == ["modules"]:
        # Its name may have slashes.
        inside = [at for at in range(end + 2, len(parts)) if parts[at] in _OF_A_REPOSITORY]
        if not inside:
            break
        end = inside[0]
    return "/".join(parts[:end])


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


def _normal(path: str) -> str:
    return posixpath.normpath(f"/{path}").lstrip("/")


def _is_below(path: str, top: str) -> bool:
    return not top or path == top or path.startswith(f"{top}/")


def _is_in(path: str, tops: set[str]) -> bool:
    """Whether it is one of these, or below one."""
    while path and path not in tops:
        path = split(path)[0]
    return bool(path)


def _line(path: str, identity: Identity) -> bytes:
    """One of the file; its newest line counts. Names are bytes, of which JSON knows nothing."""
    return msgspec.json.encode((os.fsencode(path).decode("latin-1"), *identity)) + b"\n"


def _append(tree: Tree, lines: list[bytes]) -> None:
    """Neither synced nor insisted on: what a crash or a full disk loses counts as not taken, which
    loses nothing, and whoever reads files has them."""
    with suppress(OSError):
        if lines and (not _place(tree).exists() or _place(tree).stat().st_size < _MAX_TAKEN):
            with _place(tree).open("ab", buffering=0) as file:
                file.write(b"".join(lines))


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
