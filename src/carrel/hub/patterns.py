"""Patterns for types: `*` stands for any characters, everything else for itself."""

from __future__ import annotations

import re
from collections.abc import Iterable

KNOWN = 1000
"""Types that are remembered; there are far fewer, unless somebody makes them up."""


class Patterns:
    """Whether one of them fits; remembers what it has found."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(dict.fromkeys(patterns))
        self._match = re.compile(
            "|".join("(?:" + ".*".join(map(re.escape, one.split("*"))) + ")" for one in patterns)
            or "(?!)",
            re.DOTALL,
        ).fullmatch
        self._known: dict[str, bool] = {}

    def fit(self, type: str) -> bool:
        known = self._known.get(type)
        if known is None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            known = self._known[type] = self._match(type) is not None
        return known
