"""What all frontends share whose driver is ours: started in a sandbox, understood, or run here.

A frontend of this kind says where its driver is, and with what it is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from carrel.agents import interpreting, wire
from carrel.agents.environing import credentials_of
from carrel.agents.frontends import requests
from carrel.agents.frontends.lines import raw
from carrel.agents.locating import Locator
from carrel.agents.permitting import permission_of
from carrel.agents.results import failed, result_of
from carrel.domain.agents import (
    AgentEventType,
    FoundFrontend,
    FrontendKind,
    Prepared,
    Provider,
    Seat,
    Told,
    TurnRequest,
    TurnResult,
)
from carrel.domain.errors import AgentCrashed

PROGRAM = "carrel.agents.drive"


class DrivenTranslator:
    """Implements `Translator` for what `drive` writes."""

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
        """A program that was asked to stop says so itself: without a last word it crashed."""
        if self._result is not None:
            return self._result
        how = "was killed" if code is None else f"ended with {code}"
        return failed(AgentCrashed(f"The agent {how} before it was done.", stderr=stderr[-4096:]))


def driven_by(
    driver: str, options: Mapping[str, object], request: TurnRequest, seat: Seat
) -> Prepared:
    """A turn by a driver that has a process to itself. Values of the environment go by the
    environment only: the first line may be written down."""
    named = replace(
        seat,
        credentials={},
        mcp_env=dict.fromkeys(seat.mcp_env, ""),
        server_env=dict.fromkeys(seat.server_env, ""),
    )
    start = wire.Start(driver, replace(request, env={}), named, options)
    return Prepared(
        argv=interpreting.python(PROGRAM),
        env={**seat.mcp_env, **seat.server_env, **credentials_of(seat), **request.env},
        first=wire.line_of(start),
        duplex=True,
    )


class DrivenFrontend:
    """Implements `Frontend`; made for being derived from."""

    name: ClassVar[str]
    provider: ClassVar[Provider]
    kind: ClassVar[FrontendKind] = FrontendKind.SDK
    needs_network: ClassVar[bool] = True
    credentials: ClassVar[tuple[str, ...]] = ()
    driver: ClassVar[str]
    """`module:name` of what makes the driver."""

    def __init__(self, locator: Locator) -> None:
        self.locator = locator

    def options(self, request: TurnRequest) -> Mapping[str, object]:
        """What the driver is made with. Raises `FrontendNotInstalled`."""
        return {}

    def program_options(self, request: TurnRequest) -> Mapping[str, object]:
        """The same, for a driver that has a process to itself."""
        return self.options(request)

    def find(self) -> FoundFrontend:
        return FoundFrontend(self.name, self.provider, self.kind, installed=True)

    def binds(self) -> tuple[str, ...]:
        return interpreting.folders()

    def prepare(self, request: TurnRequest, seat: Seat) -> Prepared:
        self.check(request, seat)
        options = self.program_options(request)
        return driven_by(self.driver, options, request, seat)

    def translator(self, request: TurnRequest) -> DrivenTranslator:
        return DrivenTranslator()

    def check(self, request: TurnRequest, seat: Seat) -> None:
        """What holds for every turn, wherever it runs."""
        requests.check(request, self.name, self.provider)
        permission_of(request, seat)
