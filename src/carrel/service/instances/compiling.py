"""Programs whose interpreter keeps what it compiled: filled once, when nobody waits.

By a run that serves nobody: in a sandbox of its own, with an empty project, to its first answer
and an orderly end. It is a speed-up and no more: where it fails, servers start as they did.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
from collections.abc import Awaitable, Callable

from carrel.domain.errors import CarrelError
from carrel.domain.instances import Found, Instance, InstanceState, Servers
from carrel.domain.reception import CompileCaches
from carrel.domain.runtimes import Network
from carrel.domain.spaces import Problem
from carrel.domain.trees import Owner
from carrel.service.instances.ending import Ender
from carrel.service.instances.live import Book, Live
from carrel.service.instances.places import Places

QUIET_S = 10.0
"""Without a start, before the machine is used for this."""
LEAVE_S = 10.0
"""For a server to end by itself, and to write what it has."""
_log = logging.getLogger("carrel")

Start = Callable[[Instance], Awaitable[Live]]


class Compiling:
    def __init__(
        self,
        caches: CompileCaches,
        servers: Servers,
        book: Book,
        places: Places,
        ender: Ender,
        start: Start,
    ) -> None:
        self._caches = caches
        self._servers = servers
        self._book = book
        self._places = places
        self._ender = ender
        self._start = start
        self._asked: dict[tuple[str, ...], Live] = {}
        """What was started last, by its command."""
        self._tried: set[str] = set()
        """Once each, for one that leaves nothing would do so again: its interpreter is too old."""
        self._timer: asyncio.TimerHandle | None = None
        self._work: asyncio.Task[None] | None = None

    def started(self, asked: Live) -> None:
        """It will be again, some day."""
        instance = asked.instance
        if not instance.space_id and instance.confined:
            self._asked[instance.server.command] = asked
            self._soon()

    def _soon(self) -> None:
        """Put off by every start."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(QUIET_S, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if any(one.instance.state is not InstanceState.READY for one in self._book.all()):
            self._soon()
        elif self._work is None or self._work.done():
            self._work = asyncio.create_task(self._fill_all())

    async def _fill_all(self) -> None:
        while self._asked:
            _, asked = self._asked.popitem()
            try:
                await self._fill_for(asked)
            except (CarrelError, OSError) as error:
                name = asked.instance.server.name
                _log.info("what is compiled of %s is not kept: %s", name, error)

    async def _fill_for(self, asked: Live) -> None:
        server = asked.instance.server
        found = await asyncio.to_thread(self._servers.locate, server)
        path = await asyncio.to_thread(self._caches.of, server, found)
        if not path or path in self._tried or self._caches.is_filled(path):
            return
        self._tried.add(path)
        used = {path for live in self._book.all() for path in live.instance.binds}
        await asyncio.to_thread(self._caches.sweep, used)
        await self._fill(path, asked, found)

    async def _fill(self, path: str, asked: Live, found: Found) -> None:
        with self._caches.empty_project() as project:
            live = await self._start(self._draft(asked, str(project)))
            try:
                await self._leave(live)
                state = (await self._places.of(live.instance)).around.state_path
                await asyncio.to_thread(self._caches.keep, path, found, state)
            finally:
                why = Problem("compile", "compiled", "It was there for later ones to start sooner.")
                await self._ender.end(live, why)

    def _draft(self, asked: Live, project: str) -> Instance:
        return dataclasses.replace(
            asked.instance,
            server=self._caches.filling(asked.instance.server, streams=asked.streams),
            caller="",
            holds=(),
            project_path=project,
            project_owner=Owner(os.geteuid(), os.getegid()),
            network=Network.NONE,
        )

    async def _leave(self, live: Live) -> None:
        """In an orderly way; then whatever is left of it ends."""
        assert live.run is not None
        if live.watch is not None:
            live.watch.cancel()
        place = await self._places.of(live.instance)
        await place.runtime.signal(place.sandbox, live.instance.run_id, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await live.run.wait()
        await self._ender.stop(live)

    async def settled(self) -> None:
        """When all is filled that is to be: now, and not when it is quiet."""
        if self._timer is not None:
            self._timer.cancel()
            self._begin()
        if self._work is not None:
            await asyncio.wait({self._work})

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait({self._work}, timeout=10.0)
