"""An event loop whose time passes only while there is nothing to do.

For tests in which all who talk to one another are in this loop: how long a machine takes for
anything is no time to it, so no bound is missed because a core was busy, and waiting takes no
time of a person. Whoever waits for a thread or another process needs the real time.
"""

from __future__ import annotations

import asyncio
import selectors

Ready = list[tuple[selectors.SelectorKey, int]]


class _Selector(selectors.EpollSelector):
    def __init__(self) -> None:
        super().__init__()
        self.idle_s = 0.0

    def select(self, timeout: float | None = None) -> Ready:
        ready = super().select(0)
        if ready or timeout is None:
            return ready or super().select()
        self.idle_s += max(0.0, timeout)
        return ready


class IdleTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._idle = _Selector()
        super().__init__(self._idle)

    def time(self) -> float:
        return self._idle.idle_s

    def work(self, seconds: float) -> None:
        """As if something had taken that long."""
        self._idle.idle_s += seconds
