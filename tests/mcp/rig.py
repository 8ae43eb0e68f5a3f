"""Ways to call the tools: from inside a real sandbox, or as a space's agent in this process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from mcp import Client

from carrel import AsyncHub, HubMessage
from carrel.client.aio_spaces import AsyncSpace
from carrel.domain.hub import HUB_SOCKET
from carrel.mcp.hub import open_tool_hub
from carrel.mcp.server import CarrelServer
from tests.daemon.rig import Daemon
from tests.mcp.packing import PYTHON

STEP_S = 60.0
"""For one step, on a busy machine."""
_SCRIPT = f"""export PYTHONPATH=$PWD/site PYTHONDONTWRITEBYTECODE=1
exec {PYTHON} driver.py "$@" """

Step = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Called:
    error: bool
    data: dict[str, Any]
    text: str
    reports: int

    @property
    def good(self) -> dict[str, Any]:
        assert not self.error, self.text
        return self.data

    @property
    def code(self) -> str:
        """Of the error, after a look that it is told in full, twice."""
        assert self.error, self.text
        assert set(self.data) == {"code", "message", "hint"} and self.data["message"]
        assert json.loads(self.text) == self.data
        return str(self.data["code"])


async def drive(
    space: AsyncSpace, transport: str, mode: str, steps: Sequence[Step]
) -> tuple[dict[str, Any], list[Called]]:
    """From inside the space; the tools and the answers."""
    words = ["sh", "-c", _SCRIPT, "driver", transport, mode, json.dumps(steps)]
    async with asyncio.timeout(2 * STEP_S):
        done = await space.run(words)
    assert done.ok, f"{done.stdout}\n{done.stderr}"
    first, *rest = (json.loads(line) for line in done.stdout.splitlines())
    return first, [Called(**one) for one in rest]


@contextlib.asynccontextmanager
async def agent(
    daemon: Daemon, space: str, hub: type[AsyncHub] = AsyncHub
) -> AsyncIterator[Client]:
    """The server of that space, through the space's own socket, with a client to it."""
    path = daemon.data / "spaces" / space / "hub" / HUB_SOCKET
    open_hub = functools.partial(hub, socket=path, kind="agent")
    async with open_tool_hub(open_hub) as desk, Client(CarrelServer(desk)) as client:
        yield client


async def call(client: Client, tool: str, /, **arguments: Any) -> Called:
    reports: list[float] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        reports.append(progress)

    async with asyncio.timeout(STEP_S):
        result = await client.call_tool(tool, arguments, progress_callback=heard)
    text = str(result.content[0].model_dump()["text"])
    return Called(bool(result.is_error), result.structured_content or {}, text, len(reports))


async def heard(hub: AsyncHub, type: str) -> HubMessage:
    """The next of that type."""
    async with asyncio.timeout(STEP_S):
        async for message in hub:
            if message.type == type:
                return message
    raise AssertionError("the hub is closed")


@contextlib.asynccontextmanager
async def person(daemon: Daemon, space: str, kind: str = "cli") -> AsyncIterator[AsyncHub]:
    async with AsyncHub(data=daemon.data, kind=kind, spaces=[space], autostart=False) as hub:
        yield hub


async def answer(hub: AsyncHub, text: str) -> HubMessage:
    """The next question, answered."""
    question = await heard(hub, "buffer_user_question")
    await hub.publish(
        "buffer_user_answer", {"answer": text}, space=question.space, reply_to=question.id
    )
    return question
