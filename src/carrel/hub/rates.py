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

    def take(self, now: float, count: int = 1) -> float:
        """0.0 when it may say so many, else how many seconds to wait. What is more than may
        be said at once takes all of that."""
        if now > self._at:
            gained = (now - self._at) * self._rate.per_second
            self._left = min(float(self._rate.burst), self._left + gained)
            self._at = now
        wanted = float(min(count, self._rate.burst))
        if self._left >= wanted:
            self._left -= wanted
            return 0.0
        return (wanted - self._left) / self._rate.per_second
