"""Requests that are over: nothing of them is in the daemon's memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.requests import FrameKind, Generate
from carrel.service.requests.book import LiveRequest
from tests.requests.rig import ANSWER_S, heard, made

pytestmark = pytest.mark.asyncio(loop_scope="module")


def known() -> set[str]:
    """Keys of those that anybody still has."""
    gc.collect()
    return {one.request.key for one in gc.get_objects() if isinstance(one, LiveRequest)}


async def test_one_that_was_delivered(services: Services) -> None:
    """Its client is heard to have gone before the outcome is said to have reached it."""
    request, _ = await made(services, Generate("write a.txt a"))
    assert request.key not in known()


async def test_one_that_was_cancelled(services: Services) -> None:
    request = await services.requests.submit(LOCAL, Generate("sleep 60"))
    async with asyncio.timeout(ANSWER_S):
        async with contextlib.aclosing(services.requests.follow(LOCAL, request.key)) as frames:
            async for frame in frames:
                if frame.kind is FrameKind.EVENT:
                    break
        await services.requests.cancel(LOCAL, request.key)
    await heard(services, request.key)
    await services.requests.settled()
    assert request.key not in known()
