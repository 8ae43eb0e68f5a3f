"""Patterns in .gitignore's language that say what a base leaves out."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from pathspec import GitIgnoreSpec

from carrel.domain.errors import ProjectInvalid

_NAMED_GROUP = re.compile(r"\(\?P<[^>]+>")


class Exclusion:
    """Asked for every entry of a project, folders before what is in them: so what is in
    an excluded folder is never asked for, nor can it be included again, as in git."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Raises `ProjectInvalid` for a pattern that git would not take."""
        try:
            parsed = GitIgnoreSpec.from_lines(patterns).patterns
        except ValueError as error:
            raise ProjectInvalid(
                f"A pattern of what to exclude is not valid: {error}.",
                hint="Patterns are written as in .gitignore.",
            ) from error
        self._rules = [
            (bool(pattern.include), _plain(pattern.regex.pattern))
            for pattern in parsed
            if pattern.include is not None and pattern.regex is not None
        ]
        self._any: re.Pattern[str] | None = None
        if self._rules and all(include for include, _ in self._rules):
            # One look at each path instead of one per pattern.
            joined = "|".join(f"(?:{text})" for _, text in self._rules)
            self._any = re.compile(joined, re.DOTALL)
        self._last_first = [
            (include, re.compile(text, re.DOTALL)) for include, text in reversed(self._rules)
        ]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def matches(self, path: bytes, *, folder: bool) -> bool:
        text = os.fsdecode(path) + ("/" if folder else "")
        if self._any is not None:
            return self._any.match(text) is not None
        return next((yes for yes, rule in self._last_first if rule.match(text)), False)


def _plain(pattern: str) -> str:
    """The same expression so that it can stand beside others, and for names in which
    there is a newline."""
    return _NAMED_GROUP.sub("(?:", pattern).replace("|$)", r"|\Z)")
