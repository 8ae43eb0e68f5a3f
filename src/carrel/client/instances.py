"""Dedicated MCP servers.

with client.instances.start("serena", project=".") as serena:
    print(serena.url, serena.headers)
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TypeVar, Unpack

from carrel.client import instance_calls as calls
from carrel.client.calls import Call
from carrel.client.instance_calls import InstanceOptions, Path, Server, ServerOptions
from carrel.client.instance_models import InstanceInfo, ServerInfo, Told
from carrel.client.link import Link
from carrel.domain.errors import InstanceNotFound

T = TypeVar("T")
LOG_BYTES = 65_536


class _Handle:
    def __init__(self, link: Link) -> None:
        self._link = link

    def _send(self, call: Call[T]) -> T:
        return call.decode(self._link.json(call.request))


class Instance(_Handle, Told):
    """One server of one's own. `info` is what was last told of it. As a context it is let go
    at the end."""

    def __init__(self, link: Link, info: InstanceInfo) -> None:
        super().__init__(link)
        self.info = info
        self.hold = info.hold or ""

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(InstanceNotFound):
            self.release()

    def refresh(self) -> InstanceInfo:
        self.info = self._send(calls.instance(self.id))
        return self.info

    def heartbeat(self) -> InstanceInfo:
        """It is still wanted: its lease begins anew."""
        self._send(calls.heartbeat(self.id))
        return self.refresh()

    def logs(self, limit: int = LOG_BYTES) -> str:
        """The last that it wrote."""
        return self._link.ask(calls.logs(self.id, limit)).check().body.decode("utf-8", "replace")

    def release(self) -> str:
        """`terminated`, `released` (others share it) or `already_gone`."""
        return self._send(calls.release(self.id, self.hold))


class Instances(_Handle):
    def start(
        self,
        server: Server,
        *,
        project: Path | None = None,
        space: str | None = None,
        **options: Unpack[InstanceOptions],
    ) -> Instance:
        """Returns when it has answered a handshake. `InstanceFailed` has its last lines."""
        info = self._send(calls.start(server, project, space, options))
        return Instance(self._link, info)

    def get(self, instance_id: str) -> Instance:
        return Instance(self._link, self._send(calls.instance(instance_id)))

    def list(self, *, space: str = "", ended: bool = False) -> list[InstanceInfo]:
        return self._send(calls.instances(space, ended))

    def servers(self) -> Sequence[ServerInfo]:
        """The kinds of servers that are known."""
        return self._send(calls.servers())

    def add_server(
        self, name: str, command: Sequence[str], **options: Unpack[ServerOptions]
    ) -> None:
        """For administrators."""
        self._send(calls.add_server(name, command, options))

    def remove_server(self, name: str) -> None:
        """One that was added."""
        self._send(calls.remove_server(name))
