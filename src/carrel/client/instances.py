# Made from aio_instances.py by tools/unasync.py: change that one.
"""Dedicated MCP servers, each for one client."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Unpack

from carrel.api.types.instances import (
    InstanceInfo,
    InstanceOptions,
    Release,
    ServerInfo,
    ServerOptions,
)
from carrel.client.http import operation
from carrel.client.link import Link, shielded
from carrel.client.options import Path, Server, instance_content
from carrel.domain.errors import InstanceNotFound

LOG_BYTES = 65_536


class Instance:
    """One server of one's own. `info` is what was last told of it; `hold` is our share of it, which
    `release` gives up (empty of one that was only looked up). As a context it is let go at the
    end."""

    def __init__(self, link: Link, info: InstanceInfo) -> None:
        self._link = link
        self.info = info
        self.hold = info.hold or ""

    @property
    def id(self) -> str:
        return self.info.instance_id

    @property
    def url(self) -> str:
        return self.info.url

    @property
    def headers(self) -> Mapping[str, str]:
        """What a client of `url` has to send."""
        return self.info.headers

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.info.server} {self.info.state}>"

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(InstanceNotFound):
            shielded(self.release())

    def refresh(self) -> InstanceInfo:
        self.info = self._link.call(InstanceInfo, "instances.show", self.id)
        return self.info

    def heartbeat(self) -> InstanceInfo:
        """It is still wanted: its lease begins anew."""
        self._link.json(operation("instances.heartbeat", self.id))
        return self.refresh()

    def logs(self, limit: int = LOG_BYTES) -> str:
        """The last that it wrote."""
        request = operation("instances.logs", self.id, query=[("limit", limit)])
        answer = self._link.ask(request)
        return answer.check().body.decode("utf-8", "replace")

    def release(self) -> str:
        """`terminated`, `released` (others share it) or `already_gone`."""
        query = [("hold", self.hold or None)]
        answer = self._link.call(Release, "instances.release", self.id, query=query)
        return str(answer.status)


class Instances:
    def __init__(self, link: Link) -> None:
        self._link = link

    def start(
        self,
        server: Server,
        *,
        project: Path | None = None,
        space: str | None = None,
        **options: Unpack[InstanceOptions],
    ) -> Instance:
        """Returns when it has answered a handshake. `InstanceFailed` has its last lines."""
        content = instance_content(server, project, space, options)
        info = self._link.call(InstanceInfo, "instances.start", content=content)
        return Instance(self._link, info)

    def get(self, instance_id: str) -> Instance:
        info = self._link.call(InstanceInfo, "instances.show", instance_id)
        return Instance(self._link, info)

    def list(self, *, space: str = "", ended: bool = False) -> list[InstanceInfo]:
        query = [("space", space or None), ("ended", ended or None)]
        return self._link.call(
            list[InstanceInfo], "instances.list", query=query, member="instances"
        )

    def servers(self) -> Sequence[ServerInfo]:
        """The kinds of servers that are known."""
        return self._link.call(list[ServerInfo], "servers.list", member="servers")

    def add_server(
        self, name: str, command: Sequence[str], **options: Unpack[ServerOptions]
    ) -> None:
        """For administrators."""
        content = {"command": list(command), **options}
        self._link.json(operation("servers.put", name, content=content))

    def remove_server(self, name: str) -> None:
        """One that was added."""
        self._link.json(operation("servers.remove", name))
