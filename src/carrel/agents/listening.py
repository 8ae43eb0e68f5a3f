"""What a driver does with what is said to its agent from outside."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from carrel.agents.permitting import Permissions
from carrel.domain.agents import ControlKind, Stage

OnInput = Callable[[str], Awaitable[None]]
OnInterrupt = Callable[[], Awaitable[None]]


@asynccontextmanager
async def listening(
    stage: Stage, permissions: Permissions, on_input: OnInput, on_interrupt: OnInterrupt
) -> AsyncIterator[None]:
    """While the block runs. A call that fails ends the listening and nothing else: the turn
    itself shows what is wrong with the agent."""

    async def listen() -> None:
        while True:
            control = await stage.control()
            match control.kind:
                case ControlKind.INPUT:
                    await on_input(control.text)
                case ControlKind.INTERRUPT:
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
