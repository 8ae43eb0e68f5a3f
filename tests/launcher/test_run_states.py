"""The states of a run: one table, and no way past it."""

from __future__ import annotations

from itertools import product

import pytest

from carrel.launcher.messages import RunFields
from carrel.launcher.run import MOVES, LaunchedRun, LaunchState

FIELDS: RunFields = {
    "run_id": "ru_1",
    "sandbox_id": "sp_1",
    "folder": "/nonexistent",
    "linger": 0.0,
    "record": {"names": [], "keep": 1},
}


def test_every_state_is_reached_and_two_are_last() -> None:
    assert set(MOVES) == set(LaunchState)
    assert set().union(*MOVES.values()) == set(LaunchState) - {LaunchState.STARTING}
    assert {state for state in LaunchState if not MOVES[state]} == {
        LaunchState.FAILED,
        LaunchState.ENDED,
    }


@pytest.mark.parametrize(("before", "after"), list(product(LaunchState, LaunchState)))
def test_a_run_moves_as_the_table_says(before: LaunchState, after: LaunchState) -> None:
    run = LaunchedRun(FIELDS, before)
    if after in MOVES[before]:
        run.move(after)
        assert run.state is after
        return
    with pytest.raises(ValueError, match=f"{before.value} does not become {after.value}"):
        run.move(after)
    assert run.state is before


def test_a_request_lacks_what_it_must_have() -> None:
    """What is not required is what a daemon of another version may leave out."""
    assert RunFields.__required_keys__ == FIELDS.keys()
    assert "zygote" in RunFields.__optional_keys__
