"""What ends an instance by itself: its time, a missing heartbeat, idleness, its owners."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from carrel.domain.errors import CarrelError
from carrel.domain.instances import Hold, InstanceState
from carrel.domain.reception import HubClients, Owners, Reception
from carrel.domain.spaces import Problem
from carrel.service.instances.live import Book, Live
from carrel.service.instances.places import Places

LEAST_LOOK_S, MOST_LOOK_S = 0.1, 10.0
"""Between two looks for idle ones; four in the shortest time that one may be idle."""
WORKING = 0.05
"""An instance that used more than this part of a processor since the last look was at work."""
_log = logging.getLogger("carrel")

End = Callable[[Live, Problem], Coroutine[Any, Any, bool]]
Leave = Callable[[Live, Hold, Problem], Coroutine[Any, Any, None]]


class Lifetimes:
    def __init__(
        self,
        book: Book,
        places: Places,
        reception: Reception,
        owners: Owners,
        hub: HubClients,
        end: End,
        leave: Leave,
    ) -> None:
        """`end` ends an instance, and says why; `leave` takes one of its clients away."""
        self._book = book
        self._places = places
        self._reception = reception
        self._owners = owners
        self._hub = hub
        self._end = end
        self._leave = leave
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle: asyncio.Task[None] | None = None
        hub.on_gone(self._hub_client_gone)

    def begin(self, live: Live) -> None:
        """Of one that is ready, or was taken up: all that may end it, and nothing twice when it
        was started again."""
        live.take_back()
        instance = live.instance
        now, loop = self._book.clock(), asyncio.get_running_loop()
        live.active_at = max(live.active_at, instance.heard_at, now)
        if instance.ttl_s is not None:
            left = (instance.ready_at or now) + instance.ttl_s - now
            why = Problem("ttl", "ttl_over", f"Its time of {instance.ttl_s:g} s was over.")
            live.ends.append(loop.call_later(max(0.0, left), self._over, live, why).cancel)
        if instance.lease_s is not None:
            self._lease(live)
        for hold in instance.holds:
            self.hold(live, hold)
        if instance.idle_s is not None and (self._idle is None or self._idle.done()):
            self._idle = asyncio.create_task(self._look())

    def _over(self, live: Live, why: Problem) -> None:
        self._spawn(self._end(live, why))

    def _lease(self, live: Live) -> None:
        """Looks again whenever the lease that it knew of is over."""
        instance = live.instance
        if live.leaving or instance.lease_s is None:
            return
        left = max(instance.heard_at, instance.ready_at or 0.0) + instance.lease_s
        left -= self._book.clock()
        if left <= 0:
            text = f"Nobody said for {instance.lease_s:g} s that it is still wanted."
            self._over(live, Problem("lease", "lease_over", text))
            return
        loop = asyncio.get_running_loop()
        live.ends.append(loop.call_later(left, self._lease, live).cancel)

    def hold(self, live: Live, hold: Hold) -> None:
        """One of its clients may go away by itself."""
        if hold.owner_pid is not None:
            why = Problem("owner", "owner_gone", f"Its owner, process {hold.owner_pid}, ended.")

            def gone() -> None:
                self._spawn(self._leave(live, hold, why))

            take_back = self._owners.on_end(hold.owner_pid, hold.owner_started, gone)
            if hold.hold_id:
                live.hold_ends[hold.hold_id] = take_back
            else:
                live.ends.append(take_back)
        if hold.hub_client and not self._hub.is_there(hold.hub_client):
            self._hub_client_gone(hold.hub_client)

    def _hub_client_gone(self, client_id: str) -> None:
        why = Problem("owner", "owner_gone", "Its owner's connection to the hub ended.")
        for live in self._book.all():
            for hold in live.instance.holds:
                if hold.hub_client == client_id:
                    self._spawn(self._leave(live, hold, why))

    # Idleness

    async def _look(self) -> None:
        """While there is one that may be idle."""
        while True:
            watched = [live for live in self._book.all() if live.instance.idle_s is not None]
            if not watched:
                return
            least = min(live.instance.idle_s or 0.0 for live in watched)
            every_s = min(max(least / 4, LEAST_LOOK_S), MOST_LOOK_S)
            await asyncio.sleep(every_s)
            try:
                await self._check(watched, every_s)
            except (CarrelError, OSError):
                _log.exception("the look for idle instances failed")

    async def _check(self, watched: list[Live], every_s: float) -> None:
        ports = frozenset(live.instance.port for live in watched if live.instance.port)
        open_now = await asyncio.to_thread(self._reception.connections, ports)
        now = self._book.clock()
        for live in watched:
            instance = live.instance
            if live.leaving or instance.state is not InstanceState.READY:
                continue
            if open_now.get(instance.port) or await self._works(live, every_s):
                live.active_at = now
            idle_since = max(live.active_at, instance.heard_at)
            if instance.idle_s is not None and now - idle_since >= instance.idle_s:
                text = f"It was idle for {instance.idle_s:g} s."
                self._over(live, Problem("idle", "idle", text))

    async def _works(self, live: Live, every_s: float) -> bool:
        """Clients of the stateless protocol keep no connection open."""
        if live.instance.space_id:
            return False
        place = await self._places.of(live.instance)
        used = (await place.runtime.usage(place.sandbox)).cpu_seconds or 0.0
        before, live.cpu_seconds = live.cpu_seconds, used
        return used - before > WORKING * every_s

    # Ending

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("an instance could not be ended", exc_info=task.exception())

    async def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        pending = {*self._tasks, *([self._idle] if self._idle is not None else [])}
        if pending:
            await asyncio.wait(pending, timeout=10.0)
