"""One turn by a driver: what holds for all drivers, wherever they run.

The conversation that answers is the one that was asked for; an answer is not empty; a driver
that does not end when it is interrupted, or when its time is over, is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from carrel.agents.events import failed
from carrel.domain.errors import (
    CarrelError,
    ContinuationNotFound,
    DeadlinePassed,
    EmptyResponse,
    FrontendNotInstalled,
    Interrupted,
    PermissionDenied,
)
from carrel.domain.turns import (
    AgentEventType,
    AgentSetup,
    Control,
    ControlKind,
    Driver,
    InteractionMode,
    Permission,
    Stage,
    Told,
    TurnRequest,
    TurnResult,
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
                    "The agent began another conversation than the requested one.",
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
        """Takes controls also while the driver does not listen: an interrupt counts from when it
        came."""
        while True:
            control = await self._stage.control()
            self._controls.put_nowait(control)
            if control.kind is ControlKind.INTERRUPT:
                error = Interrupted("The turn was interrupted, and ended because it did not stop.")
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


async def conduct(
    driver: Driver, request: TurnRequest, setup: AgentSetup, stage: Stage
) -> TurnResult:
    """Runs the driver's turn. Everything it started has ended when this returns, also when it is
    cancelled. A turn in a terminal is the person's there: neither time nor answers are judged."""
    if request.mode is InteractionMode.INTERACTIVE:
        return await _alone(driver(request, setup, stage))
    watched = _Watched(stage, request.continuation.key if request.continuation else "")
    work = asyncio.ensure_future(driver(request, setup, watched))
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
        return failed(FrontendNotInstalled(f"A library of the agent is missing: {error}"))
    where = "".join(traceback.format_exception(error))[-4096:]
    return failed(CarrelError(f"{type(error).__name__}: {error}", traceback=where))


def _judged(result: TurnResult, answered: bool) -> TurnResult:
    if result.success and not answered and not result.final_output:
        return failed(EmptyResponse("The agent ended its turn without a message, and did nothing."))
    return result


# Input, interrupts and answers that reach a running agent

OnInterrupt = Callable[[], Awaitable[None]]

MAX_LATE = 4096
"""Of an input that came too late: enough to know it again."""


class InputQueue:
    """What was said to an agent while it is busy. It is passed on when the agent is done with what
    it has: what is said in between may or may not get an answer of its own."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque()

    def put(self, text: str) -> None:
        self._texts.append(text)

    def next(self) -> str | None:
        return self._texts.popleft() if self._texts else None


@asynccontextmanager
async def listening(
    stage: Stage,
    permissions: Permissions,
    inbox: InputQueue,
    on_interrupt: OnInterrupt,
) -> AsyncIterator[None]:
    """Takes what is said to the agent while the block runs. An interrupt also answers no to all
    open questions. One that fails ends the listening and nothing else: the turn itself shows what
    is wrong with the agent."""

    async def listen() -> None:
        while True:
            control = await stage.control()
            match control.kind:
                case ControlKind.INPUT:
                    inbox.put(control.text)
                case ControlKind.INTERRUPT:
                    permissions.give_up()
                    await on_interrupt()
                case ControlKind.PERMISSION:
                    permissions.answer(control)

    task = asyncio.ensure_future(listen())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
        while (text := inbox.next()) is not None:
            stage.tell(too_late(text))


def too_late(text: str) -> Told:
    """Tells that an input came after the agent was done, so that it is not lost silently."""
    said = f"The agent was done before it heard this: {text}"
    return Told(AgentEventType.LOG, {"text": said[:MAX_LATE]})


# Permissions: decided by the turn, or by whoever runs it

DENIED = "Permission was denied."
"""What an agent is told."""
ANSWER_S = 300.0
"""For a person to see the question and to answer it; then the answer is no."""

OWN_TOOLS = "mcp__carrel__"
"""How the names of the space's own tools begin, which need no permission."""


def permission_of(request: TurnRequest, setup: AgentSetup) -> Permission:
    """Raises `PermissionDenied`: everything is allowed only where walls confine."""
    if request.permission is None:
        return Permission.SANDBOXED if setup.confined else Permission.ASK
    if request.permission is Permission.SANDBOXED and not setup.confined:
        raise PermissionDenied(
            "`sandboxed` allows everything, and nothing confines the agent here.",
            hint="Run the turn in a space, or use `ask` or `deny`.",
        )
    return request.permission


class Permissions:
    """The questions of one turn."""

    def __init__(self, mode: Permission, stage: Stage, answer_s: float | None = None) -> None:
        self.mode = mode
        self._stage = stage
        self._answer_s = ANSWER_S if answer_s is None else answer_s
        self._open: dict[str, asyncio.Future[bool]] = {}

    async def allowed(self, id: str, name: str, given: object) -> bool:
        """The question and the decision are told, except where everything is allowed."""
        if self.mode is Permission.SANDBOXED:
            return True
        asked = {"id": id, "name": name, "input": given}
        allow = False
        try:
            allow = self.mode is Permission.ASK and await self._ask(id, asked)
        finally:
            # Also of a question that the agent takes back.
            decision = "allow" if allow else "deny"
            self._stage.tell(Told(AgentEventType.PERMISSION, {**asked, "decision": decision}))
        return allow

    def answer(self, control: Control) -> None:
        """Takes an answer. One that comes too late, or to nothing, changes nothing."""
        waiting = self._open.get(control.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(control.allow)

    def give_up(self) -> None:
        """Answers no to all open questions."""
        for waiting in self._open.values():
            if not waiting.done():
                waiting.set_result(False)

    async def _ask(self, id: str, asked: dict[str, object]) -> bool:
        self._open[id] = asyncio.get_running_loop().create_future()
        self._stage.tell(Told(AgentEventType.PERMISSION, asked))
        try:
            # Not `wait_for`: that may lose a cancellation that comes with an answer.
            async with asyncio.timeout(self._answer_s):
                return await self._open[id]
        except TimeoutError:
            return False
        finally:
            del self._open[id]
