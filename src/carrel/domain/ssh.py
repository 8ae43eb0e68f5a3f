"""Connections by SSH: where they lead, and what is known of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from carrel.domain.access import Scope
from carrel.domain.agents import Attaching
from carrel.domain.systems import CommandPlace

DOMAIN = ".carrel"
"""How the names of hosts end that are spaces."""
LOGIN = "carrel"
"""The account that every sandbox has for it: its own user by another name."""
TAKEN = "CARREL_SHELL_TERMINAL"
"""The variable that tells the agent's shell that the command may have the terminal for its own."""
MARK = "CARREL_RUN"
"""The variable by which the launcher finds all that came of a run. An `sshd` passes none on by
itself."""
RUN = "ss"
"""What the ids of runs begin with that serve a connection."""


@dataclass(frozen=True)
class SshTarget:
    """A sandbox of a space. `conversation`: its user sees the agent's terminal."""

    space: str
    place: CommandPlace | None = None
    conversation: bool = False


def targets(host: str) -> list[SshTarget]:
    """What a host's name can mean, the likeliest first: a space may be called as another one's
    agent is."""
    name = host.lower().removesuffix(DOMAIN)
    found = [SshTarget(name)]
    if base := name.removesuffix("-agent") if name.endswith("-agent") else "":
        found.append(SshTarget(base, CommandPlace.AGENT, conversation=True))
    if base := name.removesuffix("-dev") if name.endswith("-dev") else "":
        found.append(SshTarget(base))
    return found


@dataclass(frozen=True)
class SshSession:
    """One connection, which its own `sshd` in the space serves. It can be written down."""

    run_id: str
    space_id: str
    place: CommandPlace
    conversation: bool
    client: int
    """The process on this machine that connected."""
    begun_at: float
    key: str = ""
    """The id of the key that opened the listener; empty: it came by the owner's own socket."""
    origin: str = ""
    """Who connected to the listener."""
    inode: int = 0
    """Of the socket that its `sshd` has; 0: nobody knows."""


@dataclass(frozen=True)
class SshArrival:
    """Somebody who wants to come in. `key`: with what the listener was opened, in base64; empty: it
    is the owner, by the owner's own socket."""

    host: str
    client: int
    key: str = ""
    origin: str = ""


@dataclass(frozen=True)
class SshKeyRecord:
    """A key that opens the listener, for what its scopes have."""

    key_id: str
    name: str
    kind: str
    blob: str
    """The public half, in base64."""
    fingerprint: str
    scopes: tuple[Scope, ...]
    created_at: float


@dataclass(frozen=True)
class SshListening:
    """The listener, as the owner wants it. `port`: 0 when it is off."""

    port: int = 0
    host_key: str = ""
    """The public half of its key, as in OpenSSH's files; empty while it has none."""
    problem: str = ""
    """Why it does not listen although it is to."""


@dataclass(frozen=True)
class SshAccess:
    """What a client on this machine needs. All of it is in the data folder."""

    config: Path
    """A configuration for `ssh -F`, with everything below."""
    block: str
    """Its text."""
    identity: Path
    known_hosts: Path


@dataclass(frozen=True)
class SshService:
    """How the connections to one sandbox are served."""

    folder: Path
    """On the host, for what `sshd` reads; the sandbox sees it, and cannot write there."""
    place: CommandPlace
    run_id: str
    names: tuple[str, ...]
    """Of the host, for its certificate."""
    environment: Mapping[str, str]
    """What a command in it finds."""
    conversation: Attaching | None = None
    """The agent's terminal, for who comes to see that; without a command where none runs."""
    agent: bool = False
    """Whether what runs in there may use the SSH agent of who comes, if that one wants it."""


class SshKeys(Protocol):
    """Keys and configuration files. Blocking; raises `SshUnavailable`."""

    def access(self) -> SshAccess:
        """Makes the user's key when there is none."""
        ...

    def serve(self, service: SshService) -> Sequence[str]:
        """Writes what is needed, and answers the command that serves one connection on its
        standard input."""
        ...


class SshBook(Protocol):
    """What is written down of the listener: its keys, and where it listens. Blocking; raises
    `SshUnavailable` when it cannot be written."""

    def keys(self) -> Sequence[SshKeyRecord]:
        """The oldest first."""
        ...

    def put_keys(self, keys: Sequence[SshKeyRecord]) -> None: ...

    def read_key(self, text: str) -> tuple[str, str, str]:
        """The kind of a public key, itself in base64, and its comment. Raises `SshKeyInvalid`."""
        ...

    def port(self) -> int:
        """0: the listener is off."""
        ...

    def put_port(self, port: int) -> None: ...

    def host_key(self) -> str:
        """The public half of the listener's key, which is made when there is none."""
        ...


class SshPort(Protocol):
    """The process of the listener, for the loop that it was made in."""

    @property
    def is_open(self) -> bool: ...

    async def open(self, port: int, ended: Callable[[], None]) -> int:
        """Begins to listen, on a free port for 0; `ended` is called when it ends by itself. Raises
        `PortUnavailable`, `SshUnavailable`."""
        ...

    async def close(self) -> None:
        """It takes no more connections; those that are there go on."""
        ...
