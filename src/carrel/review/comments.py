"""Finds the line of a comment again in a file that has changed since.

A line is known by its own words and by the lines around it. Where two places fit equally well,
neither is taken: a comment at the wrong line is worse than one that says that it lost its own.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from functools import cached_property
from typing import NamedTuple

from carrel.domain.comments import Comment, CommentPlace
from carrel.domain.errors import CommentRefused, TooLarge

AROUND = 20
"""Lines on each side that are remembered."""
SHOWN = 3
"""Lines on each side that are shown, to people and to the agent."""
MAX_BYTES = 4 << 20
MAX_LINES = 50_000
"""Of a file that is commented on: it is in memory, and looked through line by line."""
_LONGEST = 500
"""Characters of a line that are remembered and compared."""
_NEAR = 5
"""Lines on each side that a first look compares."""
_LOOKED_AT = 32
"""Places that a second look compares with all that is remembered."""
_MOST_PLACES = 1000
"""Places that a first look compares, the nearest: a file can be one line, fifty thousand times."""
_ENOUGH = 0.5
"""Of the lines around it, for a place where the line itself has changed."""
_TELLING = 4
"""Characters of a line that is known by itself: a lone brace is not."""


class TextLines(list[str]):
    """Of a file, in which each line is found without a look at all of them."""

    @cached_property
    def places(self) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = {}
        for at, line in enumerate(self):
            found.setdefault(line, []).append(at)
        return found


def lines_of(content: bytes, path: str) -> list[str]:
    """Raises `CommentRefused` for what is no text, `TooLarge`."""
    if len(content) > MAX_BYTES or content.count(b"\n") >= MAX_LINES:
        raise TooLarge(
            f"{path!r} is too long to be commented on.",
            hint=f"Files of up to {MAX_BYTES >> 20} MiB and {MAX_LINES:,} lines can be.",
        )
    if b"\0" in content:
        raise CommentRefused(
            f"{path!r} is no text.", hint="Say what you think of it with: carrel send"
        )
    lines = content.decode("utf-8", "replace").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return TextLines(line.removesuffix("\r")[:_LONGEST] for line in lines)


def remember(lines: Sequence[str], line: int, path: str) -> tuple[int, tuple[str, ...]]:
    """The number of the first line around it, and these lines. Raises `CommentRefused`."""
    if line > len(lines):
        raise CommentRefused(
            f"{path!r} has {len(lines):,} line{'s'[: len(lines) != 1]}.",
            hint="`carrel diff` shows the lines with their places.",
        )
    first = max(1, line - AROUND)
    return first, tuple(lines[first - 1 : line + AROUND])


def place(comment: Comment, lines: Sequence[str], path: str) -> CommentPlace:
    """Where its line is among those that the file has now."""
    at = comment.line - comment.first
    known = _Known(comment.lines[at], comment.lines[:at], comment.lines[at + 1 :])
    start = comment.first - 1
    if comment.lines == tuple(lines[start : start + len(comment.lines)]):
        found: int | None = comment.line - 1
    else:
        every = lines if isinstance(lines, TextLines) else TextLines(lines)
        found = known.find(every, comment.line - 1)
    if found is None:
        return lost(comment, "its line is not there any more")
    first = max(0, found - SHOWN)
    shown = tuple(lines[first : found + SHOWN + 1])
    return CommentPlace(path, found + 1, first + 1, shown, changed=lines[found] != known.own)


def lost(comment: Comment, why: str) -> CommentPlace:
    at = comment.line - comment.first
    first = max(0, at - SHOWN)
    shown = comment.lines[first : at + SHOWN + 1]
    return CommentPlace(comment.path, None, comment.first + first, shown, why=why)


class _Fit(NamedTuple):
    around: float
    """How much of what was around it is around it now."""
    at: int


class _Known(NamedTuple):
    own: str
    before: Sequence[str]
    after: Sequence[str]

    def find(self, lines: TextLines, was: int) -> int | None:
        same = lines.places.get(self.own, ())
        if not same:
            return self._changed(lines, was)
        fits = [self._fit(lines, at) for at in self._nearest(lines, same, was)]
        best = max(one.around for one in fits)
        first = [one for one in fits if one.around == best]
        if len(first) > 1:
            return None
        if best >= _ENOUGH or (len(same) == 1 and len(self.own.strip()) >= _TELLING):
            return first[0].at
        return None

    def _changed(self, lines: TextLines, was: int) -> int | None:
        """The place between its neighbours, where another line stands now."""
        above = self.before[::-1]
        under = [at + 1 for at in lines.places.get(above[0], ())] if above else [0]
        between = [
            at
            for at in _nearest(under, was)
            if at < len(lines)
            and self._side(lines, at, -1, above)
            and self._side(lines, at, 1, self.after)
        ]
        fits = [self._fit(lines, at) for at in self._nearest(lines, between, was)]
        good = [one for one in fits if one.around >= _ENOUGH]
        best = [one for one in good if one.around == max(each.around for each in good)]
        return best[0].at if len(best) == 1 else None

    def _nearest(self, lines: Sequence[str], places: Sequence[int], was: int) -> list[int]:
        near = _nearest(places, was)
        return heapq.nsmallest(
            _LOOKED_AT, near, key=lambda at: (-self._run(lines, at), abs(at - was))
        )

    def _run(self, lines: Sequence[str], at: int) -> int:
        """How many lines next to it are as they were, on both sides. The edge of the file is as
        good as a line."""
        return self._side(lines, at, -1, self.before[::-1]) + self._side(lines, at, 1, self.after)

    @staticmethod
    def _side(lines: Sequence[str], at: int, step: int, known: Sequence[str]) -> int:
        count = 0
        for line in known[:_NEAR]:
            at += step
            if not (0 <= at < len(lines) and lines[at] == line):
                return count
            count += 1
        if len(known) < _NEAR and not 0 <= at + step < len(lines):
            count += 1
        return count

    def _fit(self, lines: Sequence[str], at: int) -> _Fit:
        before = lines[max(0, at - AROUND) : at]
        after = lines[at + 1 : at + 1 + AROUND]
        wanted = len(self.before) + len(self.after)
        kept = _common(self.before, before) + _common(self.after, after)
        return _Fit(kept / wanted if wanted else 1.0, at)


def _nearest(places: Sequence[int], was: int) -> Sequence[int]:
    """Of sorted ones, sorted."""
    middle = bisect_left(places, was)
    around = places[max(0, middle - _MOST_PLACES) : middle + _MOST_PLACES]
    return sorted(sorted(around, key=lambda at: abs(at - was))[:_MOST_PLACES])


def _common(known: Sequence[str], now: Sequence[str]) -> int:
    blocks = SequenceMatcher(None, known, now, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks)
