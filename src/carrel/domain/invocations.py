"""How the programs of agents are started by somebody else, and what there is to start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from carrel.domain.agents import FoundFrontend
from carrel.domain.turns import AgentSetup, Continuation, InteractionMode, TurnError, TurnRequest


class IoMode(StrEnum):
    PTY = "pty"
    PIPES = "pipes"
    INHERIT = "inherit"
    """What the one who starts it has itself."""


@dataclass(frozen=True)
class InvocationSpec:
    """How a frontend's program is started. `argv[0]` is absolute and `argv` never passes
    through a shell; `env` is what is added to the environment. `display_command` is for people
    only, and shows no secret."""

    provider: str
    frontend: str
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    interaction_mode: InteractionMode
    io_mode: IoMode
    continuation: Continuation | None = None
    """What it can be gone on with, where that is known before it starts."""
    display_command: str = ""


@dataclass(frozen=True)
class Invocation:
    """How to start a program. `stdin` is what it reads first; None: its input is a person's. Its
    input then stays open where `keeps_stdin` says so, for answers to what it asks; else it ends."""

    spec: InvocationSpec
    warnings: tuple[str, ...] = ()
    stdin: bytes | None = None
    keeps_stdin: bool = False
    credentials: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys that the program takes and that are not in `env`: by name, the variables of each."""


@dataclass(frozen=True)
class ProviderCapabilities:
    id: str
    frontends: tuple[FoundFrontend, ...]
    models: tuple[str, ...]


def by_provider(found: Sequence[FoundFrontend]) -> tuple[ProviderCapabilities, ...]:
    """In the order of their names. What cannot be used at all may have none."""
    names = sorted({one.provider for one in found if one.provider})
    return tuple(_provider(name, found) for name in names)


def _provider(name: str, found: Sequence[FoundFrontend]) -> ProviderCapabilities:
    own = tuple(one for one in found if one.provider == name)
    models = dict.fromkeys(model for one in own for model in one.models)
    return ProviderCapabilities(name, own, tuple(models))


@dataclass(frozen=True)
class Resolution:
    """Whether kits can be had."""

    ok: bool
    error: TurnError | None = None


@dataclass(frozen=True)
class Description:
    """What kits bring along."""

    hooks: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    mcp_servers: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class AgentLibrary(Protocol):
    """What the service has of the library: how programs are started, and what kits there are."""

    def build_invocation(
        self,
        request: TurnRequest,
        setup: AgentSetup,
        interaction: InteractionMode,
        io_mode: IoMode | None,
    ) -> Invocation:
        """Writes what the program needs into `setup.state`. Blocking, quick. `io_mode` is what
        fits when it is None. What the project brings for the agent is off unless `request.trust`
        or the setup says otherwise. Raises `UnsupportedFrontend` for what is no program,
        `PathNotFound` for a workspace that is not there, `NotTrusted`, and what
        `Frontend.prepare` raises."""
        ...

    def resolve(self, kits: Sequence[str]) -> Resolution: ...

    def describe(self, kits: Sequence[str], frontend: str = "") -> Description:
        """Raises `ResolveFailed`, `UnsupportedFrontend`."""
        ...
