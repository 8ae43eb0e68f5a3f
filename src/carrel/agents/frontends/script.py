"""The scripted agent's language: a step a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_WITH_TEXT = ("run", "say", "ask", "fail")
_WITH_PATH = ("write", "append")

ECHO = "echo"
"""For every line that is no step: it is said back."""


@dataclass(frozen=True)
class Step:
    verb: str
    text: str = ""
    target: str = ""
    """The path, or the tool's name."""
    given: dict[str, Any] | None = None
    seconds: float = 0.0


def steps(prompt: str) -> Iterator[Step]:
    """Lazily: `repeat` may stand for more steps than one wants to have in memory."""
    for line in prompt.split("\n"):
        if line.strip():
            yield from _steps(line.strip())


def _steps(line: str) -> Iterator[Step]:
    times, line = _repeated(line)
    verb, _, rest = line.partition(" ")
    step = _step(verb, rest.strip()) or Step(ECHO, line)
    for _ in range(times):
        yield step


def _repeated(line: str) -> tuple[int, str]:
    """How often, and what."""
    times = 1
    while True:
        verb, _, rest = line.partition(" ")
        number, _, repeated = rest.strip().partition(" ")
        if verb != "repeat" or not number.isdecimal() or not repeated.strip():
            return times, line
        times, line = times * int(number), repeated.strip()


def _step(verb: str, rest: str) -> Step | None:
    """None: this is no step."""
    if verb == "crash" and not rest:
        return Step(verb)
    if verb in _WITH_TEXT and rest:
        return Step(verb, rest)
    target, _, text = rest.partition(" ")
    if verb in _WITH_PATH and target:
        return Step(verb, text, target)
    if verb == "tool" and target:
        return _tool(target, text)
    return _sleep(rest) if verb == "sleep" else None


def _tool(name: str, text: str) -> Step | None:
    try:
        given = json.loads(text or "{}")
    except ValueError:
        return None
    return Step("tool", target=name, given=given) if isinstance(given, dict) else None


def _sleep(text: str) -> Step | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return Step("sleep", seconds=seconds) if 0 <= seconds < 1e6 else None
