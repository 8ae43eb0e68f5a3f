"""What is ready before anybody asks: processes that have loaded a server, spare instances, bridges,
compiled programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.access import LOCAL, begin_for
from carrel.domain.collaborators import Machine, Users
from carrel.domain.errors import CarrelError
from carrel.domain.instances import Found, Instance, InstanceState, Server, Servers, Wrap
from carrel.domain.runtimes import Network, Runtime, WarmRuntime
from carrel.domain.server_adapter import CompileCaches, ServerAdapter, Surroundings
from carrel.domain.spaces import AUTO, Problem
from carrel.domain.trees import Owner
from carrel.service.instances.book import InstanceBook, LiveInstance
from carrel.service.instances.lifetime import Ender
from carrel.service.instances.places import Places
from carrel.service.shared import Errands

HOME = "/home/user"
"""As sandboxes have it."""
RETRY_S = 60.0
"""After a failure: what is wrong with an installation is not mended by asking again."""
_log = logging.getLogger("carrel")


@dataclass(frozen=True)
class Warm:
    """`state` is the path of its own folder that the process has noted."""

    name: str
    owner: Owner
    state: str


class Warming:
    def __init__(
        self, folder: Path, servers: Servers, adapter: ServerAdapter, machine: Machine, users: Users
    ) -> None:
        """`folder` has a folder for each, which it may write in while it loads."""
        self._folder = folder
        self._servers = servers
        self._adapter = adapter
        self._machine = machine
        self._users = users
        self._ready: dict[str, tuple[Server, Warm]] = {}
        self._coming: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}

    def begin(self) -> None:
        """Loads all that the definitions want to be warm."""
        for status in self._servers.list():
            if status.server.warm > 0 and status.installed and status.server.wrap is Wrap.UVICORN:
                self._load(status.server)

    def of(self, instance: Instance) -> Warm | None:
        """One that this instance can be forked from. Asked for one that is not there, it is
        made, for the next time."""
        server = instance.server
        if server.warm <= 0 or server.wrap is not Wrap.UVICORN:
            return None
        if instance.space_id or not instance.confined:
            return None
        if instance.network is not Network.NONE:
            return None
        found = self._ready.get(server.name)
        if found is not None and _same(found[0], server):
            return found[1]
        self._load(server)
        return None

    def lost(self, name: str) -> None:
        """It is not there any more."""
        self._ready.pop(name, None)

    def _load(self, server: Server) -> None:
        task = self._coming.get(server.name)
        now = asyncio.get_running_loop().time()
        if now < self._not_before.get(server.name, 0.0):
            return
        if task is None or task.done():
            self._coming[server.name] = begin_for(LOCAL.name, self._warm_up(server))

    async def _warm_up(self, server: Server) -> None:
        try:
            runtime = await self._machine.runtime(AUTO)
            if not isinstance(runtime, WarmRuntime):
                return
            found = await asyncio.to_thread(self._servers.locate, server)
            await self._make(server, found, runtime)
        except (CarrelError, OSError) as error:
            _log.warning("%s is not kept warm: %s", server.name, error)
            now = asyncio.get_running_loop().time()
            self._not_before[server.name] = now + RETRY_S

    async def _make(self, server: Server, found: Found, runtime: WarmRuntime) -> None:
        name = f"warm-{server.name}"
        owner = self._users.take(name)
        state = self._folder / server.name
        await asyncio.to_thread(_make_folder, state, owner)
        around = Surroundings(
            project="/workspace",
            state=str(state),
            state_path=state,
            private_network=True,
            alone=True,
            preloaded=True,
        )
        zygote = self._adapter.zygote(server, found, around, owner)
        if zygote is None:
            return
        env = {"HOME": HOME, **zygote.env}
        await runtime.warm_up(dataclasses.replace(zygote, name=name, env=env))
        self._ready[server.name] = (server, Warm(name, owner, str(state)))

    async def settled(self) -> None:
        """When nothing is being loaded any more."""
        if self._coming:
            await asyncio.wait(self._coming.values())

    async def close(self) -> None:
        for task in self._coming.values():
            task.cancel()
        if self._coming:
            await asyncio.wait(self._coming.values(), timeout=10.0)
        for _, warm in list(self._ready.values()):
            runtime = await self._machine.runtime(AUTO)
            if isinstance(runtime, WarmRuntime):
                with contextlib.suppress(CarrelError):
                    await runtime.cool_down(warm.name)
        self._ready.clear()


def _same(one: Server, other: Server) -> bool:
    """As far as the loading goes."""
    return dataclasses.replace(one, tool_ready=None, ready_s=0.0) == dataclasses.replace(
        other, tool_ready=None, ready_s=0.0
    )


def _make_folder(folder: Path, owner: Owner) -> None:
    folder.parent.mkdir(mode=0o711, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(folder, owner.uid, owner.gid)


# Instances that stand ready for projects that were asked for lately.

UNUSED_S = 900.0
"""One that nobody asked for in that time goes."""
NOBODY = ""
"""Whose they are until somebody takes one."""
_SAME = ("server", "project_path", "network", "limits", "confined")

Start = Callable[[Instance], Awaitable[LiveInstance]]


class Spares:
    """Of each kind of server as many as its definition says, one for each of the projects that
    were asked for last."""

    def __init__(self, book: InstanceBook, ender: Ender, start: Start) -> None:
        self._book = book
        self._ender = ender
        self._start = start
        self._errands = Errands(_not_kept)

    def take(self, wanted: LiveInstance) -> LiveInstance | None:
        """One that is just what is wanted; it is the caller's from now on."""
        if wanted.streams or wanted.env:
            return None
        for live in self._book.all():
            ready = live.spare and live.instance.state is InstanceState.READY
            if ready and not live.leaving and _alike(live.instance, wanted.instance):
                live.spare = False
                return live
        return None

    def refill(self, wanted: LiveInstance) -> None:
        """For the project that was just asked for, unless one is there already."""
        last, server = wanted.instance, wanted.instance.server
        if server.warm <= 0 or last.space_id or wanted.streams or wanted.env:
            return
        mine = [live for live in self._book.all() if live.spare and not live.leaving]
        same = [live for live in mine if live.instance.server.name == server.name]
        if any(_alike(live.instance, last) for live in same):
            return
        oldest = sorted(same, key=lambda live: live.instance.created_at)
        for live in oldest[: max(0, len(same) + 1 - server.warm)]:
            self._let_go(live, "Other projects were asked for since.")
        self._errands.begin(self._make(last))

    async def _make(self, last: Instance) -> None:
        live = await self._start(dataclasses.replace(last, caller=NOBODY, holds=()))
        loop = asyncio.get_running_loop()
        live.ends.append(loop.call_later(UNUSED_S, self._unused, live).cancel)

    def _unused(self, live: LiveInstance) -> None:
        if live.spare:
            self._let_go(live, "Nobody asked for it.")

    def _let_go(self, live: LiveInstance, why: str) -> None:
        # Its end only begins later, and until then somebody might take it.
        live.spare = False
        self._errands.begin(self._end(live, Problem("spare", "not_needed", why)))

    async def _end(self, live: LiveInstance, why: Problem) -> None:
        try:
            await self._ender.end(live, why)
        except BaseException:
            # It is there all the same.
            live.spare = True
            raise

    async def settled(self) -> None:
        """When all that is to stand ready does."""
        await self._errands.settled()

    async def close(self) -> None:
        await self._errands.close()


def _not_kept(error: BaseException) -> None:
    foreseen = isinstance(error, CarrelError)
    _log.warning("no instance can be kept ready: %s", error, exc_info=None if foreseen else error)


def _alike(one: Instance, other: Instance) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in _SAME)


# Programs whose interpreter keeps what it compiled: filled once, when nobody waits.
#
# By a run that serves nobody: in a sandbox of its own, with an empty project, to its first answer
# and an orderly end. It is a speed-up and no more: where it fails, servers start as they did.

QUIET_S = 10.0
"""Without a start, before the machine is used for this."""
LEAVE_S = 10.0
"""For a server to end by itself, and to write what it has."""


class Compiling:
    def __init__(
        self,
        caches: CompileCaches,
        servers: Servers,
        book: InstanceBook,
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
        self._asked: dict[tuple[str, ...], LiveInstance] = {}
        """What was started last, by its command."""
        self._tried: set[str] = set()
        """Once each, for one that leaves nothing would do so again: its interpreter is too old."""
        self._timer: asyncio.TimerHandle | None = None
        self._work: asyncio.Task[None] | None = None

    def started(self, asked: LiveInstance) -> None:
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
            self._work = begin_for(LOCAL.name, self._fill_all())

    async def _fill_all(self) -> None:
        while self._asked:
            _, asked = self._asked.popitem()
            try:
                await self._fill_for(asked)
            except (CarrelError, OSError) as error:
                name = asked.instance.server.name
                _log.info("what is compiled of %s is not kept: %s", name, error)

    async def _fill_for(self, asked: LiveInstance) -> None:
        server = asked.instance.server
        found = await asyncio.to_thread(self._servers.locate, server)
        path = await asyncio.to_thread(self._caches.of, server, found)
        if not path or path in self._tried or self._caches.is_filled(path):
            return
        self._tried.add(path)
        used = {path for live in self._book.all() for path in live.instance.binds}
        await asyncio.to_thread(self._caches.sweep, used)
        await self._fill(path, asked, found)

    async def _fill(self, path: str, asked: LiveInstance, found: Found) -> None:
        with self._caches.empty_project() as project:
            live = await self._start(self._draft(asked, str(project)))
            try:
                await self._leave(live)
                state = (await self._places.of(live.instance)).around.state_path
                await asyncio.to_thread(self._caches.keep, path, found, state)
            finally:
                why = Problem("compile", "compiled", "It was there for later ones to start sooner.")
                await self._ender.end(live, why)

    def _draft(self, asked: LiveInstance, project: str) -> Instance:
        return dataclasses.replace(
            asked.instance,
            server=self._caches.filling(asked.instance.server, streams=asked.streams),
            caller="",
            holds=(),
            project_path=project,
            project_owner=Owner(os.geteuid(), os.getegid()),
            network=Network.NONE,
        )

    async def _leave(self, live: LiveInstance) -> None:
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


# The process that has loaded the bridge, which all servers on streams are forked bridges of.
#
# It is Carrel's own code, the same for each of them, so there is one, and nobody has to ask for it:
# it is loaded when the first of them has been started, and goes when none was for a while. What is
# not there costs nothing but time.

NAME = "warm-bridge"
IDLE_S = 900.0
"""Without a start in that time it goes: as what stands ready for projects does."""
MARGIN_S = 10.0
"""It is not counted on that long before, for the launcher may have ended it already."""


class Bridging:
    def __init__(self, adapter: ServerAdapter, machine: Machine, users: Users) -> None:
        self._adapter = adapter
        self._machine = machine
        self._users = users
        self._owner: Owner | None = None
        """Of the process and its forks, once there was one."""
        self._until = 0.0
        self._not_before = 0.0
        self._coming: asyncio.Task[None] | None = None

    def owner(self, instance: Instance, runtime: Runtime) -> Owner | None:
        """Whose sandbox it must be for the bridge to be forked into it; None when that cannot
        be, or not yet."""
        if not _is_bridged(instance) or not isinstance(runtime, WarmRuntime):
            return None
        return self._owner if self._is_there() else None

    def name(self, instance: Instance) -> str:
        """Of what is forked into the sandbox that it has; empty when nothing is."""
        mine = _is_bridged(instance) and instance.owner == self._owner
        return NAME if mine and self._is_there() else ""

    def _is_there(self) -> bool:
        return time.monotonic() < self._until

    def started(self, instance: Instance) -> None:
        """A server on streams was, so the next one may come."""
        if not _is_bridged(instance):
            return
        if self._is_there():
            self._until = time.monotonic() + IDLE_S - MARGIN_S
        elif time.monotonic() >= self._not_before and (self._coming is None or self._coming.done()):
            self._coming = begin_for(LOCAL.name, self._load())

    def lost(self) -> None:
        """It is not there any more."""
        self._until = 0.0

    async def _load(self) -> None:
        try:
            runtime = await self._machine.runtime(AUTO)
            if not isinstance(runtime, WarmRuntime):
                return
            owner = self._users.take(NAME)
            await runtime.warm_up(self._adapter.bridge(NAME, owner, IDLE_S))
            self._owner, self._until = owner, time.monotonic() + IDLE_S - MARGIN_S
        except (CarrelError, OSError) as error:
            _log.warning("the bridge is not kept loaded: %s", error)
            self._not_before = time.monotonic() + RETRY_S

    async def settled(self) -> None:
        """When it is not being loaded any more."""
        if self._coming is not None:
            await asyncio.wait({self._coming})

    async def close(self, left: list[Instance]) -> None:
        """Its user is kept while one of those that are `left` has that."""
        if self._coming is not None:
            self._coming.cancel()
            await asyncio.wait({self._coming}, timeout=10.0)
        self.lost()
        owner, self._owner = self._owner, None
        if owner is None:
            return
        runtime = await self._machine.runtime(AUTO)
        if isinstance(runtime, WarmRuntime):
            with contextlib.suppress(CarrelError):
                await runtime.cool_down(NAME)
        if all(instance.owner != owner for instance in left):
            self._users.give_back(NAME, owner)


def _is_bridged(instance: Instance) -> bool:
    """In a sandbox of its own: that of a space is another user's."""
    own = instance.confined and not instance.space_id and not instance.state_at
    return own and not instance.socket and instance.server.wrap is Wrap.STDIO
