"""What a daemon tells of its instances, for those who wait for something that nobody asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

from carrel.client import AsyncClient
from carrel.domain.events import EventType
from carrel.launcher.client import Launcher

WAIT_S = 120.0
LOOK_S = 0.02


class Happenings:
    """In the order in which they were told; each is looked at once."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._seq = 0

    def await_loaded(self, server: str) -> None:
        """Until there is a process that has loaded it."""
        launcher = Launcher(self._data)
        until = time.monotonic() + WAIT_S
        try:
            while not any(server in str(one) for one in launcher.call("zygotes", {}, [])[0]["zygotes"]):
                if time.monotonic() > until:
                    raise RuntimeError(f"no process has loaded {server}")
                time.sleep(LOOK_S)
        finally:
            launcher.close()

    def await_spare(self, handed: str) -> None:
        """Until one stands ready that is not the one that was just handed over."""
        asyncio.run(self._await_spare(handed))

    async def _await_spare(self, handed: str) -> None:
        async with asyncio.timeout(WAIT_S), aclosing(self._told()) as told:
            async for instance_id, state in told:
                if state == "failed":
                    raise RuntimeError(f"{instance_id} failed")
                if state == "ready" and instance_id != handed:
                    return

    def most_starting(self, count: int) -> int:
        """How many were between their start and their first answer at the same time, until so
        many were ready."""
        return asyncio.run(self._most_starting(count))

    async def _most_starting(self, count: int) -> int:
        starting: set[str] = set()
        most = ready = 0
        async with asyncio.timeout(WAIT_S), aclosing(self._told()) as told:
            async for instance_id, state in told:
                if state == "starting":
                    starting.add(instance_id)
                    most = max(most, len(starting))
                elif instance_id in starting:
                    starting.discard(instance_id)
                    ready += 1
                    if ready == count:
                        break
        return most

    async def _told(self) -> AsyncIterator[tuple[str, str]]:
        async with AsyncClient(data=self._data) as client:
            events = client.events(after=self._seq, types=(EventType.INSTANCE_STATE,))
            async with aclosing(events):
                async for event in events:
                    self._seq = event.seq
                    yield event.data["instance_id"], event.data["to"]
