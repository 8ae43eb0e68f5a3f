"""A Dockerfile as a list of instructions: directives, comments, long lines, heredocs.

The one library that is small and pure (dockerfile-parse) takes the lines of a heredoc for
instructions, and so names a wrong image; hence this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from carrel.environments.malformed import Malformed
from carrel.environments.substitution import split_words

_DIRECTIVES = ("escape", "syntax", "check")
_HEREDOC_KEYWORDS = ("RUN", "COPY", "ADD")
_HEREDOC = re.compile(r"\d*<<(-?)([^<]+)")
_BLANK = " \t\v\f\r"


@dataclass(frozen=True)
class Instruction:
    keyword: str
    """In capitals."""
    rest: str
    line: int


@dataclass(frozen=True)
class Script:
    instructions: tuple[Instruction, ...]
    escape: str


def parse_script(text: str) -> Script:
    """Raises `Malformed` for what makes the whole file unreadable."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    escape = _escape(lines)
    return Script(tuple(_instructions(lines, escape)), escape)


def _escape(lines: list[str]) -> str:
    """Of the directives, which are comments before everything else, the one that counts."""
    escape = "\\"
    for number, line in enumerate(lines, 1):
        name, equals, value = line.strip().removeprefix("#").partition("=")
        name = name.strip().lower()
        if not line.lstrip().startswith("#") or not equals or name not in _DIRECTIVES:
            break
        if name == "escape":
            escape = value.strip()
            if escape not in ("\\", "`"):
                raise Malformed("The escape directive takes \\ or `.", number)
    return escape


def _instructions(lines: list[str], escape: str) -> Iterator[Instruction]:
    at = 0
    while at < len(lines):
        start = at
        text, at = _logical_line(lines, at, escape)
        if not text:
            continue
        keyword, *rest = re.split(rf"[{_BLANK}]+", text, maxsplit=1)
        keyword = keyword.upper()
        yield Instruction(keyword, "".join(rest), start + 1)
        for name, tabs in _heredocs(keyword, "".join(rest), escape):
            at = _after_heredoc(lines, at, name, tabs=tabs, line=start + 1)


def _logical_line(lines: list[str], at: int, escape: str) -> tuple[str, int]:
    """What continues over lines as one, and where the next begins. Comments and empty lines
    in between do not end it."""
    parts: list[str] = []
    while at < len(lines):
        line = lines[at]
        at += 1
        bare = line.strip()
        if bare.startswith("#") or (parts and not bare):
            if not parts:
                break
            continue
        trimmed = line.rstrip(" \t")
        if not trimmed.endswith(escape) or trimmed.endswith(escape * 2):
            parts.append(line)
            break
        parts.append(trimmed[:-1])
    return "".join(parts).strip(), at


def _heredocs(keyword: str, rest: str, escape: str) -> Iterator[tuple[str, bool]]:
    """The names at which what follows the instruction ends, and whether tabs before them
    do not count."""
    if keyword == "ONBUILD":
        inner, _, rest = rest.lstrip().partition(" ")
        keyword = inner.upper()
    if keyword not in _HEREDOC_KEYWORDS or rest.lstrip().startswith("["):
        return
    for word in split_words(rest, escape):
        match = _HEREDOC.fullmatch(word)
        name = match.group(2).strip("\"'") if match else ""
        if match and name:
            yield name, bool(match.group(1))


def _after_heredoc(lines: list[str], at: int, name: str, *, tabs: bool, line: int) -> int:
    for number in range(at, len(lines)):
        if (lines[number].lstrip("\t") if tabs else lines[number]) == name:
            return number + 1
    raise Malformed(f"The heredoc {name} does not end.", line)
