"""Dedicated MCP servers, awaited: see `instances`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TypeVar, Unpack

from carrel.client import instance_calls as calls
from carrel.client.aio_link import AsyncLink
from carrel.client.calls import Call
from carrel.client.instance_calls import InstanceOptions, Path, Server, ServerOptions
from carrel.client.instance_models import InstanceInfo, ServerInfo, Told
from carrel.client.instances import LOG_BYTES
from carrel.domain.errors import InstanceNotFound

T = TypeVar("T")


class _Handle:
    def __init__(self, link: AsyncLink) -> None:
        self._link = link

    async def _send(self, call: Call[T]) -> T:
        return call.decode(await self._link.json(call.request))


class AsyncInstance(_Handle, Told):
    """One server of one's own. `info` is what was last told of it. As a context it is let go
    at the end."""

    def __init__(self, link: AsyncLink, info: InstanceInfo) -> None:
        super().__init__(link)
        self.info = info
        self.hold = info.hold or ""

    async def __aenter__(self) -> AsyncInstance:
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(InstanceNotFound):
            await asyncio.shield(self.release())

    async def refresh(self) -> InstanceInfo:
        self.info = await self._send(calls.instance(self.id))
        return self.info

    async def heartbeat(self) -> InstanceInfo:
        """It is still wanted: its lease begins anew."""
        await self._send(calls.heartbeat(self.id))
        return await self.refresh()

    async def logs(self, limit: int = LOG_BYTES) -> str:
        """The last that it wrote."""
        answer = await self._link.ask(calls.logs(self.id, limit))
        return answer.check().body.decode("utf-8", "replace")

    async def release(self) -> str:
        """`terminated`, `released` (others share it) or `already_gone`."""
        return await self._send(calls.release(self.id, self.hold))


class AsyncInstances(_Handle):
    async def start(
        self,
        server: Server,
        *,
        project: Path | None = None,
        space: str | None = None,
        **options: Unpack[InstanceOptions],
    ) -> AsyncInstance:
        """Returns when it has answered a handshake. `InstanceFailed` has its last lines."""
        info = await self._send(calls.start(server, project, space, options))
        return AsyncInstance(self._link, info)

    async def get(self, instance_id: str) -> AsyncInstance:
        return AsyncInstance(self._link, await self._send(calls.instance(instance_id)))

    async def list(self, *, space: str = "", ended: bool = False) -> list[InstanceInfo]:
        return await self._send(calls.instances(space, ended))

    async def servers(self) -> Sequence[ServerInfo]:
        """The kinds of servers that are known."""
        return await self._send(calls.servers())

    async def add_server(
        self, name: str, command: Sequence[str], **options: Unpack[ServerOptions]
    ) -> None:
        """For administrators."""
        await self._send(calls.add_server(name, command, options))

    async def remove_server(self, name: str) -> None:
        """One that was added."""
        await self._send(calls.remove_server(name))
