"""A Dockerfile's language, by the rules of the builder: words, variables, instructions.

Variables that a base image or a build argument may give are not known here; references to
them stay as they are written, and the answer says so.

The one library that is small and pure (dockerfile-parse) takes the lines of a heredoc for
instructions, and so names a wrong image; hence this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from carrel.environments.files import BoundReached, MalformedFile

MAX_DEPTH = 16
"""How deep `${A:-${B:-…}}` may go; real files stop at two."""
MAX_EXPANDED = 1 << 20
"""All that the variables of one file may grow to. `ENV A=$A$A` doubles with every line."""


@dataclass(frozen=True)
class Expanded:
    """`resolved`: it holds no reference that had to stay as it is written."""

    text: str
    resolved: bool = True


@dataclass(frozen=True)
class VariableScope:
    """The variables that are known at one place. When it is `closed`, nothing else can
    define one, so that `${A:-x}` of an unknown A is x."""

    values: Mapping[str, Expanded]
    closed: bool = False


class Budget:
    """What one file may still grow to."""

    def __init__(self, left: int = MAX_EXPANDED) -> None:
        self._left = left

    def spend(self, text: str) -> str:
        self._left -= len(text)
        if self._left < 0:
            raise BoundReached("Its variables grow too large.")
        return text


def split_words(text: str, escape: str) -> list[str]:
    """At white space outside quotes; quotes and escapes stay in the words."""
    words: list[str] = []
    word: list[str] = []
    quote = ""
    skip = False
    for char in text:
        if skip:
            skip = False
        elif char == escape and quote != "'":
            skip = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char.isspace():
            if word:
                words.append("".join(word))
            word = []
            continue
        word.append(char)
    if word:
        words.append("".join(word))
    return words


def expand(text: str, escape: str, scope: VariableScope, budget: Budget) -> Expanded:
    """Variables put in, quotes and escapes taken away. Raises `Malformed`."""
    expander = _Expander(text, escape, scope, budget)
    return Expanded(expander.run(), expander.resolved)


class _Expander:
    def __init__(self, text: str, escape: str, scope: VariableScope, budget: Budget) -> None:
        self._text = text
        self._escape = escape
        self._scope = scope
        self._budget = budget
        self._at = 0
        self._depth = 0
        self.resolved = True

    def run(self) -> str:
        return self._until("")

    def _until(self, stop: str) -> str:
        """Up to `stop`, which is passed over; to the end when it is empty."""
        out: list[str] = []
        while (char := self._peek()) and char != stop:
            if char == "'":
                out.append(self._single())
            elif char == '"':
                out.append(self._double())
            elif char == "$":
                out.append(self._dollar())
            else:
                self._at += 1
                if char == self._escape:
                    char = self._next()
                out.append(self._budget.spend(char))
        if stop and not self._next():
            raise MalformedFile(f"A {stop} is missing.")
        return "".join(out)

    def _single(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise MalformedFile("A single quote is not closed.")
        inner = self._text[self._at + 1 : end]
        self._at = end + 1
        return self._budget.spend(inner)

    def _double(self) -> str:
        self._at += 1
        out: list[str] = []
        while char := self._peek():
            if char == '"':
                self._at += 1
                return "".join(out)
            if char == "$":
                out.append(self._dollar())
                continue
            self._at += 1
            if char == self._escape and self._peek() in ('"', "$", self._escape):
                char = self._next()
            out.append(self._budget.spend(char))
        raise MalformedFile("A double quote is not closed.")

    def _dollar(self) -> str:
        self._at += 1
        if self._peek() != "{":
            name = self._name()
            return self._value(name) if name else "$"
        start = self._at - 1
        self._at += 1
        name = self._name()
        if not name:
            raise MalformedFile("A ${…} has no name.")
        modifier = self._next()
        if modifier == "}":
            return self._value(name)
        if modifier == ":":
            modifier += self._next()
        return self._modified(name, modifier, start)

    def _modified(self, name: str, modifier: str, start: int) -> str:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise MalformedFile("Its variables are nested too deeply.")
        before = self.resolved
        word = self._until("}")
        self._depth -= 1
        value = self._scope.values.get(name)
        known = value.resolved if value else self._scope.closed
        if not known or modifier not in ("-", "+", "?", ":-", ":+", ":?"):
            # A value that is not known, or a pattern: only the builder can tell.
            self.resolved = False
            return self._budget.spend(self._text[start : self._at])
        there = value is not None and (bool(value.text) or not modifier.startswith(":"))
        if there == modifier.endswith("+"):
            if modifier.endswith("?"):
                raise MalformedFile(f"{name} must be given: {word}")
            return word
        self.resolved = before
        return self._budget.spend(value.text) if value and there else ""

    def _value(self, name: str) -> str:
        value = self._scope.values.get(name, Expanded(f"${{{name}}}", resolved=False))
        self.resolved &= value.resolved
        return self._budget.spend(value.text)

    def _name(self) -> str:
        start = self._at
        while (char := self._peek()) and (char.isalnum() or char == "_"):
            self._at += 1
        return self._text[start : self._at]

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        self._at += len(char)
        return char


# Instructions: directives, comments, long lines, heredocs

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
                raise MalformedFile("The escape directive takes \\ or `.", number)
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
    raise MalformedFile(f"The heredoc {name} does not end.", line)
