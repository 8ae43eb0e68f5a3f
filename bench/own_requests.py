"""Carrel's requests, through a daemon and real WebSockets, for the benchmarks."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, unix_connect

from bench.measuring import say
from bench.own_spaces import Daemon, configured_daemon
from carrel.client.http import asking
from carrel.daemon import places

ANSWER_S = 300.0
"""For one result, with hundreds before it on a loaded machine."""
HOLD_S = 60.0
"""So long the workspace stays for a look at its agent's own time."""
SAID_EVERY = 500
_LOOK_S = 0.01
_ENDS = ("result", "error")


class RequestFailed(Exception):
    """There is no result, or one that is not what was asked for."""


@dataclass(frozen=True)
class Wanted:
    """One file, which is all that the result may have."""

    path: str
    text: str
    project: str = ""

    @property
    def instructions(self) -> str:
        return f"write {self.path} {self.text}\nsay done"

    def check(self, frame: dict[str, Any]) -> None:
        if frame["type"] != "result" or not frame["complete"]:
            raise RequestFailed(f"{self.path}: {frame}")
        found = [(file["path"], file["change"], file.get("text")) for file in frame["files"]]
        if found != [(self.path, "added", f"{self.text}\n")]:
            raise RequestFailed(f"{self.path}: the result has {found}")


@dataclass(frozen=True)
class Took:
    """Seconds from `generate` sent to `result` received, and of its agent."""

    whole_s: float
    agent_s: float

    @property
    def own_s(self) -> float:
        return self.whole_s - self.agent_s


class Connection:
    """One client. Frames that are no outcome are read and thrown away."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._name = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._open: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self.heard_of: set[str] = set()
        """Requests of which anything was heard: they are in the line, or further."""

    async def read(self) -> None:
        async for message in self._socket:
            frame = json.loads(message)
            self.heard_of.add(frame["request_id"])
            if frame["type"] in _ENDS:
                self._open.pop(frame["request_id"]).set_result(frame)

    async def ask(self, wanted: Wanted, hold_s: float = 0.0) -> dict[str, Any]:
        """The outcome, looked at by nobody yet."""
        name = f"{self._name}-{next(self._numbers)}"
        outcome: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._open[name] = outcome
        asked = {
            "type": "generate",
            "request_id": name,
            "instructions": wanted.instructions,
            "project": wanted.project,
            "frontend": "scripted",
            "retention": {"hold_s": hold_s},
            "content": True,
        }
        await self._socket.send(json.dumps(asked))
        async with asyncio.timeout(ANSWER_S):
            return await outcome

    async def done(self, frame: dict[str, Any]) -> None:
        await self._socket.send(json.dumps({"type": "done", "request_id": frame["request_id"]}))


class OwnRequests:
    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon

    def one_by_one(self, wanted: Sequence[Wanted]) -> Iterator[Took]:
        """Each is asked for when the one before it has been cleaned up."""
        with asyncio.Runner() as runner:
            opened = self.connected()
            connection = runner.run(opened.__aenter__())
            try:
                for one in wanted:
                    yield runner.run(self._timed(connection, one))
            finally:
                runner.run(opened.__aexit__(None, None, None))

    async def _timed(self, connection: Connection, wanted: Wanted) -> Took:
        begun = time.perf_counter()
        frame = await connection.ask(wanted, HOLD_S)
        whole_s = time.perf_counter() - begun
        wanted.check(frame)
        agent_s = await asyncio.to_thread(self._agent_s, frame["request_id"])
        await connection.done(frame)
        await self.quiet()
        return Took(whole_s, agent_s)

    def _agent_s(self, request_id: str) -> float:
        link = self.daemon.client.link
        run_id = link.json(asking(f"/v1/requests/{request_id}"))["run_id"]
        ended = link.json(asking(f"/v1/runs/{run_id}"))["exit"]
        begun_at, ended_at = map(datetime.fromisoformat, (ended["started_at"], ended["ended_at"]))
        return (ended_at - begun_at).total_seconds()

    def in_a_row(self, count: int, lanes: int) -> float:
        """Seconds for so many on one connection, each checked; so many are under way."""
        return asyncio.run(self._in_a_row(count, lanes))

    async def _in_a_row(self, count: int, lanes: int) -> float:
        numbers = iter(range(count))

        async def lane(connection: Connection) -> None:
            for number in numbers:
                if number % SAID_EVERY == SAID_EVERY - 1:
                    say(f"{number + 1} of {count}")
                wanted = Wanted(f"row-{number}.txt", f"hello {number}")
                wanted.check(await connection.ask(wanted))

        async with self.connected() as connection:
            begun = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for _ in range(lanes):
                    group.create_task(lane(connection))
            took_s = time.perf_counter() - begun
            await self.quiet()
        return took_s

    async def quiet(self) -> None:
        """Until no request has a workspace."""
        until = time.monotonic() + ANSWER_S
        while await asyncio.to_thread(self.daemon.newest, 1):
            if time.monotonic() > until:
                raise RequestFailed("workspaces do not go")
            await asyncio.sleep(_LOOK_S)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        path = places.socket(self.daemon.data)
        async with unix_connect(path, "ws://carrel/v1/requests", max_size=None) as socket:
            connection = Connection(socket)
            reading = asyncio.create_task(connection.read())
            try:
                yield connection
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)


@contextmanager
def open_requests(data: Path, settings: str = "") -> Iterator[OwnRequests]:
    """Of a daemon with these settings."""
    with configured_daemon(data, settings) as daemon:
        yield OwnRequests(daemon)
