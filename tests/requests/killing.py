"""A daemon's service that has requests done, and kills itself with SIGKILL at one of its writes:
see `tests.faults.child`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from carrel.app.service import Services, open_service
from carrel.config import Settings
from carrel.domain.access import LOCAL
from carrel.domain.requests import Check, FrameKind, Generate, Keeping, Policy
from tests.faults.child import SCENARIO_S, Killer, tell
from tests.launchers import fork_launchers
from tests.requests.rig import heard

MADE = Generate(
    "write made.txt whole\nsay it is there",
    request_id="promised",
    check=Check(("sh", "-c", "cat made.txt")),
)
KEPT = Generate("write made.txt whole", request_id="promised", keeping=Keeping(Policy.RETAIN))
SLOW = Generate("write made.txt half\nsleep 1000", request_id="unwanted")


async def ephemeral(services: Services) -> None:
    request = await services.requests.submit(LOCAL, MADE)
    tell(promised=request.key)
    await heard(services, request.key)
    tell(delivered=request.key)
    await services.requests.delivered(LOCAL, request.key)
    await services.requests.settled()


async def retained(services: Services) -> None:
    request = await services.requests.submit(LOCAL, KEPT)
    tell(promised=request.key)
    await heard(services, request.key)
    await services.requests.delivered(LOCAL, request.key)
    await services.requests.settled()
    tell(kept=request.key)
    await services.requests.remove(LOCAL, request.key)
    tell(removed=request.key)


async def cancelled(services: Services) -> None:
    request = await services.requests.submit(LOCAL, SLOW)
    async for frame in services.requests.follow(LOCAL, request.key):
        if frame.kind is FrameKind.EVENT:
            break
    await services.requests.cancel(LOCAL, request.key)
    tell(cancelled=request.key)


async def versioned(services: Services) -> None:
    """The second makes an archive of the first."""
    keeping = Keeping(Policy.VERSIONED, series="api", newest=1)
    for number in (1, 2):
        asked = Generate(f"write made.txt {number}", request_id=f"v{number}", keeping=keeping)
        request = await services.requests.submit(LOCAL, asked)
        tell(version=request.key)
        await heard(services, request.key)
        await services.requests.delivered(LOCAL, request.key)
        await services.requests.settled()


SCENARIOS: dict[str, Callable[[Services], Awaitable[None]]] = {
    "ephemeral": ephemeral,
    "retained": retained,
    "cancelled": cancelled,
    "versioned": versioned,
}


async def main(data: Path, scenario: str, killer: Killer) -> None:
    killer.install()
    async with (
        asyncio.timeout(SCENARIO_S),
        open_service(Settings(data=data, request_agent="scripted")) as services,
    ):
        killer.armed = True
        await SCENARIOS[scenario](services)
        killer.armed = False
        tell(writes=killer.count)


def play(nursery: str, told: str, data: str, scenario: str, moment: str, number: int) -> None:
    fork_launchers(nursery)
    descriptor = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
    sys.stdout = os.fdopen(descriptor, "w")
    asyncio.run(main(Path(data), scenario, Killer(moment, number)))
