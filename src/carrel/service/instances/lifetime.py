"""What ends an instance: its time, a missing heartbeat, idleness, its owners; how it is ended; and
what several clients of one share.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from carrel.domain.access import LOCAL, begin_for
from carrel.domain.errors import CarrelError
from carrel.domain.instances import LIVE, Handed, Hold, Instance, InstanceState, Released, Warmth
from carrel.domain.server_adapter import HubClients, Owners, ServerAdapter
from carrel.domain.spaces import Problem
from carrel.service.instances.book import InstanceBook, LiveInstance
from carrel.service.instances.places import Places
from carrel.service.journal import problem_of
from carrel.service.shared import Tasks

LEAST_LOOK_S, MOST_LOOK_S = 0.1, 10.0
"""Between two looks for idle ones; four in the shortest time that one may be idle."""
WORKING = 0.05
"""An instance that used more than this part of a processor since the last look was at work."""
REACH_S = 5.0
"""Between two looks at what tokens may still have."""
_log = logging.getLogger("carrel")

Reaches = Callable[[str, str], Awaitable[bool]]
"""Of a caller's name and a space's id."""
End = Callable[[LiveInstance, Problem], Coroutine[Any, Any, bool]]
Leave = Callable[[LiveInstance, Hold, Problem], Coroutine[Any, Any, None]]


class Lifetimes:
    def __init__(
        self,
        book: InstanceBook,
        places: Places,
        adapter: ServerAdapter,
        owners: Owners,
        hub: HubClients,
        end: End,
        leave: Leave,
        reaches: Reaches,
    ) -> None:
        """`end` ends an instance, and says why; `leave` takes one of its clients away; `reaches`
        says whether a token still opens a space."""
        self._book = book
        self._places = places
        self._adapter = adapter
        self._owners = owners
        self._hub = hub
        self._end = end
        self._leave = leave
        self._reaches = reaches
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle: asyncio.Task[None] | None = None
        self._reach: asyncio.Task[None] | None = None
        hub.on_gone(self._hub_client_gone)

    def begin(self, live: LiveInstance) -> None:
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
            self._idle = begin_for(LOCAL.name, self._look())
        if instance.caller != LOCAL.name and (self._reach is None or self._reach.done()):
            self._reach = begin_for(LOCAL.name, self._look_at_reach())

    def _over(self, live: LiveInstance, why: Problem) -> None:
        self._spawn(self._end(live, why))

    def _lease(self, live: LiveInstance) -> None:
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

    def hold(self, live: LiveInstance, hold: Hold) -> None:
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

    # Reach

    async def _look_at_reach(self) -> None:
        """While a token has one: it was given the address and the secret of a server that reads and
        writes in a space, which may leave its reach."""
        text = "The token that asked for it is revoked or over, or its space has left its reach."
        why = Problem("owner", "out_of_reach", text)
        while watched := self._of_others():
            for live in watched:
                instance = live.instance
                if not await self._reaches(instance.caller, instance.space_id):
                    self._over(live, why)
            await asyncio.sleep(REACH_S)

    def _of_others(self) -> list[LiveInstance]:
        return [one for one in self._book.all() if one.instance.caller != LOCAL.name]

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

    async def _check(self, watched: list[LiveInstance], every_s: float) -> None:
        ports = frozenset(live.instance.port for live in watched if live.instance.port)
        open_now = await asyncio.to_thread(self._adapter.connections, ports)
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

    async def _works(self, live: LiveInstance, every_s: float) -> bool:
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
        looks = [one for one in (self._idle, self._reach) if one is not None]
        for look in looks:
            look.cancel()
        pending = {*self._tasks, *looks}
        if pending:
            await asyncio.wait(pending, timeout=10.0)


# The end of an instance: the whole tree of it, its folder, its user and its ports.

Tail = Callable[[Instance], Awaitable[bytes]]


class Ender:
    def __init__(self, book: InstanceBook, places: Places, tail: Tail) -> None:
        """`tail`: what one wrote last, which goes with its folder."""
        self._book = book
        self._places = places
        self._tail = tail

    async def end(
        self, live: LiveInstance, why: Problem | None, state: InstanceState = InstanceState.ENDED
    ) -> bool:
        """False when somebody else ends it: then it is over all the same. Raises
        `SandboxUnavailable` when something of it does not go; it may be tried again."""
        if live.leaving:
            await live.over.wait()
            return False
        live.leaving = True
        try:
            await self._stop_work(live)
            with contextlib.suppress(CarrelError):
                # On a full disk too it can be ended.
                await self._book.change(live, leaving=True)
            output = await self._output(live, state)
            await self._clear(live)
        except BaseException:
            live.leaving = False
            raise
        await self._book.close(live, state=state, problem=why, output=output)
        return True

    async def undo(self, live: LiveInstance, error: BaseException) -> None:
        """Of a start that failed. Called by its own work."""
        live.leaving = True
        output = await self._output(live, InstanceState.FAILED)
        try:
            await self._clear(live)
        finally:
            why = problem_of("start", error)
            await self._book.close(live, state=InstanceState.FAILED, problem=why, output=output)

    async def _output(self, live: LiveInstance, state: InstanceState) -> str:
        """Of one that fails: whoever asks later is told."""
        if state is not InstanceState.FAILED:
            return ""
        with contextlib.suppress(CarrelError, OSError):
            return (await self._tail(live.instance)).decode("utf-8", "replace")
        return ""

    async def stop(self, live: LiveInstance) -> None:
        """Its processes, and no more: it is to be started again."""
        instance = live.instance
        await self._places.stop(instance, _runs(live))
        self._drop_runs(live)

    async def let_go(self, live: LiveInstance) -> None:
        """It goes on without this daemon."""
        live.leaving = True
        await self._stop_work(live)
        live.drop()

    async def _clear(self, live: LiveInstance) -> None:
        """The processes first: what they hold is free then."""
        await self._places.end(live.instance, _runs(live))
        live.drop()

    @staticmethod
    async def _stop_work(live: LiveInstance) -> None:
        current = asyncio.current_task()
        for task in (live.watch, live.work):
            if task is None or task.done() or task is current:
                continue
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, CarrelError, OSError):
                await task

    @staticmethod
    def _drop_runs(live: LiveInstance) -> None:
        for run in (live.run, live.gate):
            if run is not None:
                run.close()
        live.run = live.gate = None


def _runs(live: LiveInstance) -> tuple[str, ...]:
    return tuple(run_id for run_id in (live.instance.gate_run_id, live.instance.run_id) if run_id)


# Clients of one instance: those who share it on purpose, and who takes one that stood ready.

_SAME = (
    *("server", "caller", "project_path", "space_id", "share", "network", "limits"),
    *("restart", "ttl_s", "lease_s", "idle_s", "survive", "confined"),
)
_TAKEN = (
    *("caller", "account", "created_at", "ttl_s", "lease_s", "idle_s", "holds", "survive"),
    *("restart", "share", "heard_at"),
)


class Sharing:
    def __init__(self, book: InstanceBook, ender: Ender, tasks: Tasks) -> None:
        self._book = book
        self._ender = ender
        self._tasks = tasks

    async def join(self, draft: LiveInstance, lifetimes: Lifetimes) -> Handed | None:
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

    async def _hold(self, live: LiveInstance, hold: Hold) -> None:
        """One more. Who goes away meanwhile, or could not be written down, does not have it."""
        holds = (*live.instance.holds, hold)
        try:
            await self._book.change(live, holds=holds, heard_at=self._book.clock())
        except BaseException:
            why = Problem("start", "abandoned", "Whoever asked for it has gone.")
            with contextlib.suppress(CarrelError):
                await self._tasks.see_through(self.leave(live, hold, why))
            raise

    def _shared(self, draft: LiveInstance) -> LiveInstance | None:
        for live in self._book.all():
            if not live.leaving and live.env == draft.env and _alike(live, draft):
                return live
        return None

    async def hand_over(self, live: LiveInstance, draft: LiveInstance, begun: float) -> None:
        """One that stood ready becomes what was asked for, under its own id."""
        await self._book.change(
            live,
            **{name: getattr(draft.instance, name) for name in _TAKEN},
            ready_at=self._book.clock(),
            warmth=Warmth.STARTED,
            started_in_ms=round((time.monotonic() - begun) * 1000, 1),
        )

    async def release(self, live: LiveInstance, hold_id: str = "") -> Released:
        """By the client with that hold; who asks again, because no answer came, takes nobody
        else's. Without one, by a client that would not go by itself."""
        left = _released(live.instance.holds, hold_id)
        if left and not live.leaving:
            await self._keep(live, left)
            return Released.SHARED
        gone = await self._ender.end(live, None)
        return Released.TERMINATED if gone else Released.ALREADY_GONE

    async def leave(self, live: LiveInstance, hold: Hold, why: Problem) -> None:
        """One of its clients went away by itself."""
        if live.leaving or hold not in live.instance.holds:
            return
        if live.instance.clients > 1:
            await self._keep(live, _without(live.instance.holds, hold))
        else:
            await self._ender.end(live, why)

    async def _keep(self, live: LiveInstance, left: tuple[Hold, ...]) -> None:
        """The others do not have it any more."""
        gone = [hold for hold in live.instance.holds if hold not in left]
        for hold in gone:
            live.take_back_of(hold)
        if left != live.instance.holds:
            await self._book.change(live, holds=left)


def _alike(one: LiveInstance, other: LiveInstance) -> bool:
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
