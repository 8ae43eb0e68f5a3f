"""Carrel's instances, through a daemon and its API, for the benchmarks."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.footprints import inhabitants, steady_own, together
from bench.happenings import Happenings
from bench.own_spaces import Daemon, configured_daemon
from bench.raw_servers import GREETING
from carrel.client import AsyncClient, AsyncInstance, Instance
from carrel.client.instances import Instances
from carrel.domain.instances import ToolCall
from carrel.instances.handshake import greet
from carrel.linux.processes import start_time

GONE_S = 30.0
LOOK_S = 0.001


class OwnInstances:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.happenings = Happenings(daemon.data)

    @property
    def _instances(self) -> Instances:
        return self._daemon.client.instances

    def start(self, server: str | dict[str, object], project: Path) -> tuple[Instance, float]:
        """And the seconds from the request to the answer."""
        begun = time.perf_counter()
        instance = self._instances.start(server, project=project)
        return instance, time.perf_counter() - begun

    def release(self, instance: Instance) -> float:
        """Seconds until its processes, its port and its folder are gone."""
        info = instance.info
        folder = self._daemon.data / "instances" / instance.id
        pids = {pid: start_time(pid) for pid in inhabitants(info.pid, info.port).all}
        begun = time.perf_counter()
        instance.release()
        until = begun + GONE_S
        while folder.exists() or _any_alive(pids) or _answers(info.port):
            if time.perf_counter() > until:
                raise RuntimeError(f"{info.server} does not go")
            time.sleep(LOOK_S)
        return time.perf_counter() - begun

    def until_greeted(self, server: str, project: Path) -> float:
        """Seconds until its client's own handshake over HTTP was answered."""
        begun = time.perf_counter()
        instance = self._instances.start(server, project=project)
        try:
            asyncio.run(greet(instance.url, instance.headers))
            return time.perf_counter() - begun
        finally:
            instance.release()

    def on_streams(self, server: str, project: Path) -> float:
        """Seconds until it has answered a handshake on the socket that is its streams."""
        begun = time.perf_counter()
        instance = self._instances.start(server, project=project, streams=True)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as streams:
                streams.settimeout(GONE_S)
                streams.connect(instance.info.socket)
                streams.sendall(json.dumps(GREETING).encode() + b"\n")
                with streams.makefile("rb") as lines:
                    answer = json.loads(lines.readline() or b"{}")
            took_s = time.perf_counter() - begun
        finally:
            instance.release()
        if "result" not in answer:
            raise RuntimeError(f"{server} answered {answer}")
        return took_s

    # Many at once

    def starts(self, server: str, project: Path, count: int) -> AtOnce:
        """All asked for at the same time, and released afterwards."""
        return asyncio.run(self._starts(server, project, count))

    async def _starts(self, server: str, project: Path, count: int) -> AtOnce:
        async with AsyncClient(data=self._daemon.data) as client:
            done: list[tuple[AsyncInstance, float]] = []

            async def one() -> None:
                found = await client.instances.start(server, project=project)
                done.append((found, time.perf_counter() - begun))

            begun = time.perf_counter()
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(count):
                        group.create_task(one())
                ids = frozenset(found.id for found, _ in done)
                return AtOnce(ids, [took_s for _, took_s in done], _overtaken(done))
            finally:
                await asyncio.gather(*(found.release() for found, _ in done))

    # The manager

    def manager_mb(self) -> float:
        """What the daemon and the launcher have taken."""
        return together((self._daemon.pid, self._daemon.launcher_pid())).made


@dataclass(frozen=True)
class AtOnce:
    """`overtaken` is by how many others, that were asked for later, one was passed at most."""

    ids: frozenset[str]
    took_s: Sequence[float]
    overtaken: int


def _overtaken(done: Sequence[tuple[AsyncInstance, float]]) -> int:
    asked = [found.info.created_at for found, _ in done]
    return max(sum(1 for before in asked[:at] if before > own) for at, own in enumerate(asked))


def _any_alive(pids: dict[int, int | None]) -> bool:
    return any(started is not None and start_time(pid) == started for pid, started in pids.items())


def _answers(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def use(instance: Instance, tool: ToolCall) -> None:
    """A client that comes, calls one tool and goes."""
    asyncio.run(greet(instance.url, instance.headers, tool))


@dataclass(frozen=True)
class Taken:
    """Of the memory, for themselves alone: by the server's own process, by all that came of it,
    by its gate, and by what keeps its sandbox. Millions of bytes."""

    server: float
    tree: float
    gate: float
    keepers: float


def taken(instance: Instance) -> Taken:
    info = instance.info
    found = inhabitants(info.pid, info.port)
    return Taken(
        steady_own(info.pid),
        together(found.server).own,
        together(found.gate).own,
        together(found.keepers).own,
    )


@contextmanager
def open_instances(data: Path, settings: str = "") -> Iterator[OwnInstances]:
    with configured_daemon(data, settings) as daemon:
        yield OwnInstances(daemon)
