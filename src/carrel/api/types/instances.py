"""Instances and their servers: what is asked for, and what is told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta, Struct, field

from carrel.api.types.common import (
    END,
    Answer,
    Body,
    Environment,
    Moment,
    PathText,
    Query,
    Span,
    Variable,
    Word,
    WordText,
)
from carrel.api.types.spaces import LimitsBody, ServerName
from carrel.domain.instances import (
    InstanceState,
    PortBy,
    Released,
    Restart,
    Share,
    Transport,
    Warmth,
)
from carrel.domain.limits import Limits, LimitSupport
from carrel.domain.runtimes import Network
from carrel.domain.spaces import Problem

MAX_LOG = 1 << 20
OWN_SERVER = "custom"
"""The name of a server that is described where it is asked for, unless it is given one."""
Texts = Annotated[dict[str, str], Meta(max_length=1000)]
Words = Annotated[tuple[WordText, ...], Meta(max_length=4096)]


class PortBody(Body, frozen=True, kw_only=True):
    """How the port of a server is learned."""

    by: PortBy = PortBy.PROCESS
    line: Annotated[str, Meta(max_length=1000)] = ""
    """For `log`: a regular expression whose first group is the port."""


class ToolBody(Body, frozen=True, kw_only=True):
    """A call that the server answers only when it is ready for work."""

    name: Annotated[str, Meta(min_length=1, max_length=255)]
    arguments: dict[str, Any] = field(default_factory=dict)


class ReadinessBody(Body, frozen=True, kw_only=True):
    timeout_s: Span | None = None
    tool: ToolBody | None = None


class ServerBody(Body, frozen=True, kw_only=True):
    """How one kind of server is started. Words of `command` and values of `env` have places:
    `{project}`, `{state}`, `{host}`, `{port}`, `{port_file}`, `{fd}`."""

    command: Annotated[tuple[WordText, ...], Meta(min_length=1, max_length=4096)]
    env: Environment = field(default_factory=dict)
    transport: Transport = Transport.STREAMABLE_HTTP
    port: PortBody | None = None
    """Null: by what its processes listen on, where it does not take a socket."""
    path: Annotated[str, Meta(pattern=rf"^/[!-~]*{END}", max_length=1024)] = "/mcp"
    wrap: Literal["uvicorn", "stdio"] | None = None
    """What has it take a socket and ask for a token; null: what its transport needs."""
    stdio: Words = ()
    """The command with which it speaks on its standard streams, when it can do both."""
    readiness: ReadinessBody = ReadinessBody()
    takes_token: Variable | None = None
    """The variable by which it takes a token that its clients must show."""
    network: Network = Network.NONE
    binds: Annotated[tuple[PathText, ...], Meta(max_length=1000)] = ()
    files: Texts = field(default_factory=dict)
    """Texts that are below `{state}` before it starts."""
    copies: Texts = field(default_factory=dict)
    """What of the project it works on a copy of, and where below `{state}` that is put."""
    preload: Annotated[tuple[Word, ...], Meta(max_length=1000)] = ()
    warm: Annotated[int, Meta(ge=0, le=64)] = 0
    install: Annotated[str, Meta(max_length=1000)] = ""


class ServerOptions(TypedDict, total=False):
    """The same as Python says it, beside the command; see docs/instances.md."""

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


class OwnServerBody(ServerBody, frozen=True, kw_only=True):
    """A server that is not kept."""

    name: ServerName = OWN_SERVER


class NewInstance(Body, frozen=True, kw_only=True):
    """One of `project_path` and `space_id`. What is null ends nothing. Times are seconds."""

    server: ServerName | OwnServerBody
    project_path: PathText | None = None
    space_id: Word | None = None
    ttl: Span | None = None
    lease: Span | None = None
    """It ends when nobody said by a heartbeat for so long that it is wanted."""
    idle_timeout: Span | None = None
    owner_pid: Annotated[int, Meta(ge=1, lt=1 << 31)] | None = None
    hub_client: Word = ""
    survive: bool = False
    restart: Restart = Restart.NEVER
    share: Share = Share.NONE
    limits: LimitsBody = LimitsBody()
    network: Network | None = None
    """Null: as the server's definition says."""
    confined: bool = True
    """False is for administrators: nothing holds it then."""
    env: Environment = field(default_factory=dict)
    tool_ready: ToolBody | None = None
    ready_timeout: Span | None = None
    streams: bool = False
    """For a client that speaks on streams: see `socket`."""


ToolOption = str | tuple[str, Mapping[str, object]]
"""A tool's name, alone or with its arguments."""


class InstanceOptions(TypedDict, total=False):
    """The same as Python says it: all about an instance beside its server and its project."""

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
    tool_ready: ToolOption
    ready_timeout: float
    streams: bool


class InstanceListQuery(Query, frozen=True, kw_only=True):
    space: Word = ""
    ended: bool = False
    """Those too that are over."""


class ReleaseQuery(Query, frozen=True, kw_only=True):
    hold: Word = ""
    """What the start was answered with: with it, nobody else's share is given up, however often
    this is asked."""


class LogQuery(Query, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=MAX_LOG)] = 65_536


class ListedInstance(Answer, frozen=True, kw_only=True):
    instance_id: str
    server: str
    state: InstanceState
    host: str
    port: int
    url: str
    """Empty until it is ready, and for one on streams."""
    transport: Transport
    """As its client is to speak."""
    socket: str = ""
    """Of one on streams: a Unix socket that takes one connection, the server's input and
    output."""
    inside_url: str = ""
    """For what runs in the same space."""
    has_token: bool = False
    pid: int = 0
    started_in_ms: float = 0.0
    project_path: str = ""
    space_id: str = ""
    runtime: str = ""
    confined: bool = True
    network: Network = Network.NONE
    notes: tuple[str, ...] = ()
    """What does not hold here, in sentences."""
    warmth: Warmth = Warmth.COLD
    restarts: int = 0
    clients: int = 1
    created_at: Moment
    updated_at: Moment
    ready_at: Moment | None = None
    ended_at: Moment | None = None
    problem: Problem | None = None
    limits: Limits = Limits()
    enforced: tuple[LimitSupport, ...] = ()
    ttl: float | None = None
    lease: float | None = None
    idle_timeout: float | None = None
    survive: bool = False
    restart: Restart = Restart.NEVER
    share: Share = Share.NONE


class InstanceInfo(ListedInstance, frozen=True, kw_only=True):
    """For who asked for it."""

    token: str | None = None
    """To be shown as `Authorization: Bearer`; None where none is checked, and in lists."""
    hold: str | None = None
    """For who started it, to release it by; None when it is only looked at."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What a client of its URL has to send."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


class InstanceList(Answer, frozen=True, kw_only=True):
    instances: tuple[ListedInstance, ...]


class Release(Answer, frozen=True, kw_only=True):
    status: Released
    """`released`: others still share it."""


class PortInfo(Answer, frozen=True, kw_only=True):
    by: str
    line: str = ""


class ServerInfo(Answer, frozen=True, kw_only=True):
    """A kind of server. Of its variables the names only."""

    name: str
    installed: bool
    where: str
    source: str
    command: tuple[str, ...]
    transport: Transport
    port: PortInfo
    path: str
    network: Network
    env: tuple[str, ...] = ()
    streams: bool = False
    """Whether it can be had on streams."""
    warm: int = 0
    install: str = ""


class ServerList(Answer, frozen=True, kw_only=True):
    servers: tuple[ServerInfo, ...]


# The older spelling. What is not known is let be, as it always was.


class SessionBody(Struct, frozen=True, kw_only=True):
    project_path: PathText
    server: ServerName = "serena"


class ReleaseBody(Struct, frozen=True, kw_only=True):
    session_id: Annotated[str, Meta(min_length=1, max_length=255)] | int
    """A number is what an earlier manager gave for one."""


class SessionRelease(Release, frozen=True, kw_only=True):
    session_id: str


class SessionInfo(Answer, frozen=True, kw_only=True):
    session_id: str
    host: str
    port: int
    url: str
    token: str | None = None
