"""Many scripted agents at once: how fast their events come, and whether all of them do."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.own_spaces import Daemon
from carrel.client import AsyncClient, AsyncHub, AsyncSpace

WAIT_S = 120.0
"""Longer than any pause between two events here."""
BEFORE, AFTER = 2, 2
"""Events around what an agent says: it runs, its turn's number; how it ended, and `complete`."""


@dataclass(frozen=True)
class Streamed:
    """Events a second, from the first that was heard and from when the agents were asked for;
    `wrong` events were missing, came twice or came out of order, at the listener or in the
    log."""

    rate: float
    rate_from_start: float
    wrong: int


def stream(daemon: Daemon, agents: int, events: int) -> Streamed:
    return asyncio.run(_stream(daemon, agents, events))


async def _stream(daemon: Daemon, agents: int, events: int) -> Streamed:
    async with AsyncClient(data=daemon.data) as client:
        spaces = [await client.create(agent="scripted") for _ in range(agents)]
        ids = [space.id for space in spaces]
        async with AsyncHub(data=daemon.data, types=["agent.message"], spaces=ids) as hub:
            begun = time.perf_counter()
            sending = [asyncio.create_task(_say(space, events)) for space in spaces]
            heard = Heard(hub, ids)
            await heard.until(agents * events)
            await asyncio.gather(*sending)
        said = range(BEFORE + 1, BEFORE + events + 1)
        wrong = sum(faults(heard.seqs[space], said) for space in ids)
        wrong += await _wrong_in_log(daemon, ids, events)
        for space in spaces:
            await space.remove(force=True)
    later = agents * events - heard.at_first
    return Streamed(
        later / (heard.last - heard.first), agents * events / (heard.last - begun), wrong
    )


async def _say(space: AsyncSpace, events: int) -> None:
    ended = await space.send(f"repeat {events} say hi")
    if ended.result is None or not ended.result.success:
        raise RuntimeError(f"scripted: {ended.result}")


async def _wrong_in_log(daemon: Daemon, spaces: Sequence[str], events: int) -> int:
    all_of_one = range(1, BEFORE + events + AFTER + 1)
    async with AsyncHub(data=daemon.data, types=["agent.*"], spaces=spaces) as hub:
        for space in spaces:
            await hub.replay(space, seq=0)
        found = Heard(hub, spaces)
        await found.until(len(spaces) * len(all_of_one))
    return sum(faults(found.seqs[space], all_of_one) for space in spaces)


class Heard:
    """The numbers of events within their turns, as they came, by space."""

    def __init__(self, hub: AsyncHub, spaces: Iterable[str]) -> None:
        self._hub = hub
        self.seqs: dict[str, list[int]] = {space: [] for space in spaces}
        self.first = self.last = 0.0
        self.at_first = 0

    async def until(self, count: int) -> None:
        """So many, or all that come: what is missing is not waited for without end."""
        while count > 0:
            try:
                async with asyncio.timeout(WAIT_S):
                    batch = await self._hub.batch()
            except TimeoutError:
                return
            self.last = time.perf_counter()
            if not self.first:
                self.first, self.at_first = self.last, len(batch)
            for message in batch:
                self.seqs[message.space].append(message.payload["seq"])
            count -= len(batch)


def faults(found: Sequence[int], wanted: Sequence[int]) -> int:
    missing = len(set(wanted) - set(found))
    twice = len(found) - len(set(found))
    disordered = sum(after < before for before, after in itertools.pairwise(found))
    return missing + twice + disordered
