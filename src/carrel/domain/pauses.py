"""Between two attempts at what a disk refuses for a while."""

from __future__ import annotations

from collections.abc import Iterator

FIRST_S, MOST_S = 0.1, 5.0


def pauses() -> Iterator[float]:
    """Seconds; each twice as long as the one before, and never more than `MOST_S`."""
    pause_s = FIRST_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, MOST_S)
