"""What a driver does with what is said to its agent from outside."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from carrel.agents.permitting import Permissions
from carrel.domain.agents import AgentEventType, ControlKind, Stage, Told

OnInterrupt = Callable[[], Awaitable[None]]

MAX_LATE = 4096
"""Of an input that came too late: enough to know it again."""


class Inbox:
    """What is said to an agent while it is busy: it hears it when it is done with what it has,
    for what is said in between may or may not get an answer of its own."""

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
    inbox: Inbox,
    on_interrupt: Callable[[], Awaitable[None]],
) -> AsyncIterator[None]:
    """While the block runs. An interrupt is the answer to all that is asked, too: no. One that
    fails ends the listening and nothing else: the turn itself shows what is wrong with the
    agent."""

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
    """What was said and never heard is not lost without a word."""
    said = f"The agent was done before it heard this: {text}"
    return Told(AgentEventType.LOG, {"text": said[:MAX_LATE]})
