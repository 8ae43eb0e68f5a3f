"""Watches how much disk a sandbox takes, and tells when it is over its limit.

Where the disk has no quota, looking finds out that a sandbox went over its limit, and can only end
what runs then. Looking is cheap as long as the disk has not lost as much room as a sandbox has
left: only then its files are walked through. The less room is left, the more often the disk is
asked, so that a fast writer does not come far beyond the limit.

Code in the sandbox can follow the walk, and move its files from where it has not been yet to where
it was. What the disk has lost and the walk has not found tells of that: when it would take the
sandbox over its limit, its files are walked through again while all of its processes stand still.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import NamedTuple

from carrel.linux.reserve import Free, is_short
from carrel.runtimes.limits.disk import LOOK_S, TOO_DEEP, Use

FASTEST = 4 << 30
"""Bytes that one sandbox writes in a second at most, as memory takes them. While it has room for
more than that, a look each second is enough."""
QUICKEST_S, CALM_S = 0.01, 0.02
"""Between two looks at the disk for all sandboxes together, where little room is left, and while it
loses nothing. A look takes some 200 µs: one percent of one processor."""
_SHARE = 4
"""A walk that takes long is followed by a pause this many times as long, so that looking
never takes more than a fifth of one processor."""
REST_S = 30.0
"""So often files are walked through though the disk has hardly lost room: what one sandbox
wrote, another may have deleted."""
_REST_SHARE = 50
"""… unless a walk takes long: then it may take a fiftieth of one processor."""
STILL_SHARE = 20
"""A sandbox goes on for at least so many times as long as it has stood still: others that write
much on the same disk make it stand still, too."""
SLACK_BYTES = 1 << 20
"""Who is over the limit may run commands that make room; these write a little themselves."""
SLACK_FILES = 100
FAR_BYTES = 1 << 30
"""Each command that is ended has written for a second or so. Above twice the limit and this much,
none is begun that could add to it."""
FAR_FILES = 100_000


class _Bound:
    """One figure. Over the limit, what is in use may shrink, and not grow any more."""

    def __init__(self, limit: int, slack: int) -> None:
        self.limit = limit
        self._slack = slack
        self._allowed: int | None = None

    def forgive(self, used: int | None = None) -> None:
        """What is in use, which nobody wrote who could be ended for it; or at the next look, where
        nobody knows how much that is."""
        self._allowed = sys.maxsize if used is None else max(self.limit, used + self._slack)

    def forget(self) -> None:
        self._allowed = None

    def crossed(self, used: int, lost: int) -> bool:
        """`lost` is what went from the disk since somebody could have written; it decides at
        the first look, when nobody knows how much was in use before."""
        if used <= self.limit:
            self._allowed = self.limit
            return False
        crossed = lost > self._slack if self._allowed is None else used > self._allowed
        now = used + self._slack
        self._allowed = now if self._allowed is None else min(self._allowed, now)
        return crossed


class Remembered(NamedTuple):
    """Of a sandbox that was watched, or has just been made: what may be hidden in it, what was
    found, and what was free on the disk then."""

    most: Use = Use(0, 0)
    found: Use | None = None
    free: Free | None = None
    is_new: bool = False


class DiskWatch:
    """Looks at a sandbox once a second, and sooner when the disk loses as much as it has left.
    Calls `on_over` with the figures and why when it has gone over its limit, or goes on to write
    on a disk that is full.

    `measure` is called with whether the sandbox has to stand still meanwhile, and answers None
    when it did not. It is called in a `turn`: sandboxes take turns, and what waits for one has not
    taken long itself. `before` is what was `remembered` when it was watched last. `watched` is how
    many sandboxes are. `pause` and `clock` are for tests.
    """

    def __init__(
        self,
        measure: Callable[[bool], Awaitable[Use | None]],
        free: Callable[[], Free],
        limit: Use,
        on_over: Callable[[Use, str], None],
        *,
        turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        before: Remembered | None = None,
        watched: Callable[[], int] = lambda: 1,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Made before the first command starts: what the disk loses from now on counts."""
        self._measure = measure
        self._turn = turn
        self._free = free
        self._limit = limit
        self._on_over = on_over
        self._watched = watched
        self._pause = pause
        self._clock = clock
        self._bytes = _Bound(limit.bytes, SLACK_BYTES)
        self._files = _Bound(limit.files, SLACK_FILES)
        self._known: Use | None = None
        before = before or Remembered()
        self._most = before.most
        """What is in use if all was its own that the disk has lost since it stood still."""
        self._found, self._found_with = before.found, before.free
        """At the last measurement, be it of an earlier watch."""
        self._written = 0
        """From outside since then: the disk does not tell of it when others free as much."""
        self._checked_at = -math.inf
        self._deep: int | None = None
        """What was free when its folders were found to be too deep."""
        self._when_full: Use | None = None
        """What was in use when the disk was found to be full, and when it was so last."""
        self._full_at = 0.0
        self._then = free()
        if before.found is not None:
            self._forgive()
        self._told = False
        self._measured_at = 0.0
        if before.is_new and before.free is not None and self._is_small(before.free):
            # The next look measures it, if its first command takes that long.
            self._known, self._measured_at = Use(0, 0), clock() - REST_S + LOOK_S
        self._took = 0.0
        self._still_at = -math.inf
        self._still_for = 0.0

    def _is_small(self, free: Free) -> bool:
        """Of one that was made when so much was free: whether it is far below its limit."""
        return not self._exceeds(Use(0, 0), free, self._then)

    def _exceeds(self, used: Use, before: Free, free: Free) -> bool:
        """Whether it may be over its limit by what the disk has lost since it had so much."""
        # Twice: a disk may tell late what it has lost.
        lost = max(0, before.bytes - free.bytes) * 2 + SLACK_BYTES
        made = max(0, before.files - free.files) * 2 + SLACK_FILES
        return used.bytes + lost > self._limit.bytes or used.files + made > self._limit.files

    async def run(self, needed: Callable[[], Awaitable[bool]]) -> None:
        """As long as it is `needed`, which is asked before each look."""
        pace = QUICKEST_S
        while await needed():
            took = await self.look()
            looked = self._clock()
            until = looked + max(LOOK_S - took, took * _SHARE)
            # Though never more than half of one processor, or a fifth while looks are short.
            soonest = looked + max(took, min(took * _SHARE, LOOK_S))
            room = self._room()
            while (left := until - self._clock()) > 0:
                quick = min(pace * self._watched(), LOOK_S)
                await self._pause(min(left, max(quick, min(room / FASTEST, LOOK_S))))
                before, room = room, self._room()
                pace = QUICKEST_S if room < before else min(2 * pace, CALM_S)
                if self._clock() >= soonest and room < 0:
                    break

    def _room(self) -> float:
        """What the sandbox has left if all was its own that the disk has lost since it was
        measured; below nothing it is to be measured, or the pause after a look would be its chance
        to write as much as it likes."""
        if self._known is None or self._told:
            return math.inf
        lost = self._then.bytes - self._free().bytes
        return max(self._limit.bytes - self._known.bytes, 0) + SLACK_BYTES - lost

    async def look(self) -> float:
        """Answers how long that took."""
        free = self._free()
        anew = self._told
        if anew:
            # What was written until all had ended is no growth of what comes after.
            self._told, self._known, self._when_full, self._then = False, None, None, free
            self._bytes.forget()
            self._files.forget()
            self._deep = None if self._deep is None else free.bytes
            self._most = Use(sys.maxsize, sys.maxsize)
        if not self._is_due(free):
            return 0.0
        async with self._turn():
            return await self._look(self._free(), anew)

    async def _look(self, free: Free, anew: bool) -> float:
        began, self._written = self._clock(), 0
        used = await self._measure(False)
        assert used is not None
        self._most = self._possible(used, free)
        if self._may_hide(used, free):
            free, before = self._free(), self._clock()
            found = await self._measure(True)
            self._still_at = self._clock()
            self._still_for = self._still_at - before
            if found is None:
                self._tell(used, "does not stand still to be measured")
                return self._still_at - began
            used = self._most = Use(max(used.bytes, found.bytes), max(used.files, found.files))
        self._measured_at = self._clock()
        self._took = self._measured_at - began
        self._judge(used, free, anew)
        self._known = self._found = used
        self._then = self._found_with = free
        return self._took

    @property
    def may_be_over(self) -> bool:
        """If all was its own that the disk has lost since it was measured; or the disk is full."""
        free = self._free()
        above = _is_above(self._with_lost(free), self._limit)
        return self._told or above or is_short(free)

    async def at_rest(self) -> Use | None:
        """What is in use while nobody is in the sandbox; None where that is below the limit for all
        that is known. For `rest`."""
        if not self._told and not _is_above(self._with_lost(self._free()), self._limit):
            return None
        async with self._turn():
            self._found_with, began = self._free(), self._clock()
            self._found = await self._measure(False)
            self._took = self._clock() - began
        return self._found

    def rest(self, used: Use | None) -> None:
        """Nobody is in the sandbox: what was written until now is no growth of what comes after,
        the command that makes room say, and nobody moves files away from the walk. `used` is all
        that is forgiven: without it, a command could write as much as it likes before the first
        look at it."""
        free = self._free()
        self._forgive(used)
        self._known, self._when_full, self._then, self._most = None, None, free, Use(0, 0)
        self._told = self._told and used is None
        self._deep = None if self._deep is None else free.bytes

    def _forgive(self, used: Use | None = None) -> None:
        self._bytes.forgive(None if used is None else used.bytes)
        self._files.forgive(None if used is None else used.files)

    async def excess(self, *, far: bool, written: int = 0) -> Use | None:
        """What is in use, when it is above the limit, or `far` above it. Where it may be, it is
        measured: more may have been written since, and room may have been made. `written`: bytes
        that came from outside since this was asked last."""
        self._written += written
        free, most, now = self._free(), self._limit, self._clock()
        if far:
            most = Use(2 * most.bytes + FAR_BYTES, 2 * most.files + FAR_FILES)
        # Nobody looks now and then at what comes while no command runs.
        stale = not far and now - max(self._measured_at, self._checked_at) >= REST_S
        if not stale and not _is_above(self._with_lost(free), most):
            return None
        if stale or now - self._checked_at >= max(LOOK_S, self._took * _SHARE):
            async with self._turn():
                free, self._written = self._free(), 0
                self._found, self._found_with = await self._measure(False), free
            self._checked_at = self._clock()
        found = self._found if far else self._with_lost(self._free())
        return found if found and _is_above(found, most) else None

    def _with_lost(self, free: Free) -> Use:
        """What was found last, and what the disk has lost since, or was written from outside."""
        found, before = self._found or Use(0, 0), self._found_with or self._then
        lost = Use(max(self._written, before.bytes - free.bytes), before.files - free.files)
        return Use(found.bytes + lost.bytes, found.files + max(0, lost.files))

    @property
    def remembered(self) -> Remembered | None:
        """None: it is nowhere near its limit, and hides nothing."""
        hides = _grew(self._known or Use(0, 0), self._most)
        if not hides and not _is_above(self._with_lost(self._free()), self._limit):
            return None
        return Remembered(self._most if hides else Use(0, 0), self._found, self._found_with)

    def _possible(self, used: Use, free: Free) -> Use:
        """It becomes less only by what was found to be less, and is free now. Others may have
        removed something, too, while it hid as much."""
        before = self._known or used
        lost = (self._then.bytes - free.bytes, self._then.files - free.files)
        figures = zip(used, before, self._most, lost, strict=True)
        return Use(
            *(max(now, most + max(gone, min(0, now - was))) for now, was, most, gone in figures)
        )

    def _may_hide(self, used: Use, free: Free) -> bool:
        """Whether what was not found could take it over its limit, or grows on a full disk."""
        if used.bytes >= TOO_DEEP or not self._may_pause():
            return False
        slack = (SLACK_BYTES, SLACK_FILES)
        return any(
            most > found + some and (most + some > limit or is_short(free))
            for most, found, limit, some in zip(self._most, used, self._limit, slack, strict=True)
        )

    def _may_pause(self) -> bool:
        return self._clock() - self._still_at >= self._still_for * STILL_SHARE

    def _is_due(self, free: Free) -> bool:
        if self._known is None or is_short(free):
            return True
        if self._clock() - self._measured_at >= max(REST_S, self._took * _REST_SHARE):
            return True
        return self._exceeds(self._most if self._may_pause() else self._known, self._then, free)

    def _judge(self, used: Use, before: Free, anew: bool) -> None:
        """`before` is what was free before it was measured. `anew`: all of it has just ended, and
        what the disk loses meanwhile others take."""
        free = self._free()
        if used.bytes >= TOO_DEEP:
            self._judge_too_deep(used, free)
            return
        self._deep = None
        crossed = [
            self._bytes.crossed(used.bytes, 0 if anew else self._then.bytes - free.bytes),
            self._files.crossed(used.files, 0 if anew else self._then.files - free.files),
        ]
        if any(crossed):
            self._tell(used, "is over its limit")
        elif is_short(before) and self._grows_on_a_full_disk(used):
            self._tell(used, "goes on to write, and the disk is full")

    def _grows_on_a_full_disk(self, used: Use) -> bool:
        """Since it became full: what is given up of a reserve in small pieces is not for whoever
        takes little at once."""
        now = self._clock()
        if self._when_full is None or now - self._full_at > REST_S:
            self._when_full = self._known or used
        self._full_at = now
        return _grew(self._when_full, used)

    def _judge_too_deep(self, used: Use, free: Free) -> None:
        """Whether that grows only the disk can tell."""
        if self._deep is None or self._deep - free.bytes > SLACK_BYTES:
            self._deep = free.bytes
            self._tell(used, "is too deep to be measured")

    def _tell(self, used: Use, why: str) -> None:
        self._told = True
        self._on_over(used, why)


def _is_above(used: Use, limit: Use) -> bool:
    return used.bytes > limit.bytes or used.files > limit.files


def _grew(before: Use, now: Use) -> bool:
    return now.bytes > before.bytes + SLACK_BYTES or now.files > before.files + SLACK_FILES
