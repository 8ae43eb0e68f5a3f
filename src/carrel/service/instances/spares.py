"""Instances that stand ready for projects that were asked for lately."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable

from carrel.domain.errors import CarrelError
from carrel.domain.instances import Instance, InstanceState
from carrel.domain.spaces import Problem
from carrel.service.instances.ending import Ender
from carrel.service.instances.live import Book, Live
from carrel.service.tasks import Errands

UNUSED_S = 900.0
"""One that nobody asked for in that time goes."""
NOBODY = ""
"""Whose they are until somebody takes one."""
_SAME = ("server", "project_path", "network", "limits", "confined")
_log = logging.getLogger("carrel")

Start = Callable[[Instance], Awaitable[Live]]


class Spares:
    """Of each kind of server as many as its definition says, one for each of the projects that
    were asked for last."""

    def __init__(self, book: Book, ender: Ender, start: Start) -> None:
        self._book = book
        self._ender = ender
        self._start = start
        self._errands = Errands(_not_kept)

    def take(self, wanted: Live) -> Live | None:
        """One that is just what is wanted; it is the caller's from now on."""
        if wanted.streams or wanted.env:
            return None
        for live in self._book.all():
            ready = live.spare and live.instance.state is InstanceState.READY
            if ready and not live.leaving and _alike(live.instance, wanted.instance):
                live.spare = False
                return live
        return None

    def refill(self, wanted: Live) -> None:
        """For the project that was just asked for, unless one is there already."""
        last, server = wanted.instance, wanted.instance.server
        if server.warm <= 0 or last.space_id or wanted.streams or wanted.env:
            return
        mine = [live for live in self._book.all() if live.spare and not live.leaving]
        same = [live for live in mine if live.instance.server.name == server.name]
        if any(_alike(live.instance, last) for live in same):
            return
        oldest = sorted(same, key=lambda live: live.instance.created_at)
        for live in oldest[: max(0, len(same) + 1 - server.warm)]:
            self._let_go(live, "Other projects were asked for since.")
        self._errands.begin(self._make(last))

    async def _make(self, last: Instance) -> None:
        live = await self._start(dataclasses.replace(last, caller=NOBODY, holds=()))
        loop = asyncio.get_running_loop()
        live.ends.append(loop.call_later(UNUSED_S, self._unused, live).cancel)

    def _unused(self, live: Live) -> None:
        if live.spare:
            self._let_go(live, "Nobody asked for it.")

    def _let_go(self, live: Live, why: str) -> None:
        # Its end only begins later, and until then somebody might take it.
        live.spare = False
        self._errands.begin(self._end(live, Problem("spare", "not_needed", why)))

    async def _end(self, live: Live, why: Problem) -> None:
        try:
            await self._ender.end(live, why)
        except BaseException:
            # It is there all the same.
            live.spare = True
            raise

    async def settled(self) -> None:
        """When all that is to stand ready does."""
        await self._errands.settled()

    async def close(self) -> None:
        await self._errands.close()


def _not_kept(error: BaseException) -> None:
    foreseen = isinstance(error, CarrelError)
    _log.warning("no instance can be kept ready: %s", error, exc_info=None if foreseen else error)


def _alike(one: Instance, other: Instance) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in _SAME)
