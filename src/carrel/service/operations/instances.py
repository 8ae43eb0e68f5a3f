"""Instances and their servers, as the contract has them."""

from __future__ import annotations

import asyncio
from typing import Any

from carrel.api.types import instances as types
from carrel.api.types.common import members, moment, moment_or_none
from carrel.domain.access import Caller
from carrel.domain.errors import MessageInvalid
from carrel.domain.instances import (
    READY_S,
    Handed,
    Instance,
    InstanceRequest,
    PortBy,
    Server,
    ServerStatus,
    ToolCall,
    Transport,
    Wrap,
)
from carrel.domain.limits import Limits
from carrel.service.access import concealed, require_admin
from carrel.service.instances import Instances


class InstanceOperations:
    def __init__(self, instances: Instances, data: str) -> None:
        self._instances = instances
        self._data = data

    async def list(self, caller: Caller, asked: types.InstanceListQuery) -> types.InstanceList:
        found = await self._instances.list(caller, space_id=asked.space, ended=asked.ended)
        listed = (types.ListedInstance(**self._members(caller, one)) for one in found)
        return types.InstanceList(instances=tuple(listed))

    async def show(self, caller: Caller, instance: str) -> types.InstanceInfo:
        return self.info(caller, await self._instances.handed(caller, instance))

    async def release(
        self, caller: Caller, instance: str, asked: types.ReleaseQuery
    ) -> types.Release:
        """Nothing of it runs when this is answered, unless others share it."""
        return types.Release(status=await self._instances.release(caller, instance, asked.hold))

    async def heartbeat(self, caller: Caller, instance: str) -> types.ListedInstance:
        """It is still wanted: its `lease` begins anew."""
        found = await self._instances.heartbeat(caller, instance)
        return types.ListedInstance(**self._members(caller, found))

    def info(self, caller: Caller, handed: Handed) -> types.InstanceInfo:
        return types.InstanceInfo(
            **self._members(caller, handed.instance),
            token=handed.token or None,
            hold=handed.hold or None,
        )

    def _members(self, caller: Caller, one: Instance) -> dict[str, Any]:
        """Never its token and its variables, which may be secrets."""
        return {
            "instance_id": one.instance_id,
            "server": one.server.name,
            "state": one.state,
            "host": one.host,
            "port": one.port,
            "url": one.url,
            "transport": _spoken(one),
            "socket": concealed(caller, self._data, one.socket),
            "inside_url": one.inside_url,
            "has_token": one.has_token,
            "pid": one.pid,
            "started_in_ms": one.started_in_ms,
            "project_path": one.project_path,
            "space_id": one.space_id,
            "runtime": one.runtime,
            "confined": one.confined,
            "network": one.network,
            "notes": concealed(caller, self._data, one.notes),
            "warmth": one.warmth,
            "restarts": one.restarts,
            "clients": one.clients,
            "created_at": moment(one.created_at),
            "updated_at": moment(one.updated_at),
            "ready_at": moment_or_none(one.ready_at),
            "ended_at": moment_or_none(one.ended_at),
            "problem": concealed(caller, self._data, one.problem),
            "limits": one.limits,
            "enforced": concealed(caller, self._data, one.enforced),
            "ttl": one.ttl_s,
            "lease": one.lease_s,
            "idle_timeout": one.idle_s,
            "survive": one.survive,
            "restart": one.restart,
            "share": one.share,
        }


def _spoken(one: Instance) -> Transport:
    """How its client speaks: one that only knows streams is offered over HTTP too."""
    if one.socket:
        return Transport.STDIO
    offered = one.server.transport is Transport.STDIO
    return Transport.STREAMABLE_HTTP if offered else one.server.transport


def instance_request(new: types.NewInstance) -> InstanceRequest:
    if (new.project_path is None) == (new.space_id is None):
        raise MessageInvalid(
            "An instance is for a project or for a space.",
            hint="Give one of project_path and space_id.",
            field="body.project_path",
        )
    server = new.server
    return InstanceRequest(
        server=server if isinstance(server, str) else server_of(server.name, server),
        project_path=new.project_path or "",
        space_id=new.space_id or "",
        ttl_s=new.ttl,
        lease_s=new.lease,
        idle_s=new.idle_timeout,
        owner_pid=new.owner_pid,
        hub_client=new.hub_client,
        survive=new.survive,
        restart=new.restart,
        share=new.share,
        limits=Limits(**members(new.limits)),
        network=new.network,
        confined=new.confined,
        env=new.env,
        tool_ready=_tool(new.tool_ready),
        ready_s=new.ready_timeout,
        streams=new.streams,
    )


def server_of(name: str, body: types.ServerBody) -> Server:
    """One that speaks on its streams only is offered by the bridge, which takes a socket."""
    wrap = Wrap(body.wrap or (Wrap.STDIO if body.transport is Transport.STDIO else Wrap.NONE))
    usual = PortBy.PROCESS if wrap is Wrap.NONE else PortBy.SOCKET
    return Server(
        name=name,
        command=body.command,
        transport=body.transport,
        port_by=usual if body.port is None else body.port.by,
        port_line="" if body.port is None else body.port.line,
        path=body.path,
        wrap=wrap,
        stdio=body.stdio,
        env=body.env,
        ready_s=body.readiness.timeout_s or READY_S,
        tool_ready=_tool(body.readiness.tool),
        takes_token=body.takes_token or "",
        network=body.network,
        binds=body.binds,
        files=body.files,
        copies=body.copies,
        preload=body.preload,
        warm=body.warm,
        install=body.install,
    )


def _tool(body: types.ToolBody | None) -> ToolCall | None:
    return None if body is None else ToolCall(body.name, body.arguments)


class ServerOperations:
    """The kinds of MCP servers that can be had as instances."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances

    async def list(self, caller: Caller) -> types.ServerList:
        """What is installed, and how to install what is not."""
        found = await self._instances.kinds(caller)
        return types.ServerList(servers=tuple(_server(one) for one in found))

    async def put(self, caller: Caller, name: str, new: types.ServerBody) -> types.ServerList:
        """Instead of one that had that name."""
        require_admin(caller)
        await asyncio.to_thread(self._instances.servers.add, server_of(name, new))
        return await self.list(caller)

    async def remove(self, caller: Caller, name: str) -> types.ServerList:
        """One that was added; a built-in one is then as it was."""
        require_admin(caller)
        await asyncio.to_thread(self._instances.servers.remove, name)
        return await self.list(caller)


def _server(status: ServerStatus) -> types.ServerInfo:
    server = status.server
    return types.ServerInfo(
        name=server.name,
        installed=status.installed,
        where=status.where,
        source=status.source,
        command=server.command,
        transport=server.transport,
        port=types.PortInfo(by=server.port_by, line=server.port_line),
        path=server.path,
        network=server.network,
        env=tuple(sorted(server.env)),
        streams=bool(server.stdio) or server.transport is Transport.STDIO,
        warm=server.warm,
        install=server.install,
    )
