"""When an agent that failed is started again, and when not any more."""

from __future__ import annotations

GIVE_UP = 5
"""Failures in a row."""
STEADY_S = 60.0
"""One that ran so long did not fail to start: what comes then is the first failure of a row."""


class Backoff:
    """`unit_s` is what stands for a second."""

    def __init__(self, unit_s: float = 1.0) -> None:
        self._unit_s = unit_s
        self.failures = 0

    def failed(self, ran_s: float) -> float | None:
        """The pause before the next start, 2^n seconds after the n-th failure; None: no
        more."""
        self.failures = 1 if ran_s >= STEADY_S else self.failures + 1
        if self.failures >= GIVE_UP:
            return None
        return self._unit_s * float(2**self.failures)
