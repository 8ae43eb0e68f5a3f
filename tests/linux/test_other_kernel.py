"""Quotas and control groups in a kernel that has what the machine's own may lack."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.linux import other_kernel
from tests.sampling import EXHAUSTIVE

ELSEWHERE = "fork_bomb or family or user_without or stirring or with_all_it_started"
"""Tests of groups that are the same in the machine's own kernel, whatever its version of them."""
ON_BOTH = "same_project or inherits or links_are_not"
"""Tests of quotas that ask nothing of the file system's own way to limit: one speaks for both."""


@pytest.mark.timeout(other_kernel.TIMEOUT_S + 20)
def test_quotas_and_control_groups(tmp_path: Path) -> None:
    """In one go: to start it and to load the tests takes as long as most of them."""
    files = ["tests/linux/test_quota.py", "tests/runtimes/test_cgroups.py"]
    words = [] if EXHAUSTIVE else ["-k", f"not ({ELSEWHERE} or ext4 and ({ON_BOTH}))"]
    said = other_kernel.run_tests(tmp_path, [*words, *files])
    assert "version 2 has no controllers here" not in said, said
    assert not re.search(r"SKIPPED.*test_quota", said), said
