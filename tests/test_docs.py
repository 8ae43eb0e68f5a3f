"""The examples in the documentation work: they are run as they stand there.

A block of `sh` or `python` is run when the line above it is `<!-- run -->`. All of one file
are run in their order, in one folder with a small project, on a data folder of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.daemon import control
from tests.accounts import Account
from tests.etc import share_etc
from tests.service.rig import leftovers
from tests.trees.again import run_again

ROOT = Path(__file__).resolve().parent.parent
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"<!-- run -->\n```(sh|python)[^\n]*\n(.*?)\n```", re.DOTALL)
BLOCK_S = 100.0
"""A daemon starts, and a handful of commands are run; on a loaded machine that takes a while."""


def blocks(file: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(file.read_text())


def test_there_are_examples() -> None:
    names = {file.name for file in FILES if blocks(file)}
    assert {"README.md", "api.md", "tutorial.md"} <= names


@pytest.fixture
def place(data: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    share_etc(data)
    project = tmp_path / "project"
    project.mkdir()
    (project / "greet.py").write_text("print('hello')\n")
    (project / ".env").write_text("SECRET=1\n")
    (project / ".gitignore").write_text(".env\n")
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    programs = str(Path(sys.executable).parent)
    env = {**os.environ, "CARREL_DATA": str(data), "PWD": str(project)}
    env["PATH"] = f"{programs}:{env['PATH']}"
    yield env
    control.stop(data)
    # What `undelete` could bring back is meant to stay.
    assert [one for one in leftovers(data) if not one.startswith("trash")] == []


@pytest.mark.parametrize(
    "file", [file for file in FILES if blocks(file)], ids=lambda file: file.name
)
def test_examples(file: Path, place: dict[str, str]) -> None:
    for language, text in blocks(file):
        command = ["bash", "-euo", "pipefail", "-c", text]
        if language == "python":
            command = [sys.executable, "-c", text]
        done = subprocess.run(
            command,
            cwd=place["PWD"],
            env=place,
            capture_output=True,
            text=True,
            timeout=BLOCK_S,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    if file.name == "tutorial.md":
        changed = Path(place["PWD"], "greet", "greet.py").read_text()
        assert changed == 'def greet(name): return f"Hello, {name}!"\n'


def test_the_tutorial_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    run_again(__file__, ordinary_user, data, "-k", "examples and tutorial")
