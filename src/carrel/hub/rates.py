"""How often a client may speak, and how often it may wake us."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

READ_S = 0.0001
"""What it costs to be woken, beside what is to be done with what came."""
SLICE, LARGEST_SLICE, CHEAP_S = 4096, 65536, 0.001
"""Bytes between two looks whether it is still this one's turn: of the smallest messages some
milliseconds. More as long as that is cheap, as it is with large ones."""


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


class Pace:
    """The share of our time that the connections of one caller have together, and how much of it
    they may have at once after a rest."""

    def __init__(self, share: float, at_once_s: float) -> None:
        self._share = share
        self._slack = at_once_s / share
        self._due = 0.0

    def spend(self, seconds: float, now: float) -> None:
        self._due = max(self._due, now - self._slack) + seconds / self._share

    def wait(self, now: float) -> float:
        """How many seconds until more may be done for them."""
        return max(0.0, self._due - now)


class Intake:
    """What one connection brings, looked at in slices as far as its pace allows. Meanwhile no
    more of it is read: who sends byte by byte is read less often, and then more at a time."""

    def __init__(
        self,
        transport: asyncio.Transport,
        take: Callable[[bytes], None],
        pace: Callable[[], Pace | None],
        held: Callable[[], bool] = lambda: False,
        free: int = 0,
    ) -> None:
        """`pace` answers None for who is never slowed down; `held`, whether no more can be taken
        now, until `go_on`. The first `free` bytes are looked at in any case."""
        self._transport = transport
        self._take = take
        self._pace = pace
        self._held = held
        self._free = free
        self._size = SLICE
        self._unread = bytearray()
        self._paused = False
        self._later: asyncio.Handle | None = None

    @property
    def waits(self) -> bool:
        """Something is here that was not looked at."""
        return bool(self._unread)

    @property
    def is_paused(self) -> bool:
        return self._paused

    def came(self, data: bytes) -> None:
        pace = self._pace()
        if pace is None and not self._unread:
            self._take(data)
            return
        if pace is not None:
            pace.spend(READ_S, time.monotonic())
        self._unread += data
        if self._later is None:
            self._look()
        if self._unread and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def go_on(self) -> None:
        """It is held no longer."""
        if not self._unread:
            self._resume()
        elif self._later is None:
            self._later = asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._later = None
        while self._unread and not self._held() and not self._transport.is_closing():
            pace = self._pace()
            wait = pace.wait(time.monotonic()) if pace is not None and self._free <= 0 else 0.0
            if wait:
                self._later = asyncio.get_running_loop().call_later(wait, self._look)
                return
            size = min(self._size, self._free) if self._free > 0 else self._size
            piece = bytes(self._unread[:size])
            del self._unread[:size]
            self._free -= len(piece)
            begun = time.thread_time()
            self._take(piece)
            spent = time.thread_time() - begun
            self._size = min(2 * self._size, LARGEST_SLICE) if spent < CHEAP_S else SLICE
            if pace is not None:
                pace.spend(spent, time.monotonic())
        if self._paused and not self._unread and not self._held():
            self._resume()

    def _resume(self) -> None:
        self._paused = False
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Nothing more is looked at."""
        self._unread.clear()
        if self._later is not None:
            self._later.cancel()
            self._later = None
