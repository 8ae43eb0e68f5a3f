"""The same suites as a user to whom the machine gives a range of ids. What is of that
alone is in `tests/daemon/ranged_images.py`, and a sample of it in every run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.accounts import SOURCE, Account
from tests.trees.again import run_again

TIMEOUT_S = 900.0
"""A whole suite, one test after the other, on a loaded machine."""
FILES = (
    *("daemon/test_kept_systems.py", "daemon/test_images.py", "service/test_services.py"),
    *("conformance/test_runtimes.py", "faults/test_kill_in_systems.py", "daemon/ranged_images.py"),
)

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.timeout(TIMEOUT_S + 20),
    pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run"),
]


@pytest.mark.parametrize("file", FILES)
def test_with_a_range(ordinary_user: Account, data: Path, file: str) -> None:
    first = str(SOURCE / "tests" / file)
    run_again(first, ordinary_user, data, timeout_s=TIMEOUT_S, ranged=True)
