"""The end of an instance: the whole tree of it, its folder, its user and its ports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from carrel.domain.errors import CarrelError
from carrel.domain.instances import Instance, InstanceState
from carrel.domain.spaces import Problem
from carrel.service.instances.live import Book, Live
from carrel.service.instances.places import Places
from carrel.service.journal import problem_of

Tail = Callable[[Instance], Awaitable[bytes]]


class Ender:
    def __init__(self, book: Book, places: Places, tail: Tail) -> None:
        """`tail`: what one wrote last, which goes with its folder."""
        self._book = book
        self._places = places
        self._tail = tail

    async def end(
        self, live: Live, why: Problem | None, state: InstanceState = InstanceState.ENDED
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

    async def undo(self, live: Live, error: BaseException) -> None:
        """Of a start that failed. Called by its own work."""
        live.leaving = True
        output = await self._output(live, InstanceState.FAILED)
        try:
            await self._clear(live)
        finally:
            why = problem_of("start", error)
            await self._book.close(live, state=InstanceState.FAILED, problem=why, output=output)

    async def _output(self, live: Live, state: InstanceState) -> str:
        """Of one that fails: whoever asks later is told."""
        if state is not InstanceState.FAILED:
            return ""
        with contextlib.suppress(CarrelError, OSError):
            return (await self._tail(live.instance)).decode("utf-8", "replace")
        return ""

    async def stop(self, live: Live) -> None:
        """Its processes, and no more: it is to be started again."""
        instance = live.instance
        await self._places.stop(instance, _runs(live))
        self._drop_runs(live)

    async def let_go(self, live: Live) -> None:
        """It goes on without this daemon."""
        live.leaving = True
        await self._stop_work(live)
        live.drop()

    async def _clear(self, live: Live) -> None:
        """The processes first: what they hold is free then."""
        await self._places.end(live.instance, _runs(live))
        live.drop()

    @staticmethod
    async def _stop_work(live: Live) -> None:
        current = asyncio.current_task()
        for task in (live.watch, live.work):
            if task is None or task.done() or task is current:
                continue
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, CarrelError, OSError):
                await task

    @staticmethod
    def _drop_runs(live: Live) -> None:
        for run in (live.run, live.gate):
            if run is not None:
                run.close()
        live.run = live.gate = None


def _runs(live: Live) -> tuple[str, ...]:
    return tuple(run_id for run_id in (live.instance.gate_run_id, live.instance.run_id) if run_id)
