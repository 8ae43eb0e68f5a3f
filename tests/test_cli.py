"""The installed program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from carrel import __version__

TIMEOUT_S = 30.0
"""Starts in a fraction of a second; the rest is for a loaded machine."""
HEAVY = {
    "msgspec",
    "zstandard",
    "pathspec",
    "psutil",
    "asyncio",
    "mcp",
    "carrel.trees",
    "carrel.runtimes",
}


def _carrel(*words: str) -> str:
    program = Path(sys.executable).with_name("carrel")
    return subprocess.run(
        [program, *words], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    ).stdout


def test_it_tells_its_version() -> None:
    assert _carrel("--version") == f"carrel, version {__version__}\n"


def test_without_a_verb_it_says_how_it_is_used() -> None:
    assert "Usage: carrel" in _carrel()


def test_starting_it_imports_no_room() -> None:
    script = "import carrel.cli.main, sys; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    assert HEAVY.isdisjoint(result.stdout.split())
