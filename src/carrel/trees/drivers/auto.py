"""Choosing the driver that is best on this machine, by trying them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carrel.domain.availability import Availability
from carrel.domain.errors import TreeUnavailable
from carrel.domain.trees import TreeDriver


@dataclass(frozen=True)
class Judgement:
    """What became of one candidate; `why` is a sentence."""

    name: str
    availability: Availability
    chosen: bool
    why: str


def choose_driver(candidates: Sequence[TreeDriver]) -> tuple[TreeDriver, tuple[Judgement, ...]]:
    """The best that works: one whose trees cost the same however big the project is, then
    one whose trees every program of the host sees, then the first in order.

    Raises `TreeUnavailable` when none works.
    """
    tried = [(driver, driver.probe()) for driver in candidates]
    working = [driver for driver, found in tried if found.available]
    if not working:
        reasons = " ".join(f"{driver.name}: {found.reason}" for driver, found in tried)
        raise TreeUnavailable(f"No way of making trees works here. {reasons}")
    best = min(working, key=_rank)
    return best, tuple(
        Judgement(driver.name, found, driver is best, _why(driver, found, best))
        for driver, found in tried
    )


def _rank(driver: TreeDriver) -> tuple[bool, bool]:
    """`min` takes the first of equals."""
    return not driver.capabilities.instant, not driver.capabilities.visible_on_host


def _why(driver: TreeDriver, found: Availability, best: TreeDriver) -> str:
    if not found.available:
        return found.reason
    if driver is best:
        return f"Chosen: {found.reason}"
    if _rank(driver)[0] > _rank(best)[0]:
        return f"Works, but takes longer the bigger the project is; {best.name} does not."
    if _rank(driver)[1] > _rank(best)[1]:
        return f"Works, but the host's programs do not see its trees; {best.name}'s they do."
    return f"Works; {best.name} comes first."
