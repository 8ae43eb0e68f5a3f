"""What it takes to start the program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import TIMEOUT_S, Program, in_terminal
from tests.daemon.rig import Daemon

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


HOSTILE = ("carrel/__init__.py", "msgspec.py", "click.py", "json.py", "socket.py", "tempfile.py")


@pytest.fixture
def hijacked(tmp_path: Path) -> Path:
    """There when something in the current folder was imported."""
    marker = tmp_path / "hijacked"
    for name in (*HOSTILE, "sitecustomize.py", "usercustomize.py", "subprocess.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"open({str(marker)!r}, 'w').close()\nraise SystemExit(99)")
    return marker


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["--help"],
        ["ls"],
        ["ls", "--json", "--no-such-option"],
        ["doctor"],
        ["inspect", "."],
        ["completion", "bash"],
        ["up", "--foreground", "--listen", "nowhere"],
        ["mcp", "--no-such-option"],
    ],
)
def test_what_lies_in_the_current_folder_is_not_imported(
    carrel: Program, hijacked: Path, words: list[str]
) -> None:
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    with carrel.start(*words, stderr=subprocess.STDOUT, **streams) as process:
        said, _ = process.communicate(timeout=TIMEOUT_S)
    assert not hijacked.exists() and process.returncode != 99, said


def test_nor_where_it_starts_itself_again(carrel: Program, hijacked: Path) -> None:
    """In windows, one for each space; these are not there, so all of them end."""
    with in_terminal(carrel, "attach", "one", "two") as terminal:
        terminal.rest()
        terminal.end()
    assert not hijacked.exists()


def test_nor_where_it_starts_the_daemon(own_daemon: Daemon, hijacked: Path) -> None:
    own_daemon.stop()
    carrel = Program(own_daemon.data, hijacked.parent)
    with carrel.start("new", ".", stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        said, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0 and not hijacked.exists(), said
