"""Instances: an MCP server process of its own for one client.

Carrel starts it, waits until it truly answers, says where it is, and is out of the way: the
client speaks with its server directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from carrel.domain.limits import NO_LIMITS, Limits

READY_S = 60.0
"""For a server to answer; large ones load half a library."""


class Transport(StrEnum):
    STREAMABLE_HTTP = "streamable-http"
    SSE = "sse"
    STDIO = "stdio"
    """Speaks on its standard streams only: it is offered over HTTP by a bridge of its own."""


class PortBy(StrEnum):
    """How the port of a server is learned, in the order of trust."""

    SOCKET = "socket"
    """It is given a socket that listens already: `{fd}` in its command."""
    FILE = "file"
    """It writes it to `{port_file}` once it has bound it."""
    PROCESS = "process"
    """By what its processes listen on."""
    LOG = "log"
    """By a line of its output: `Server.port_line`."""
    RESERVED = "reserved"
    """It can only be told one, `{port}`, which is kept for it until it has bound it."""


@dataclass(frozen=True)
class ToolCall:
    """A call that a server answers only when it is ready for work."""

    name: str
    arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Server:
    """How one kind of server is started. Words of `command` and values of `env` have places:
    `{project}`, `{state}`, `{host}`, `{port}`, `{port_file}`, `{fd}`."""

    name: str
    command: tuple[str, ...]
    transport: Transport = Transport.STREAMABLE_HTTP
    port_by: PortBy = PortBy.PROCESS
    port_line: str = ""
    """A regular expression whose first group is the port."""
    path: str = "/mcp"
    """Of its address."""
    env: Mapping[str, str] = field(default_factory=dict)
    ready_s: float = READY_S
    tool_ready: ToolCall | None = None
    takes_token: str = ""
    """The variable by which it takes a token that its clients must show; empty: it cannot."""
    needs_network: bool = False
    binds: tuple[str, ...] = ()
    """What its sandbox must show beside the program: absolute paths, read-only."""
    install: str = ""
    """The command that installs it."""


class Restart(StrEnum):
    NEVER = "never"
    ON_FAILURE = "on-failure"


class Share(StrEnum):
    NONE = "none"
    PROJECT = "project"
    """Clients of the same project get the same instance, which ends with the last of them."""


class InstanceState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(frozen=True)
class InstanceRequest:
    """One of `project_path` and `space_id`. `idle_s` is without a heartbeat and without work;
    `owner_pid` is a process of the caller's with which it ends."""

    server: str | Server
    project_path: str = ""
    space_id: str = ""
    ttl_s: float | None = None
    idle_s: float | None = None
    owner_pid: int | None = None
    restart: Restart = Restart.NEVER
    share: Share = Share.NONE
    limits: Limits = NO_LIMITS
    confined: bool = True
    """False: nothing holds it. For who says so."""
