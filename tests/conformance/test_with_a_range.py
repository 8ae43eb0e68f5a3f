"""The same suites as a user to whom the machine gives a range of ids."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.accounts import SOURCE, Account
from tests.sampling import EXHAUSTIVE
from tests.trees.again import run_again

TIMEOUT_S = 280.0
"""A whole suite, one test after the other, on a loaded machine."""
SAMPLE = {
    "daemon/test_kept_systems.py": "there_and_back or own_ids or trash or told",
    "daemon/test_images.py": "commands_see or a_user_of or proof or set_user_id or gone_says",
    "conformance/test_runtimes.py": "image and (set_id or binds or host_is_out or proof)",
    "service/test_services.py": "beside_the_commands or postgresql or ten_copies or to_the_start",
}
"""What of each goes another way than with one id."""

pytestmark = [
    pytest.mark.timeout(TIMEOUT_S + 20),
    pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run"),
]


@pytest.mark.parametrize("file", SAMPLE)
def test_with_a_range(ordinary_user: Account, data: Path, file: str) -> None:
    words = () if EXHAUSTIVE else ("-k", SAMPLE[file])
    first = str(SOURCE / "tests" / file)
    run_again(first, ordinary_user, data, *words, timeout_s=TIMEOUT_S, ranged=True)
