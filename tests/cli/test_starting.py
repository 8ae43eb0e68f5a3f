"""What it takes to start the program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import PROGRAM, TIMEOUT_S, Program

HEAVY = {
    "asyncio",
    "click",
    "dataclasses",
    "email",
    "enum",
    "http",
    "inspect",
    "mcp",
    "msgspec",
    "pathlib",
    "re",
    "socket",
    "ssl",
    "urllib",
    "websockets",
}
OURS = {"enum", "re"}
"""What the standard library's JSON needs, and Python's own console script too."""


def modules_of(words: list[str], env: dict[str, str]) -> set[str]:
    """What a command has imported when it is done."""
    script = (
        "import sys; from carrel.cli.main import run;"
        "code = run(sys.argv[1:]); sys.stdout.flush();"
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-c", script, *words],
        capture_output=True,
        text=True,
        env=env,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, result.stderr
    return set(result.stderr.split())


@pytest.mark.parametrize("words", [["ls"], ["ls", "--json"], ["ls", "-q", "--label", "a=b"]])
def test_listing_imports_almost_nothing(carrel: Program, space: str, words: list[str]) -> None:
    """Starting, asking and ending together are to take no longer than five times what
    Python takes to do nothing; these together would use that up."""
    loaded = modules_of(words, carrel.env)
    assert loaded.isdisjoint(HEAVY - OURS)
    assert not {name for name in loaded if name.startswith(("carrel.domain", "carrel.daemon"))}


@pytest.mark.parametrize("words", [["show"], ["runs"], ["exec", "--", "true"], ["stop"]])
def test_plain_commands_do_without_click(carrel: Program, space: str, words: list[str]) -> None:
    loaded = modules_of([words[0], space, *words[1:]], carrel.env)
    heavy = {"click", "asyncio", "http", "msgspec", "dataclasses", "websockets", "mcp"}
    assert loaded.isdisjoint(heavy)


def test_the_package_itself_costs_nothing() -> None:
    script = (
        "import sys; before = set(sys.modules); import carrel;"
        "print(*(name for name in sys.modules if name not in before))"
    )
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    assert {name for name in found.stdout.split() if not name.startswith("__")} == {"carrel"}


def test_the_program_starts_from_anywhere(carrel: Program, tmp_path: Path) -> None:
    """What lies in the current folder is not imported."""
    for name in ("json.py", "socket.py", "carrel.py", "click.py"):
        (tmp_path / name).write_text("raise SystemExit(99)")
    assert "carrel" in carrel.good("--version")
    carrel.good("ls")
    assert os.path.basename(PROGRAM) == "carrel"
