"""One measurement of one side: the jobs that make it, and the figure that comes of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from bench.hub_crews import do, duration_s, meanwhile
from bench.hub_jobs import Job

IDLE_PROCESSES = 2
LISTENING_PROCESSES = 2
FILLING = 500
"""Messages on their way at once, when that is not what is measured."""


@dataclass(frozen=True)
class Side:
    """`name` is `carrel` or `redis`."""

    name: str
    socket: str
    options: argparse.Namespace

    def publish(
        self, streams: list[str], messages: int, *, window: int, role: str = "publish"
    ) -> float:
        """Seconds for so many messages, from all clients, which take the streams in turn."""
        options = self.options
        clients = [streams[number % len(streams)] for number in range(options.clients)]
        each: int = -(-messages // options.clients)
        jobs = [
            self._job(role, some, count=each, window=window, size=options.bytes)
            for some in _shared(clients, options.processes)
        ]
        return duration_s(do(jobs)) * messages / (each * len(clients))

    def fill(self, stream: str, messages: int) -> None:
        """Exactly so many messages."""
        size = self.options.bytes
        do([self._job("publish", [stream], count=messages, window=FILLING, size=size)])

    def delays(self, stream: str) -> list[float]:
        """Milliseconds from publishing to receiving: every message at every subscriber."""
        options = self.options
        count = options.rate * options.seconds
        listeners = [
            self._job("listen", some, count=count)
            for some in _shared([stream] * options.subscribers, LISTENING_PROCESSES)
        ]
        pacer = self._job("pace", [stream], count=count, size=options.bytes, rate=options.rate)
        results = do([*listeners, pacer])
        return [delay / 1e6 for result in results for delay in result.delays]

    def replay(self, stream: str, messages: int) -> float:
        """Seconds for all of them, into one client."""
        return duration_s(do([self._job("replay", [stream], count=messages)]))

    def reconnect(self, stream: str, messages: int) -> float:
        """Seconds from connecting until a consumer has what it missed."""
        job = self._job("reconnect", [stream], count=messages, consumer="bench")
        return duration_s(do([job]))

    def idle(self, clients: int) -> AbstractContextManager[None]:
        """So many are connected meanwhile, and do nothing."""
        return meanwhile(
            [self._job("idle", some) for some in _shared([""] * clients, IDLE_PROCESSES)]
        )

    def _job(
        self,
        role: str,
        streams: Iterable[str],
        *,
        count: int = 0,
        window: int = 1,
        size: int = 0,
        rate: int = 0,
        consumer: str = "",
    ) -> Job:
        return Job(
            self.name, role, self.socket, tuple(streams), count, window, size, rate, consumer
        )


def _shared(all: list[str], processes: int) -> list[list[str]]:
    """Each process its part; none without one."""
    return [part for number in range(processes) if (part := all[number::processes])]
