"""Bundles, archives and projects of a user who is nobody special: tests beside this one again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.accounts import Account
from tests.sampling import EXHAUSTIVE
from tests.trees.again import run_again

FILES = (
    "test_archives.py",
    "test_bad_bundles.py",
    "test_broken_archives.py",
    "test_projects.py",
    "test_extraction.py",
)
SAMPLE = "overlay or not (whatever_is_changed or memory or there_and_back or whole_trees)"
"""In a sample; overlays alone have another way for an ordinary user."""
_STATES = "(overlay and (odd or back_and_forth or forks_share)) or (written and not any_work)"


@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_the_same_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    """In one process: to load the tests takes as long as most of them."""
    first, *others = [str(Path(__file__).with_name(name)) for name in FILES]
    words = () if EXHAUSTIVE else ("-k", SAMPLE)
    run_again(first, ordinary_user, data, *words, *others)


@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_states_of_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    """Whom the modes of files keep out."""
    words = () if EXHAUSTIVE else ("-k", _STATES)
    first, other = (
        str(Path(__file__).with_name(f"test_{one}.py")) for one in ("states", "written")
    )
    run_again(first, ordinary_user, data, *words, other)
