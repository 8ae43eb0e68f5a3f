"""What is done with the work of a space, as an ordinary user: other mounts, and one user for all
spaces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.accounts import Account
from tests.sampling import EXHAUSTIVE
from tests.trees.again import run_again

TIMEOUT_S = 500.0
"""Some have real agents, and the machine may be busy."""
TESTS = Path(__file__).parent.parent
FILES = (
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
RUNS = tuple((one,) for one in FILES) if EXHAUSTIVE else (SAMPLE,)
ONCE = ("-k", "in_any_order or not (no_byte or any_state)")
"""Not again, where all is tried: thousands of random examples."""


@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
@pytest.mark.parametrize("run", RUNS, ids=lambda run: str(run[0]))
def test_without_root(ordinary_user: Account, data: Path, run: tuple[str, ...]) -> None:
    """Each in one process, so that they share a daemon."""
    first, *others = (str(TESTS / one) for one in run)
    run_again(first, ordinary_user, data, *ONCE, *others, timeout_s=TIMEOUT_S)
