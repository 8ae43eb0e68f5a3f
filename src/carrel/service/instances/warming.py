"""Warm processes: those that have loaded a server, for instances to be forked from.

They are no instances themselves. One that is not there, or not yet, costs nothing but time: the
server is started cold.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.collaborators import Machine, Users
from carrel.domain.errors import CarrelError
from carrel.domain.instances import Found, Instance, Server, Servers, Wrap
from carrel.domain.reception import Reception, Surroundings
from carrel.domain.runtimes import Network, WarmRuntime
from carrel.domain.spaces import AUTO
from carrel.domain.trees import Owner

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
        self, folder: Path, servers: Servers, reception: Reception, machine: Machine, users: Users
    ) -> None:
        """`folder` has a folder for each, which it may write in while it loads."""
        self._folder = folder
        self._servers = servers
        self._reception = reception
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
            self._coming[server.name] = asyncio.create_task(self._warm_up(server))

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
        zygote = self._reception.zygote(server, found, around, owner)
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
