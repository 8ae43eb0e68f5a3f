"""Requests that are over: nothing of them is in the daemon's memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.requests import (
    FrameKind,
    Generate,
    Keeping,
    Policy,
    RequestQuery,
    Workspace,
)
from carrel.service.requests.book import LiveRequest
from tests.daemon.rig import LOOK_S
from tests.requests.rig import ANSWER_S, heard, made

pytestmark = pytest.mark.asyncio(loop_scope="module")


def known() -> set[str]:
    """Keys of those that anybody still has."""
    gc.collect()
    return {one.request.key for one in gc.get_objects() if type(one) is LiveRequest}


async def test_one_that_was_delivered(services: Services) -> None:
    """Its client is heard to have gone before the outcome is said to have reached it."""
    request, _ = await made(services, Generate("write a.txt a"))
    assert request.key not in known()


async def test_one_that_somebody_reads_while_its_client_says_done(services: Services) -> None:
    """Nothing is held for who reads it."""
    asked = Generate("write a.txt a", keeping=Keeping(hold_s=600.0))
    request = await services.requests.submit(LOCAL, asked)
    await heard(services, request.key)
    found = (one for one in gc.get_objects() if type(one) is LiveRequest)
    (live,) = (one for one in found if one.request.key == request.key)
    async with asyncio.timeout(ANSWER_S):
        async with live.writing:
            done = asyncio.create_task(services.requests.done(LOCAL, request.key))
            while not live.writing._waiters:
                await asyncio.sleep(LOOK_S)
            read = asyncio.create_task(services.requests.delivered(LOCAL, request.key))
            while len(live.writing._waiters) < 2:
                await asyncio.sleep(LOOK_S)
        await asyncio.gather(done, read)
    await services.requests.settled()
    ended = await services.requests.get(LOCAL, request.key)
    assert ended.workspace is Workspace.GONE and ended.delivered_at == 0.0


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


async def test_lists_hold_nothing_that_is_large(services: Services) -> None:
    """Of one that is kept neither the files' content nor the texts that it was given."""
    asked = Generate(
        "write a.txt " + "long " * 1000,
        context_files={"notes": "x" * 50_000},
        keeping=Keeping(Policy.RETAIN),
        content=True,
    )
    request, frames = await made(services, asked)
    files = frames[-1].data["files"]
    assert isinstance(files, list) and len(files[0]["text"]) > 4000
    listed = await services.requests.list(LOCAL, RequestQuery())
    found = next(one for one in listed if one.key == request.key)
    for one in (request, found):
        assert len(one.asked.instructions) == 500 and not one.asked.context_files
        assert one.result is not None and (one.result.files, one.result.total) == ((), 1)
    told = await services.operations.requests.info(LOCAL, request)
    assert told.instructions == asked.instructions
    assert told.result is not None and list(told.result.files) == files
    await services.requests.remove(LOCAL, request.key)
