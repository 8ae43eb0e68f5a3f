"""Quotas and control groups in a kernel that has what the machine's own may lack."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.linux import other_kernel


@pytest.mark.timeout(other_kernel.TIMEOUT_S + 20)
def test_quotas_and_control_groups(tmp_path: Path) -> None:
    """In one go: to start it and to load the tests takes as long as most of them."""
    said = other_kernel.run_tests(
        tmp_path, ["tests/linux/test_quota.py", "tests/runtimes/test_cgroups.py"]
    )
    assert "version 2 has no controllers here" not in said, said
    assert not re.search(r"SKIPPED.*test_quota", said), said
