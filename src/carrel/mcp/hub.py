"""The hub as the tools see it: every question has a limit, and what takes long tells so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anyio
import msgspec
from mcp.server.mcpserver import Context

from carrel.api.types.common import Body, members
from carrel.api.types.hub import SYSTEM_REQUESTS, KeptAnswer
from carrel.client.aio_hub import AsyncHub
from carrel.client.hub_protocol import FATAL
from carrel.client.problems import ConnectionLost
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


class ToolHub:
    """`inside`: it speaks for a space, in which its client runs or which its token is for."""

    def __init__(self, *, inside: bool) -> None:
        self.inside = inside
        self._open_hub: OpenHub | None = None
        self._client: AsyncHub | None = None
        self._connecting: asyncio.Task[AsyncHub] | None = None

    @asynccontextmanager
    async def connected(self, open_hub: OpenHub) -> AsyncIterator[None]:
        """Connects with the first tool that needs it: many sessions call none."""
        self._open_hub = open_hub
        self._client = open_hub(types=(), capabilities=NOTHING)
        try:
            yield
        finally:
            if self._connecting is not None:
                self._connecting.cancel()
                await asyncio.gather(self._connecting, return_exceptions=True)
            await self._client.close()

    async def hub(self) -> AsyncHub:
        """As soon as it is connected. Raises `DaemonUnavailable`, or why the hub refuses."""
        if self._connecting is None:
            assert self._client is not None
            self._connecting = asyncio.create_task(_connect(self._client))
        with _limit(ANSWER_S):
            return await asyncio.shield(self._connecting)
        raise _silent(ANSWER_S)

    async def own(self) -> str:
        """The space that it speaks for; empty outside."""
        return (await self.hub()).space

    async def publish(self, type: str, message: Body) -> KeptAnswer:
        """Returns when it is kept."""
        payload = {name: value for name, value in members(message).items() if value is not None}
        with _limit(ANSWER_S):
            return KeptAnswer(seq=(await (await self.hub()).publish(type, payload)).seq)
        raise _silent(ANSWER_S)

    async def ask(self, type: str, payload: Body, *, seconds: float = ANSWER_S) -> Any:
        """Asks Carrel once: nobody knows whether it was done when the connection breaks. The
        answer is of the type that the contract has for this request."""
        with _limit(seconds):
            found = await (await self.hub()).request(type, members(payload))
            return msgspec.convert(found, SYSTEM_REQUESTS[type].answer)
        raise _silent(seconds)

    async def look(self, type: str, payload: Body) -> Any:
        """Asks what changes nothing, and asks again when the connection breaks."""
        with _limit(ANSWER_S):
            while True:
                try:
                    return await self.ask(type, payload)
                except ConnectionLost:
                    continue
        raise _silent(ANSWER_S)

    @asynccontextmanager
    async def listening(self, types: tuple[str, ...], *spaces: str) -> AsyncIterator[AsyncHub]:
        """A connection of its own, so that its replays are nobody else's. Without spaces nothing
        comes but what is replayed."""
        assert self._open_hub is not None
        hub = self._open_hub(types=types, spaces=spaces, capabilities=NOTHING)
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
async def open_tool_hub(open_hub: OpenHub) -> AsyncIterator[ToolHub]:
    """Asks the hub first for whom this speaks. Raises `DaemonUnavailable`, or why it refuses."""
    async with open_hub(types=(), capabilities=NOTHING) as asked:
        found = ToolHub(inside=bool(asked.space))
    async with found.connected(open_hub):
        yield found


async def _connect(hub: AsyncHub) -> AsyncHub:
    """However long that takes. Raises why the hub refuses."""
    while True:
        try:
            return await hub.__aenter__()
        except FATAL:
            raise
        except CarrelError:
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
