"""Carrel's side of the jobs: clients of the hub, on one event loop in each process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from bench.hub_jobs import TYPE, Job, Result, await_end, await_go, filler
from carrel.client import AsyncHub
from carrel.client.hub_protocol import HubMessage

AT_ONCE = 20
"""Clients that connect at the same time."""


def run(job: Job) -> Result:
    return asyncio.run(ROLES[job.role](job))


@asynccontextmanager
async def connected(job: Job, *types: str) -> AsyncIterator[list[AsyncHub]]:
    """One client for each stream, which hears these types of it."""
    hubs = [
        AsyncHub(socket=job.socket, types=types, spaces=(space,) if types else ())
        for space in job.streams
    ]
    async with AsyncExitStack() as stack:
        for first in range(0, len(hubs), AT_ONCE):
            some = hubs[first : first + AT_ONCE]
            await asyncio.gather(*(stack.enter_async_context(hub) for hub in some))
        yield hubs


async def publish(job: Job) -> Result:
    """Each client sends a window of messages, and the next one when all are answered."""
    text = filler(job.size)

    async def one(hub: AsyncHub, space: str) -> None:
        for first in range(0, job.count, job.window):
            number = min(job.window, job.count - first)
            messages = ((TYPE, _payload(text)) for _ in range(number))
            await hub.publish_many(messages, space=space)

    async with connected(job) as hubs:
        await asyncio.to_thread(await_go)
        begun = time.monotonic_ns()
        async with asyncio.TaskGroup() as group:
            for hub, space in zip(hubs, job.streams, strict=True):
                group.create_task(one(hub, space))
        return Result(begun, time.monotonic_ns())


async def pace(job: Job) -> Result:
    """One client publishes at a steady rate, whether or not answers have come."""
    text, (space,) = filler(job.size), job.streams
    async with connected(job) as (hub,), asyncio.TaskGroup() as group:
        await asyncio.to_thread(await_go)
        begun = time.monotonic_ns()
        for number in range(job.count):
            due_s = (begun + number * 1_000_000_000 // job.rate - time.monotonic_ns()) / 1e9
            if due_s > 0:
                await asyncio.sleep(due_s)
            group.create_task(hub.publish(TYPE, _payload(text), space=space))
    return Result(begun, time.monotonic_ns())


async def listen(job: Job) -> Result:
    async with connected(job, TYPE) as hubs:
        await asyncio.to_thread(await_go)
        begun = time.monotonic_ns()
        delays = await asyncio.gather(*(_delays(hub, job.count) for hub in hubs))
        return Result(begun, time.monotonic_ns(), [one for some in delays for one in some])


async def _delays(hub: AsyncHub, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        messages = await hub.batch()
        now = time.monotonic_ns()
        found += [now - message.payload["sent"] for message in messages]
    return found


async def replay(job: Job) -> Result:
    """All that is kept, into one client."""
    async with connected(job, TYPE) as (hub,):
        await asyncio.to_thread(await_go)
        begun = time.monotonic_ns()
        await hub.replay(job.streams[0], seq=0)
        await _take(hub, job.count)
        return Result(begun, time.monotonic_ns())


async def reconnect(job: Job) -> Result:
    """A consumer comes back: from when it connects until it has what it missed."""
    await asyncio.to_thread(await_go)
    begun = time.monotonic_ns()
    hub = AsyncHub(socket=job.socket, types=(TYPE,), spaces=job.streams, consumer=job.consumer)
    async with hub:
        last = await _take(hub, job.count)
        ended = time.monotonic_ns()
        await hub.acknowledge(last)
    return Result(begun, ended)


async def _take(hub: AsyncHub, count: int) -> HubMessage:
    """So many, all in order; gives the last."""
    taken, last = 0, None
    while last is None or taken < count:
        messages = await hub.batch()
        for message in messages:
            if last is not None and message.seq <= last.seq:
                raise RuntimeError(f"after number {last.seq} came {message.seq}")
            last = message
        taken += len(messages)
    return last


async def idle(job: Job) -> Result:
    """Connected, and nothing else."""
    async with connected(job):
        await asyncio.to_thread(await_go)
        begun = time.monotonic_ns()
        await asyncio.to_thread(await_end)
        return Result(begun, time.monotonic_ns())


def _payload(text: str) -> dict[str, object]:
    return {"sent": time.monotonic_ns(), "text": text}


ROLES: dict[str, Callable[[Job], Coroutine[Any, Any, Result]]] = {
    one.__name__: one for one in (publish, pace, listen, replay, reconnect, idle)
}
