"""Carrel as a sandbox of Inspect passes the checks that Inspect has for sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.accounts import Account
from tests.contrib.suites import SUITE_S, check_suite
from tests.trees.again import run_again

GAPS = {
    "test_exec_as_user": "It adds a user; a space has one, and no program in it may become another."
}


@pytest.mark.timeout(300)
def test_the_suite(tmp_path: Path) -> None:
    check_suite("inspect_suite.py", GAPS, tmp_path)


@pytest.mark.timeout(320)
def test_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    run_again(__file__, ordinary_user, data, "-k", "the_suite", timeout_s=SUITE_S + 20)
