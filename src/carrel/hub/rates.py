"""How often a client may speak."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rate:
    """So many messages a second, and so many at once after a rest."""

    per_second: float
    burst: int


class Bucket:
    """Filled by time, emptied by messages."""

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = rate
        self._left = float(rate.burst)
        self._at = now

    def take(self, now: float) -> float:
        """0.0 when it may, else how many seconds to wait."""
        if now > self._at:
            gained = (now - self._at) * self._rate.per_second
            self._left = min(float(self._rate.burst), self._left + gained)
            self._at = now
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self._rate.per_second
