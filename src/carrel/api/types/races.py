"""Races: what is asked for, and what is told of them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from carrel.api.types.agents import MAX_WAIT_S, NewTurn
from carrel.api.types.common import Answer, Body, Query
from carrel.api.types.spaces import FrontendName, NewSpace
from carrel.domain.landing import CHECK_S
from carrel.domain.races import RaceCheck
from carrel.domain.spaces import SpaceState
from carrel.domain.turns import NOTHING_SPENT, TurnState
from carrel.domain.turns import Usage as AgentUsage


class RaceBody(Body, frozen=True, kw_only=True):
    """The same task for several agents. Of both parts, the agent is left out."""

    agents: Annotated[tuple[FrontendName, ...], Meta(min_length=1, max_length=20)]
    count: Annotated[int, Meta(ge=1, le=20)] = 1
    """So many spaces for each agent; 20 together at most."""
    space: NewSpace = NewSpace()
    """What each space is like; `name` is how their names begin."""
    turn: NewTurn
    """What each agent is to do."""
    check: Annotated[str, Meta(max_length=10_000)] = ""
    """A command for the shell, which runs in each space when its agent has ended."""
    check_s: Annotated[float, Meta(gt=0, le=86400)] = CHECK_S


class RaceQuery(Query, frozen=True, kw_only=True):
    wait_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] = 0.0
    """Until one more turn or check has ended, or so long."""


class RacerInfo(Answer, frozen=True, kw_only=True):
    space: str
    name: str
    agent: str
    state: SpaceState
    turn: str = ""
    """Its newest."""
    outcome: TurnState | None = None
    """Of that."""
    problem: str = ""
    """Why it ended in an error."""
    check: RaceCheck
    check_run: str = ""
    """The command that the check is."""
    check_code: int | None = None
    files: int | None = None
    """That it changed; null where that was not asked for, or cannot be told now."""
    added: int | None = None
    deleted: int | None = None
    seconds: float
    """That all its turns took."""
    usage: AgentUsage = NOTHING_SPENT
    """Of all its turns."""


class RaceInfo(Answer, frozen=True, kw_only=True):
    id: str
    check: str
    ended: bool
    """There is nothing to wait for any more."""
    racers: tuple[RacerInfo, ...]
