"""Redis' side of the jobs: blocking clients with the C parser, each in a thread. They are faster
than the asynchronous ones of the same package, which publish too, for comparison."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import redis
import redis.asyncio

from bench.hub_jobs import TYPE, Job, Payload, Result, await_go, filler

FIRST = "0-0"
PAGE = 1000
"""Entries that are read at once."""
BLOCK_MS = 60_000
"""For something new: longer than any pause here."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Payload).decode


def publish(job: Job) -> Result:
    """Each client sends a window of messages, and the next one when all are answered."""
    text = filler(job.size)

    def one(client: Any, stream: str) -> None:
        for first in range(0, job.count, job.window):
            number = min(job.window, job.count - first)
            _add(client, stream, [_payload(text) for _ in range(number)])

    return _in_threads(job, one)


def publish_async(job: Job) -> Result:
    """As `publish`, on one event loop."""
    text = filler(job.size)

    async def one(client: Any, stream: str) -> None:
        for first in range(0, job.count, job.window):
            number = min(job.window, job.count - first)
            await _add(client, stream, [_payload(text) for _ in range(number)])
        await client.aclose()

    async def all() -> Result:
        clients = [redis.asyncio.Redis(unix_socket_path=job.socket) for _ in job.streams]
        await asyncio.gather(*(client.ping() for client in clients))
        await asyncio.to_thread(await_go)
        begun = time.monotonic_ns()
        await asyncio.gather(*map(one, clients, job.streams))
        return Result(begun, time.monotonic_ns())

    return asyncio.run(all())


def pace(job: Job) -> Result:
    """Messages come at a steady rate; those that came while others were on their way go
    together."""
    text, (stream,) = filler(job.size), job.streams
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    client = _connect(job)

    def send() -> None:
        sent = 0
        while sent < job.count:
            payloads = [waiting.get()]
            while not waiting.empty():
                payloads.append(waiting.get())
            _add(client, stream, payloads)
            sent += len(payloads)

    await_go()
    begun = time.monotonic_ns()
    sender = threading.Thread(target=send)
    sender.start()
    for number in range(job.count):
        due_s = (begun + number * 1_000_000_000 // job.rate - time.monotonic_ns()) / 1e9
        if due_s > 0:
            time.sleep(due_s)
        waiting.put(_payload(text))
    sender.join()
    return Result(begun, time.monotonic_ns())


def listen(job: Job) -> Result:
    delays: list[int] = []

    def one(client: Any, stream: str) -> None:
        for payloads in _read(client, stream, job.count, None):
            now = time.monotonic_ns()
            delays.extend([now - payload.sent for payload in payloads])

    done = _in_threads(job, one)
    return msgspec.structs.replace(done, delays=delays)


def replay(job: Job) -> Result:
    """All that is kept, into one client."""

    def one(client: Any, stream: str) -> None:
        for _ in _read(client, stream, job.count, PAGE):
            pass

    return _in_threads(job, one)


def _connect(job: Job) -> Any:
    client = redis.Redis(unix_socket_path=job.socket)
    client.ping()
    return client


def _in_threads(job: Job, work: Callable[[Any, str], None]) -> Result:
    clients = [_connect(job) for _ in job.streams]
    with ThreadPoolExecutor(len(clients)) as pool:
        await_go()
        begun = time.monotonic_ns()
        list(pool.map(work, clients, job.streams))
        return Result(begun, time.monotonic_ns())


def _add(client: Any, stream: str, payloads: list[bytes]) -> Any:
    """Of an asynchronous client, to be awaited."""
    if len(payloads) == 1:
        return client.xadd(stream, _fields(payloads[0]))
    pipeline = client.pipeline(transaction=False)
    for payload in payloads:
        pipeline.xadd(stream, _fields(payload))
    return pipeline.execute()


def _fields(payload: bytes) -> Any:
    return {"type": TYPE, "payload": payload}


def _read(client: Any, stream: str, count: int, page: int | None) -> Any:
    """Payloads, as many at a time as come, until there were so many."""
    last: str | bytes = FIRST
    left = count
    while left > 0:
        answer = client.xread({stream: last}, count=page, block=BLOCK_MS)
        entries = _entries(answer)
        yield [_decode(fields[b"payload"]) for _, fields in entries]
        last = entries[-1][0]
        left -= len(entries)


def _entries(answer: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Of one stream; the two versions of the protocol answer differently."""
    if isinstance(answer, dict):
        (pieces,) = answer.values()
        return [entry for piece in pieces for entry in piece]
    ((_, entries),) = answer
    return list(entries)


def _payload(text: str) -> bytes:
    return _encode(Payload(time.monotonic_ns(), text))


ROLES: dict[str, Callable[[Job], Result]] = {
    one.__name__: one for one in (publish, publish_async, pace, listen, replay)
}
