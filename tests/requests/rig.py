"""What tests of requests share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.requests import Frame, FrameKind, Generate, Request

ANSWER_S = 60.0
"""A request of the tests takes a fifth of a second; a loaded machine may need more."""
LAST = frozenset({FrameKind.RESULT, FrameKind.ERROR})


async def heard(services: Services, key: str, after: int = 0) -> list[Frame]:
    """All that its client hears, to the outcome."""
    async with asyncio.timeout(ANSWER_S):
        return [frame async for frame in services.requests.follow(LOCAL, key, after)]


async def made(services: Services, asked: Generate) -> tuple[Request, list[Frame]]:
    """One request to its end, whose outcome was delivered, and cleaned up after."""
    request = await services.requests.submit(LOCAL, asked)
    frames = await heard(services, request.key)
    await services.requests.delivered(LOCAL, request.key)
    await services.requests.settled()
    return await services.requests.get(LOCAL, request.key), frames


def paths(frames: Sequence[Frame]) -> list[str]:
    """Of the files of a result."""
    assert frames[-1].kind is FrameKind.RESULT, frames[-1]
    files = frames[-1].data["files"]
    assert isinstance(files, list)
    return [file["path"] for file in files]
