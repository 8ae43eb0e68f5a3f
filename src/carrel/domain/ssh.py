"""Connections by SSH: where they lead, and what is known of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from carrel.domain.agents import Attaching
from carrel.domain.systems import CommandPlace

DOMAIN = ".carrel"
"""How the names of hosts end that are spaces."""
LOGIN = "carrel"
"""The account that every sandbox has for it: its own user by another name."""
TAKEN = "CARREL_SHELL_TERMINAL"
"""The variable that tells the agent's shell that the command may have the terminal for its own."""
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
    names: tuple[str, ...]
    """Of the host, for its certificate."""
    environment: Mapping[str, str]
    """What a command in it finds."""
    conversation: Attaching | None = None
    """The agent's terminal, for who comes to see that; without a command where none runs."""


class SshKeys(Protocol):
    """Keys and configuration files. Blocking; raises `SshUnavailable`."""

    def access(self) -> SshAccess:
        """Makes the user's key when there is none."""
        ...

    def serve(self, service: SshService) -> Sequence[str]:
        """Writes what is needed, and answers the command that serves one connection on its
        standard input."""
        ...
