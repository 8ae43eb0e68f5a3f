"""What runs all tests adopts what they leave alone, and tells how they ended."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.accounts import SOURCE

RUN_S = 30.0
"""For an interpreter and a shell, on a busy machine."""
_LEFT_ALONE = """
pid=$(sh -c 'sleep 60 >/dev/null 2>&1 & echo $!')
grep PPid: /proc/$pid/status
echo PPid: $PPID
kill -9 $pid
while [ -e /proc/$pid ]; do :; done
"""


def run(script: str, *before: str) -> subprocess.CompletedProcess[str]:
    argv = [*before, sys.executable, "-m", "tests.reaping", "sh", "-c", script]
    return subprocess.run(
        argv, cwd=SOURCE, capture_output=True, text=True, timeout=RUN_S, check=False
    )


def test_what_is_left_alone_is_adopted_and_buried() -> None:
    parent, adopter = run(_LEFT_ALONE).stdout.splitlines()
    assert parent.split() == adopter.split()


@pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_how_it_ended_is_told(script: str, status: int) -> None:
    assert run(script).returncode == status


@pytest.mark.parametrize("name", ["HUP", "INT"])
def test_a_signal_is_one_in_the_background_too(name: str) -> None:
    background = ("sh", "-c", f"trap '' {name}; exec \"$@\"", "sh")
    assert (
        run(f"kill -{name} $$; exit 3", *background).returncode
        == 128 + signal.Signals[f"SIG{name}"]
    )
