"""How a tree differs from its base, and which files only changed their name.

Both are looked at as merged folders (`layers`). Where a folder of the tree shows exactly
what the base's does, nothing below is looked at; where an overlay's upper folder lies on
the base's, only the names in it are. Bytes are compared only when the sizes are equal and
nothing else tells.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import TypeVar

from carrel.domain.trees import Change, ChangeKind, EntryType
from carrel.linux.descriptors import Descriptor
from carrel.trees.contents import digest, same_bytes
from carrel.trees.files import entry_type
from carrel.trees.folders import HeldPaths, join, split
from carrel.trees.layers import LayerEntry, Layers

_Name = TypeVar("_Name", bound=Hashable)
PathTest = Callable[[str], bool]

MOST_HELD = 100_000
"""Changes, for their partners: a kilobyte each, and a space has as many files as it likes."""


def every_path(_path: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change, and the entry that came or went."""

    change: Change
    entry: LayerEntry


def pair_renames(candidates: Iterator[Candidate], fits: PathTest = every_path) -> Iterator[Change]:
    """The changes in their order, with an added and a deleted file of the same bytes made
    one, where both paths fit. They flow until the first file that may have a partner; from
    there on, the partner could be the last one, unless there are too many to be held."""
    for candidate in candidates:
        if _may_pair(candidate) and fits(candidate.change.path):
            break
        yield candidate.change
    else:
        return
    held = [candidate, *islice(candidates, MOST_HELD)]
    if len(held) > MOST_HELD:
        yield from (one.change for one in chain(held, candidates))
        return
    renamed = _pair([one for one in held if _may_pair(one) and fits(one.change.path)])
    gone = {change.old_path for change in renamed.values()}
    for one in held:
        change = one.change
        if change.kind is ChangeKind.DELETED and change.path in gone:
            continue
        yield renamed.get(change.path, change)


def _may_pair(candidate: Candidate) -> bool:
    """Empty files are alike by chance, and not told apart."""
    change = candidate.change
    if change.kind is ChangeKind.ADDED:
        return change.new_type is EntryType.FILE and change.size > 0
    return (
        change.kind is ChangeKind.DELETED and change.old_type is EntryType.FILE and change.size > 0
    )


def _pair(candidates: list[Candidate]) -> dict[str, Change]:
    """The renames by their new path."""
    by_size: dict[int, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        by_size[candidate.change.size].append(candidate)
    renamed = {}
    for alike in by_size.values():
        if len({one.change.kind for one in alike}) < 2:
            continue
        for added, deleted in _match(alike):
            renamed[added.path] = dataclasses.replace(
                added,
                kind=ChangeKind.RENAMED,
                old_path=deleted.path,
                old_type=deleted.old_type,
                old_mode=deleted.old_mode,
            )
    return renamed


def _match(alike: list[Candidate]) -> Iterator[tuple[Change, Change]]:
    """Pairs among files of one size. What is the very same file on disk, as under a folder
    of an overlay that was moved, needs no reading."""
    rest: list[Candidate] = []
    for group in _grouped(alike, lambda one: one.entry.key).values():
        yield from _zip(group, rest)
    read, rest = rest, []
    if len({one.change.kind for one in read}) == 2:
        for content, group in _grouped(read, _content).items():
            if content is not None:
                yield from _zip(group, rest)


def _grouped(
    candidates: list[Candidate], name: Callable[[Candidate], _Name]
) -> dict[_Name, list[Candidate]]:
    groups: dict[_Name, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        groups[name(candidate)].append(candidate)
    return groups


def _zip(group: list[Candidate], rest: list[Candidate]) -> Iterator[tuple[Change, Change]]:
    """Pairs files of the same bytes, those that kept their last name first; the others go
    to `rest`."""
    gone = [one for one in group if one.change.kind is ChangeKind.DELETED]
    come = [one for one in group if one.change.kind is ChangeKind.ADDED]
    by_name = _grouped(gone[::-1], _last_name)
    strangers = []
    paired = set()
    for one in come:
        if partners := by_name.get(_last_name(one)):
            partner = partners.pop().change
            paired.add(partner.path)
            yield one.change, partner
        else:
            strangers.append(one)
    left = [one for one in gone if one.change.path not in paired]
    for one, other in zip(strangers, left, strict=False):
        yield one.change, other.change
    count = min(len(strangers), len(left))
    rest += strangers[count:] + left[count:]


def _last_name(candidate: Candidate) -> str:
    return os.path.basename(candidate.change.path)


def _content(candidate: Candidate) -> bytes | None:
    """What names the bytes; None when they have gone meanwhile."""
    content = candidate.entry.content
    try:
        descriptor = content.root.open_file(content.path)
    except FileNotFoundError:
        return None
    try:
        return digest(descriptor, candidate.change.size)
    finally:
        os.close(descriptor)


# Comparing a tree with its base

Ignore = Callable[[str, LayerEntry | None], bool]
"""Asked with a path and what the tree has there."""


def ignore_nothing(_path: str, _entry: LayerEntry | None) -> bool:
    return False


@dataclass(frozen=True)
class Comparison:
    """`settled_ns`: what changed for the last time before then, and has the base's size and
    mtime, is a copy that nobody touched. The kernel alone writes the ctime, so nobody can
    claim that. None where there are no copies. What `ignore` names is not compared. With
    `links`, a file that got or lost other names is `modified` too. Files whose path fits `renames`
    are paired, which takes all of them in memory; with None each change is told as it is found.
    Without `into_added`, a folder that the base does not have is told, and nothing in it. With
    `same_owner`, what belongs to somebody else now is told as if its mode had changed.
    """

    tree: Layers
    base: Layers
    settled_ns: int | None = None
    ignore: Ignore = ignore_nothing
    links: bool = False
    renames: PathTest | None = every_path
    into_added: bool = True
    same_owner: Callable[[LayerEntry, LayerEntry], bool] | None = None

    def changes(self) -> Iterator[Change]:
        """Sorted by path. The root folder itself is not compared."""
        if self.renames is None:
            return (candidate.change for candidate in self._candidates())
        return pair_renames(self._candidates(), self.renames)

    def below(self, path: str) -> Iterator[Change]:
        """The entry at `path`, and all that is in it."""
        new, old = self.tree.find(path), self.base.find(path)
        pair = _Pair(*split(path), new, old)
        shown = new or old
        if shown is not None and (change := self._compare(pair, shown)):
            yield change
        for candidate in self._candidates(path, new, old):
            yield candidate.change

    def _candidates(
        self, path: str = "", new: LayerEntry | None = None, old: LayerEntry | None = None
    ) -> Iterator[Candidate]:
        """What is in a folder, as both have it; in the root if none is given."""
        held = HeldPaths()
        if not path:
            new, old = self.tree.top(), self.base.top()
        stack = [self._compare_folders(path, new, old)]
        while stack:
            pair = next(stack[-1], None)
            if pair is None:
                stack.pop()
            elif pair.descend:
                stack.append(self._compare_folders(pair.path, pair.tree, pair.base))
            elif (entry := pair.tree or pair.base) and (change := self._compare(pair, entry)):
                held.add(change.path)
                yield Candidate(change, entry)

    def _compare_folders(
        self, path: str, tree: LayerEntry | None, base: LayerEntry | None
    ) -> Iterator[_Pair]:
        """The pairs of entries in two folders, each of which may be missing."""
        tree = tree if tree is not None and tree.is_folder else None
        base = base if base is not None and base.is_folder else None
        items = []
        for name, (new, old) in self._names(tree, base).items():
            if self.ignore(join(path, name), new):
                continue
            items.append((name, _Pair(path, name, new, old)))
            if (new and new.is_folder and self.into_added) or (old and old.is_folder):
                # What is in a folder sorts by the slash, so after `a.txt` comes `a/b`.
                items.append((name + "/", _Pair(path, name, new, old, descend=True)))
        items.sort(key=lambda item: item[0])
        return iter([pair for _, pair in items])

    def _names(
        self, tree: LayerEntry | None, base: LayerEntry | None
    ) -> dict[str, tuple[LayerEntry | None, LayerEntry | None]]:
        if tree is not None and base is not None:
            if tree.parts == base.parts:
                return {}
            above = len(tree.parts) - len(base.parts)
            if base.parts and above > 0 and tree.parts[above:] == base.parts:
                upper = self.tree.uppermost(tree, above)
                pairs = {name: (new, self.base.child(base, name)) for name, new in upper.items()}
                # A whiteout of what the base does not have is left of something temporary.
                return {name: pair for name, pair in pairs.items() if pair != (None, None)}
        new = self.tree.children(tree) if tree is not None else {}
        old = self.base.children(base) if base is not None else {}
        return {name: (new.get(name), old.get(name)) for name in new.keys() | old.keys()}

    def differs(self, path: str) -> bool:
        """Whether both sides have something else there, or one has nothing."""
        new, old = self.tree.find(path), self.base.find(path)
        return (new, old) != (None, None) and self._kind(new, old) is not None

    def _compare(self, pair: _Pair, shown: LayerEntry) -> Change | None:
        new, old = pair.tree, pair.base
        kind = self._kind(new, old)
        if kind is None:
            return None
        return Change(
            path=pair.path,
            kind=kind,
            old_type=_type(old),
            new_type=_type(new),
            old_mode=_mode(old),
            new_mode=_mode(new),
            size=shown.status.st_size if shown.is_file else 0,
        )

    def _kind(self, new: LayerEntry | None, old: LayerEntry | None) -> ChangeKind | None:
        if old is None:
            return ChangeKind.ADDED
        if new is None:
            return ChangeKind.DELETED
        if stat.S_IFMT(new.status.st_mode) != stat.S_IFMT(old.status.st_mode):
            return ChangeKind.TYPE
        if not self._same_content(new, old) or (self.links and _parted(new, old)):
            return ChangeKind.MODIFIED
        given = self.same_owner is not None and not self.same_owner(new, old)
        return ChangeKind.MODE if given or _mode(new) != _mode(old) else None

    def _same_content(self, new: LayerEntry, old: LayerEntry) -> bool:
        if new.is_folder or new.key == old.key:
            return True
        if not new.is_file:
            return _link(new) == _link(old)
        if new.status.st_size != old.status.st_size:
            return False
        return self._is_settled(new, old) or _same_bytes(new, old)

    def _is_settled(self, new: LayerEntry, old: LayerEntry) -> bool:
        return (
            self.settled_ns is not None
            and new.status.st_ctime_ns < self.settled_ns
            and new.status.st_mtime_ns == old.status.st_mtime_ns
        )


@dataclass(frozen=True, slots=True)
class _Pair:
    above: str
    name: str
    tree: LayerEntry | None
    base: LayerEntry | None
    descend: bool = False

    @property
    def path(self) -> str:
        return join(self.above, self.name)


def _same_bytes(new: LayerEntry, old: LayerEntry) -> bool:
    try:
        one = new.content.root.open_file(new.content.path)
    except FileNotFoundError:
        return False  # it is being replaced right now
    try:
        with Descriptor(old.content.root.open_file(old.content.path)) as other:
            return same_bytes(one, other, old.status.st_size)
    finally:
        os.close(one)


def _parted(new: LayerEntry, old: LayerEntry) -> bool:
    return new.is_file and new.status.st_nlink != old.status.st_nlink


def _link(entry: LayerEntry) -> bytes | int:
    if stat.S_ISLNK(entry.status.st_mode):
        return entry.content.root.link(entry.content.path)
    return entry.status.st_rdev


def _mode(entry: LayerEntry | None) -> int | None:
    return None if entry is None else stat.S_IMODE(entry.status.st_mode)


def _type(entry: LayerEntry | None) -> EntryType | None:
    return None if entry is None else entry_type(entry.status.st_mode)
