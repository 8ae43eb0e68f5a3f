"""Instances: an MCP server process of its own for one client.

Carrel starts it, waits until it truly answers, says where it is, and is out of the way: the
client speaks with its server directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from carrel.domain.limits import NO_LIMITS, Limits, LimitSupport
from carrel.domain.runtimes import Network
from carrel.domain.spaces import Problem
from carrel.domain.trees import Owner

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


class Wrap(StrEnum):
    """A small program of ours that runs in the sandbox in front of the server, so that it
    takes a socket that listens already and has its clients show a token."""

    NONE = ""
    UVICORN = "uvicorn"
    """The server is a Python program that serves with uvicorn: its own interpreter runs it,
    and what it would bind is replaced by what it was given."""
    STDIO = "stdio"
    """The server speaks on its standard streams: the MCP SDK's bridge offers it over HTTP."""


@dataclass(frozen=True)
class ToolCall:
    """A call that a server answers only when it is ready for work."""

    name: str
    arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkLines:
    """What a server that answers before it can work writes about that: regular expressions, each
    found in its output. One of another version may write something else, and is not waited for."""

    begins: str
    works: str
    found: str
    """What it needs is there. Enough where the project brings no settings for it."""
    fails: str
    """It never will. The first group is why."""
    hint: str


@dataclass(frozen=True)
class Swap:
    """A word in a list of a project's settings, in YAML, for which the copy of them has another:
    what it means would be fetched from the network."""

    files: tuple[str, ...]
    """The copies, below `{state}`."""
    keys: tuple[str, ...]
    word: str
    instead: str
    program: str
    """What the other one needs, on the PATH of the server."""
    fetched_by: tuple[str, ...]
    """Programs that fetch it: with one of them, and a network, nothing is changed."""
    unless: str
    """Nor where this is in `Server.files`: then somebody has said where it is."""
    note: str


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
    wrap: Wrap = Wrap.NONE
    stdio: tuple[str, ...] = ()
    """The command with which it speaks on its standard streams; empty: it cannot. A server
    whose transport is `stdio` has it as its `command`."""
    env: Mapping[str, str] = field(default_factory=dict)
    ready_s: float = READY_S
    tool_ready: ToolCall | None = None
    takes_token: str = ""
    """The variable by which it takes a token that its clients must show; empty: it cannot."""
    network: Network = Network.NONE
    binds: tuple[str, ...] = ()
    """What its sandbox must show beside the program: absolute paths, read-only."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts, with places, that are below `{state}` before it starts: its own settings. A path
    that ends with a slash is a folder."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """What of the project it works on a copy of: where it is there, and where below `{state}`
    it is put. What is not there is left out."""
    swaps: tuple[Swap, ...] = ()
    work_lines: WorkLines | None = None
    daemon: bool = False
    """It is a client of this daemon: beside a space it has its user's rights, and nothing
    confines it."""
    preload: tuple[str, ...] = ()
    """Modules that a warm process has imported when an instance is asked for."""
    warm: int = 0
    """How many ready ones are kept: see `Warmth`."""
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
    """Released, or its time was over."""
    FAILED = "failed"


LIVE = frozenset({InstanceState.STARTING, InstanceState.READY, InstanceState.RESTARTING})


class Warmth(StrEnum):
    """How an instance came to be."""

    COLD = "cold"
    FORKED = "forked"
    """From a process that had loaded the server already."""
    STARTED = "started"
    """It stood ready for this project."""


@dataclass(frozen=True)
class InstanceRequest:
    """One of `project_path` and `space_id`. Nothing that is None ends it."""

    server: str | Server
    project_path: str = ""
    space_id: str = ""
    ttl_s: float | None = None
    """It ends so long after it was ready."""
    lease_s: float | None = None
    """It ends when nobody said for so long that it is still wanted (`heartbeat`)."""
    idle_s: float | None = None
    """It ends after so long without an open connection, a heartbeat and work."""
    owner_pid: int | None = None
    """A process on this machine with which it ends."""
    hub_client: str = ""
    """A connection to the hub, by its name, with which it ends."""
    survive: bool = False
    """It goes on when the daemon is stopped in an orderly way."""
    restart: Restart = Restart.NEVER
    share: Share = Share.NONE
    limits: Limits = NO_LIMITS
    network: Network | None = None
    """None: as the server's definition says."""
    confined: bool = True
    """False: nothing holds it. For who says so."""
    env: Mapping[str, str] = field(default_factory=dict)
    tool_ready: ToolCall | None = None
    ready_s: float | None = None
    streams: bool = False
    """For a client that speaks on streams: it connects to `Instance.socket` once, and that
    connection is the server's standard input and output. Nobody else speaks with it first."""


@dataclass(frozen=True)
class Hold:
    """One client of an instance, and with what it goes away by itself."""

    owner_pid: int | None = None
    owner_started: int = 0
    """When that process was started, in the kernel's ticks: its number alone may be reused."""
    hub_client: str = ""
    hold_id: str = ""
    """By which its client lets go of it; empty in records that know of none."""

    @property
    def is_owned(self) -> bool:
        """It goes away by itself."""
        return self.owner_pid is not None or bool(self.hub_client)


@dataclass(frozen=True)
class Instance:
    """The record of one; never its token. Times are seconds since 1970."""

    instance_id: str
    server: Server
    state: InstanceState
    caller: str
    """Who asked for it: see `carrel.domain.access.Caller`."""
    created_at: float
    updated_at: float
    account: str = ""
    """Whose share of the places it takes, if that is not its caller; see `counts_for`."""
    project_path: str = ""
    space_id: str = ""
    host: str = ""
    port: int = 0
    inside_port: int = 0
    """Where it is for what runs in the same sandbox."""
    socket: str = ""
    """The path of a Unix socket, for a client that speaks on streams."""
    pid: int = 0
    """Of the server, on this machine."""
    started_in_ms: float = 0.0
    """From the request to an answered handshake."""
    ready_at: float | None = None
    ended_at: float | None = None
    problem: Problem | None = None
    """Why it failed, or why it ended when nobody asked for that."""
    output: str = ""
    """Of one that failed: what it wrote last."""
    warmth: Warmth = Warmth.COLD
    runtime: str = ""
    confined: bool = True
    network: Network = Network.NONE
    notes: tuple[str, ...] = ()
    """What does not hold here, in sentences: who else may reach it, say."""
    owner: Owner | None = None
    """Of its sandbox; None in a space."""
    project_owner: Owner | None = None
    binds: tuple[str, ...] = ()
    """What its sandbox shows beside the project."""
    limits: Limits = NO_LIMITS
    enforced: tuple[LimitSupport, ...] = ()
    state_at: str = ""
    """Where it sees its own folder, when it is a fork of a process that has loaded it: that has
    noted the path."""
    run_id: str = ""
    gate_run_id: str = ""
    ttl_s: float | None = None
    lease_s: float | None = None
    idle_s: float | None = None
    holds: tuple[Hold, ...] = (Hold(),)
    """Of who has it; more than one where it is shared, none while it stands ready for one."""
    survive: bool = False
    restart: Restart = Restart.NEVER
    restarts: int = 0
    share: Share = Share.NONE
    heard_at: float = 0.0
    """When somebody last said that it is wanted."""
    has_token: bool = False
    leaving: bool = False
    """It is being ended: whoever finds it so goes on with that."""

    @property
    def counts_for(self) -> str:
        return self.account or self.caller

    @property
    def clients(self) -> int:
        return len(self.holds)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}{self.server.path}" if self.port else ""

    @property
    def inside_url(self) -> str:
        if not self.inside_port:
            return ""
        return f"http://127.0.0.1:{self.inside_port}{self.server.path}"


@dataclass(frozen=True)
class Handed:
    """An instance as its client gets it. `token` is empty where none is checked."""

    instance: Instance
    token: str = ""
    hold: str = ""
    """The id of this client's `Hold`; only who has just started it is told."""


class Released(StrEnum):
    TERMINATED = "terminated"
    SHARED = "released"
    """Others still share it."""
    ALREADY_GONE = "already_gone"


@dataclass(frozen=True)
class Found:
    """A server's program as it is on this machine: how it is started, and what its sandbox
    must show. `python` is the interpreter of a Python program."""

    argv: tuple[str, ...]
    binds: tuple[str, ...] = ()
    python: str = ""
    path: str = ""
    """The folder of the program, first on its PATH: what was installed with it is there."""
    script: str = ""
    """What the first word of `argv` is to interpret, where that is no Python."""


@dataclass(frozen=True)
class ServerStatus:
    server: Server
    installed: bool
    where: str = ""
    source: str = "built in"
    """Or `settings`, or `added`."""


class Servers(Protocol):
    """The kinds of servers that are known here."""

    def get(self, name: str) -> Server:
        """Raises `ServerNotFound`."""
        ...

    def checked(self, server: Server) -> Server:
        """With what follows from the rest. Raises `MessageInvalid` for what could never be
        started."""
        ...

    def locate(self, server: Server) -> Found:
        """Raises `ServerNotInstalled`."""
        ...

    def list(self) -> list[ServerStatus]: ...

    def add(self, server: Server) -> None:
        """Kept in the data folder. Raises `MessageInvalid`."""
        ...

    def remove(self, name: str) -> None:
        """One that was added. Raises `ServerNotFound`."""
        ...
