"""The program as most people run it: what they see, review, answer, copy and set, without root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.accounts import Account
from tests.sampling import beyond
from tests.trees.again import run_again

TIMEOUT_S = 280.0
"""The slowest has real agents, and the machine may be busy."""
FILES = (
    *("test_cp.py", *beyond("test_views.py")),
    *beyond("test_transcript.py", "test_permit.py", "test_errors.py", "test_agents.py"),
    *beyond("test_request.py", "test_config.py", "test_spaces.py", "test_hub.py"),
)


@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
@pytest.mark.parametrize("file", FILES)
def test_without_root(ordinary_user: Account, data: Path, file: str) -> None:
    run_again(str(Path(__file__).with_name(file)), ordinary_user, data, timeout_s=TIMEOUT_S)
