"""The library's calls: turns in the caller's own process, and how programs are started.

Nothing of a turn is global: its environment and its keys go to the processes that it starts.
All calls belong to one event loop.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from carrel.agents.driven import DrivenFrontend
from carrel.agents.events import Emitter, OnEvent, failed
from carrel.agents.folders import put_files
from carrel.agents.frontends.lines import log
from carrel.agents.turns import conduct, permission_of
from carrel.agents.wire import load
from carrel.domain.agents import (
    PROJECT_SETTINGS,
    Confiding,
    Frontend,
    FrontendKind,
    Frontends,
    Interactive,
    Prepared,
)
from carrel.domain.errors import (
    CarrelError,
    Interrupted,
    NotTrusted,
    PathNotFound,
    ResolveFailed,
    StateConflict,
    UnsupportedFrontend,
)
from carrel.domain.invocations import (
    Description,
    Invocation,
    InvocationSpec,
    IoMode,
    ProviderCapabilities,
    Resolution,
    by_provider,
)
from carrel.domain.keys import VARIABLES
from carrel.domain.turns import (
    AgentSetup,
    Continuation,
    Control,
    ControlKind,
    InteractionMode,
    Told,
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
    """Implements `carrel.domain.invocations.AgentLibrary`."""

    def __init__(self, frontends: Frontends) -> None:
        self._frontends = frontends
        self._live: dict[str, _Live] = {}

    async def capabilities(self) -> tuple[ProviderCapabilities, ...]:
        """By provider, in the order of their names."""
        return by_provider(await asyncio.to_thread(self._frontends.found))

    def build_invocation(
        self,
        request: TurnRequest,
        setup: AgentSetup,
        interaction: InteractionMode = InteractionMode.INTERACTIVE,
        io_mode: IoMode | None = None,
    ) -> Invocation:
        """How a program is started, for the caller to do it: see `AgentLibrary`."""
        frontend = self._frontends.get(request.frontend)
        if frontend.kind is not FrontendKind.CLI:
            raise UnsupportedFrontend(
                f"{frontend.name} is not started by a command line.",
                hint="Use `run_turn`, or run the turn in a space.",
            )
        setup, off = _confided(frontend, request, _placed(setup))
        # `mode` is of terminals that Carrel watches, and hears by hooks.
        request = replace(
            _named(request),
            permission=permission_of(request, setup),
            mode=InteractionMode.HEADLESS,
        )
        prepared = _prepare(frontend, request, setup, interaction)
        put_files(setup.state, {**prepared.files, **prepared.secrets})
        attended = interaction is InteractionMode.INTERACTIVE
        usual = IoMode.PTY if attended else IoMode.PIPES
        key = prepared.conversation
        spec = InvocationSpec(
            provider=frontend.provider,
            frontend=frontend.name,
            argv=prepared.argv,
            cwd=setup.workspace,
            env=prepared.env,
            interaction_mode=interaction,
            io_mode=io_mode or usual,
            continuation=Continuation(frontend.provider, key) if key else None,
            display_command=shlex.join(prepared.argv),
        )
        return Invocation(
            spec,
            (*off, *prepared.notes, *_unfit(spec)),
            None if attended else prepared.first,
            not attended and prepared.duplex,
            _wanted_keys(frontend, request, setup),
        )

    async def run_turn(
        self, request: TurnRequest, setup: AgentSetup, *on_event: OnEvent
    ) -> TurnOutcome:
        """What goes wrong is in the result, after its events. Raises `StateConflict` when the
        session has a turn already, and `PathNotFound`. Cancelling it stops the turn, with all its
        events."""
        request, setup = _named(request), _placed(setup)
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
            setup, off = _confided(frontend, request, setup)
            for sentence in off:
                emitter.tell(log(sentence))
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


def _named(request: TurnRequest) -> TurnRequest:
    return replace(
        request,
        session_id=request.session_id or uuid.uuid4().hex,
        run_id=request.run_id or uuid.uuid4().hex,
    )


def _placed(setup: AgentSetup) -> AgentSetup:
    """With whole paths. Raises `PathNotFound`."""
    workspace = os.path.abspath(setup.workspace)
    if not os.path.isdir(workspace):
        raise PathNotFound(f"There is no folder {workspace}.", hint="Name one that is there.")
    return replace(setup, workspace=workspace, state=os.path.abspath(setup.state))


def _confided(
    frontend: Frontend, request: TurnRequest, setup: AgentSetup
) -> tuple[AgentSetup, tuple[str, ...]]:
    """What the project brings for the agent would run beside its key: it is off unless the caller
    said otherwise. In sentences, what is."""
    brought: tuple[str, ...] = PROJECT_SETTINGS
    goes_without = False
    if isinstance(frontend, Confiding):
        brought, goes_without = frontend.brought, frontend.goes_without
    folders = _project_folders(setup.workspace)
    there = tuple(one for one in brought if any(os.path.lexists(at / one) for at in folders))
    if setup.untrusted or setup.agreed:
        return setup, ()
    if request.trust:
        own = (one for one in there if os.path.lexists(Path(setup.workspace, one)))
        return replace(setup, agreed=tuple(own)), ()
    if there and not goes_without:
        raise NotTrusted(
            f"The project brings {', '.join(there)}, and {frontend.name} cannot ignore that.",
            hint="Look at it, and agree with `trust`.",
            paths=list(there),
        )
    if Path(os.path.realpath(setup.state)).is_relative_to(folders[-1]):
        raise NotTrusted(
            f"The state in {setup.state} is within the project, which could bring settings there.",
            hint="Name a folder outside of the project for it, or agree with `trust`.",
        )
    leads_elsewhere = any((at / ".git").is_symlink() or (at / ".git").is_file() for at in folders)
    linked = (".git",) if leads_elsewhere else ()
    off = f"What the project brings is switched off: {', '.join(there)}. To use it, say `trust`."
    return replace(setup, untrusted=(*there, *linked)), (off,) if there else ()


def _project_folders(workspace: str) -> list[Path]:
    """Agents read settings also above the folder that they work in, as far as the repository goes:
    here up to the outermost of repositories within one another."""
    at = Path(os.path.realpath(workspace))
    found = [at, *at.parents]
    tops = [number for number, one in enumerate(found) if os.path.lexists(one / ".git")]
    return found[: max(tops, default=0) + 1]


def _unfit(spec: InvocationSpec) -> tuple[str, ...]:
    """What becomes difficult by the way that the caller chose to speak to it."""
    attended = spec.interaction_mode is InteractionMode.INTERACTIVE
    if attended and spec.io_mode is IoMode.PIPES:
        return (f"{spec.frontend} is meant for a terminal here, and may refuse pipes.",)
    if not attended and spec.io_mode is not IoMode.PIPES:
        return ("The prompt goes by standard input: let the program read `stdin` there.",)
    return ()


def _wanted_keys(
    frontend: Frontend, request: TurnRequest, setup: AgentSetup
) -> dict[str, tuple[str, ...]]:
    takes = {name: VARIABLES.get(name, (name,)) for name in frontend.credentials}
    return {
        name: variables
        for name, variables in takes.items()
        if name not in setup.credentials and not any(one in request.env for one in variables)
    }


def _prepare(
    frontend: Frontend, request: TurnRequest, setup: AgentSetup, interaction: InteractionMode
) -> Prepared:
    if interaction is not InteractionMode.INTERACTIVE:
        return frontend.prepare(request, setup)
    if not hasattr(frontend, "prepare_terminal"):
        raise UnsupportedFrontend(f"{frontend.name} has no terminal of its own.")
    return cast("Interactive", frontend).prepare_terminal(request, setup)


def _check(kits: Sequence[str]) -> None:
    if kits:
        raise ResolveFailed("Kits are not supported yet.", kits=list(kits))


# The answers of the library's calls


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
