"""Instances that end when nobody asked for it, and those that an earlier daemon left."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable

from carrel.domain.errors import CarrelError, InstanceNotFound, RunNotFound
from carrel.domain.instances import Hold, Instance, InstanceState, Restart
from carrel.domain.limits import LimitKind
from carrel.domain.pauses import pauses
from carrel.domain.runtimes import Exit, ExitReason, LimitHit, Run
from carrel.domain.server_adapter import HubClients
from carrel.domain.spaces import Problem
from carrel.service.instances.book import InstanceBook, LiveInstance, Secrets
from carrel.service.instances.lifetime import Ender, Lifetimes
from carrel.service.instances.places import Place, Places
from carrel.service.instances.start import how
from carrel.service.journal import plain, problem_of
from carrel.service.shared import Errands

FIRST_S, MOST_S = 0.5, 30.0
"""Before it is started again; each pause twice as long as the one before."""
STEADY_S = 60.0
"""One that lived so long did not fail in a row."""
MOST_FAILURES = 5
"""In a row: with the last it is given up."""
AT_ONCE = 8
"""Taken up at the same time."""
LOST = Exit(ExitReason.LOST, None, None, 0.0, 0.0, 0.0, 0)
_log = logging.getLogger("carrel")

Again = Callable[[LiveInstance], Awaitable[None]]


class Restarter:
    def __init__(
        self, book: InstanceBook, places: Places, ender: Ender, hub: HubClients, again: Again
    ) -> None:
        self._book = book
        self._places = places
        self._ender = ender
        self._hub = hub
        self._again = again
        self._errands = Errands(_not_seen_to)

    # Watching

    def watch(self, live: LiveInstance) -> None:
        live.watch = asyncio.create_task(self._watch(live))

    async def _watch(self, live: LiveInstance) -> None:
        ended = await _first_end(live)
        if not live.leaving:
            self._errands.begin(self._ended(live, ended))

    def limit_hit(self, live: LiveInstance, hit: LimitHit) -> None:
        """A server may go on without the process that the kernel killed, but not as it was."""
        if hit.kind is not LimitKind.MEMORY or live.leaving:
            return
        text = f"It reached its memory limit of {hit.figure / (1 << 20):g} MiB."
        problem = Problem("run", "memory_limit", text, "Give it more, or a smaller project.")
        self._errands.begin(self._failed(live, problem))

    async def _ended(self, live: LiveInstance, ended: Exit) -> None:
        if _is_at_work(live):
            # It ended by what starts it again.
            return
        stopped = ended.reason is ExitReason.STOPPED and live.instance.space_id
        if stopped or not self._places.is_open(live.instance):
            why = Problem("run", "space_stopped", "Its space was stopped.")
            await self._ender.end(live, why)
            return
        if ended.reason is ExitReason.MEMORY:
            problem = Problem("run", "memory_limit", "It was killed at its memory limit.")
        else:
            problem = Problem("run", "instance_failed", f"It ended {how(ended)}.")
        if ended.code == 0:
            await self._ender.end(live, problem)
        else:
            await self._failed(live, problem)

    async def _failed(self, live: LiveInstance, problem: Problem) -> None:
        """One failure may be told twice, by the run's end and by its limit: who is first decides
        before it waits for anything."""
        first = live.instance.state is InstanceState.STARTING
        if live.leaving or (_is_at_work(live) and not first):
            return
        if first or live.instance.restart is Restart.NEVER or live.instance.socket:
            await self._give_up(live, problem)
            return
        live.work = asyncio.current_task()
        await self._restart(live, problem)

    async def _restart(self, live: LiveInstance, problem: Problem) -> None:
        """Until it is ready, or has failed too often."""
        if self._book.clock() - live.ready_since > STEADY_S:
            live.failures = 0
        while True:
            live.failures += 1
            if live.failures >= MOST_FAILURES:
                await self._give_up(live, problem)
                return
            failed = await _failing(self._stop(live, problem))
            if failed is None:
                self._tell(live)
            await asyncio.sleep(min(FIRST_S * 2 ** (live.failures - 1), MOST_S))
            failed = failed or await _failing(self._again(live))
            if failed is None:
                self._tell(live)
                return
            problem = failed

    async def _stop(self, live: LiveInstance, problem: Problem) -> None:
        await self._ender.stop(live)
        await self._book.change(
            live,
            state=InstanceState.RESTARTING,
            problem=problem,
            restarts=live.instance.restarts + 1,
        )

    async def _give_up(self, live: LiveInstance, problem: Problem) -> None:
        """Until nothing of it is left: what kept it from coming back may keep it from going."""
        holds = live.instance.holds
        for pause_s in pauses():
            try:
                await self._ender.end(live, problem, InstanceState.FAILED)
                break
            except (CarrelError, OSError):
                _log.exception("the instance %s does not end yet", live.instance_id)
            await asyncio.sleep(pause_s)
        self._tell(live, holds)

    def _tell(self, live: LiveInstance, holds: tuple[Hold, ...] = ()) -> None:
        """Who has it; one that is over has nobody any more."""
        instance = live.instance
        payload: dict[str, object] = {
            "instance_id": instance.instance_id,
            "server": instance.server.name,
            "to": str(instance.state),
            "url": instance.url,
        }
        if instance.problem is not None:
            payload["problem"] = dataclasses.asdict(instance.problem)
        for hold in holds or instance.holds:
            if hold.hub_client:
                self._hub.tell(hold.hub_client, "instance_state", payload)

    # Taking up

    async def take_up(self, kept: Secrets, lifetimes: Lifetimes, *, rebooted: bool) -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(instance: Instance) -> None:
            async with gate:
                try:
                    await self._take_up(instance, kept, lifetimes, rebooted)
                except (CarrelError, OSError):
                    _log.exception("the instance %s cannot be taken up", instance.instance_id)

        await asyncio.gather(*(one(instance) for instance in await self._book.stored()))
        for instance_id in self._places.left():
            if self._book.get(instance_id) is None:
                await self._sweep(instance_id)

    async def _sweep(self, instance_id: str) -> None:
        """What is left of one that is over, or was never written down."""
        try:
            instance = await self._book.record(instance_id)
        except InstanceNotFound:
            await self._places.forget(instance_id)
            return
        try:
            runs = (instance.gate_run_id, instance.run_id)
            await self._places.end(instance, tuple(filter(None, runs)))
        except (CarrelError, OSError):
            _log.exception("what is left of the instance %s stays", instance_id)

    async def _take_up(
        self, instance: Instance, kept: Secrets, lifetimes: Lifetimes, rebooted: bool
    ) -> None:
        live = LiveInstance(instance, streams=bool(instance.socket))
        await asyncio.to_thread(kept.read, live)
        self._book.know(live)
        if instance.leaving or not instance.holds:
            # It was being ended, or stood ready for nobody yet.
            await self._ender.end(live, instance.problem)
            return
        if rebooted or instance.state is InstanceState.STARTING:
            text = "The machine was restarted." if rebooted else "The daemon ended meanwhile."
            why = Problem("start", "interrupted", text)
            await self._ender.end(live, why, InstanceState.FAILED)
            return
        if not self._places.folder(instance.instance_id).is_dir():
            # It has ended, and the disk took no word of that.
            await self._ender.end(live, instance.problem)
            return
        # One that was being started again has not answered yet: it is begun anew.
        restarting = instance.state is InstanceState.RESTARTING
        ended = LOST if restarting else await self._attach(live)
        lifetimes.begin(live)
        if ended is None:
            self.watch(live)
        else:
            self._errands.begin(self._ended(live, ended))

    async def _attach(self, live: LiveInstance) -> Exit | None:
        """How it ended meanwhile, if it has."""
        instance = live.instance
        try:
            place = await self._places.of(instance)
            live.run = await place.runtime.attach(place.sandbox, instance.run_id)
            live.gate = await self._attach_gate(place, instance)
        except (RunNotFound, CarrelError):
            return LOST
        return None

    @staticmethod
    async def _attach_gate(place: Place, instance: Instance) -> Run | None:
        if not instance.gate_run_id:
            return None
        return await place.runtime.attach(place.sandbox, instance.gate_run_id)

    async def close(self) -> None:
        await self._errands.close()


def _is_at_work(live: LiveInstance) -> bool:
    """Somebody starts it, or starts it again; not so what an earlier daemon was at."""
    return live.work is not None and not live.work.done()


async def _failing(work: Awaitable[None]) -> Problem | None:
    """Why it could not be done. A full disk and a path that has gone are failures like others."""
    try:
        await work
    except (CarrelError, OSError) as error:
        return problem_of("restart", plain(error))
    return None


def _not_seen_to(error: BaseException) -> None:
    _log.error("an instance could not be seen to", exc_info=error)


async def _first_end(live: LiveInstance) -> Exit:
    """Of the server, or of what leads to it."""
    runs = [run for run in (live.run, live.gate) if run is not None]
    waiting = [asyncio.ensure_future(run.wait()) for run in runs]
    try:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        try:
            return next(iter(done)).result()
        except CarrelError:
            return LOST
    finally:
        for one in waiting:
            one.cancel()
