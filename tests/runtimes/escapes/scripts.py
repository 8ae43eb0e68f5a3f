"""From attempts to programs: what is sent to an interpreter, in the sandbox or outside."""

from __future__ import annotations

import ast
import base64
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from tests.runtimes.escapes import inside
from tests.runtimes.escapes.catalogue import MODULES
from tests.runtimes.escapes.inside import REGISTRY, Escape, Targets


@dataclass(frozen=True)
class Outcome:
    name: str
    refused: bool
    detail: str


def attempts() -> tuple[Escape, ...]:
    assert MODULES  # importing them has registered their attempts
    return tuple(REGISTRY)


def module_of(one: Escape) -> str:
    return one.act.__module__


def script(module: str, names: Sequence[str], targets: Targets, throw_away: bool = False) -> str:
    """A program that makes these attempts of one file of the catalogue, one after the other,
    and prints a JSON line for each. With `throw_away`, in new namespaces each."""
    arguments = (list(names), base64.b64encode(json.dumps(asdict(targets)).encode()), throw_away)
    head = "from __future__ import annotations"
    body = f"{_standing_alone(inside.__name__)}\n{_standing_alone(module)}"
    return f"{head}\n{body}\nmain(*{arguments!r})\n"


def outcomes(output: str) -> dict[str, Outcome]:
    lines = [json.loads(line) for line in output.splitlines()]
    return {line["name"]: Outcome(**line) for line in lines}


@cache
def _standing_alone(module: str) -> str:
    """A module's source without its imports of other files, which stand in the same program."""
    text = Path(sys.modules[module].__file__ or "").read_text()
    lines = text.splitlines()
    for node in ast.parse(text).body:
        foreign = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests.")
        if foreign or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return "\n".join(lines)
