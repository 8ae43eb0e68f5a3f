"""What all frontends share that have a driver of ours.

The driver runs in a sandbox (`drive`) or in the caller's process (`library`). A frontend of this
kind names its driver, and the options that it is made with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from carrel.agents import models, programs, requests, wire
from carrel.agents.events import failed, result_of
from carrel.agents.frontends.lines import raw
from carrel.agents.programs import Locator
from carrel.agents.requests import credentials_of
from carrel.agents.turns import permission_of
from carrel.domain.agents import PROJECT_SETTINGS, FoundFrontend, FrontendKind, Prepared
from carrel.domain.errors import AgentCrashed
from carrel.domain.turns import AgentEventType, AgentSetup, Provider, Told, TurnRequest, TurnResult

PROGRAM = "carrel.agents.drive"


class DrivenTranslator:
    """Implements `Translator` for the lines that `drive` writes."""

    def __init__(self) -> None:
        self._result: TurnResult | None = None

    def line(self, line: bytes) -> Sequence[Told]:
        if not line.strip():
            return ()
        told = wire.read_told(line)
        if told is None:
            return (raw(line),)
        if told.type is AgentEventType.COMPLETE:
            self._result = result_of(told.payload.get("result"))
            return ()
        return (told,)

    def ended(self, code: int | None, stderr: str) -> TurnResult:
        """A program that was asked to stop says so itself; one without a result crashed."""
        if self._result is not None:
            return self._result
        how = "was killed" if code is None else f"ended with {code}"
        return failed(AgentCrashed(f"The agent {how} before it was done.", stderr=stderr[-4096:]))


def driven_by(
    driver: str, options: Mapping[str, object], request: TurnRequest, setup: AgentSetup
) -> Prepared:
    """Prepares a turn by a driver in a process of its own. Values of the environment go by the
    environment only: the first line may be written down."""
    named = replace(
        setup,
        credentials={},
        imported=None,
        mcp_env=dict.fromkeys(setup.mcp_env, ""),
        server_env=dict.fromkeys(setup.server_env, ""),
    )
    start = wire.Start(driver, replace(request, env={}), named, options)
    return Prepared(
        argv=programs.python(PROGRAM),
        env={**setup.mcp_env, **setup.server_env, **credentials_of(setup), **request.env},
        first=wire.line_of(start),
        duplex=True,
    )


class DrivenFrontend:
    """Implements `Frontend` and `Confiding`; made for being derived from."""

    name: ClassVar[str]
    provider: ClassVar[Provider]
    kind: ClassVar[FrontendKind] = FrontendKind.SDK
    needs_network: ClassVar[bool] = True
    credentials: ClassVar[tuple[str, ...]] = ()
    driver: ClassVar[str]
    """`module:name` of what makes the driver."""
    brought: ClassVar[tuple[str, ...]] = PROJECT_SETTINGS
    goes_without: ClassVar[bool] = False
    keeps: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """See `Prepared`."""

    def __init__(self, locator: Locator) -> None:
        self.locator = locator

    def options(self, request: TurnRequest) -> Mapping[str, object]:
        """What the driver is made with. Raises `FrontendNotInstalled`."""
        return {}

    def program_options(self, request: TurnRequest) -> Mapping[str, object]:
        """The same, for a driver that has a process to itself."""
        return self.options(request)

    def find(self) -> FoundFrontend:
        known = models.of(self.name)
        return FoundFrontend(
            *(self.name, self.provider, self.kind),
            installed=True,
            models=known.known,
            default_model=known.default,
        )

    def binds(self) -> tuple[str, ...]:
        return programs.folders()

    def prepare(self, request: TurnRequest, setup: AgentSetup) -> Prepared:
        self.check(request, setup)
        options = self.program_options(request)
        return replace(driven_by(self.driver, options, request, setup), keeps=self.keeps)

    def translator(self, request: TurnRequest) -> DrivenTranslator:
        return DrivenTranslator()

    def check(self, request: TurnRequest, setup: AgentSetup) -> None:
        """Raises what is wrong with a request, wherever it runs."""
        requests.check(request, self.name, self.provider)
        permission_of(request, setup)
