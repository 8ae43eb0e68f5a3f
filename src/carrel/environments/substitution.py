"""Words and variables of a Dockerfile, by the rules of the builder.

Variables that a base image or a build argument may give are not known here; references to
them stay as they are written, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carrel.environments.malformed import Malformed, TooMuch

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
class Scope:
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
            raise TooMuch("Its variables grow too large.")
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


def expand(text: str, escape: str, scope: Scope, budget: Budget) -> Expanded:
    """Variables put in, quotes and escapes taken away. Raises `Malformed`."""
    expander = _Expander(text, escape, scope, budget)
    return Expanded(expander.run(), expander.resolved)


class _Expander:
    def __init__(self, text: str, escape: str, scope: Scope, budget: Budget) -> None:
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
            raise Malformed(f"A {stop} is missing.")
        return "".join(out)

    def _single(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise Malformed("A single quote is not closed.")
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
        raise Malformed("A double quote is not closed.")

    def _dollar(self) -> str:
        self._at += 1
        if self._peek() != "{":
            name = self._name()
            return self._value(name) if name else "$"
        start = self._at - 1
        self._at += 1
        name = self._name()
        if not name:
            raise Malformed("A ${…} has no name.")
        modifier = self._next()
        if modifier == "}":
            return self._value(name)
        if modifier == ":":
            modifier += self._next()
        return self._modified(name, modifier, start)

    def _modified(self, name: str, modifier: str, start: int) -> str:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Malformed("Its variables are nested too deeply.")
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
                raise Malformed(f"{name} must be given: {word}")
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
