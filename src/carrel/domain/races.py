"""Races: the same task for several agents, each in a space of its own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from carrel.domain.spaces import Space
from carrel.domain.turns import Turn, Usage

RACE = "carrel.race"
"""The label of the spaces of one race: its id."""


class RaceCheck(StrEnum):
    NONE = ""
    """None was asked for."""
    WAITING = "waiting"
    """The agent is at work, or nobody has waited for it since."""
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"
    """The space is stopped, or has failed."""


@dataclass(frozen=True)
class Racer:
    """How one of them stands. What is not known is None."""

    space: Space
    turn: Turn | None
    """Its newest."""
    seconds: float
    """Of all its turns."""
    usage: Usage
    """Of all its turns."""
    check: RaceCheck
    check_run: str = ""
    check_code: int | None = None
    files: int | None = None
    added: int | None = None
    deleted: int | None = None

    @property
    def ended(self) -> bool:
        if self.check in (RaceCheck.WAITING, RaceCheck.RUNNING):
            return False
        return self.turn is None or self.turn.ended


@dataclass(frozen=True)
class Race:
    race_id: str
    check: str
    racers: tuple[Racer, ...]
    """In the order in which they were made."""

    @property
    def ended(self) -> bool:
        return all(one.ended for one in self.racers)
