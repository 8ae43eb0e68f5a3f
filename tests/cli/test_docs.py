"""The examples of the documentation, run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import PROGRAM, TIMEOUT_S, Program
from tests.daemon.rig import Daemon

DOCS = Path(__file__).resolve().parents[2] / "docs"
GREET = 'def hello(name):\n    return f"Hello, {name}!"\n'


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S)


@pytest.fixture
def desk(own_daemon: Daemon, tmp_path: Path) -> Program:
    (tmp_path / "greet").mkdir()
    (tmp_path / "greet" / "greet.py").write_text(GREET)
    program = Program(own_daemon.data, tmp_path)
    program.env["PATH"] = f"{PROGRAM.parent}{os.pathsep}{program.env['PATH']}"
    return program


def run(desk: Program, command: list[str]) -> str:
    done = subprocess.run(
        command,
        env=desk.env,
        cwd=desk.cwd,
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout


def test_the_command_line(desk: Program) -> None:
    """One block after the other: some go on where others ended."""
    said = [run(desk, ["bash", "-eu", "-c", block]) for block in blocks("cli.md", "sh")]
    assert len(said) == 8
    assert "Hello, Ada!" in said[0] and "A notes.txt" in said[0]
    assert "Hello!" in said[2] and "Hello again!" in said[2]
    assert "it ended with 3" in said[3] and "SOME INPUT" in said[3] and "(124)" in said[3]
    assert "from a pipe" in said[4] and "(6)" in said[6]
    assert (desk.cwd / "everything" / "copy" / "greet.py").read_text() == GREET
    assert desk.json("ls")["spaces"] == []


@pytest.mark.parametrize("number", range(7))
def test_the_client(desk: Program, number: int) -> None:
    block = blocks("client.md", "python")[number]
    said = run(desk, [sys.executable, "-W", "error", "-c", block])
    assert said.strip() and desk.json("ls")["spaces"] == []


def test_no_example_is_left_out() -> None:
    assert len(blocks("client.md", "python")) == 7
