"""The supervisor of an agent in a terminal. It runs in the space, so that it needs no daemon.

start ──► runs ──► ends with 0 ─────────────────► done
            │ ──► fails ──► pause of 2^n s ──► start, with the same conversation
            │         └──► the fifth in a row ──► gives up
            └──► is stopped ────────────────────► done
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from carrel.agents.results import failed
from carrel.agents.terminals.backoff import Backoff
from carrel.agents.terminals.hearing import hearing
from carrel.agents.terminals.hooking import FOLDER
from carrel.agents.terminals.mind import Mind
from carrel.agents.terminals.redacting import redacted
from carrel.agents.terminals.tmux import End, Tmux
from carrel.domain.agents import (
    KEY,
    AgentEventType,
    ControlKind,
    Seat,
    Stage,
    Told,
    TurnRequest,
    TurnResult,
)
from carrel.domain.errors import AgentCrashed, CarrelError, Interrupted

INTERRUPT = "C-c"
REFUSALS = 2
"""So often it may end without a word instead of going on with a conversation."""


class Supervisor:
    """Implements `Driver`. `first` starts the agent, `again` goes on with a conversation."""

    def __init__(
        self,
        first: Sequence[str],
        again: Sequence[str] = (),
        silent: bool = False,
        unit_s: float = 1.0,
    ) -> None:
        self._first = tuple(first)
        self._again = tuple(again)
        self._silent = silent
        self._backoff = Backoff(unit_s)

    async def __call__(self, request: TurnRequest, seat: Seat, stage: Stage) -> TurnResult:
        folder = Path(seat.state) / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        screen = Tmux(folder, seat.workspace)
        stop = asyncio.Event()
        mind = Mind(stage, screen, request.continuation, stop)
        async with hearing(folder, mind.heard) as catch_up, screen:
            tasks = [
                asyncio.ensure_future(mind.speak()),
                asyncio.ensure_future(self._listen(stage, screen, mind, stop)),
            ]
            try:
                return await self._supervise(stage, screen, mind, stop, catch_up)
            except CarrelError as error:
                return failed(error)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                mind.close()

    async def _supervise(
        self,
        stage: Stage,
        screen: Tmux,
        mind: Mind,
        stop: asyncio.Event,
        catch_up: Callable[[], None],
    ) -> TurnResult:
        clock = asyncio.get_running_loop().time
        while True:
            argv = self._command(mind)
            mind.starts(resumed=argv != self._first)
            began = clock()
            await screen.show(argv)
            _tell(stage, "started", "The agent has started.", resumed=argv != self._first)
            end = await self._ended(screen, mind, stop)
            if mind.lost is not None:
                return failed(mind.lost)
            if end is None:
                await screen.end()
                return failed(Interrupted("The agent was stopped."))
            # What it told before it ended has come by now, and may not be heard yet.
            catch_up()
            mind.ended()
            if end.code == 0:
                _tell(stage, "ended", "The agent has ended.", code=0)
                return TurnResult(True, mind.said)
            pause = self._backoff.failed(clock() - began)
            self._crashed(stage, end, pause)
            if pause is None:
                return failed(_gave_up(end, self._backoff.failures))
            if await _unless(stop, asyncio.sleep(pause, True)) is None:
                return failed(Interrupted("The agent was stopped."))

    async def _ended(self, screen: Tmux, mind: Mind, stop: asyncio.Event) -> End | None:
        still = asyncio.ensure_future(screen.still()) if self._silent else None
        if still is not None:
            still.add_done_callback(lambda task: None if task.cancelled() else mind.is_up())
        try:
            end: End | None = await _unless(stop, screen.ended())
            return end
        finally:
            if still is not None:
                still.cancel()

    def _command(self, mind: Mind) -> tuple[str, ...]:
        """A conversation that has begun is gone on with, whoever began it, unless the agent
        shows that it does not have it: it may have died before it wrote anything down."""
        if not mind.begun or not mind.key or not self._again or mind.refused >= REFUSALS:
            return self._first
        return tuple(mind.key if word == KEY else word for word in self._again)

    @staticmethod
    def _crashed(stage: Stage, end: End, pause: float | None) -> None:
        then = "Carrel gives up." if pause is None else f"It starts again in {pause:g} s."
        lines = [redacted(line) for line in end.lines]
        text = f"The agent {how(end)}. {then}"
        _tell(stage, "crashed", text, code=end.code, signal=end.signal, lines=lines, pause_s=pause)

    @staticmethod
    async def _listen(stage: Stage, screen: Tmux, mind: Mind, stop: asyncio.Event) -> None:
        while True:
            control = await stage.control()
            with contextlib.suppress(CarrelError):
                match control.kind:
                    case ControlKind.INPUT:
                        mind.say(control.text)
                    case ControlKind.INTERRUPT:
                        await screen.press(INTERRUPT)
                    case ControlKind.STOP:
                        stop.set()
                    case ControlKind.PERMISSION:
                        text = "It is answered in its terminal: carrel attach."
                        stage.tell(Told(AgentEventType.LOG, {"text": text}))


def how(end: End) -> str:
    if end.signal is not None:
        return f"was killed by signal {end.signal}"
    return "ended with its terminal" if end.code is None else f"ended with {end.code}"


def _gave_up(end: End, failures: int) -> AgentCrashed:
    lines = [redacted(line) for line in end.lines]
    return AgentCrashed(
        f"The agent {how(end)}, the failure number {failures} in a row: Carrel gives up.",
        hint="See the last lines, then attach again.",
        code=end.code,
        signal=end.signal,
        lines=lines,
    )


def _tell(stage: Stage, what: str, text: str, **more: object) -> None:
    stage.tell(Told(AgentEventType.LOG, {"text": text, "supervision": what, **more}))


async def _unless(stop: asyncio.Event, work: Any) -> Any:
    """What comes of the work; None when it is to stop before."""
    stopping, working = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(work)
    try:
        await asyncio.wait({stopping, working}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (stopping, working):
            task.cancel()
        await asyncio.wait({stopping, working})
