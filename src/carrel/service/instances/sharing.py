"""Clients of one instance: those who share it on purpose, and who takes one that stood ready."""

from __future__ import annotations

import asyncio
import contextlib
import time

from carrel.domain.errors import CarrelError
from carrel.domain.instances import LIVE, Handed, Hold, Released, Warmth
from carrel.domain.spaces import Problem
from carrel.service.instances.ending import Ender
from carrel.service.instances.lifetimes import Lifetimes
from carrel.service.instances.live import Book, Live
from carrel.service.tasks import Tasks

_SAME = (
    *("server", "caller", "project_path", "space_id", "share", "network", "limits"),
    *("restart", "ttl_s", "confined"),
)
_TAKEN = (
    *("caller", "created_at", "ttl_s", "lease_s", "idle_s", "holds", "survive"),
    *("restart", "share", "heard_at"),
)


class Sharing:
    def __init__(self, book: Book, ender: Ender, tasks: Tasks) -> None:
        self._book = book
        self._ender = ender
        self._tasks = tasks

    async def join(self, draft: Live, lifetimes: Lifetimes) -> Handed | None:
        """One that others of the same project have, when it is ready."""
        while (live := self._shared(draft)) is not None:
            if live.work is not None:
                await asyncio.wait({live.work})
            if live.leaving or live.instance.state not in LIVE:
                continue
            hold = draft.instance.holds[0]
            await self._hold(live, hold)
            if live.leaving:
                continue
            lifetimes.hold(live, hold)
            return Handed(live.instance, live.token)
        return None

    async def _hold(self, live: Live, hold: Hold) -> None:
        """One more. Who goes away meanwhile, or could not be written down, does not have it."""
        holds = (*live.instance.holds, hold)
        try:
            await self._book.change(live, holds=holds, heard_at=self._book.clock())
        except BaseException:
            why = Problem("start", "abandoned", "Whoever asked for it has gone.")
            with contextlib.suppress(CarrelError):
                await self._tasks.see_through(self.leave(live, hold, why))
            raise

    def _shared(self, draft: Live) -> Live | None:
        for live in self._book.all():
            if not live.leaving and live.env == draft.env and _alike(live, draft):
                return live
        return None

    async def hand_over(self, live: Live, draft: Live, begun: float) -> None:
        """One that stood ready becomes what was asked for, under its own id."""
        await self._book.change(
            live,
            **{name: getattr(draft.instance, name) for name in _TAKEN},
            ready_at=self._book.clock(),
            warmth=Warmth.STARTED,
            started_in_ms=round((time.monotonic() - begun) * 1000, 1),
        )

    async def release(self, live: Live) -> Released:
        if live.instance.clients > 1:
            await self._book.change(live, holds=_without(live.instance.holds, None))
            return Released.SHARED
        gone = await self._ender.end(live, None)
        return Released.TERMINATED if gone else Released.ALREADY_GONE

    async def leave(self, live: Live, hold: Hold, why: Problem) -> None:
        """One of its clients went away by itself."""
        if live.leaving or hold not in live.instance.holds:
            return
        if live.instance.clients > 1:
            await self._book.change(live, holds=_without(live.instance.holds, hold))
        else:
            await self._ender.end(live, why)


def _alike(one: Live, other: Live) -> bool:
    """Both may be the same instance for their clients."""
    return all(getattr(one.instance, name) == getattr(other.instance, name) for name in _SAME)


def _without(holds: tuple[Hold, ...], gone: Hold | None) -> tuple[Hold, ...]:
    """One less: that one, or else one that would not go by itself."""
    if gone is None:
        gone = next((hold for hold in holds if hold == Hold()), holds[-1])
    at = holds.index(gone)
    return (*holds[:at], *holds[at + 1 :])
