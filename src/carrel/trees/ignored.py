"""Which files of a tree git would not look at: its .gitignore files, .git/info/exclude, and what
the owner ignores everywhere.

The rules are the tree's own, so an agent may have written them. They only hide files from a list
that says how many it leaves out, and never one that git has in its index, then or now. New rules
are themselves seen: a .gitignore is never ignored, and `exclude` is that of the project. As git has
it, a repository within another goes by its own rules and its own index.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress

from carrel.domain.errors import ProjectInvalid
from carrel.trees.bases.scan import Exclusion
from carrel.trees.folders import split
from carrel.trees.git import index
from carrel.trees.git.history import git_folder
from carrel.trees.git.object_store import GitFiles, read_small

_RULES, _EXCLUDE, _GIT = ".gitignore", ".git/info/exclude", ".git"
_MAX_FILE = 64 << 10
"""Bytes of one file of rules; a larger one says nothing."""
_MOST_RULES = 5000
"""Of all files of rules in one review; what comes then says nothing."""
_MAX_RULE, _MOST_STARS, _MAX_PATH = 256, 8, 1024
"""Characters and wildcards of a rule, and characters of a path, that are looked at: so one look
takes microseconds, whatever strangers wrote."""
_REVIEW_S = 2.0
"""For all looks of one review. What is asked for afterwards is not ignored."""


class IgnoredFiles:
    """For one review of one tree. Paths are relative to it, as `os.fsdecode` gives them."""

    def __init__(self, tree: GitFiles, base: GitFiles, personal: bytes) -> None:
        """`personal` is what the owner's git ignores in every repository."""
        self._files = tree
        self._base = base
        self._left = _MOST_RULES
        self._until = time.monotonic() + _REVIEW_S
        exclude = read_small(base, _EXCLUDE, _MAX_FILE) or b""
        self._exclude, self._personal = self._rules(exclude), self._rules(personal)
        self._known: dict[str, Exclusion] = {}
        self._folders = {"": (False, "")}
        """Whether it is ignored, and the top of the repository that it is in."""
        self._tracked: dict[tuple[str, bool], set[bytes] | None] = {}
        """By repository, now and before; None where the index cannot be read."""
        self._index_left = 2 * index.MAX_BYTES

    def has(self, path: str) -> bool:
        """Whether git ignores this file, or one that was there."""
        above, name = split(path)
        if name == _RULES:
            return False
        ignored, top = self._folder(above)
        if not (ignored or self._decides(path, top, folder=False)):
            return False
        tracked = (self._index_names(top, now=now) for now in (True, False))
        raw = os.fsencode(_within(path, top))
        return all(names is not None and raw not in names for names in tracked)

    def has_folder(self, path: str) -> bool:
        """Whether git ignores all of this folder that it does not have in its index."""
        return self._folder(path)[0]

    def is_untracked(self, path: str) -> bool:
        """Whether git does not have this file in its index now, as far as that can be read."""
        top = self._folder(split(path)[0])[1]
        names = self._index_names(top, now=True)
        return names is not None and os.fsencode(_within(path, top)) not in names

    def _index_names(self, top: str, *, now: bool) -> set[bytes] | None:
        if (top, now) not in self._tracked:
            self._tracked[top, now] = self._names(self._files if now else self._base, top)
        return self._tracked[top, now]

    def _folder(self, path: str) -> tuple[bool, str]:
        """What is in an ignored folder is ignored, whatever else is said of it."""
        below = []
        while path not in self._folders:
            below.append(path)
            path = split(path)[0]
        ignored, top = self._folders[path]
        for one in reversed(below):
            if self._files.mode(f"{one}/{_GIT}") or self._base.mode(f"{one}/{_GIT}"):
                ignored, top = False, one
            else:
                ignored = ignored or self._decides(one, top, folder=True)
            self._folders[one] = ignored, top
        return ignored, top

    def _decides(self, path: str, top: str, *, folder: bool) -> bool:
        """The rules nearest to it have the first word."""
        place = split(path)[0]
        while True:
            said = self._look(self._rules_of(place), _within(path, place), folder)
            if said is not None:
                return said
            if place == top:
                break
            place = split(place)[0]
        for rules in (self._personal,) if top else (self._exclude, self._personal):
            said = self._look(rules, _within(path, top), folder)
            if said is not None:
                return said
        return False

    def _look(self, rules: Exclusion, path: str, folder: bool) -> bool | None:
        if not rules or len(path) > _MAX_PATH or time.monotonic() > self._until:
            return None
        return rules.decides(path, folder=folder)

    def _rules_of(self, folder: str) -> Exclusion:
        found = self._known.get(folder)
        if found is None:
            found = _NOTHING
            if self._left > 0 and time.monotonic() <= self._until:
                path = f"{folder}/{_RULES}" if folder else _RULES
                found = self._rules(read_small(self._files, path, _MAX_FILE) or b"")
            self._known[folder] = found
        return found

    def _rules(self, data: bytes) -> Exclusion:
        """As git reads them: a line that is no rule is passed over."""
        if not data:
            return _NOTHING
        lines = os.fsdecode(data.removeprefix(b"\xef\xbb\xbf")).split("\n")
        wanted = [line for one in lines if (line := one.rstrip("\r")).strip() and one[0] != "#"]
        wanted = wanted[: self._left]
        self._left -= len(wanted)
        wanted = [line for line in wanted if _is_short(line)]
        try:
            return Exclusion(wanted, joined=False)
        except ProjectInvalid:
            return Exclusion([line for line in wanted if _is_rule(line)], joined=False)

    def _names(self, files: GitFiles, top: str) -> set[bytes] | None:
        """What git has in its index there; None where that cannot be read."""
        folder = f"{top}/{_GIT}" if top else _GIT
        if stat.S_ISREG(files.mode(folder)):
            folder = git_folder(files, folder)
        mode = files.mode(folder)
        if not stat.S_ISDIR(mode):
            return None if mode else set()
        return self._index(files, folder, "index")

    def _index(self, files: GitFiles, folder: str, name: str) -> set[bytes] | None:
        content = read_small(files, f"{folder}/{name}", self._index_left)
        if not content:
            return set() if content == b"" else None
        self._index_left -= len(content)
        try:
            data, places = index.parse(content)
        except index.MalformedIndex:
            return None
        found = {path for _, path in places}
        for extension, said in data.extensions:
            if extension == index.SPLIT:
                shared = said[: data.hash_size].hex()
                more = (
                    None
                    if name != "index"
                    else self._index(files, folder, f"shared{name}.{shared}")
                )
                if not more:
                    return None
                # Those that were removed since count too: that hides nothing.
                found |= more
        return found


_NOTHING = Exclusion(())


def _is_short(line: str) -> bool:
    return len(line) <= _MAX_RULE and sum(line.count(one) for one in "*?[") <= _MOST_STARS


def _is_rule(line: str) -> bool:
    with suppress(ProjectInvalid):
        Exclusion([line], joined=False)
        return True
    return False


def _within(path: str, folder: str) -> str:
    return path[len(folder) + 1 :] if folder else path
