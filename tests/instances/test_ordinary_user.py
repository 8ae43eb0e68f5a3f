"""Instances of a user who is nobody special: the same, though sockets of the host cannot be given
to servers everywhere then, and a gate is before each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.accounts import PYTEST, SOURCE, Account, run_as
from tests.sampling import beyond

TIMEOUT_S = 200.0
"""For all of them, one after the other, on a loaded machine."""
TESTS = {
    "test_starting.py": (
        *(f"test_every_way_to_a_server[{way}]" for way in ("fd-True", "sse-False")),
        *(f"test_every_way_to_a_server[{way}]" for way in beyond("process-True")),
        *beyond("test_every_way_to_a_server[fd with a token-True]"),
        "test_a_network_is_its_own",
        "test_it_sees_its_project_and_no_more",
        *beyond("test_children_that_went_away_go_too"),
    ),
    "test_lifetimes.py": (
        "test_it_is_started_again_under_the_same_id",
        *beyond("test_it_ends_with_its_owner"),
        *beyond("test_an_orderly_stop_ends_what_was_not_to_survive"),
    ),
    "test_in_spaces.py": (
        "test_from_outside_and_from_inside",
        *beyond("test_its_release_leaves_the_space_alone"),
        *beyond("test_a_crash_in_a_space"),
        *beyond("test_real_ones[serena]"),
    ),
    "test_streams.py": (
        "test_one_connection_is_its_streams",
        *beyond("test_released_while_somebody_speaks"),
    ),
    "test_reach.py": (
        "test_a_socket_is_no_way_out",
        "test_what_is_in_reach",
        "test_what_runs_in_a_space_is_no_client[bubblewrap]",
        "test_what_runs_in_a_space_is_no_client[landlock]",
        *beyond("test_a_project_that_became_a_link_is_not_shown"),
    ),
    "test_real.py": beyond("test_files_by_their_own_paths"),
}

pytestmark = [
    pytest.mark.timeout(TIMEOUT_S + 20),
    pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run"),
]


def test_the_core_of_it(ordinary_user: Account, data: Path) -> None:
    """In one process: to load the tests takes longer than most of them."""
    os.chown(data, ordinary_user.uid, ordinary_user.gid)
    words = [f"tests/instances/{file}::{test}" for file, tests in TESTS.items() for test in tests]
    ran = run_as(
        ordinary_user,
        [*PYTEST, f"--basetemp={data / 'pytest'}", *words],
        cwd=SOURCE,
        env={"TMPDIR": str(data), "PATH": os.environ["PATH"]},
        timeout=TIMEOUT_S,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert f"{len(words)} passed" in ran.stdout, ran.stdout[-3000:]
