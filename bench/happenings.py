"""What a daemon tells of its instances, for those who wait for something that nobody asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Set
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
        self.loaded(server)

    def loaded(self, server: str) -> int:
        """That process."""
        launcher = Launcher(self._data)
        until = time.monotonic() + WAIT_S
        try:
            while time.monotonic() < until:
                for one in launcher.call("zygotes", {}, [])[0]["zygotes"]:
                    if server in one["name"] and one["state"] == "ready":
                        return int(one["pid"])
                time.sleep(LOOK_S)
        finally:
            launcher.close()
        raise RuntimeError(f"no process has loaded {server}")

    def await_compiled(self, count: int) -> None:
        """Until what Node compiles is kept of so many programs."""
        until = time.monotonic() + WAIT_S
        while len(list((self._data / "compiled").glob("*/program.json"))) < count:
            if time.monotonic() > until:
                raise RuntimeError("what was compiled is not kept")
            time.sleep(LOOK_S)

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

    def most_starting(self, of: Set[str]) -> int:
        """How many of these were between their start and their first answer at the same
        time."""
        return asyncio.run(self._most_starting(of))

    async def _most_starting(self, of: Set[str]) -> int:
        starting: set[str] = set()
        ready: set[str] = set()
        most = 0
        async with asyncio.timeout(WAIT_S), aclosing(self._told()) as told:
            async for instance_id, state in told:
                if instance_id in of:
                    (starting if state == "starting" else ready).add(instance_id)
                    most = max(most, len(starting - ready))
                if ready == of:
                    break
        return most

    async def _told(self) -> AsyncGenerator[tuple[str, str], None]:
        async with AsyncClient(data=self._data) as client:
            events = client.events(after=self._seq, types=(EventType.INSTANCE_STATE,))
            async with aclosing(events):
                async for event in events:
                    self._seq = event.seq
                    yield event.data["instance_id"], event.data["to"]
