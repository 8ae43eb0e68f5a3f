"""Carrel as a sandbox of Inspect passes the checks that Inspect has for sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contrib.suites import check_suite

GAPS = {
    "test_exec_as_user": "It adds a user; a space has one, and no program in it may become another."
}


@pytest.mark.timeout(300)
def test_the_suite(tmp_path: Path) -> None:
    check_suite("inspect_suite.py", GAPS, tmp_path)
