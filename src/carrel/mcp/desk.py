"""The hub as the tools see it: every question has a limit, and what takes long tells so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anyio
from mcp.server.mcpserver import Context

from carrel.client.hub_aio import AsyncHub
from carrel.client.hub_problems import ConnectionLost
from carrel.client.hub_session import FATAL
from carrel.domain.errors import CarrelError, DaemonUnavailable

ANSWER_S = 60.0
"""For what takes milliseconds, with the time that a restarted daemon needs to come back."""
WORK_S = 3600.0
"""For making or removing a space: a large project takes its time."""
RETRY_S = 1.0
"""Between two looks for a hub that was not there at first."""
PROGRESS_S = 5.0
"""Between two reports: clients give up on what is silent for a minute."""
NOTHING = ("carrel_mcp",)
"""Requests that this client answers: a name that no request has. Without one the hub would take
it for an agent that can be commanded."""

OpenHub: TypeAlias = Callable[..., AsyncHub]
"""Makes a client of the one hub that this server speaks with."""
ToolContext: TypeAlias = Context[Any, Any]


class Desk:
    """`inside`: it speaks for a space, in which it runs or which its token is for."""

    def __init__(
        self, connecting: asyncio.Task[AsyncHub], open_hub: OpenHub, *, inside: bool
    ) -> None:
        self.inside = inside
        self._connecting = connecting
        self._open_hub = open_hub

    async def hub(self) -> AsyncHub:
        """As soon as it is connected. Raises `DaemonUnavailable`, or why the hub refuses."""
        with _limit(ANSWER_S):
            return await asyncio.shield(self._connecting)
        raise _silent(ANSWER_S)

    async def own(self) -> str:
        """The space that it speaks for; empty outside."""
        return (await self.hub()).space

    async def publish(self, type: str, payload: Mapping[str, Any], space: str = "") -> int:
        """Its number, when it is kept."""
        with _limit(ANSWER_S):
            return (await (await self.hub()).publish(type, payload, space=space)).seq
        raise _silent(ANSWER_S)

    async def ask(self, type: str, payload: Mapping[str, Any], *, seconds: float = ANSWER_S) -> Any:
        """Once: nobody knows whether it was done when the connection breaks."""
        with _limit(seconds):
            return await (await self.hub()).request(type, payload)
        raise _silent(seconds)

    async def look(self, type: str, payload: Mapping[str, Any]) -> Any:
        """What changes nothing, and is asked again when the connection breaks."""
        with _limit(ANSWER_S):
            while True:
                try:
                    return await (await self.hub()).request(type, payload)
                except ConnectionLost:
                    continue
        raise _silent(ANSWER_S)

    @asynccontextmanager
    async def listening(self, space: str, types: tuple[str, ...]) -> AsyncIterator[AsyncHub]:
        """A connection of its own, so that its replays are nobody else's."""
        hub = self._open_hub(types=types, spaces=(space,), capabilities=NOTHING)
        with _limit(ANSWER_S) as scope:
            await hub.__aenter__()
        if scope.cancelled_caught:
            raise _silent(ANSWER_S)
        try:
            yield hub
        finally:
            # Also when the call was cancelled: else it would stay connected.
            with anyio.CancelScope(shield=True):
                await hub.close()


@asynccontextmanager
async def open_desk(open_hub: OpenHub, *, inside: bool | None = None) -> AsyncIterator[Desk]:
    """Says, asks and hears nothing by itself. When it is known whether it is `inside` a space,
    nobody waits for the hub before it is needed. Else raises `DaemonUnavailable`, or why the
    hub refuses."""
    hub = open_hub(types=(), capabilities=NOTHING)
    connecting = asyncio.create_task(_connected(hub, patient=inside is not None))
    try:
        if inside is None:
            inside = bool((await connecting).space)
        yield Desk(connecting, open_hub, inside=inside)
    finally:
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        await hub.close()


async def _connected(hub: AsyncHub, *, patient: bool) -> AsyncHub:
    while True:
        try:
            return await hub.__aenter__()
        except FATAL:
            raise
        except CarrelError:
            if not patient:
                raise
        await asyncio.sleep(RETRY_S)


@asynccontextmanager
async def reporting(
    context: ToolContext, what: str, total_s: float, every_s: float = PROGRESS_S
) -> AsyncIterator[None]:
    """Reports how long it has taken, for as long as it takes."""
    begun = time.monotonic()

    async def report() -> None:
        while True:
            await context.report_progress(time.monotonic() - begun, total_s, what)
            await anyio.sleep(every_s)

    # No task group: it would wrap what goes wrong meanwhile.
    task = asyncio.create_task(report())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _limit(seconds: float) -> anyio.CancelScope:
    return anyio.move_on_after(seconds)


def _silent(seconds: float) -> DaemonUnavailable:
    return DaemonUnavailable(
        f"The hub did not answer within {seconds:g} seconds.",
        hint="`carrel status` shows whether the daemon is well.",
    )
