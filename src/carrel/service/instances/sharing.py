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
    *("restart", "ttl_s", "lease_s", "idle_s", "survive", "confined"),
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
            return Handed(live.instance, live.token, hold.hold_id)
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

    async def release(self, live: Live, hold_id: str = "") -> Released:
        """By the client with that hold; who asks again, because no answer came, takes nobody
        else's. Without one, by a client that would not go by itself."""
        left = _released(live.instance.holds, hold_id)
        if left and not live.leaving:
            await self._keep(live, left)
            return Released.SHARED
        gone = await self._ender.end(live, None)
        return Released.TERMINATED if gone else Released.ALREADY_GONE

    async def leave(self, live: Live, hold: Hold, why: Problem) -> None:
        """One of its clients went away by itself."""
        if live.leaving or hold not in live.instance.holds:
            return
        if live.instance.clients > 1:
            await self._keep(live, _without(live.instance.holds, hold))
        else:
            await self._ender.end(live, why)

    async def _keep(self, live: Live, left: tuple[Hold, ...]) -> None:
        """The others do not have it any more."""
        gone = [hold for hold in live.instance.holds if hold not in left]
        for hold in gone:
            live.take_back_of(hold)
        if left != live.instance.holds:
            await self._book.change(live, holds=left)


def _alike(one: Live, other: Live) -> bool:
    """Both may be the same instance for their clients."""
    return all(getattr(one.instance, name) == getattr(other.instance, name) for name in _SAME)


def _released(holds: tuple[Hold, ...], hold_id: str) -> tuple[Hold, ...]:
    if hold_id:
        return tuple(hold for hold in holds if hold.hold_id != hold_id)
    if not holds:
        return ()
    return _without(holds, next((hold for hold in holds if not hold.is_owned), holds[-1]))


def _without(holds: tuple[Hold, ...], gone: Hold) -> tuple[Hold, ...]:
    """One less: records that know of no ids have some that are alike."""
    at = holds.index(gone)
    return (*holds[:at], *holds[at + 1 :])
