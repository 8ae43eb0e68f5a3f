"""Engines of a user who is nobody special: with one id, unless it has a range of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.accounts import Account
from tests.trees.again import run_again


@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_the_same_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    building = Path(__file__).with_name("test_building.py")
    words = ("-k", "podman and (dockerfile_says or cancelled or fails or killed)")
    run_again(str(building), ordinary_user, data, *words)
