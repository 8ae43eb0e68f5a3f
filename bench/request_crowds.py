"""Many requests at once: whether each gets its own, and whose turn comes when."""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from bench.own_requests import ANSWER_S, Connection, OwnRequests, RequestFailed, Wanted

_LOOK_S = 0.01


@dataclass(frozen=True)
class Crowd:
    """`unfair` is how far the mean places at which connections got their results lie apart, as
    a share of all places. `lost` have no result, `mixed` one that is not theirs."""

    took_s: float
    lost: int
    mixed: int
    unfair: float


def crowd(own: OwnRequests, connections: int, each: int) -> Crowd:
    """All ask at the same time."""
    return asyncio.run(_crowd(own, connections, each))


async def _crowd(own: OwnRequests, connections: int, each: int) -> Crowd:
    finished: list[int] = []
    lost = mixed = 0

    async def one(connection: Connection, number: int, wanted: Wanted) -> None:
        nonlocal lost, mixed
        try:
            frame = await connection.ask(wanted)
        except (TimeoutError, OSError):
            lost += 1
            return
        finished.append(number)
        try:
            wanted.check(frame)
        except RequestFailed:
            mixed += 1

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(own.connected()) for _ in range(connections)]
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for turn in range(each):
                for number, client in enumerate(clients):
                    group.create_task(one(client, number, _wanted(number, turn)))
        took_s = time.perf_counter() - begun
        await own.quiet()
    return Crowd(took_s, lost, mixed, _unfair(finished, connections))


def crowd_by_hand(connections: int, each: int) -> list[Wanted]:
    """The same, for whoever does it without Carrel."""
    return [_wanted(number, turn) for number in range(connections) for turn in range(each)]


def _wanted(number: int, turn: int) -> Wanted:
    return Wanted(f"of-{number}-{turn}.txt", f"made for {number}, {turn}")


def _unfair(finished: list[int], connections: int) -> float:
    places: dict[int, list[int]] = {number: [] for number in range(connections)}
    for place, number in enumerate(finished):
        places[number].append(place)
    means = [statistics.mean(own) for own in places.values() if own]
    return (max(means) - min(means)) / len(finished)


def behind_a_greedy_one(own: OwnRequests, greedy: int, others: int) -> int:
    """One connection has asked for many; then others ask for one each. How many results there
    were in all until the last of those had theirs."""
    return asyncio.run(_behind_a_greedy_one(own, greedy, others))


async def _behind_a_greedy_one(own: OwnRequests, greedy: int, others: int) -> int:
    results = last = 0

    async def one(connection: Connection, wanted: Wanted, counts: bool) -> None:
        nonlocal results, last
        wanted.check(await connection.ask(wanted))
        results += 1
        if counts:
            last = results

    async with AsyncExitStack() as stack:
        first, *rest = [await stack.enter_async_context(own.connected()) for _ in range(1 + others)]
        async with asyncio.TaskGroup() as group:
            for turn in range(greedy):
                group.create_task(one(first, _wanted(0, turn), counts=False))
            async with asyncio.timeout(ANSWER_S):
                while len(first.heard_of) < greedy:
                    await asyncio.sleep(_LOOK_S)
            before = results
            for number, client in enumerate(rest, start=1):
                group.create_task(one(client, _wanted(number, 0), counts=True))
        await own.quiet()
    return last - before
