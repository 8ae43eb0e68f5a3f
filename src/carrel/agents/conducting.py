"""One turn by a driver: what holds for all drivers, wherever they run.

The conversation that answers is the one that was asked for; an answer is not empty; a driver
that does not end when it is interrupted, or when its time is over, is stopped.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable
from typing import Any

from carrel.agents.listening import too_late
from carrel.agents.results import failed
from carrel.domain.agents import (
    AgentEventType,
    Control,
    ControlKind,
    Driver,
    InteractionMode,
    Seat,
    Stage,
    Told,
    TurnRequest,
    TurnResult,
)
from carrel.domain.errors import (
    CarrelError,
    ContinuationNotFound,
    DeadlinePassed,
    EmptyResponse,
    FrontendNotInstalled,
    Interrupted,
)

INTERRUPT_S = 5.0
"""For an agent to end by itself once it was interrupted, so that it can write down how far it
came."""

_ANSWERS = (AgentEventType.MESSAGE, AgentEventType.MESSAGE_DELTA, AgentEventType.TOOL_CALL)


class _Watched:
    """A stage that sees what passes, and says when the turn must stop."""

    def __init__(self, stage: Stage, asked: str) -> None:
        self._stage = stage
        self._asked = asked
        self._controls: asyncio.Queue[Control] = asyncio.Queue()
        self.stop: asyncio.Future[CarrelError] = asyncio.get_running_loop().create_future()
        self.answered = False

    def tell(self, told: Told) -> None:
        if self._asked and told.key and told.key != self._asked:
            self._end(
                ContinuationNotFound(
                    "Another conversation answered than the one that was asked for.",
                    asked=self._asked,
                    came=told.key,
                )
            )
        if not self.stop.done():
            self.answered = self.answered or told.type in _ANSWERS
            self._stage.tell(told)

    async def control(self) -> Control:
        return await self._controls.get()

    async def pass_on(self) -> None:
        """Also while the driver does not listen: an interrupt counts from when it came."""
        while True:
            control = await self._stage.control()
            self._controls.put_nowait(control)
            if control.kind is ControlKind.INTERRUPT:
                error = Interrupted("The turn was interrupted, and stopped when it went on.")
                asyncio.get_running_loop().call_later(INTERRUPT_S, self._end, error)

    async def close(self) -> None:
        """Tells what a driver that is done has not taken."""
        await asyncio.sleep(0)  # Lets `pass_on` take what has come.
        while not self._controls.empty():
            control = self._controls.get_nowait()
            if control.kind is ControlKind.INPUT:
                self._stage.tell(too_late(control.text))

    def _end(self, error: CarrelError) -> None:
        if not self.stop.done():
            self.stop.set_result(error)


async def conduct(driver: Driver, request: TurnRequest, seat: Seat, stage: Stage) -> TurnResult:
    """Everything the driver started has ended when this returns, also when it is cancelled.
    A terminal is its person's: nothing of that is held against it."""
    if request.mode is InteractionMode.INTERACTIVE:
        return await _alone(driver(request, seat, stage))
    watched = _Watched(stage, request.continuation.key if request.continuation else "")
    work = asyncio.ensure_future(driver(request, seat, watched))
    passing = asyncio.ensure_future(watched.pass_on())
    try:
        ends: set[asyncio.Future[Any]] = {work, watched.stop}
        await asyncio.wait(ends, timeout=request.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finished = work.done()
        await watched.close()
    finally:
        passing.cancel()
        work.cancel()
        await asyncio.wait({work, passing})
    if watched.stop.done():
        return failed(watched.stop.result())
    if not finished:
        seconds = f"{request.timeout_s:g} s"
        return failed(DeadlinePassed(f"The agent did not finish within {seconds}."))
    return _judged(_outcome(work), watched.answered)


async def _alone(driving: Awaitable[TurnResult]) -> TurnResult:
    work = asyncio.ensure_future(driving)
    try:
        await asyncio.wait({work})
    finally:
        work.cancel()
        await asyncio.wait({work})
    return _outcome(work)


def _outcome(work: asyncio.Future[TurnResult]) -> TurnResult:
    error = None if work.cancelled() else work.exception()
    if work.cancelled():
        return failed(Interrupted("The turn was stopped."))
    if error is None:
        return work.result()
    if isinstance(error, CarrelError):
        return failed(error)
    if isinstance(error, ImportError):
        return failed(FrontendNotInstalled(f"A library of it is missing: {error}"))
    where = "".join(traceback.format_exception(error))[-4096:]
    return failed(CarrelError(f"{type(error).__name__}: {error}", traceback=where))


def _judged(result: TurnResult, answered: bool) -> TurnResult:
    if result.success and not answered and not result.final_output:
        return failed(EmptyResponse("The agent ended without a word, and did nothing."))
    return result
