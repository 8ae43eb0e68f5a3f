"""How a tree differs from its base.

Both are looked at as merged folders (`layers`). Where a folder of the tree shows exactly
what the base's does, nothing below is looked at; where an overlay's upper folder lies on
the base's, only the names in it are. Bytes are compared only when the sizes are equal and
nothing else tells.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from carrel.domain.trees import Change, ChangeKind, EntryType
from carrel.trees.contents import same_bytes
from carrel.trees.folders import join
from carrel.trees.layers import Entry, Layers
from carrel.trees.renames import Candidate, pair_renames

Ignore = Callable[[str, Entry | None], bool]
"""Asked with a path and what the tree has there."""


def ignore_nothing(_path: str, _entry: Entry | None) -> bool:
    return False


@dataclass(frozen=True)
class Comparison:
    """`settled_ns`: what changed for the last time before then, and has the base's size and
    mtime, is a copy that nobody touched. The kernel alone writes the ctime, so nobody can
    claim that. None where there are no copies. What `ignore` names is not compared. With
    `links`, a file that got or lost other names is `modified` too. Without `renames` each
    change is told as it is found; to pair them takes all of them in memory.
    """

    tree: Layers
    base: Layers
    settled_ns: int | None = None
    ignore: Ignore = ignore_nothing
    links: bool = False
    renames: bool = True

    def changes(self) -> Iterator[Change]:
        """Sorted by path. The root folder itself is not compared."""
        if not self.renames:
            return (candidate.change for candidate in self._candidates())
        return pair_renames(self._candidates())

    def _candidates(self) -> Iterator[Candidate]:
        stack = [self._compare_folders("", self.tree.top(), self.base.top())]
        while stack:
            pair = next(stack[-1], None)
            if pair is None:
                stack.pop()
            elif pair.descend:
                stack.append(self._compare_folders(pair.path, pair.tree, pair.base))
            elif (entry := pair.tree or pair.base) and (change := self._compare(pair, entry)):
                yield Candidate(change, entry)

    def _compare_folders(
        self, path: str, tree: Entry | None, base: Entry | None
    ) -> Iterator[_Pair]:
        """The pairs of entries in two folders, each of which may be missing."""
        tree = tree if tree is not None and tree.is_folder else None
        base = base if base is not None and base.is_folder else None
        items = []
        for name, (new, old) in self._names(tree, base).items():
            below = join(path, name)
            if self.ignore(below, new):
                continue
            items.append((name, _Pair(below, new, old)))
            if (new and new.is_folder) or (old and old.is_folder):
                # What is in a folder sorts by the slash, so after `a.txt` comes `a/b`.
                items.append((name + "/", _Pair(below, new, old, descend=True)))
        items.sort(key=lambda item: item[0])
        return iter([pair for _, pair in items])

    def _names(
        self, tree: Entry | None, base: Entry | None
    ) -> dict[str, tuple[Entry | None, Entry | None]]:
        if tree is not None and base is not None:
            if tree.parts == base.parts:
                return {}
            if base.parts and tree.parts[1:] == base.parts:
                upper = self.tree.uppermost(tree)
                pairs = {name: (new, self.base.child(base, name)) for name, new in upper.items()}
                # A whiteout of what the base does not have is left of something temporary.
                return {name: pair for name, pair in pairs.items() if pair != (None, None)}
        new = self.tree.children(tree) if tree is not None else {}
        old = self.base.children(base) if base is not None else {}
        return {name: (new.get(name), old.get(name)) for name in new.keys() | old.keys()}

    def _compare(self, pair: _Pair, shown: Entry) -> Change | None:
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

    def _kind(self, new: Entry | None, old: Entry | None) -> ChangeKind | None:
        if old is None:
            return ChangeKind.ADDED
        if new is None:
            return ChangeKind.DELETED
        if stat.S_IFMT(new.status.st_mode) != stat.S_IFMT(old.status.st_mode):
            return ChangeKind.TYPE
        if not self._same_content(new, old) or (self.links and _parted(new, old)):
            return ChangeKind.MODIFIED
        return ChangeKind.MODE if _mode(new) != _mode(old) else None

    def _same_content(self, new: Entry, old: Entry) -> bool:
        if new.is_folder or new.key == old.key:
            return True
        if not new.is_file:
            return _link(new) == _link(old)
        if new.status.st_size != old.status.st_size:
            return False
        return self._is_settled(new, old) or _same_bytes(new, old)

    def _is_settled(self, new: Entry, old: Entry) -> bool:
        return (
            self.settled_ns is not None
            and new.status.st_ctime_ns < self.settled_ns
            and new.status.st_mtime_ns == old.status.st_mtime_ns
        )


@dataclass(frozen=True, slots=True)
class _Pair:
    path: str
    tree: Entry | None
    base: Entry | None
    descend: bool = False


def _same_bytes(new: Entry, old: Entry) -> bool:
    try:
        one = new.content.root.open_file(new.content.path)
    except FileNotFoundError:
        return False  # it is being replaced right now
    try:
        other = old.content.root.open_file(old.content.path)
        try:
            return same_bytes(one, other, old.status.st_size)
        finally:
            os.close(other)
    finally:
        os.close(one)


def _parted(new: Entry, old: Entry) -> bool:
    return new.is_file and new.status.st_nlink != old.status.st_nlink


def _link(entry: Entry) -> bytes | int:
    if stat.S_ISLNK(entry.status.st_mode):
        return entry.content.root.link(entry.content.path)
    return entry.status.st_rdev


def _mode(entry: Entry | None) -> int | None:
    return None if entry is None else stat.S_IMODE(entry.status.st_mode)


def _type(entry: Entry | None) -> EntryType | None:
    if entry is None:
        return None
    mode = entry.status.st_mode
    if stat.S_ISREG(mode):
        return EntryType.FILE
    if stat.S_ISDIR(mode):
        return EntryType.FOLDER
    return EntryType.SYMLINK if stat.S_ISLNK(mode) else EntryType.OTHER
