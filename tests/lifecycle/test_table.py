"""The table of legal moves, and its picture."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from carrel.domain.errors import StateConflict
from carrel.domain.spaces import SpaceState
from carrel.lifecycle.table import LIVE, MOVES, SETTLED, can_move, check_move, mermaid

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_state_has_a_line() -> None:
    assert set(MOVES) == set(SpaceState)


def test_the_path_of_a_life_is_legal() -> None:
    life = ["creating", "ready", "running", "ready", "stopping", "stopped", "ready"]
    life += ["stopping", "stopped", "removing", "removed"]
    for now, then in itertools.pairwise(life):
        assert can_move(SpaceState(now), SpaceState(then)), (now, then)


def test_every_state_in_the_middle_can_fail() -> None:
    middle = set(SpaceState) - {SpaceState.FAILED, SpaceState.REMOVED}
    assert all(SpaceState.FAILED in MOVES[state] for state in middle)


def test_every_state_leads_to_the_end() -> None:
    """Nothing is stuck: whatever happens, a space can be removed."""
    for state in SpaceState:
        reached, seen = {state}, {state}
        while reached:
            reached = set().union(*(MOVES[one] for one in reached)) - seen
            seen |= reached
        assert SpaceState.REMOVED in seen, state


def test_nothing_comes_back_from_removed() -> None:
    assert not MOVES[SpaceState.REMOVED]


def test_a_move_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(StateConflict) as refusal:
        check_move("sp_x", SpaceState.REMOVED, SpaceState.READY)
    assert refusal.value.details == {"state": "removed"}
    with pytest.raises(StateConflict, match="stopped"):
        check_move("sp_x", SpaceState.STOPPED, SpaceState.RUNNING)


def test_live_states_are_settled() -> None:
    assert LIVE < SETTLED


def test_the_diagram_in_the_docs_is_the_table() -> None:
    assert mermaid() in (DOCS / "spaces.md").read_text()
