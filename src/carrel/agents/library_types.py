"""What the library's calls answer with."""

from __future__ import annotations

from dataclasses import dataclass

from carrel.domain.agents import (
    Continuation,
    FoundFrontend,
    InvocationSpec,
    TurnError,
    TurnResult,
)


@dataclass(frozen=True)
class ProviderCapabilities:
    id: str
    frontends: tuple[FoundFrontend, ...]
    models: tuple[str, ...]


@dataclass(frozen=True)
class Invocation:
    """How to start a program. `stdin` is what it is to read, then its end; None: its input is
    the caller's."""

    spec: InvocationSpec
    warnings: tuple[str, ...] = ()
    stdin: bytes | None = None


@dataclass(frozen=True)
class TurnOutcome:
    """`broken` is what callbacks that failed said: the turn went on without them."""

    provider: str
    frontend: str
    model: str
    result: TurnResult
    continuation: Continuation | None = None
    broken: tuple[str, ...] = ()


@dataclass(frozen=True)
class Queued:
    """`pending` counts what was said to this turn so far; the agent takes it in order."""

    accepted: bool
    pending: int = 0


@dataclass(frozen=True)
class Resolution:
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
