"""A launcher that cannot be started: whoever wants one hears of it in time, and nothing is left."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from carrel.domain.errors import LauncherUnavailable
from carrel.launcher import client
from carrel.launcher.client import Launcher

START_S = 0.5
"""Instead of ten seconds."""
BOUND_S = 8.0
"""Far less than the ten seconds, on a loaded machine."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "START_S", START_S)


def program(folder: Path, script: str) -> str:
    path = folder / "interpreter"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("script", ["exit 3", "kill -9 $$", f"exec {sys.executable} -c 'raise 1'"])
def test_it_fails(data: Path, tmp_path: Path, script: str) -> None:
    begun = time.monotonic()
    with pytest.raises(LauncherUnavailable) as caught:
        Launcher(data, program(tmp_path, script)).call("hello", {}, [])
    assert caught.value.message.startswith("The launcher cannot be started: ")
    assert time.monotonic() - begun < BOUND_S


def test_there_is_no_interpreter(data: Path) -> None:
    with pytest.raises(LauncherUnavailable, match="cannot be started"):
        Launcher(data, "/nonexistent/python").call("hello", {}, [])


def test_it_hangs(data: Path, tmp_path: Path, impatient: None) -> None:
    """It is ended, and not waited for longer than for one that starts."""
    python = program(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    begun = time.monotonic()
    with pytest.raises(LauncherUnavailable, match="cannot be started"):
        Launcher(data, python).call("hello", {}, [])
    assert time.monotonic() - begun < BOUND_S
    # On a loaded machine it was ended before it could say anything.
    told = tmp_path / "pid"
    assert not told.exists() or not psutil.pid_exists(int(told.read_text() or 0))
