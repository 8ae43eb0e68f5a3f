"""What the service asks of the room `instances`: how a server is started, where clients come in,
and whether it answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from carrel.domain.access import Caller
from carrel.domain.instances import Found, Server, Swap, ToolCall
from carrel.domain.runtimes import Call, Zygote
from carrel.domain.trees import Owner


@dataclass(frozen=True)
class Surroundings:
    """Where a server runs, in its own words and in the host's."""

    project: str
    """The project as the server sees it."""
    state: str
    """Its own folder, as it sees it."""
    state_path: Path
    """… and as the host does."""
    private_network: bool
    """It has a network of its own, in which the host cannot reach it."""
    alone: bool
    """Nothing else runs in its sandbox."""
    streams: bool = False
    """Its client speaks on streams."""
    preloaded: bool = False
    """It is a fork of a process that has loaded it."""
    port: int = 0
    """Where its clients found it before, if it is started again."""


@dataclass(frozen=True)
class PreparedServer:
    """How one server is started. Its descriptor 3 is `ClientSockets.given`, if there is one."""

    server: Server
    argv: tuple[str, ...]
    env: Mapping[str, str]
    direct: bool
    """It accepts on the socket that it is given; else a gate does that before it, or it is
    found where it listens itself."""
    gated: bool
    port_file: str = ""
    """Relative to its own folder: where it, or a helper, writes what it listens on inside."""
    port: int = 0
    """The one that it was told."""
    call: Call | None = None
    """In a fork of a warm process, instead of the command."""
    files: Mapping[str, str] = field(default_factory=dict)
    """What its own folder has before it starts."""
    swaps: tuple[Swap, ...] = ()
    """Those of the server that are made here."""

    @property
    def on_host(self) -> bool:
        """It binds a port of the host itself: it is there where it was found last."""
        return not self.direct and not self.gated


@dataclass(frozen=True)
class Furnished:
    """What a server's own folder was given."""

    brought: bool = False
    """The project has settings for it."""
    swapped: tuple[Swap, ...] = ()
    """What was changed of them."""


class ClientSockets(Protocol):
    """The sockets by which clients come in, open in this process."""

    @property
    def port(self) -> int: ...

    @property
    def given(self) -> tuple[int, ...]:
        """For the server."""
        ...

    @property
    def gate(self) -> tuple[int, ...]:
        """For the gate: the socket to accept on, and one to ask the kernel who comes."""
        ...

    def close(self) -> None:
        """Idempotent. What was passed on stays open there."""
        ...


@dataclass(frozen=True)
class PortSearch:
    """Where a server that binds a port itself is looked for."""

    pid: int
    state_path: Path
    output: str = ""
    """What it has written so far, the last of it."""
    alone: bool = True
    """Nobody else listens in its network; in a space others may."""


Later = Callable[[Coroutine[Any, Any, None]], None]


@dataclass(frozen=True)
class HandshakeAttempt:
    """A way to a server, and what is to be tried on it."""

    server: Server
    url: str
    token: str = ""
    tool: ToolCall | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    later: Later | None = None
    """Who sees to the goodbye, where the next client need not wait for that."""


class ServerAdapter(Protocol):
    def checks_token(self, server: Server, *, private_network: bool) -> bool:
        """Whether its clients can be made to show one here."""
        ...

    def prepare(
        self, server: Server, found: Found, around: Surroundings, env: Mapping[str, str]
    ) -> PreparedServer:
        """What it keeps for this one `open` takes, or else `let_go`. Raises `MessageInvalid` when
        it cannot be started like this, and OSError."""
        ...

    def let_go(self, prepared: PreparedServer) -> None:
        """Of what was kept for one that was not opened. Idempotent."""
        ...

    def furnish(self, prepared: PreparedServer, around: Surroundings, owner: Owner) -> Furnished:
        """Fills the folder of a server before anything runs in its sandbox. Blocking. Raises
        `InstanceFailed`."""
        ...

    def furnisher(self, prepared: PreparedServer, around: Surroundings) -> Call:
        """The same, for the sandbox: where others run too. `furnished` reads what it wrote."""
        ...

    def furnished(self, prepared: PreparedServer, output: bytes) -> Furnished: ...

    def gate(self, uids: frozenset[int]) -> Call:
        """The call of a gate that lets these users in when they show the token, which it finds in
        CARREL_TOKEN; see `ClientSockets.gate`. `target` makes the line of its standard input that
        says where it leads to."""
        ...

    def target(self, port: int) -> bytes: ...

    def shown(self) -> tuple[str, ...]:
        """What a sandbox must show for our own programs: host paths, read-only."""
        ...

    def zygote(
        self, server: Server, found: Found, around: Surroundings, owner: Owner
    ) -> Zygote | None:
        """A warm process for this server in such surroundings; None when it cannot have one."""
        ...

    def bridge(self, name: str, owner: Owner, idle_s: float) -> Zygote:
        """A warm process for the bridges of all servers that speak on streams."""
        ...

    def open(self, prepared: PreparedServer, socket: Path | None, port: int = 0) -> ClientSockets:
        """A TCP socket of the loopback, on that port or one that the kernel chooses, or a Unix
        socket at that path. OSError."""
        ...

    def look(self, prepared: PreparedServer, search: PortSearch) -> tuple[int, ...]:
        """The ports on which it may be, the likeliest first. Blocking, quick."""
        ...

    async def greet(self, attempt: HandshakeAttempt) -> None:
        """A real handshake. Raises `NotReady`."""
        ...

    def connections(self, ports: frozenset[int]) -> Mapping[int, int]:
        """How many are open to each of these ports of the loopback. Blocking, quick."""
        ...


class CompileCaches(Protocol):
    """What interpreters have compiled of servers' programs. Blocking."""

    def of(self, server: Server, found: Found) -> str:
        """The folder for this program as it is now; empty: it has none. Quick."""
        ...

    def is_filled(self, path: str) -> bool: ...

    def variables(self, binds: Collection[str]) -> Mapping[str, str]:
        """By which a server uses the folder that is among these, if one is."""
        ...

    def filling(self, server: Server, *, streams: bool) -> Server:
        """The definition of one that leaves what was compiled in its own folder when it is
        asked to end."""
        ...

    def empty_project(self) -> AbstractContextManager[Path]: ...

    def keep(self, path: str, found: Found, state: Path) -> bool:
        """Takes what one has left in its own folder, in which nothing runs any more; False when
        there is nothing. OSError."""
        ...

    def sweep(self, kept: Collection[str]) -> None:
        """Removes those of programs that have changed, and of more than there should be, but for
        these."""
        ...


class NotReady(Exception):
    """Says in a sentence what came instead of an answer."""


class NeverReady(NotReady):
    """To try again would not help."""


class Owners(Protocol):
    """Processes of this machine with which instances end."""

    def started(self, pid: int) -> int | None:
        """When it was, in the kernel's ticks; None when there is no such process."""
        ...

    def uid(self, pid: int) -> int | None: ...

    def on_end(self, pid: int, started: int, then: Callable[[], None]) -> Callable[[], None]:
        """Calls `then` on the event loop when it has ended, at once if it has already. What is
        given back takes that back."""
        ...


class HubClients(Protocol):
    """Connections to the hub with which instances end, and which are told of them."""

    def is_there(self, client_id: str) -> bool: ...

    def is_for(self, caller: Caller, client_id: str) -> bool:
        """It is there, and this caller's own, or of one with the same rights."""
        ...

    def on_gone(self, then: Callable[[str], None]) -> None: ...

    def tell(self, client_id: str, type: str, payload: Mapping[str, object]) -> None: ...
