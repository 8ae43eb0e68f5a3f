"""Images of a user who is nobody special: tests beside this one again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.accounts import Account
from tests.trees.again import run_again

FILES = ("test_keeping.py", "test_layers.py")


@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_the_same_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    first, *others = [str(Path(__file__).with_name(name)) for name in FILES]
    run_again(first, ordinary_user, data, *others)
