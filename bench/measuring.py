"""Times of several subjects, taken in rounds, and what they say about one another.

A machine is never quiet. Subjects are therefore measured in turn, round by round, so that
noise hits all alike; a ratio is taken within each round, and given as its median with the
spread over the rounds.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

_STARTED = time.monotonic()
UNSETTLED = "CARREL_BENCH_UNSETTLED"
"""In the environment: what is timed need not be right."""


def say(text: str) -> None:
    """Progress, for a person who waits."""
    print(f"[{time.monotonic() - _STARTED:6.1f} s] {text}", file=sys.stderr, flush=True)


def settle() -> None:
    """Writes out what earlier work left, so that the next does not pay for it. That of the whole
    machine, so tests, which look at no times, do without (`UNSETTLED`)."""
    if UNSETTLED not in os.environ:
        os.sync()


def quantile(values: Sequence[float], share: float) -> float:
    """Between the two nearest values; of a single one, that one."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True)
class Spread:
    """Many values as three, and how many there were."""

    median: float
    p10: float
    p90: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        middle = statistics.median(values)
        return cls(middle, quantile(values, 0.1), quantile(values, 0.9), len(values))


class Board:
    """Values by subject and round; seconds unless the caller says otherwise."""

    def __init__(self) -> None:
        self._values: dict[str, dict[int, list[float]]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    @property
    def names(self) -> list[str]:
        """In the order in which they first came."""
        return list(self._values)

    def add(self, name: str, number: int, value: float) -> None:
        self._values.setdefault(name, {}).setdefault(number, []).append(value)

    @contextmanager
    def timed(self, name: str, number: int) -> Iterator[None]:
        """What fails is not noted."""
        begun = time.perf_counter()
        yield
        self.add(name, number, time.perf_counter() - begun)

    def forget(self, number: int) -> None:
        """A round that was a rehearsal."""
        for rounds in self._values.values():
            rounds.pop(number, None)

    def values(self, name: str) -> list[float]:
        return [value for round_ in self._values[name].values() for value in round_]

    def spread(self, name: str) -> Spread:
        return Spread.of(self.values(name))

    def ratio(self, upper: str, lower: str) -> Spread:
        """How many times as long `upper` takes, over the rounds that have both."""
        return self._compare(upper, lower, lambda above, below: above / below)

    def difference(self, upper: str, lower: str) -> Spread:
        return self._compare(upper, lower, lambda above, below: above - below)

    def _compare(self, upper: str, lower: str, compare: Callable[[float, float], float]) -> Spread:
        above, below = self._values[upper], self._values[lower]
        both = [number for number in above if number in below]
        return Spread.of(
            [
                compare(statistics.median(above[number]), statistics.median(below[number]))
                for number in both
            ]
        )
