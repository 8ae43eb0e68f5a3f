"""Instances from the request to the end: what interfaces call.

The record is written before anything is made, and after each step, so that whoever comes after a
crash knows what there is. A start that fails, or that nobody waits for any more, is undone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence

from carrel.domain.access import Caller, ScopeKind
from carrel.domain.errors import CarrelError, InstanceFailed
from carrel.domain.ids import new_id
from carrel.domain.instances import (
    LIVE,
    Handed,
    Instance,
    InstanceRequest,
    InstanceState,
    Released,
    Restart,
    Servers,
    ServerStatus,
    Share,
)
from carrel.domain.runtimes import LimitHit
from carrel.domain.spaces import Problem, Space
from carrel.service.instances import draft
from carrel.service.instances.beginner import Beginner
from carrel.service.instances.book import InstanceParts, LiveInstance, Secrets
from carrel.service.instances.draft import Drafts
from carrel.service.instances.lifetime import Ender, Lifetimes, Sharing
from carrel.service.instances.restart import Restarter
from carrel.service.instances.start import TAIL_BYTES, InstanceStarter
from carrel.service.instances.warm import Compiling, Spares
from carrel.service.journal import problem_of

MOST_LOG = 1 << 20


class Instances:
    def __init__(self, parts: InstanceParts) -> None:
        self._parts = parts
        self._book = parts.book
        self._places = parts.places
        self._starter = InstanceStarter(
            parts.book, parts.places, parts.adapter, parts.recordings, parts.shared.locks
        )
        self._ender = Ender(parts.book, parts.places, self._tail)
        self._kept = Secrets(parts.places)
        self._drafts = Drafts(parts)
        self._sharing = Sharing(parts.book, self._ender, parts.shared.tasks)
        self._beginner = Beginner(parts, self._starter, self._ender, self._kept, self._is_ready)
        self._lifetimes = Lifetimes(
            parts.book,
            parts.places,
            parts.adapter,
            parts.owners,
            parts.hub,
            self._ender.end,
            self._sharing.leave,
            parts.reaches,
        )
        self._restarter = Restarter(
            parts.book, parts.places, self._ender, parts.hub, self._beginner.again
        )
        self._spares = Spares(parts.book, self._ender, self._start_spare)
        self._compiling = Compiling(
            parts.caches, parts.servers, parts.book, parts.places, self._ender, self._start_spare
        )

    @property
    def servers(self) -> Servers:
        return self._parts.servers

    async def kinds(self, caller: Caller) -> Sequence[ServerStatus]:
        """Where their programs are on this machine is for administrators."""
        found = await asyncio.to_thread(self._parts.servers.list)
        if caller.scope.kind is ScopeKind.ADMIN:
            return found
        return [
            dataclasses.replace(one, where="", server=dataclasses.replace(one.server, command=()))
            for one in found
        ]

    # Asking for one

    async def start(self, caller: Caller, request: InstanceRequest) -> Handed:
        """Raises what `Drafts.draft` does, `TooManyInstances`, `InstanceFailed`, and what
        runtimes raise."""
        begun = time.monotonic()
        self._parts.places.expect()
        draft = await self._drafts.draft(caller, request)
        # What was asked for, whatever becomes of the record.
        asked = LiveInstance(draft.instance, env=draft.env, streams=draft.streams)
        if request.share is Share.PROJECT:
            shared = await self._sharing.join(draft, self._lifetimes)
            if shared is not None:
                return shared
        live = self._spares.take(draft)
        if live is None or not await self._hand_over(live, draft, begun):
            live = draft
            await self._begin(live, begun)
        self._spares.refill(asked)
        self._compiling.started(asked)
        return Handed(live.instance, live.token, asked.instance.holds[0].hold_id)

    async def _hand_over(self, live: LiveInstance, draft: LiveInstance, begun: float) -> bool:
        """False when it ended meanwhile."""
        try:
            await self._sharing.hand_over(live, draft, begun)
        except BaseException as error:
            await self._abandon(live, error)
            raise
        if live.leaving:
            return False
        self._lifetimes.begin(live)
        return True

    async def _abandon(self, live: LiveInstance, error: BaseException) -> None:
        """Nobody has it, and nobody else would ever let it go."""
        why, state = problem_of("start", error), InstanceState.FAILED
        if isinstance(error, asyncio.CancelledError):
            why = Problem("start", "abandoned", "Whoever asked for it has gone.")
            state = InstanceState.ENDED
        await self._parts.shared.tasks.see_through(self._ender.end(live, why, state))

    async def _begin(self, live: LiveInstance, begun: float) -> None:
        self._drafts.check_room(live.instance)
        work = self._beginner.begin(live, begun)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError as error:
            if work.cancelled() and not _is_cancelled():
                raise InstanceFailed(
                    f"{live.instance.server.name} was released while it started.",
                    hint="Ask again.",
                ) from None
            await self._abandon(live, error)
            raise

    async def _start_spare(self, draft: Instance) -> LiveInstance:
        spare = dataclasses.replace(
            draft,
            instance_id=new_id("in"),
            account="",
            created_at=self._book.clock(),
            ttl_s=None,
            lease_s=None,
            idle_s=None,
            survive=False,
            restart=Restart.NEVER,
            share=Share.NONE,
        )
        live = LiveInstance(spare, spare=True)
        self._drafts.check_room(spare)
        await asyncio.shield(self._beginner.begin(live, time.monotonic()))
        return live

    def _is_ready(self, live: LiveInstance) -> None:
        self._lifetimes.begin(live)
        self._restarter.watch(live)
        self._parts.bridging.started(live.instance)

    # What there is

    async def get(self, caller: Caller, instance_id: str) -> Instance:
        """Raises `InstanceNotFound`."""
        instance = await self._book.record(instance_id)
        draft.may_have(caller, instance, self._space(instance))
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
        # Nobody has one that stands ready, or is not needed any more.
        found += [live.instance for live in self._book.all() if live.instance.holds]
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
            draft.may_have(caller, instance, self._space(instance))
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

    async def release(self, caller: Caller, instance_id: str, hold_id: str = "") -> Released:
        """`hold_id`: whose hold of it, as `start` told; that of another one stays."""
        await self.get(caller, instance_id)
        live = self._book.get(instance_id)
        if live is None:
            return Released.ALREADY_GONE
        return await self._parts.shared.tasks.see_through(self._sharing.release(live, hold_id))

    def limit_hit(self, hit: LimitHit) -> None:
        """Called on the event loop, for sandboxes of instances."""
        live = self._book.get(hit.sandbox_id)
        if live is not None:
            self._restarter.limit_hit(live, hit)

    # Beginning and ending

    async def take_up(self, *, rebooted: bool) -> None:
        """What an earlier daemon left, before anybody is served."""
        await self._restarter.take_up(self._kept, self._lifetimes, rebooted=rebooted)
        self._parts.warming.begin()

    async def settled(self) -> None:
        """When all that is to stand ready does."""
        await self._parts.warming.settled()
        await self._parts.bridging.settled()
        await self._spares.settled()
        await self._compiling.settled()

    async def close(self) -> None:
        """The daemon ends in an orderly way, and with it what was not to survive that."""
        await self._compiling.close()
        await self._spares.close()
        await self._lifetimes.close()
        await self._restarter.close()
        await self._starter.close()
        await self._parts.warming.close()
        why = Problem("daemon", "daemon_stopped", "The daemon was stopped.")
        going = [live for live in self._book.all() if not live.instance.survive]
        await asyncio.gather(
            *(self._ender.end(live, why) for live in going), return_exceptions=True
        )
        left = self._book.all()
        await self._parts.bridging.close([live.instance for live in left])
        for live in left:
            await self._ender.let_go(live)
        await self._book.shut()


def _is_cancelled() -> bool:
    """We ourselves, and not what we waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
