"""What is done with the work of a space, as an ordinary user: other mounts, and one user for all
spaces. A sample of each is tried."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.accounts import Account
from tests.sampling import VARIABLE, beyond
from tests.trees.again import run_again

TIMEOUT_S = 500.0
"""Some have real agents, and the machine may be busy."""
TESTS = Path(__file__).parent.parent
FILES = beyond(
    *(f"review/test_{name}.py" for name in ("checkpoints", "queue", "takes", "comments", "races")),
    *(f"review/test_{name}.py" for name in ("commits", "conflicts", "export", "checks", "diff")),
    *(f"review/test_{name}.py" for name in ("landing", "project_states")),
    *(f"cli/test_{name}.py" for name in ("land", "take", "checkpoints", "comments", "diff")),
    *("e2e/test_review_story.py", "trees/test_states.py"),
)
SAMPLE = (
    "review/test_checkpoints.py::test_one_after_each_turn_and_back",
    "review/test_checkpoints.py::test_forks_go_on_from_it",
    "review/test_sequences.py",
)


@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
@pytest.mark.parametrize("file", FILES)
def test_without_root(ordinary_user: Account, data: Path, file: str) -> None:
    sampled = {VARIABLE: ""}
    run_again(str(TESTS / file), ordinary_user, data, env=sampled, timeout_s=TIMEOUT_S)


@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_some_without_root(ordinary_user: Account, data: Path) -> None:
    """In one process, so that they share a daemon."""
    first, *others = (str(TESTS / one) for one in SAMPLE)
    run_again(first, ordinary_user, data, *others, env={VARIABLE: ""}, timeout_s=TIMEOUT_S)
