"""Whether anybody is there for a request: one that nobody comes back for is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from carrel.domain.requests import Policy
from carrel.service.requests.book import Live

TIED_S = 10.0
"""For the connection that a request came by to follow it: after that it is not there."""

GiveUp = Callable[[Live], Awaitable[Any]]


class Presence:
    def __init__(self, given_up_s: float, give_up: GiveUp) -> None:
        self._given_up_s = given_up_s
        self._give_up = give_up
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def came(self, live: Live) -> None:
        live.followers += 1
        live.followed = True
        self.look(live)

    def went(self, live: Live) -> None:
        live.followers -= 1
        self.look(live)

    def look(self, live: Live) -> None:
        """Starts the time, or takes it back."""
        if live.lonely is not None:
            live.lonely.cancel()
            live.lonely = None
        wait_s = self._wait_s(live)
        if wait_s is not None and not self._closed:
            loop = asyncio.get_running_loop()
            live.lonely = loop.call_later(wait_s, self._over, live)

    def _wait_s(self, live: Live) -> float | None:
        asked = live.request.asked
        if live.followers or live.request.delivered_at is not None or live.request.is_bare:
            return None
        if asked.tied and not live.request.ended:
            return 0.0 if live.followed else TIED_S
        if asked.webhook is not None or asked.keeping.policy is not Policy.EPHEMERAL:
            return None
        if not live.followed and not live.request.ended:
            # Who only asks now and then is not there in between; an agent has its own time.
            return None
        return self._given_up_s

    def _over(self, live: Live) -> None:
        live.lonely = None
        if self._closed:
            return
        task = asyncio.create_task(self._leave(live))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _leave(self, live: Live) -> None:
        if not live.followers:
            await self._give_up(live)

    def stop(self) -> None:
        """The daemon ends: that is nobody's going away."""
        self._closed = True

    async def close(self) -> None:
        self.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
