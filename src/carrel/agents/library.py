"""The library's calls: turns in the caller's own process, and how programs are started.

Nothing of a turn is global: its environment and its keys go to the processes that it starts.
All calls belong to one event loop.
"""

from __future__ import annotations

import asyncio
import shlex
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from carrel.agents.driven import DrivenFrontend
from carrel.agents.events import Emitter, OnEvent, failed
from carrel.agents.turns import conduct
from carrel.agents.wire import load
from carrel.domain.agents import (
    FoundFrontend,
    Frontend,
    FrontendKind,
    Frontends,
    Interactive,
    InvocationSpec,
    IoMode,
    Prepared,
)
from carrel.domain.errors import (
    CarrelError,
    Interrupted,
    ResolveFailed,
    StateConflict,
    UnsupportedFrontend,
)
from carrel.domain.turns import (
    AgentSetup,
    Continuation,
    Control,
    ControlKind,
    InteractionMode,
    Told,
    TurnError,
    TurnRequest,
    TurnResult,
)


class _Live:
    """Implements `Stage` for a turn in this process."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._controls: asyncio.Queue[Control] = asyncio.Queue()
        self.inputs = 0

    def tell(self, told: Told) -> None:
        self._emitter.tell(told)

    async def control(self) -> Control:
        return await self._controls.get()

    def say(self, control: Control) -> None:
        self._controls.put_nowait(control)


class Library:
    def __init__(self, frontends: Frontends) -> None:
        self._frontends = frontends
        self._live: dict[str, _Live] = {}

    async def capabilities(self) -> tuple[ProviderCapabilities, ...]:
        """By provider, in the order of their names."""
        found = await asyncio.to_thread(self._frontends.found)
        return tuple(_provider(name, found) for name in sorted({one.provider for one in found}))

    def build_invocation(
        self,
        request: TurnRequest,
        setup: AgentSetup,
        interaction: InteractionMode = InteractionMode.INTERACTIVE,
    ) -> Invocation:
        """Of a program, for the caller to start. Writes what it needs into `setup.state`.
        Raises `UnsupportedFrontend` for the others, and what `Frontend.prepare` raises."""
        frontend = self._frontends.get(request.frontend)
        if frontend.kind is not FrontendKind.CLI:
            raise UnsupportedFrontend(
                f"{frontend.name} is not started by a command line.", hint="Use `run_turn`."
            )
        prepared = _prepare(frontend, request, setup, interaction)
        _write(prepared, setup)
        attended = interaction is InteractionMode.INTERACTIVE
        spec = InvocationSpec(
            provider=frontend.provider,
            frontend=frontend.name,
            argv=prepared.argv,
            cwd=setup.workspace,
            env=prepared.env,
            interaction_mode=interaction,
            io_mode=IoMode.PTY if attended else IoMode.PIPES,
            continuation=request.continuation,
            display_command=shlex.join(prepared.argv),
        )
        return Invocation(spec, stdin=None if attended else prepared.first)

    async def run_turn(
        self, request: TurnRequest, setup: AgentSetup, *on_event: OnEvent
    ) -> TurnOutcome:
        """What goes wrong is in the result, after its events. Raises `StateConflict` when the
        session has a turn already. Cancelling it stops the turn, with all its events."""
        request = replace(
            request,
            session_id=request.session_id or uuid.uuid4().hex,
            run_id=request.run_id or uuid.uuid4().hex,
        )
        if request.session_id in self._live:
            raise StateConflict(f"Session {request.session_id!r} has a turn that is not over.")
        provider = self._provider_of(request.frontend)
        emitter = Emitter(request, provider, on_event)
        live = self._live[request.session_id] = _Live(emitter)
        try:
            result = await self._run(request, setup, emitter, live)
        finally:
            del self._live[request.session_id]
        return TurnOutcome(
            provider, request.frontend, request.model, result, emitter.continuation, emitter.broken
        )

    def queue_input(self, session_id: str, text: str) -> Queued:
        """Said to the agent as soon as it listens; not accepted when nothing runs."""
        live = self._live.get(session_id)
        if live is None:
            return Queued(False)
        live.say(Control(ControlKind.INPUT, text=text))
        live.inputs += 1
        return Queued(True, live.inputs)

    def interrupt(self, session_id: str) -> bool:
        """Whether there was something to interrupt. An agent that goes on is stopped."""
        return self._say(session_id, Control(ControlKind.INTERRUPT))

    def answer(self, session_id: str, id: str, allow: bool) -> bool:
        """To a `permission` event."""
        return self._say(session_id, Control(ControlKind.PERMISSION, id=id, allow=allow))

    def resolve(self, kits: Sequence[str]) -> Resolution:
        try:
            _check(kits)
        except ResolveFailed as error:
            return Resolution(False, failed(error).error)
        return Resolution(True)

    def describe(self, kits: Sequence[str], frontend: str = "") -> Description:
        """Raises `ResolveFailed`, `UnsupportedFrontend`."""
        _check(kits)
        if frontend:
            self._frontends.get(frontend)
        return Description()

    def _say(self, session_id: str, control: Control) -> bool:
        live = self._live.get(session_id)
        if live is not None:
            live.say(control)
        return live is not None

    def _provider_of(self, frontend: str) -> str:
        """Empty for one that there is not: the turn itself says so."""
        try:
            return self._frontends.get(frontend).provider
        except UnsupportedFrontend:
            return ""

    async def _run(
        self, request: TurnRequest, setup: AgentSetup, emitter: Emitter, live: _Live
    ) -> TurnResult:
        emitter.start()
        result = failed(Interrupted("The turn was stopped."))
        try:
            frontend = _driven(self._frontends.get(request.frontend))
            frontend.check(request, setup)
            driver = load(frontend.driver, frontend.options(request))
            result = await conduct(driver, request, setup, live)
        except CarrelError as error:
            result = failed(error)
        finally:
            emitter.finish(result)
        return result


def _driven(frontend: Frontend) -> DrivenFrontend:
    if isinstance(frontend, DrivenFrontend):
        return frontend
    raise UnsupportedFrontend(
        f"{frontend.name} does not run in the caller's process.",
        hint="Use `build_invocation`, or run the turn in a space.",
    )


def _prepare(
    frontend: Frontend, request: TurnRequest, setup: AgentSetup, interaction: InteractionMode
) -> Prepared:
    if interaction is not InteractionMode.INTERACTIVE:
        return frontend.prepare(request, setup)
    if not hasattr(frontend, "prepare_terminal"):
        raise UnsupportedFrontend(f"{frontend.name} has no terminal of its own.")
    return cast("Interactive", frontend).prepare_terminal(request, setup)


def _write(prepared: Prepared, setup: AgentSetup) -> None:
    for name, content in {**prepared.files, **prepared.secrets}.items():
        file = Path(setup.state, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _provider(name: str, found: Sequence[FoundFrontend]) -> ProviderCapabilities:
    own = tuple(one for one in found if one.provider == name)
    models = dict.fromkeys(model for one in own for model in one.models)
    return ProviderCapabilities(name, own, tuple(models))


def _check(kits: Sequence[str]) -> None:
    if kits:
        raise ResolveFailed("Kits are not supported yet.", kits=list(kits))


# The answers of the library's calls


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
