"""The process that has loaded the bridge, which all servers on streams are forked bridges of.

It is Carrel's own code, the same for each of them, so there is one, and nobody has to ask for it:
it is loaded when the first of them has been started, and goes when none was for a while. What is
not there costs nothing but time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from carrel.domain.collaborators import Machine, Users
from carrel.domain.errors import CarrelError
from carrel.domain.instances import Instance, Wrap
from carrel.domain.reception import Reception
from carrel.domain.runtimes import Runtime, WarmRuntime
from carrel.domain.spaces import AUTO
from carrel.domain.trees import Owner

NAME = "warm-bridge"
IDLE_S = 900.0
"""Without a start in that time it goes: as what stands ready for projects does."""
MARGIN_S = 10.0
"""It is not counted on that long before, for the launcher may have ended it already."""
RETRY_S = 60.0
"""After a failure: what is wrong with an installation is not mended by asking again."""
_log = logging.getLogger("carrel")


class Bridging:
    def __init__(self, reception: Reception, machine: Machine, users: Users) -> None:
        self._reception = reception
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
            self._coming = asyncio.create_task(self._load())

    def lost(self) -> None:
        """It is not there any more."""
        self._until = 0.0

    async def _load(self) -> None:
        try:
            runtime = await self._machine.runtime(AUTO)
            if not isinstance(runtime, WarmRuntime):
                return
            owner = self._users.take(NAME)
            await runtime.warm_up(self._reception.bridge(NAME, owner, IDLE_S))
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
