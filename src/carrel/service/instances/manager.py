"""Instances from the request to the end: the one place that knows the order of their steps.

The record is written before anything is made, and after each step, so that whoever comes after a
crash knows what there is. A start that fails, or that nobody waits for any more, is undone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.access import Caller
from carrel.domain.errors import (
    CarrelError,
    InstanceFailed,
    MessageInvalid,
    TooManyInstances,
    WarmUnavailable,
)
from carrel.domain.ids import new_id
from carrel.domain.instances import (
    LIVE,
    Handed,
    Hold,
    Instance,
    InstanceRequest,
    InstanceState,
    Released,
    Restart,
    Server,
    Servers,
    Share,
    Warmth,
)
from carrel.domain.limits import Limits
from carrel.domain.reception import HubClients, Owners, Reception
from carrel.domain.runs import Recordings
from carrel.domain.runtimes import LimitHit, Network
from carrel.domain.spaces import AUTO, Problem, Space
from carrel.domain.trees import Owner
from carrel.service.instances import asking
from carrel.service.instances.ending import Ender
from carrel.service.instances.equipping import Equipping
from carrel.service.instances.lifetimes import Lifetimes
from carrel.service.instances.live import Book, Live
from carrel.service.instances.needing import Needs
from carrel.service.instances.noting import notes
from carrel.service.instances.places import Places
from carrel.service.instances.restarting import Restarter
from carrel.service.instances.spares import Spares
from carrel.service.instances.starting import TAIL_BYTES, Starter, Wanted
from carrel.service.instances.tokens import TokenFiles
from carrel.service.instances.warming import Warming
from carrel.service.journal import Journal
from carrel.service.shared import Shared
from carrel.service.spaces import Spaces

MOST_LOG = 1 << 20
UNCONFINED = "process"


@dataclass(frozen=True)
class InstanceRules:
    """What the settings say. 0: no bound."""

    most: int = 0
    per_caller: int = 0
    memory_bytes: int = 0
    starting: int = 0
    """At the same time; 0: as many as there are processors."""
    project_roots: tuple[Path, ...] = ()


@dataclass(frozen=True)
class InstanceParts:
    data: Path
    book: Book
    places: Places
    reception: Reception
    recordings: Recordings
    servers: Servers
    warming: Warming
    owners: Owners
    hub: HubClients
    journal: Journal
    spaces: Spaces
    equipping: Equipping
    needs: Needs
    shared: Shared
    rules: InstanceRules


class Instances:
    def __init__(self, parts: InstanceParts, clock: Callable[[], float] = time.monotonic) -> None:
        self._parts = parts
        self._book = parts.book
        self._places = parts.places
        self._clock = clock
        self._tokens = TokenFiles(parts.places)
        self._starter = Starter(parts.book, parts.places, parts.reception, parts.recordings)
        self._ender = Ender(parts.book, parts.places, self._tail)
        self._lifetimes = Lifetimes(
            parts.book,
            parts.places,
            parts.reception,
            parts.owners,
            parts.hub,
            self._ender.end,
            self._leave,
        )
        self._turns = asyncio.Semaphore(parts.rules.starting or os.cpu_count() or 1)
        """In the order of their requests: none is starved."""
        self._restarter = Restarter(
            parts.book, parts.places, self._ender, parts.hub, self._start_again
        )
        self._warming = parts.warming
        self._spares = Spares(parts.book, self._ender, self._start_spare)

    @property
    def servers(self) -> Servers:
        return self._parts.servers

    # Asking for one

    async def start(self, caller: Caller, request: InstanceRequest) -> Handed:
        """Raises `MessageInvalid`, `Forbidden`, `ServerNotFound`, `ServerNotInstalled`,
        `ProjectError`s, `TooManyInstances`, `InstanceFailed`, and what runtimes raise."""
        begun = self._clock()
        asking.check(request)
        space = None
        if request.space_id:
            space = await self._parts.spaces.get(caller, request.space_id)
        asking.check_caller(caller, request, space)
        draft = await self._draft(caller, request, space)
        if request.share is Share.PROJECT:
            shared = await self._share(draft)
            if shared is not None:
                return shared
        if not request.streams and (spare := self._spares.take(draft)) is not None:
            return await self._hand_over(spare, draft, begun)
        handed = await self._begin(draft, request.streams, begun)
        self._spares.refill(draft)
        return handed

    async def _hand_over(self, live: Live, draft: Instance, begun: float) -> Handed:
        """One that stood ready becomes what was asked for, under its own id."""
        wanted = ("caller", "created_at", "ttl_s", "lease_s", "idle_s", "holds", "survive")
        taken = {name: getattr(draft, name) for name in (*wanted, "restart", "share", "heard_at")}
        now = self._book.clock()
        await self._book.change(
            live,
            **taken,
            ready_at=now,
            warmth=Warmth.STARTED,
            started_in_ms=round((self._clock() - begun) * 1000, 1),
        )
        self._lifetimes.begin(live)
        self._spares.refill(draft)
        return Handed(live.instance, live.token)

    async def _start_spare(self, draft: Instance) -> Live:
        now = self._book.clock()
        plain: dict[str, object] = {
            **{"ttl_s": None, "lease_s": None, "idle_s": None, "survive": False},
            **{"restart": Restart.NEVER, "share": Share.NONE, "created_at": now},
        }
        spare = dataclasses.replace(draft, instance_id=new_id("in"), **plain)  # type: ignore[arg-type]
        live = Live(spare, spare=True)
        self._check_room(spare.caller)
        self._book.know(live)
        live.work = asyncio.create_task(self._start(live, False, self._clock()))
        await asyncio.shield(live.work)
        return live

    async def _draft(
        self, caller: Caller, request: InstanceRequest, space: Space | None
    ) -> Instance:
        """The record of it, before anything is made."""
        server = self._server(request)
        asking.check_server(caller, server, space)
        # One that is not installed is told before anything is made.
        await asyncio.to_thread(self.servers.locate, server)
        path, owner = "", None
        if space is None:
            path, owner = await self._places.look(request.project_path)
            asking.check_path(caller, path, self._parts.rules.project_roots, self._parts.data)
        confined, env = request.confined, dict(request.env)
        if server.daemon and space is None:
            confined, owner = False, Owner(os.geteuid(), os.getegid())
            env["CARREL_DATA"] = str(self._parts.data)
        now = self._book.clock()
        return Instance(
            instance_id=new_id("in"),
            server=server,
            state=InstanceState.STARTING,
            caller=caller.name,
            created_at=now,
            updated_at=now,
            project_path=path,
            space_id="" if space is None else space.space_id,
            project_owner=owner,
            confined=confined,
            runtime=AUTO if confined else UNCONFINED,
            network=request.network or server.network,
            limits=self._limits(request.limits),
            ttl_s=request.ttl_s,
            lease_s=request.lease_s,
            idle_s=request.idle_s,
            holds=(self._hold(request),),
            survive=request.survive,
            restart=request.restart,
            share=request.share,
            heard_at=now,
            env=env,
        )

    def _server(self, request: InstanceRequest) -> Server:
        given = request.server
        server = self.servers.get(given) if isinstance(given, str) else self.servers.checked(given)
        changes: dict[str, object] = {}
        if request.tool_ready is not None:
            changes["tool_ready"] = request.tool_ready
        if request.ready_s is not None:
            changes["ready_s"] = request.ready_s
        server = dataclasses.replace(server, **changes)  # type: ignore[arg-type]
        return asking.on_streams(server) if request.streams else server

    def _limits(self, limits: Limits) -> Limits:
        """The machine's bound, unless a smaller one was asked for."""
        most = self._parts.rules.memory_bytes
        if not most or (limits.memory_bytes is not None and limits.memory_bytes <= most):
            return limits
        return dataclasses.replace(limits, memory_bytes=most)

    def _hold(self, request: InstanceRequest) -> Hold:
        """Raises `MessageInvalid` for an owner that is not there."""
        started = 0
        if request.owner_pid is not None:
            found = self._parts.owners.started(request.owner_pid)
            if found is None:
                raise MessageInvalid(
                    f"There is no process {request.owner_pid}.", hint="Name one that lives."
                )
            started = found
        if request.hub_client and not self._parts.hub.is_there(request.hub_client):
            raise MessageInvalid(
                f"There is no connection {request.hub_client[:40]!r} to the hub.",
                hint="Name it by its `client_id`.",
            )
        return Hold(request.owner_pid, started, request.hub_client)

    def _check_room(self, caller: str) -> None:
        rules, living = self._parts.rules, self._book.all()
        mine = sum(1 for live in living if live.instance.caller == caller and not live.spare)
        if rules.most and len(living) >= rules.most:
            raise TooManyInstances(
                f"{len(living)} instances live already, as many as may.",
                hint="Release some, or raise `instances_max`.",
            )
        if rules.per_caller and mine >= rules.per_caller:
            raise TooManyInstances(
                f"You have {mine} instances already, as many as one caller may.",
                hint="Release some, or raise `instances_per_caller`.",
            )

    # Sharing

    async def _share(self, draft: Instance) -> Handed | None:
        """One that others of the same project have, ready."""
        while (live := self._shared(draft)) is not None:
            if live.work is not None:
                await asyncio.wait({live.work})
            if live.leaving or live.instance.state not in LIVE:
                continue
            hold = draft.holds[0]
            await self._book.change(
                live, holds=(*live.instance.holds, hold), heard_at=self._book.clock()
            )
            self._lifetimes.hold(live, hold)
            return Handed(live.instance, live.token)
        return None

    def _shared(self, draft: Instance) -> Live | None:
        for live in self._book.all():
            if not live.leaving and _alike(live.instance, draft):
                return live
        return None

    # Starting

    async def _begin(self, draft: Instance, streams: bool, begun: float) -> Handed:
        self._check_room(draft.caller)
        live = Live(draft)
        self._book.know(live)
        live.work = asyncio.create_task(self._start(live, streams, begun))
        try:
            await asyncio.shield(live.work)
        except asyncio.CancelledError:
            if live.work.cancelled() and not _is_cancelled():
                raise InstanceFailed(
                    f"{draft.server.name} was released while it started.", hint="Ask again."
                ) from None
            # Whoever asked has gone.
            why = Problem("start", "abandoned", "Whoever asked for it has gone.")
            await self._parts.shared.tasks.see_through(self._ender.end(live, why))
            raise
        return Handed(live.instance, live.token)

    async def _start(self, live: Live, streams: bool, begun: float) -> None:
        try:
            async with self._turns:
                await self._prepare(live, streams)
                async with self._staying(live.instance.space_id):
                    await self._first(live, streams)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            await self._ender.undo(live, error)
            raise
        await self._is_ready(live, begun)

    @asynccontextmanager
    async def _staying(self, space_id: str) -> AsyncIterator[None]:
        """While it starts in a space, that is not stopped or removed."""
        if not space_id:
            yield
            return
        async with self._parts.shared.locks.shared(space_id):
            yield

    async def _first(self, live: Live, streams: bool) -> None:
        """Warm, if it can be; when that process has gone meanwhile, cold."""
        wanted = await self._wanted(live.instance, streams)
        try:
            await self._starter.start(live, wanted)
        except WarmUnavailable:
            await self._start_cold(live, wanted)

    async def _start_cold(self, live: Live, wanted: Wanted) -> None:
        """The warm process is not there any more. Its user stays: the folders are that one's."""
        self._warming.lost(live.instance.server.name)
        await self._places.stop(live.instance, ())
        live.drop()
        await self._book.change(live, state_at="", warmth=Warmth.COLD)
        await self._starter.start(live, dataclasses.replace(wanted, warm=""))

    async def _prepare(self, live: Live, streams: bool) -> None:
        """The folder, the user and the token, each written down."""
        await self._book.add(live)
        await asyncio.to_thread(self._places.make_folder, live.instance_id)
        runtime = await self._places.runtime(live.instance)
        changes: dict[str, object] = {"runtime": runtime.name}
        paths = await asyncio.to_thread(self._parts.needs.of, live.instance.server)
        if live.instance.space_id:
            await self._parts.equipping.equip(live.instance.space_id, paths)
        else:
            changes["binds"] = paths if runtime.capabilities.confines else ()
            changes["confined"] = runtime.capabilities.confines
            changes["network"] = _network(live.instance, runtime.capabilities.private_network)
            warm = None if streams else self._warming.of(live.instance)
            if warm is not None:
                changes |= {"state_at": warm.state, "warmth": Warmth.FORKED, "owner": warm.owner}
            else:
                changes["owner"] = self._places.owner(live.instance, "")
        await self._book.change(live, **changes)
        if not streams and await self._checks_token(live.instance):
            live.token = secrets.token_urlsafe(32)
            await asyncio.to_thread(self._tokens.write, live.instance_id, live.token)
            await self._book.change(live, has_token=True)

    async def _checks_token(self, instance: Instance) -> bool:
        around = (await self._places.of(instance)).around
        return self._parts.reception.checks_token(
            instance.server, private_network=around.private_network
        )

    async def _wanted(self, instance: Instance, streams: bool) -> Wanted:
        server = instance.server
        found = await asyncio.to_thread(self.servers.locate, server)
        warm = f"warm-{server.name}" if instance.state_at else ""
        uids = self._uids(instance)
        return Wanted(server, found, server.ready_s, server.tool_ready, uids, streams, warm)

    def _uids(self, instance: Instance) -> frozenset[int]:
        """Who may come in: we, whose project it is, and who has it."""
        uids = {os.geteuid()}
        if instance.project_owner is not None:
            uids.add(instance.project_owner.uid)
        for hold in instance.holds:
            found = self._parts.owners.uid(hold.owner_pid) if hold.owner_pid is not None else None
            if found is not None:
                uids.add(found)
        return frozenset(uids)

    async def _is_ready(self, live: Live, begun: float) -> None:
        now = self._book.clock()
        runtime = await self._places.runtime(live.instance)
        await self._book.change(
            live,
            state=InstanceState.READY,
            ready_at=live.instance.ready_at or now,
            heard_at=now,
            problem=None,
            started_in_ms=round((self._clock() - begun) * 1000, 1),
            notes=notes(live.instance, runtime.capabilities),
        )
        self._lifetimes.begin(live)
        self._restarter.watch(live)

    async def _start_again(self, live: Live) -> None:
        """Under the same id, and at the same port where that is still to be had."""
        begun = self._clock()
        async with self._turns:
            wanted = await self._wanted(live.instance, streams=False)
            try:
                await self._starter.start(live, wanted, again=True)
            except WarmUnavailable:
                await self._start_cold(live, wanted)
        await self._is_ready(live, begun)

    # What there is

    async def get(self, caller: Caller, instance_id: str) -> Instance:
        """Raises `InstanceNotFound`."""
        instance = await self._book.record(instance_id)
        asking.may_have(caller, instance, self._space(instance))
        return instance

    async def handed(self, caller: Caller, instance_id: str) -> Handed:
        """With its token for who asked for it, and for nobody else."""
        instance = await self.get(caller, instance_id)
        live = self._book.get(instance_id)
        own = live is not None and instance.caller == caller.name
        return Handed(instance, live.token if live is not None and own else "")

    async def list(
        self, caller: Caller, *, space_id: str = "", ended: bool = False
    ) -> list[Instance]:
        """Newest first."""
        if space_id:
            space_id = (await self._parts.spaces.get(caller, space_id)).space_id
        found = await self._book.ended(200) if ended else []
        found += [live.instance for live in self._book.all() if not live.spare]
        seen = [one for one in found if self._sees(caller, one)]
        wanted = [one for one in seen if not space_id or one.space_id == space_id]
        return sorted(wanted, key=lambda one: one.created_at, reverse=True)

    def of_caller(self, name: str) -> Sequence[Handed]:
        """Those that live, and that it asked for."""
        living = [live for live in self._book.all() if not live.spare and not live.leaving]
        return [
            Handed(live.instance, live.token) for live in living if live.instance.caller == name
        ]

    async def settled_down(self, instance_id: str) -> None:
        """When nobody starts it any more, or starts it again."""
        live = self._book.get(instance_id)
        if live is not None and live.work is not None and not live.work.done():
            await asyncio.wait({live.work})

    async def equip(self, space_id: str, names: Sequence[str]) -> None:
        """The space's sandbox shows what all of these need. Raises what `start` does."""
        paths = await asyncio.to_thread(self._parts.needs.named, names)
        await self._parts.equipping.equip(space_id, paths)

    def _sees(self, caller: Caller, instance: Instance) -> bool:
        try:
            asking.may_have(caller, instance, self._space(instance))
        except CarrelError:
            return False
        return True

    def _space(self, instance: Instance) -> Space | None:
        return self._parts.journal.get(instance.space_id) if instance.space_id else None

    async def logs(self, caller: Caller, instance_id: str, limit: int) -> bytes:
        """What it wrote last; little of one that failed, nothing of one that has ended."""
        instance = await self.get(caller, instance_id)
        if instance.state not in LIVE:
            return instance.output.encode("utf-8", "replace")[-limit:]
        return await self._tail(instance, min(limit, MOST_LOG))

    async def _tail(self, instance: Instance, limit: int = TAIL_BYTES) -> bytes:
        if not instance.run_id:
            # It has no place yet.
            return b""
        place = await self._places.of(instance)
        return await self._starter.tail(place.folder, instance.run_id, limit)

    async def heartbeat(self, caller: Caller, instance_id: str) -> Instance:
        """It is still wanted."""
        instance = await self.get(caller, instance_id)
        live = self._book.get(instance_id)
        if live is None:
            return instance
        return await self._book.change(live, heard_at=self._book.clock())

    # Letting go

    async def release(self, caller: Caller, instance_id: str) -> Released:
        await self.get(caller, instance_id)
        live = self._book.get(instance_id)
        if live is None:
            return Released.ALREADY_GONE
        if live.instance.clients > 1:
            await self._book.change(live, holds=_without(live.instance.holds, None))
            return Released.SHARED
        gone = await self._parts.shared.tasks.see_through(self._ender.end(live, None))
        return Released.TERMINATED if gone else Released.ALREADY_GONE

    async def _leave(self, live: Live, hold: Hold, why: Problem) -> None:
        """One of its clients went away by itself."""
        if live.leaving or hold not in live.instance.holds:
            return
        if live.instance.clients > 1:
            await self._book.change(live, holds=_without(live.instance.holds, hold))
        else:
            await self._ender.end(live, why)

    def limit_hit(self, hit: LimitHit) -> None:
        """Called on the event loop, for sandboxes of instances."""
        live = self._book.get(hit.sandbox_id)
        if live is not None:
            self._restarter.limit_hit(live, hit)

    # Beginning and ending

    async def take_up(self, *, rebooted: bool) -> None:
        """What an earlier daemon left, before anybody is served."""
        await self._restarter.take_up(self._tokens, self._lifetimes, rebooted=rebooted)
        self._warming.begin()

    async def settled(self) -> None:
        """When all that is to stand ready does."""
        await self._warming.settled()
        await self._spares.settled()

    async def close(self) -> None:
        """The daemon ends in an orderly way, and with it what was not to survive that."""
        await self._spares.close()
        await self._lifetimes.close()
        await self._restarter.close()
        await self._warming.close()
        why = Problem("daemon", "daemon_stopped", "The daemon was stopped.")
        going = [live for live in self._book.all() if not live.instance.survive]
        await asyncio.gather(
            *(self._ender.end(live, why) for live in going), return_exceptions=True
        )
        for live in self._book.all():
            await self._ender.let_go(live)


def _is_cancelled() -> bool:
    """We ourselves, and not what we waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _network(instance: Instance, private: bool) -> Network:
    """Where there is no network of one's own, a server that binds a port needs the machine's."""
    if private or instance.socket or instance.server.wrap:
        return instance.network
    return Network.OPEN


def _alike(one: Instance, other: Instance) -> bool:
    """Both may be the same instance for their clients."""
    same = (
        *("server", "caller", "project_path", "space_id", "share", "network", "limits", "env"),
        *("restart", "ttl_s"),
    )
    return all(getattr(one, name) == getattr(other, name) for name in same)


def _without(holds: tuple[Hold, ...], gone: Hold | None) -> tuple[Hold, ...]:
    """One less: that one, or else one that would not go by itself."""
    if gone is None:
        gone = next((hold for hold in holds if hold == Hold()), holds[-1])
    at = holds.index(gone)
    return (*holds[:at], *holds[at + 1 :])
