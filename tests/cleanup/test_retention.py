"""When a space goes by itself."""

from __future__ import annotations

import pytest

from carrel.cleanup.retention import Defaults, RetentionVerb, due
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.spaces import Retention, Space, SpaceState

NEVER = Defaults()
BORN = 1000.0


def space(state: SpaceState, retention: Retention, **times: float) -> Space:
    return Space(
        "sp_aaaaaaaaaaaa",
        "name",
        state,
        Project(ProjectKind.EMPTY),
        created_at=BORN,
        updated_at=times.get("updated_at", BORN),
        active_at=times.get("active_at", BORN),
        stopped_at=times.get("stopped_at"),
        retention=retention,
    )


@pytest.mark.parametrize("state", SpaceState)
def test_without_rules_nothing_goes(state: SpaceState) -> None:
    assert due(space(state, Retention()), BORN + 1e9, NEVER) is None


def test_its_time() -> None:
    mortal = space(SpaceState.RUNNING, Retention(ttl_s=60))
    assert due(mortal, BORN + 59, NEVER) is None
    found = due(mortal, BORN + 60, NEVER)
    assert found is not None and found.verb is RetentionVerb.REMOVE and "1 min" in found.why


def test_idle_is_ready_and_not_running() -> None:
    rule = Retention(idle_s=100)
    ready = space(SpaceState.READY, rule, active_at=BORN + 50)
    assert due(ready, BORN + 149, NEVER) is None
    found = due(ready, BORN + 150, NEVER)
    assert found is not None and found.verb is RetentionVerb.STOP
    assert due(space(SpaceState.RUNNING, rule), BORN + 1e6, NEVER) is None


def test_stopped_ones_go_after_a_while() -> None:
    rule = Retention(keep_s=3600)
    stopped = space(SpaceState.STOPPED, rule, stopped_at=BORN + 10)
    assert due(stopped, BORN + 3609, NEVER) is None
    found = due(stopped, BORN + 3610, NEVER)
    assert found is not None and found.verb is RetentionVerb.REMOVE
    failed = space(SpaceState.FAILED, rule, updated_at=BORN)
    assert due(failed, BORN + 3600, NEVER) is not None


def test_defaults_are_for_those_who_say_nothing() -> None:
    defaults = Defaults(idle_s=10, keep_s=20)
    assert due(space(SpaceState.READY, Retention()), BORN + 10, defaults) is not None
    assert due(space(SpaceState.READY, Retention(idle_s=0)), BORN + 1e9, defaults) is None
    assert due(space(SpaceState.STOPPED, Retention()), BORN + 20, defaults) is not None


def test_a_clock_that_jumps_back_makes_nothing_due() -> None:
    rules = Retention(ttl_s=60, idle_s=60, keep_s=60)
    for state in SpaceState:
        assert due(space(state, rules), BORN - 1e6, NEVER) is None


@pytest.mark.parametrize("state", ["creating", "removing", "removed"])
def test_what_is_under_way_is_left_alone(state: str) -> None:
    rules = Retention(ttl_s=1, idle_s=1, keep_s=1)
    assert due(space(SpaceState(state), rules), BORN + 1e6, NEVER) is None
