"""Instances: what is asked for, and what is told of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from carrel.interfaces.http.models.common import (
    Answer,
    Body,
    Environment,
    Moment,
    Seconds,
    Variable,
    Word,
)
from carrel.interfaces.http.models.spaces import (
    EnforcedView,
    FailureView,
    InstanceStateName,
    LimitsBody,
    LimitsView,
    NetworkName,
    ServerName,
)
from carrel.interfaces.http.texts import PathText, WordText

TransportName = Literal["streamable-http", "sse", "stdio"]
RestartName = Literal["never", "on-failure"]
ShareName = Literal["none", "project"]
Span = Annotated[Seconds, Field(gt=0)]
Texts = Annotated[dict[str, str], Field(max_length=1000)]
Words = Annotated[list[WordText], Field(max_length=4096)]
OWN_SERVER = "custom"
"""The name of a server that is described where it is asked for, unless it is given one."""


class PortBody(Body):
    """How the port of a server is learned."""

    by: Literal["socket", "file", "process", "log", "reserved"] = "process"
    line: Annotated[str, Field(max_length=1000)] = ""
    """For `log`: a regular expression whose first group is the port."""


class ToolBody(Body):
    """A call that the server answers only when it is ready for work."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    arguments: dict[str, Any] = Field(default_factory=dict)


class ReadinessBody(Body):
    timeout_s: Span | None = None
    tool: ToolBody | None = None


class ServerBody(Body):
    """How one kind of server is started. Words of `command` and values of `env` have places:
    `{project}`, `{state}`, `{host}`, `{port}`, `{port_file}`, `{fd}`."""

    command: Annotated[Words, Field(min_length=1)]
    env: Environment = Field(default_factory=dict)
    transport: TransportName = "streamable-http"
    port: PortBody | None = None
    """Null: by what its processes listen on, where it does not take a socket."""
    path: Annotated[str, StringConstraints(pattern=r"^/[!-~]*$", max_length=1024)] = "/mcp"
    wrap: Literal["uvicorn", "stdio"] | None = None
    """What has it take a socket and ask for a token; null: what its transport needs."""
    stdio: Words = Field(default_factory=list)
    """The command with which it speaks on its standard streams, when it can do both."""
    readiness: ReadinessBody = ReadinessBody()
    takes_token: Variable | None = None
    """The variable by which it takes a token that its clients must show."""
    network: NetworkName = "none"
    binds: Annotated[list[PathText], Field(max_length=1000)] = Field(default_factory=list)
    files: Texts = Field(default_factory=dict)
    """Texts that are below `{state}` before it starts."""
    copies: Texts = Field(default_factory=dict)
    """What of the project it works on a copy of, and where below `{state}` that is put."""
    preload: Annotated[list[Word], Field(max_length=1000)] = Field(default_factory=list)
    warm: Annotated[int, Field(ge=0, le=64)] = 0
    install: Annotated[str, Field(max_length=1000)] = ""


class OwnServerBody(ServerBody):
    """A server that is not kept."""

    name: ServerName = OWN_SERVER


class InstanceBody(Body):
    """One of `project_path` and `space_id`. What is null ends nothing. Times are seconds."""

    server: ServerName | OwnServerBody
    project_path: PathText | None = None
    space_id: Word | None = None
    ttl: Span | None = None
    lease: Span | None = None
    """It ends when nobody said by a heartbeat for so long that it is wanted."""
    idle_timeout: Span | None = None
    owner_pid: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    hub_client: Word = ""
    survive: bool = False
    restart: RestartName = "never"
    share: ShareName = "none"
    limits: LimitsBody = LimitsBody()
    network: NetworkName | None = None
    """Null: as the server's definition says."""
    confined: bool = True
    """False is for administrators: nothing holds it then."""
    env: Environment = Field(default_factory=dict)
    tool_ready: ToolBody | None = None
    ready_timeout: Span | None = None
    streams: bool = False
    """For a client that speaks on streams: see `socket`."""


class InstanceView(Answer):
    instance_id: str
    server: str
    state: InstanceStateName
    host: str
    port: int
    url: str
    """Empty until it is ready, and for one on streams."""
    transport: TransportName
    """As its client is to speak."""
    socket: str
    """Of one on streams: a Unix socket that takes one connection, the server's input and
    output."""
    inside_url: str
    """For what runs in the same space."""
    has_token: bool
    pid: int
    started_in_ms: float
    project_path: str
    space_id: str
    runtime: str
    confined: bool
    network: NetworkName
    notes: list[str]
    """What does not hold here, in sentences."""
    warmth: Literal["cold", "forked", "started"]
    restarts: int
    clients: int
    created_at: Moment
    updated_at: Moment
    ready_at: Moment | None
    ended_at: Moment | None
    problem: FailureView | None
    limits: LimitsView
    enforced: list[EnforcedView]
    ttl: float | None
    lease: float | None
    idle_timeout: float | None
    survive: bool
    restart: RestartName
    share: ShareName


class HandedView(InstanceView):
    """For who asked for it."""

    token: str | None
    """To be shown as `Authorization: Bearer`; null where none is checked."""
    hold: str | None
    """For who started it, to release it by; null when it is only looked at."""


class InstanceList(Answer):
    instances: list[InstanceView]


class ReleasedView(Answer):
    status: Literal["terminated", "released", "already_gone"]
    """`released`: others still share it."""


class PortView(Answer):
    by: str
    line: str


class ServerView(Answer):
    name: str
    installed: bool
    where: str
    source: str
    command: list[str]
    transport: TransportName
    port: PortView
    path: str
    network: NetworkName
    env: list[str]
    """Names only."""
    streams: bool
    """Whether it can be had on streams."""
    warm: int
    install: str


class ServerList(Answer):
    servers: list[ServerView]


class SessionBody(Body):
    """The older spelling. What is not known is let be, as it always was."""

    model_config = ConfigDict(extra="ignore", strict=True)

    project_path: PathText
    server: ServerName = "serena"


class ReleaseBody(Body):
    model_config = ConfigDict(extra="ignore", strict=True)

    session_id: Annotated[str, StringConstraints(min_length=1, max_length=255)]


class SessionView(Answer):
    session_id: str
    host: str
    port: int
    url: str
    token: str | None
