"""Instances and their servers, from JSON and back."""

from __future__ import annotations

from carrel.domain.errors import MessageInvalid
from carrel.domain.instances import (
    READY_S,
    Handed,
    Instance,
    InstanceRequest,
    PortBy,
    Restart,
    Server,
    ServerStatus,
    Share,
    ToolCall,
    Transport,
    Wrap,
)
from carrel.domain.limits import Limits
from carrel.domain.runtimes import Network
from carrel.interfaces.http.encoding import moment, moment_or_none
from carrel.interfaces.http.models.instances import (
    InstanceBody,
    OwnServerBody,
    ServerBody,
    ToolBody,
)
from carrel.interfaces.http.views import View


def instance_request(body: InstanceBody) -> InstanceRequest:
    if (body.project_path is None) == (body.space_id is None):
        raise MessageInvalid(
            "An instance is for a project or for a space.",
            hint="Give one of project_path and space_id.",
            field="body.project_path",
        )
    server = body.server
    return InstanceRequest(
        server=_own(server) if isinstance(server, OwnServerBody) else server,
        project_path=body.project_path or "",
        space_id=body.space_id or "",
        ttl_s=body.ttl,
        lease_s=body.lease,
        idle_s=body.idle_timeout,
        owner_pid=body.owner_pid,
        hub_client=body.hub_client,
        survive=body.survive,
        restart=Restart(body.restart),
        share=Share(body.share),
        limits=Limits(**dict(body.limits)),
        network=None if body.network is None else Network(body.network),
        confined=body.confined,
        env=body.env,
        tool_ready=_tool(body.tool_ready),
        ready_s=body.ready_timeout,
        streams=body.streams,
    )


def _own(body: OwnServerBody) -> Server:
    return server_of(body.name, body)


def server_of(name: str, body: ServerBody) -> Server:
    """One that speaks on its streams only is offered by the bridge, which takes a socket."""
    transport = Transport(body.transport)
    wrap = Wrap(body.wrap or (Wrap.STDIO if transport is Transport.STDIO else Wrap.NONE))
    usual = PortBy.PROCESS if wrap is Wrap.NONE else PortBy.SOCKET
    return Server(
        name=name,
        command=tuple(body.command),
        transport=transport,
        port_by=usual if body.port is None else PortBy(body.port.by),
        port_line="" if body.port is None else body.port.line,
        path=body.path,
        wrap=wrap,
        stdio=tuple(body.stdio),
        env=body.env,
        ready_s=body.readiness.timeout_s or READY_S,
        tool_ready=_tool(body.readiness.tool),
        takes_token=body.takes_token or "",
        network=Network(body.network),
        binds=tuple(body.binds),
        files=body.files,
        copies=body.copies,
        preload=tuple(body.preload),
        warm=body.warm,
        install=body.install,
    )


def _tool(body: ToolBody | None) -> ToolCall | None:
    return None if body is None else ToolCall(body.name, body.arguments)


def instance_view(one: Instance) -> View:
    """Never its token and its variables, which may be secrets."""
    return {
        "instance_id": one.instance_id,
        "server": one.server.name,
        "state": one.state,
        "host": one.host,
        "port": one.port,
        "url": one.url,
        "transport": _spoken(one),
        "socket": one.socket,
        "inside_url": one.inside_url,
        "has_token": one.has_token,
        "pid": one.pid,
        "started_in_ms": one.started_in_ms,
        "project_path": one.project_path,
        "space_id": one.space_id,
        "runtime": one.runtime,
        "confined": one.confined,
        "network": one.network,
        "notes": one.notes,
        "warmth": one.warmth,
        "restarts": one.restarts,
        "clients": one.clients,
        "created_at": moment(one.created_at),
        "updated_at": moment(one.updated_at),
        "ready_at": moment_or_none(one.ready_at),
        "ended_at": moment_or_none(one.ended_at),
        "problem": one.problem,
        "limits": one.limits,
        "enforced": one.enforced,
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


def handed_view(handed: Handed) -> View:
    own = {"token": handed.token or None, "hold": handed.hold or None}
    return {**instance_view(handed.instance), **own}


def server_view(status: ServerStatus) -> View:
    server = status.server
    return {
        "name": server.name,
        "installed": status.installed,
        "where": status.where,
        "source": status.source,
        "command": server.command,
        "transport": server.transport,
        "port": {"by": server.port_by, "line": server.port_line},
        "path": server.path,
        "network": server.network,
        "env": sorted(server.env),
        "streams": bool(server.stdio) or server.transport is Transport.STDIO,
        "warm": server.warm,
        "install": server.install,
    }
