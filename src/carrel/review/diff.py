"""How a tree differs from its base, from a state of it that was kept, or from another tree.

What changed is found by `trees/review.py`, which costs by what changed. Both sides of each such
file are read at the same moment, and given to a git that knows nothing but these
(`trees/differences.py`). What comes out of that git is read at the pace of whoever wants it; the
trees are closed by then.
"""

from __future__ import annotations

import heapq
import os
import posixpath
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from carrel.domain.errors import PathEscapes, PathNotFound
from carrel.domain.review import Diff, DiffFile, DiffTree, TreeDiffQuery
from carrel.domain.trees import ChangeKind, Commit, ReviewQuery
from carrel.trees.changes import Comparison
from carrel.trees.differences import (
    AFTER,
    BEFORE,
    PATCH,
    Both,
    DiffRepositories,
    Importer,
    if_there,
    take,
    unmarked,
    usable,
)
from carrel.trees.drivers.common import Layered
from carrel.trees.drivers.written import ReadableFiles
from carrel.trees.folders import split
from carrel.trees.kept import KeptSide
from carrel.trees.layers import LayerEntry, Layers
from carrel.trees.paths import check_path
from carrel.trees.review import GitFolders, Look, Sort, TreeReviews, is_git, is_in
from carrel.trees.states import SpaceStates

RENAMES = ("-M", "-l400", "--no-rename-empty")
"""Of more than 400 files that came and 400 that went, only those with the same bytes are paired:
git would look at each pair for minutes."""
_SHORT_ID = 12
_KINDS = {
    b"A": ChangeKind.ADDED,
    b"D": ChangeKind.DELETED,
    b"R": ChangeKind.RENAMED,
    b"T": ChangeKind.TYPE,
}


class TreeDiffs(DiffRepositories):
    """Implements `carrel.domain.review.Differ`."""

    def __init__(self, reviews: TreeReviews, work: Path) -> None:
        """`work`: see `DiffRepositories`."""
        super().__init__(work)
        self._reviews = reviews

    def text(self, query: TreeDiffQuery) -> Generator[bytes, None, None]:
        with ExitStack() as made:
            with self._sides(query) as sides:
                both = made.enter_context(self.both(sides.fill))
                heads = b"".join(map(_head, sides.commits()))
            if heads:
                yield heads
            yield from both.compare(*PATCH, *RENAMES)

    def files(self, query: TreeDiffQuery, most: int) -> Diff:
        with self._sides(query, noted=most) as sides, self.both(sides.fill) as both:
            rows = _Rows(most)
            rows.read(both)
            return Diff(
                files=tuple(sides.told(one) for one in rows.files.values()),
                total=rows.total,
                added=rows.added,
                deleted=rows.deleted,
                commits=sides.commits(),
                hidden=sides.hidden,
            )

    @contextmanager
    def _sides(self, query: TreeDiffQuery, noted: int = 0) -> Iterator[_Sides]:
        with ExitStack() as stack:

            def look(side: DiffTree) -> Look:
                asked = ReviewQuery(personal=side.personal)
                return stack.enter_context(self._reviews.look(side.driver, side.tree, asked))

            after = look(query.after)
            before: Look | KeptSide | None = None
            if query.since:
                before = stack.enter_context(_kept(after, query.since))
            elif query.before is not None:
                before = look(query.before)
            files: ReadableFiles = after.root
            if isinstance(after.driver, Layered):
                files = stack.enter_context(after.driver.open_written(after.tree))
            yield _Sides(query, after, before, noted, files)


def _kept(look: Look, name: str) -> AbstractContextManager[KeptSide]:
    states = SpaceStates(look.driver, look.tree, look.bases.get(look.tree.base_id))
    return states.side(name, look.base_layers)


@dataclass
class _Sides:
    """What is compared, while the trees are open."""

    query: TreeDiffQuery
    after: Look
    before: Look | KeptSide | None
    noted: int
    """How many of the ignored files are remembered."""
    files: ReadableFiles
    """Those of `after`."""
    git: GitFolders = field(default_factory=GitFolders)
    ignored: set[str] = field(default_factory=set)
    hidden: int = 0
    _last: tuple[str, LayerEntry | None] = ("", None)

    def fill(self, importer: Importer) -> None:
        wanted = self._wanted()
        for path, sort in self._found():
            self.query.check()
            raw = os.fsencode(path)
            if not usable(raw) or (wanted and not is_in(path, wanted)):
                continue
            if sort is Sort.IGNORED:
                if not self.query.ignored:
                    self.hidden += self._differs(path)
                    continue
                if len(self.ignored) < self.noted:
                    self.ignored.add(path)
            importer.turn_to(BEFORE)
            with if_there():
                self._take_before(importer, path, raw)
            importer.turn_to(AFTER)
            with if_there():
                take(importer, raw, self.files, path)

    def _differs(self, path: str) -> bool:
        """Both spaces may have made the same."""
        before = self.before
        return not isinstance(before, Look) or _between(before, self.after).differs(path)

    def commits(self) -> tuple[Commit, ...]:
        """Of those git folders that `fill` came across."""
        return self.after.commits(self.git.seen, self.git.grown) if self.before is None else ()

    def told(self, file: DiffFile) -> DiffFile:
        """With what only the trees know."""
        new = file.kind in (ChangeKind.ADDED, ChangeKind.RENAMED)
        ignored = file.path in self.ignored
        rules = self.after.ignored
        untracked = new and not ignored and rules is not None and rules.is_untracked(file.path)
        return replace(file, ignored=ignored, untracked=untracked)

    def _take_before(self, importer: Importer, path: str, raw: bytes) -> None:
        if isinstance(self.before, KeptSide):
            self.before.take(importer, raw, path)
        elif self.before is not None:
            take(importer, raw, self.before.root, path)
        elif (old := self._in_base(path)) is not None:
            # The bytes of a file whose mode alone changed may be elsewhere than its status.
            take(importer, raw, old.content.root, old.content.path, old.status)

    def _in_base(self, path: str) -> LayerEntry | None:
        """They come sorted: the next one is mostly in the same folder."""
        above, name = split(path)
        if not above:
            return self.after.base_layers.find(name)
        if above != self._last[0]:
            self._last = (above, self.after.base_layers.find(above))
        folder = self._last[1]
        return self.after.base_layers.child(folder, name) if folder is not None else None

    def _wanted(self) -> set[str]:
        """Empty: everything. Raises `PathNotFound`, `PathInvalid`, `PathEscapes`."""
        wanted = set()
        for one in self.query.paths:
            path = _literal(one)
            if path == ".":
                return set()
            if not self._is_there(path):
                raise PathNotFound(
                    f"There is no {one[:80]!r} on either side.",
                    hint="Give paths from the root of the project; `carrel changes` lists what"
                    " has changed.",
                )
            wanted.add(path)
        return wanted

    def _is_there(self, path: str) -> bool:
        if self.after.root.status(path) is not None:
            return True
        if isinstance(self.before, KeptSide):
            return self.before.has(path)
        if self.before is not None:
            return self.before.root.status(path) is not None
        return self.after.base_layers.find(path) is not None

    def _found(self) -> Iterator[tuple[str, Sort]]:
        """What may differ, sorted by path, without git's own files."""
        if self.before is None:
            for change, sort in self.after.changes(renames=False):
                if sort is Sort.GIT:
                    self.git.see(change, self.after.git_folder(change.path))
                else:
                    yield change.path, sort
            return
        if isinstance(self.before, KeptSide):
            for path in _merged(self.before.changed(), _paths(self.after)):
                is_same = self.before.is_still(path)
                if not is_same and not is_git(path):
                    yield path, self.after.sort(path)
            return
        paths = (
            _merged(_paths(self.before), _paths(self.after))
            if _share_a_base(self.before, self.after)
            else _different(self.before, self.after)
        )
        for path in paths:
            ignored = all(look.sort(path) is Sort.IGNORED for look in (self.before, self.after))
            yield path, Sort.IGNORED if ignored else Sort.FILE


def _literal(path: str) -> str:
    """The path below the root, in one spelling."""
    check_path(path)
    plain = posixpath.normpath(path)
    if plain.split("/")[0] == "..":
        raise PathEscapes(f"{path[:80]!r} leads out of the tree.", hint="Leave out the `..`.")
    return plain


def _share_a_base(one: Look, other: Look) -> bool:
    """What stays where it is has no base to tell what it changed."""
    stays = any(look.driver.capabilities.stays for look in (one, other))
    return one.tree.base_id == other.tree.base_id and not stays


def _paths(look: Look) -> Iterator[str]:
    return (change.path for change, sort in look.changes(renames=False) if sort is not Sort.GIT)


def _merged(one: Iterable[str], other: Iterable[str]) -> Iterator[str]:
    """Both are sorted."""
    last = None
    for path in heapq.merge(one, other):
        if path != last:
            yield path
        last = path


def _different(before: Look, after: Look) -> Iterator[str]:
    """By what is in them: all of both is looked at."""
    return (one.path for one in _between(before, after).changes())


def _between(before: Look, after: Look) -> Comparison:
    def ignore(path: str, _entry: LayerEntry | None) -> bool:
        return is_git(path)

    new, old = (Layers([look.root], None) for look in (after, before))
    return Comparison(new, old, ignore=ignore, renames=None)


def _head(commit: Commit) -> bytes:
    """A line before the difference itself; whoever applies that passes it over."""
    where = f"{commit.repository}: " if commit.repository else ""
    line = f"commit {commit.id[:_SHORT_ID]} {where}{commit.subject}"
    plain = "".join(letter if letter.isprintable() else "?" for letter in line)
    return plain.encode() + b"\n"


# What git lists


class _Rows:
    """The first files that git lists, by path, and the sums of all."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.files: dict[bytes, DiffFile] = {}
        self.total = self.added = self.deleted = 0

    def read(self, both: Both) -> None:
        words = _words(both.compare("--raw", "--numstat", "-z", "--no-abbrev", *RENAMES))
        for word in words:
            if word.startswith(b":"):
                self._take_row(word, words.__next__)
            else:
                self._take_lines(word, words.__next__)

    def _take_row(self, word: bytes, following: Callable[[], bytes]) -> None:
        old_mode, new_mode, old, new, status = word[1:].split(b" ")
        kind = _KINDS.get(status[:1], ChangeKind.MODIFIED)
        old_path = following() if kind is ChangeKind.RENAMED else None
        path = following()
        if kind is ChangeKind.MODIFIED and old == new:
            kind = ChangeKind.MODE
        self.total += 1
        if len(self.files) < self._most:
            self.files[path] = DiffFile(
                _path(path),
                kind,
                None if old_path is None else _path(old_path),
                _mode(old_mode),
                _mode(new_mode),
            )

    def _take_lines(self, word: bytes, following: Callable[[], bytes]) -> None:
        added, deleted, path = word.split(b"\t", 2)
        if not path:
            following()
            path = following()
        binary = added == b"-"
        if not binary:
            self.added += int(added)
            self.deleted += int(deleted)
        if (known := self.files.get(path)) is not None:
            figures = (None, None) if binary else (int(added), int(deleted))
            self.files[path] = replace(known, added=figures[0], deleted=figures[1], binary=binary)


def _path(path: bytes) -> str:
    return os.fsdecode(unmarked(path))


def _mode(mode: bytes) -> str | None:
    return None if mode == b"000000" else mode.decode()


def _words(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *words, rest = (rest + piece).split(b"\0")
        yield from words
