"""A start from its record to a server that is ready, and once more after a failure: where it runs
and as whom, warm or cold, with which secrets, and whose turn it is."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import secrets
import time
from collections.abc import Callable

from carrel.domain.errors import WarmUnavailable
from carrel.domain.instances import Found, Instance, InstanceState, Warmth
from carrel.domain.runtimes import Capabilities, Network, Runtime
from carrel.domain.trees import Owner
from carrel.service.instances.book import InstanceParts, LiveInstance, Secrets
from carrel.service.instances.lifetime import Ender
from carrel.service.instances.start import SLOW, InstanceStarter, Wanted
from carrel.service.journal import plain
from carrel.service.shared import CallerSlots

TURN_S = 30.0
"""A start that takes longer works no more, it waits: for a program that may never answer, as
long as its caller said. Others need not wait with it."""

OnReady = Callable[[LiveInstance], None]


class Beginner:
    def __init__(
        self,
        parts: InstanceParts,
        starter: InstanceStarter,
        ender: Ender,
        kept: Secrets,
        on_ready: OnReady,
    ) -> None:
        self._parts = parts
        self._book = parts.book
        self._places = parts.places
        self._starter = starter
        self._ender = ender
        self._kept = kept
        self._on_ready = on_ready
        self._turns = CallerSlots(parts.rules.starting or os.cpu_count() or 1, TURN_S)

    def begin(self, live: LiveInstance, begun: float) -> asyncio.Task[None]:
        """Its work, which undoes itself when it fails. It is known from now on."""
        self._book.know(live)
        live.work = task = asyncio.create_task(self._start(live, begun))
        return task

    async def _start(self, live: LiveInstance, begun: float) -> None:
        try:
            async with self._turns.of(live.instance.counts_for):
                await self._prepare(live)
                await self._first(live)
            await self._is_ready(live, begun)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            told = plain(error)
            await self._ender.undo(live, told)
            if told is error:
                raise
            raise told from error

    async def again(self, live: LiveInstance) -> None:
        """Under the same id, and at the same port where that is still to be had. Its program may
        be elsewhere by now."""
        begun = time.monotonic()
        async with self._turns.of(live.instance.counts_for):
            found = await self._located(live)
            if live.instance.binds:
                shown = await asyncio.to_thread(self._shown, live.instance, found)
                self._book.note(live, binds=shown)
            wanted = self._wanted(live, found)
            try:
                await self._starter.start(live, wanted, again=True)
            except WarmUnavailable:
                await self._start_cold(live, wanted)
        await self._is_ready(live, begun)

    async def _first(self, live: LiveInstance) -> None:
        """Warm, if it can be; when that process has gone meanwhile, cold."""
        found, live.found = await self._located(live), None
        wanted = self._wanted(live, found)
        try:
            await self._starter.start(live, wanted)
        except WarmUnavailable:
            await self._start_cold(live, wanted)

    async def _start_cold(self, live: LiveInstance, wanted: Wanted) -> None:
        """The warm process is not there any more. Its user stays: the folders are that one's."""
        if live.instance.state_at:
            self._parts.warming.lost(live.instance.server.name)
        else:
            self._parts.bridging.lost()
        await self._places.stop(live.instance, ())
        await self._places.clear(live.instance)
        live.drop_handles()
        await self._book.change(live, state_at="", warmth=Warmth.COLD)
        await self._starter.start(live, dataclasses.replace(wanted, warm=""))

    async def _prepare(self, live: LiveInstance) -> None:
        """All that is only decided is in the first record; then what is made: its folder, its
        user, the secrets."""
        found = live.found = await self._located(live)
        instance = live.instance
        runtime = await self._places.runtime(instance)
        self._book.note(live, runtime=runtime.name)
        if not instance.space_id:
            self._book.note(live, **await self._placed(live, found, runtime))
        if not live.streams and await self._checks_token(live.instance, runtime):
            live.token = secrets.token_urlsafe(32)
            self._book.note(live, has_token=True)
        await self._book.add(live)
        if instance.space_id:
            await self._parts.equipping.equip(
                instance.space_id, self._parts.needs.by(instance.server, found)
            )
        owner = await asyncio.to_thread(self._make, live)
        if owner != live.instance.owner:
            await self._book.change(live, owner=owner)

    async def _located(self, live: LiveInstance) -> Found:
        """Once for a start."""
        if live.found is not None:
            return live.found
        return await asyncio.to_thread(self._parts.servers.locate, live.instance.server)

    def _make(self, live: LiveInstance) -> Owner | None:
        """Blocking."""
        self._places.make_folder(live.instance_id)
        self._kept.write(live)
        if live.instance.space_id or live.instance.owner is not None:
            return live.instance.owner
        return self._places.owner(live.instance)

    async def _placed(
        self, live: LiveInstance, found: Found, runtime: Runtime
    ) -> dict[str, object]:
        """Where it runs, and as whom, unless that is a user of its own."""
        instance, can = live.instance, runtime.capabilities
        shown = await asyncio.to_thread(self._shown, instance, found) if can.confines else ()
        placed: dict[str, object] = {
            "binds": shown,
            "confined": can.confines,
            "network": _network(live, can.private_network),
        }
        if live.streams:
            return placed
        warm = self._parts.warming.of(instance)
        if warm is None:
            return {**placed, "owner": self._parts.bridging.owner(instance, runtime)}
        return {
            **placed,
            "owner": warm.owner,
            "state_at": warm.state,
            "warmth": Warmth.FORKED,
        }

    def _shown(self, instance: Instance, found: Found) -> tuple[str, ...]:
        """With what was compiled of its program, once there is that. Blocking."""
        needed, caches = self._parts.needs.by(instance.server, found), self._parts.caches
        path = caches.of(instance.server, found)
        return (*needed, path) if path and caches.is_filled(path) else needed

    async def _checks_token(self, instance: Instance, runtime: Runtime) -> bool:
        private = runtime.capabilities.private_network and instance.network is Network.NONE
        if instance.space_id:
            private = (await self._places.of(instance)).around.private_network
        return self._parts.adapter.checks_token(instance.server, private_network=private)

    def _wanted(self, live: LiveInstance, found: Found) -> Wanted:
        instance, server = live.instance, live.instance.server
        warm = f"warm-{server.name}" if instance.state_at else ""
        if not warm and not live.streams:
            warm = self._parts.bridging.name(instance)
        uids = self._uids(instance)
        env = self._parts.caches.variables(instance.binds)
        return Wanted(
            server, found, server.ready_s, server.tool_ready, uids, live.streams, warm, env
        )

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

    async def _is_ready(self, live: LiveInstance, begun: float) -> None:
        now = self._book.clock()
        runtime = await self._places.runtime(live.instance)
        await self._book.change(
            live,
            state=InstanceState.READY,
            ready_at=live.instance.ready_at or now,
            heard_at=now,
            problem=None,
            started_in_ms=round((time.monotonic() - begun) * 1000, 1),
            notes=notes(live.instance, runtime.capabilities),
        )
        live.ready_since = now
        self._on_ready(live)


def _network(live: LiveInstance, private: bool) -> Network:
    """Where there is no network of one's own, a server that binds a port needs the machine's."""
    if private or live.streams or live.instance.server.wrap:
        return live.instance.network
    return Network.OPEN


def notes(instance: Instance, can: Capabilities) -> tuple[str, ...]:
    """What does not hold for it here, said in sentences, and what was changed for it."""
    own = (SLOW, *(swap.note for swap in instance.server.swaps))
    found = [one for one in instance.notes if one in own]
    if not can.confines:
        found += can.uncovered
    if instance.port and not instance.has_token:
        found.append(
            "It checks no token and listens on the machine's own network: every user of this"
            " machine can reach it, so can what runs in a space with an open network, and web pages"
            " in a browser of this machine unless the server looks at `Host` and `Origin` itself."
        )
    if instance.network is Network.OPEN:
        found.append("It can reach the network.")
    return tuple(found)
