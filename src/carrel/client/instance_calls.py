"""Every question about instances: see `calls`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypedDict

from carrel.client import models
from carrel.client.calls import Call
from carrel.client.instance_models import InstanceInfo, Release, ServerInfo
from carrel.client.requests import LONG_S, Request, asking, instance_path, telling
from carrel.client.wire import segment
from carrel.domain.errors import MessageInvalid
from carrel.domain.limits import Limits

Tool = str | tuple[str, Mapping[str, object]]
"""A tool's name, alone or with its arguments."""


class ServerOptions(TypedDict, total=False):
    """How a server is started, beside its command; see docs/instances.md."""

    env: Mapping[str, str]
    transport: str
    port: Mapping[str, str]
    path: str
    wrap: str
    stdio: Sequence[str]
    readiness: Mapping[str, object]
    takes_token: str
    network: str
    binds: Sequence[str]
    files: Mapping[str, str]
    copies: Mapping[str, str]
    preload: Sequence[str]
    warm: int
    install: str


class InstanceOptions(TypedDict, total=False):
    """All that can be said about an instance, beside its server and its project. Times are
    seconds."""

    ttl: float
    lease: float
    idle_timeout: float
    owner_pid: int
    hub_client: str
    survive: bool
    restart: str
    share: str
    limits: Limits
    network: str
    confined: bool
    env: Mapping[str, str]
    tool_ready: Tool
    ready_timeout: float
    streams: bool


Path = str | os.PathLike[str]
Server = str | Mapping[str, object]
"""By name, or described: `{"command": [...], ...}`."""


def start(
    server: Server, project: Path | None, space: str | None, options: InstanceOptions
) -> Call[InstanceInfo]:
    content = start_content(server, project, space, options)
    request = telling("POST", "/v1/instances", content, timeout_s=LONG_S)
    return Call(request, _instance)


def start_content(
    server: Server, project: Path | None, space: str | None, options: InstanceOptions
) -> dict[str, Any]:
    if (project is None) == (space is None):
        raise MessageInvalid(
            "An instance is for a project or for a space.", hint="Give one of project and space."
        )
    content: dict[str, Any] = {"server": server if isinstance(server, str) else dict(server)}
    if project is not None:
        content["project_path"] = os.path.abspath(os.path.expanduser(project))
    else:
        content["space_id"] = space
    content.update(options)
    if "limits" in options:
        content["limits"] = asdict(options["limits"])
    if "env" in options:
        content["env"] = dict(options["env"])
    if "tool_ready" in options:
        content["tool_ready"] = _tool(options["tool_ready"])
    return content


def _tool(tool: Tool) -> dict[str, object]:
    name, arguments = (tool, {}) if isinstance(tool, str) else tool
    return {"name": name, "arguments": dict(arguments)}


def instance(instance_id: str) -> Call[InstanceInfo]:
    return Call(asking(instance_path(instance_id)), _instance)


def instances(space: str, ended: bool) -> Call[list[InstanceInfo]]:
    query: list[tuple[str, object]] = [("space", space)] if space else []
    if ended:
        query.append(("ended", True))
    request = asking("/v1/instances", query)
    return Call(request, lambda told: models.decode(told["instances"], list[InstanceInfo]))


def release(instance_id: str, hold: str) -> Call[str]:
    """Asked again after a broken connection: it is gone then, or goes."""
    query = [("hold", hold)] if hold else []
    request = Request("DELETE", instance_path(instance_id), query, timeout_s=LONG_S, again=True)
    return Call(request, lambda told: str(models.decode(told, Release).status))


def heartbeat(instance_id: str) -> Call[InstanceInfo]:
    return Call(telling("POST", instance_path(instance_id, "heartbeat"), again=True), _instance)


def logs(instance_id: str, limit: int) -> Request:
    return Request("GET", instance_path(instance_id, "logs"), [("limit", limit)])


def servers() -> Call[list[ServerInfo]]:
    return Call(asking("/v1/servers"), _servers)


def add_server(name: str, command: Sequence[str], options: ServerOptions) -> Call[list[ServerInfo]]:
    content: dict[str, Any] = {"command": list(command), **options}
    return Call(telling("PUT", _server_path(name), content, again=True), _servers)


def remove_server(name: str) -> Call[list[ServerInfo]]:
    return Call(Request("DELETE", _server_path(name)), _servers)


def _server_path(name: str) -> str:
    return f"/v1/servers/{segment(name)}"


def _instance(content: Any) -> InstanceInfo:
    return models.decode(content, InstanceInfo)


def _servers(content: Any) -> list[ServerInfo]:
    return models.decode(content["servers"], list[ServerInfo])
