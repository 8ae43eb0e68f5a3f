"""What a sandbox must show for an interpreter of Python to start: its environment, and what
that was made from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

CONFIG = "pyvenv.cfg"
BIN = "bin"
LINKS = 40
"""As many as the kernel follows."""


def shown_with(python: Path) -> Iterator[Path]:
    """Folders and files; some may be below others."""
    for hop in _hops(python):
        yield from _around(hop)
    config = python.parent.parent / CONFIG
    home = _home(config)
    if home is None:
        return
    yield from _editable(config.parent)
    # The name that it has there is the one that the environment's own leads to.
    for name in (os.path.basename(os.path.realpath(python)), "python3"):
        for hop in _hops(home / name):
            yield from _around(hop)


def _around(python: Path) -> Iterator[Path]:
    """The whole of it only where that is an interpreter's: `~/.local` has a `bin` too."""
    prefix = python.parent.parent
    if python.parent.name == BIN and (
        (prefix / CONFIG).is_file() or any(prefix.glob("lib/python*/os.py"))
    ):
        yield prefix
    elif python.exists():
        yield python


def _hops(path: Path) -> list[Path]:
    """It, what it links to, and so on: each must be there for the next to be found."""
    found = [path]
    while path.is_symlink() and len(found) < LINKS:
        path = Path(os.path.normpath(path.parent / os.readlink(path)))
        found.append(path)
    real = Path(os.path.realpath(path))
    return found if real == path else [*found, real]


def _home(config: Path) -> Path | None:
    """Where the interpreter is from which an environment was made."""
    try:
        lines = config.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition("=")
        if name.strip().lower() == "home" and value.strip().startswith("/"):
            return Path(value.strip())
    return None


def _editable(prefix: Path) -> Iterator[Path]:
    """Packages that are used where they are written."""
    for file in sorted(prefix.glob("lib/python*/site-packages/*.pth")):
        try:
            lines = file.read_text("utf-8", "replace").splitlines()
        except OSError:
            continue
        yield from (Path(line) for line in lines if line.startswith("/") and os.path.isdir(line))
