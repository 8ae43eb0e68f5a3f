"""Engines of a user who is nobody special: with one id, unless it has a range of them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.accounts import PYTHON, Account, run_as
from tests.trees.again import run_again


@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_the_same_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    building = Path(__file__).with_name("test_building.py")
    words = ("-k", "podman and (dockerfile_says or cancelled or fails or killed)")
    run_again(str(building), ordinary_user, data, *words)


_LOOK = """
import os, sys
from pathlib import Path
from carrel.environments.engines.personal import PersonalPodman
from carrel.environments.engines.place import EnginePlace

def mentions(pid):
    try:
        return sys.argv[1].encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False

podman = PersonalPodman(EnginePlace(Path(sys.argv[1])), keep_free=0)
print(podman.has("nobody/has-it:1"))
others = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}
print([pid for pid in others if mentions(pid)])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
@pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not installed")
def test_no_process_of_his_own_podman_stays(ordinary_user: Account, data: Path) -> None:
    """Who has no session has no folder either in which podman would find the process again."""
    os.chown(data, *ordinary_user)
    words = [PYTHON, "-c", _LOOK, str(data / "engines")]
    done = run_as(ordinary_user, words, env={"HOME": str(data)})
    assert done.stdout == "False\n[]\n", done
