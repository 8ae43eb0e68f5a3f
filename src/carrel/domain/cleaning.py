"""Clean-up: what was found that the record does not know, and what was done about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Stray:
    """Something on the machine that belongs to no space of the record: a folder, a mount, a
    process, a control group, a user."""

    kind: str
    space_id: str
    path: str
    holds_work: bool = False
    """It is, or leads to, what somebody has worked on."""


class Sweeper(Protocol):
    """Finds and removes strays of this data folder. Blocking."""

    def find(self, known: frozenset[str], removed: frozenset[str]) -> list[Stray]:
        """`known` are the spaces that are there, `removed` some that are known to be gone:
        what could be somebody else's is a stray only when it names one of those."""
        ...

    def remove(self, stray: Stray) -> None:
        """Idempotent. Raises `CarrelError`s."""
        ...


@dataclass(frozen=True)
class Action:
    """One line of a report: what was (or would be) done to what, and why. `done` is False
    when it was not, and `why` then says what keeps it."""

    verb: str
    target: str
    why: str
    done: bool = True
    bytes_freed: int = 0


@dataclass(frozen=True)
class Report:
    dry_run: bool
    actions: tuple[Action, ...] = ()
