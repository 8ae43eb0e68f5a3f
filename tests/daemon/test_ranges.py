"""Images of ordinary users with a range of ids, and of those without one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.accounts import Account
from tests.trees.again import run_again

TIMEOUT_S = 280.0
SAMPLE = "owners_that or package or given_away or nothing_is or who_dies"
"""The whole, with other suites, is in `tests/conformance/test_with_a_range.py`."""

pytestmark = [
    pytest.mark.timeout(TIMEOUT_S + 20),
    pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run"),
]


def test_with_a_range(ordinary_user: Account, data: Path) -> None:
    file = str(Path(__file__).with_name("ranged_images.py"))
    said = run_again(file, ordinary_user, data, "-k", SAMPLE, timeout_s=TIMEOUT_S, ranged=True)
    assert "skipped" not in said, said


def test_with_one_id(ordinary_user: Account, data: Path) -> None:
    run_again(str(Path(__file__).with_name("one_id_images.py")), ordinary_user, data)
