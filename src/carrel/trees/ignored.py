"""Which files of a tree git would not look at: its .gitignore files, .git/info/exclude, and what
the owner ignores everywhere.

The rules are the tree's own, so an agent may have written them. They only hide files from a list
that says how many it leaves out, and never one that git has in its index, then or now. New rules
are themselves seen: a .gitignore is never ignored, and `exclude` is that of the project.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from carrel.domain.errors import ProjectInvalid
from carrel.trees.bases.scan import Exclusion
from carrel.trees.folders import split
from carrel.trees.git import index
from carrel.trees.git.history import GitFiles, read_small

_RULES, _EXCLUDE, _INDEX = ".gitignore", ".git/info/exclude", ".git/index"
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
        exclude = read_small(base, _EXCLUDE, _MAX_FILE)
        rules = (self._rules(exclude), self._rules(personal))
        self._everywhere = tuple((0, one) for one in rules if one)
        self._known: dict[str, Exclusion] = {}
        self._chains: dict[str, tuple[tuple[int, Exclusion], ...]] = {}
        """By folder, all rules that have a word there, and where the path begins for each."""
        self._folders: dict[str, bool] = {"": False}
        self._tracked: frozenset[bytes] | None = None

    def has(self, path: str) -> bool:
        """Whether git ignores this file, or one that was there."""
        if split(path)[1] == _RULES:
            return False
        if not (self._has_folder(split(path)[0]) or self._decides(path, folder=False)):
            return False
        if self._tracked is None:
            self._tracked = frozenset(_names(self._files) | _names(self._base))
        return os.fsencode(path) not in self._tracked

    def _has_folder(self, path: str) -> bool:
        """What is in an ignored folder is ignored, whatever else is said of it."""
        below = []
        while path not in self._folders:
            below.append(path)
            path = split(path)[0]
        found = self._folders[path]
        for one in reversed(below):
            found = self._folders[one] = found or self._decides(one, folder=True)
        return found

    def _decides(self, path: str, *, folder: bool) -> bool:
        """The rules nearest to it have the first word."""
        for start, rules in self._chain(split(path)[0]):
            if len(path) - start <= _MAX_PATH and time.monotonic() <= self._until:
                said = rules.decides(path[start:], folder=folder)
                if said is not None:
                    return said
        return False

    def _chain(self, place: str) -> tuple[tuple[int, Exclusion], ...]:
        below = []
        while place and place not in self._chains:
            below.append(place)
            place = split(place)[0]
        found = self._chains.get(place)
        if found is None:
            own = self._rules_of("")
            found = self._chains[""] = ((0, own), *self._everywhere) if own else self._everywhere
        for one in reversed(below):
            own = self._rules_of(one)
            found = self._chains[one] = ((len(one) + 1, own), *found) if own else found
        return found

    def _rules_of(self, folder: str) -> Exclusion:
        found = self._known.get(folder)
        if found is None:
            found = _NOTHING
            if self._left > 0 and time.monotonic() <= self._until:
                path = f"{folder}/{_RULES}" if folder else _RULES
                found = self._rules(read_small(self._files, path, _MAX_FILE))
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


_NOTHING = Exclusion(())


def _is_short(line: str) -> bool:
    return len(line) <= _MAX_RULE and sum(line.count(one) for one in "*?[") <= _MOST_STARS


def _is_rule(line: str) -> bool:
    with suppress(ProjectInvalid):
        Exclusion([line], joined=False)
        return True
    return False


def _names(files: GitFiles) -> set[bytes]:
    """What git has in its index. A part of a split one is elsewhere, and not read."""
    try:
        return {path for _, path in index.parse(read_small(files, _INDEX, index.MAX_BYTES))[1]}
    except index.MalformedIndex:
        return set()
