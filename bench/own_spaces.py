"""Carrel's spaces, through a daemon and its API, for the benchmarks."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measuring import say
from bench.sandbox_rivals import SAID, WORDS
from carrel.client import AsyncClient, AsyncSpace, Client, Space
from carrel.client.exchange import RunExchange
from carrel.client.http import asking
from carrel.client.options import command_content
from carrel.client.streams import RunStream
from carrel.daemon import control
from carrel.launcher.client import Launcher, Reply
from carrel.linux import processes
from carrel.runtimes.engine import LINGER_S

AT_ONCE = 8
"""Spaces that are made or removed at the same time, when that is not what is measured."""
END_S = 20.0
"""A process that was killed is gone at once; one that waits for a disk is not."""
IDLE_S = LINGER_S + 50.0
"""For the sandboxes of all spaces to end, which they do when nothing ran for a while."""
_LOOK_S = 0.1
_CPU_OF_PROCESS = 2
"""How the kernel numbers that clock of another process; see clock_getcpuclockid(3)."""


@dataclass(frozen=True)
class Times:
    """From when the request for a space was sent: until it was there, and until the first
    byte of the output of a command in it."""

    created_s: float
    interactive_s: float


class Daemon:
    """On a data folder of its own. `base` is what its spaces start from."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.base = ""
        self.pid = control.start(data)
        self.client = Client(data=data)

    # One at a time

    def interactive(self, **more: Any) -> tuple[Space, Times]:
        """`more` is said of the space, which starts from the base unless that names a project."""
        origin: dict[str, Any] = {} if "project" in more else {"base": self.base}
        begun = time.perf_counter()
        space = self.client.create(**origin, **more)
        created = time.perf_counter()
        content = {**command_content(WORDS, {}), "stdin": False}
        with RunStream(self.client.link, RunExchange.starting(space.id, content)).open() as stream:
            outputs = stream.exchange.take()
            while not outputs:
                stream.wait()
                outputs += stream.exchange.take()
            answered = time.perf_counter()
            outputs += list(stream)
        said = b"".join(output.data for output in outputs)
        if said.decode() != SAID:
            raise RuntimeError(f"the command said {said!r}")
        return space, Times(created - begun, answered - begun)

    def newest(self, limit: int) -> list[str]:
        """Their ids."""
        page = self.client.link.json(asking("/v1/spaces", [("limit", limit)]))
        return [space["id"] for space in page["spaces"]]

    def all(self) -> int:
        """How many spaces there are, after a look at each."""
        return sum(1 for _ in self.client.spaces())

    # Many at once

    def burst(self, count: int) -> float:
        """Spaces a second, each with a command that has run; all asked for at the same time."""
        return asyncio.run(self._burst(count))

    async def _burst(self, count: int) -> float:
        async with AsyncClient(data=self.data) as client:

            async def one() -> None:
                await _use(await client.create(base=self.base))

            begun = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for _ in range(count):
                    group.create_task(one())
            return count / (time.perf_counter() - begun)

    def grow(self, count: int) -> None:
        """Until there are so many spaces, each of them used."""
        asyncio.run(self._grow(count))

    async def _grow(self, count: int) -> None:
        async with AsyncClient(data=self.data) as client:
            gate = asyncio.Semaphore(AT_ONCE)

            async def one() -> None:
                async with gate:
                    await _use(await client.create(base=self.base))

            there = len([space async for space in client.spaces()])
            async with asyncio.TaskGroup() as group:
                for _ in range(count - there):
                    group.create_task(one())

    def shrink(self, count: int) -> None:
        """Removes the newest until there are so many."""
        asyncio.run(self._shrink(count))

    async def _shrink(self, count: int) -> None:
        async with AsyncClient(data=self.data) as client:
            gate = asyncio.Semaphore(AT_ONCE)

            async def one(space: AsyncSpace) -> None:
                async with gate:
                    await space.remove(force=True)

            spaces = [space async for space in client.spaces()]
            async with asyncio.TaskGroup() as group:
                for space in spaces[: len(spaces) - count]:
                    group.create_task(one(space))

    # The processes

    def memory_mb(self) -> float:
        """Of the daemon, in millions of bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024 / 1e6
        raise RuntimeError("the daemon has ended")

    def cpu_s(self) -> float:
        """That the daemon has used since its start, and those of its processes that have ended."""
        ended = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[13:15]
        own = time.clock_gettime((~self.pid << 3) | _CPU_OF_PROCESS)
        return own + sum(map(int, ended)) / os.sysconf("SC_CLK_TCK")

    def work_s(self) -> float:
        """The processor time of the daemon and the launcher, with all of theirs that have ended."""
        return self.cpu_s() + _processor_s(self.launcher_pid())

    def helpers(self) -> int:
        """All processes below the daemon and the launcher."""
        launcher = self.launcher_pid()
        return len(processes.descendants(self.pid)) + len(processes.descendants(launcher))

    def launcher_pid(self) -> int:
        return int(self._launcher()["pid"])

    def await_idle(self) -> None:
        """Until no space has a sandbox that is set up."""
        until = time.monotonic() + IDLE_S
        while self._launcher()["sandboxes"]:
            if time.monotonic() > until:
                raise RuntimeError("sandboxes in which nothing runs do not end")
            time.sleep(_LOOK_S)

    def _launcher(self) -> Reply:
        launcher = Launcher(self.data)
        try:
            return launcher.call("hello", {}, [])[0]
        finally:
            launcher.close()

    def kill(self) -> None:
        """As a crash would; returns when it is gone."""
        descriptor = os.pidfd_open(self.pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            if not select.select([descriptor], [], [], END_S)[0]:
                raise RuntimeError("the daemon does not end")
        finally:
            os.close(descriptor)

    def start(self) -> None:
        """Returns when it serves."""
        self.pid = control.start(self.data)

    def stop(self) -> None:
        control.stop(self.data)


async def _use(space: AsyncSpace) -> None:
    result = await space.run(WORDS)
    if result.code != 0 or result.stdout != SAID:
        raise RuntimeError(f"the command ended with {result}")


@contextmanager
def configured_daemon(data: Path, settings: str) -> Iterator[Daemon]:
    """With these settings, and none of a person's."""
    config = data.with_suffix(".toml")
    config.write_text(settings)
    before = os.environ.get("CARREL_CONFIG")
    os.environ["CARREL_CONFIG"] = str(config)
    try:
        with open_daemon(data) as daemon:
            yield daemon
    finally:
        os.environ.pop("CARREL_CONFIG")
        if before is not None:
            os.environ["CARREL_CONFIG"] = before


@contextmanager
def open_daemon(data: Path) -> Iterator[Daemon]:
    """Afterwards its spaces are removed, and it and its launcher have ended."""
    daemon = Daemon(data)
    try:
        yield daemon
    finally:
        say("removing all spaces")
        if not control.status(data).running:
            daemon.start()
        daemon.shrink(0)
        daemon.client.close()
        daemon.stop()
        Launcher(data).shutdown(force=True)


def _processor_s(pid: int) -> float:
    """Of a process and its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
    return sum(map(int, fields)) / os.sysconf("SC_CLK_TCK")
