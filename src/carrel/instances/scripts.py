"""Programs that are scripts: what the first line says, and the interpreter that it means."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

FIRST_BYTES = 4096
_PYTHON = re.compile(r"(python|pypy)[\d.]*t?")
_LONG = "'''exec'"
"""How installers begin the second line when the path is too long, or has spaces, for the
first."""


@dataclass(frozen=True)
class Interpreter:
    path: Path
    options: tuple[str, ...] = ()

    @property
    def is_python(self) -> bool:
        return is_python(self.path)


class NoInterpreter(Exception):
    """The script names one that is not there."""


def is_python(path: Path) -> bool:
    return _PYTHON.fullmatch(path.name) is not None


def interpreter(script: Path, search: str) -> Interpreter | None:
    """None: it is no script. Raises `NoInterpreter`, and OSError when it cannot be read."""
    with script.open("rb") as file:
        head = file.read(FIRST_BYTES)
    if not head.startswith(b"#!"):
        return None
    first, _, rest = head[2:].decode("utf-8", "surrogateescape").partition("\n")
    if rest.startswith(_LONG):
        # '''exec' '/a long/python' "$0" "$@"
        return _there(shlex.split(rest.partition("\n")[0])[1], (), search)
    words = first.split(None, 1)
    if not words:
        raise NoInterpreter(str(script))
    # The kernel gives all that follows as one word; only `env -S` splits it.
    if os.path.basename(words[0]) != "env":
        return _there(words[0], tuple(words[1:]), search)
    said = shlex.split(words[1].removeprefix("-S")) if len(words) > 1 else []
    while said and "=" in said[0]:
        said.pop(0)
    if not said:
        raise NoInterpreter(str(script))
    return _there(said[0], tuple(said[1:]), search)


def _there(name: str, options: tuple[str, ...], search: str) -> Interpreter:
    found = shutil.which(name, path=search)
    if found is None:
        raise NoInterpreter(name)
    path = Path(os.path.abspath(found))
    # Those of Python are about its environment, of which a sandbox has its own.
    return Interpreter(path, () if is_python(path) else options)
