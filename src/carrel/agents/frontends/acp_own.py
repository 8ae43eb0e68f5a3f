"""ACP agents that the settings name: each a frontend of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from carrel.agents.driven import DrivenFrontend
from carrel.agents.frontends.acp import Acp, require_library
from carrel.agents.frontends.finding import found
from carrel.agents.locating import Program
from carrel.domain.agents import (
    FoundFrontend,
    FrontendKind,
    Prepared,
    Provider,
    Seat,
    TurnRequest,
)
from carrel.domain.errors import FrontendNotInstalled


@dataclass(frozen=True)
class OwnAgent:
    """`command[0]` is a path or on PATH. `credentials` are variables by the names of keys,
    `binds` what the sandbox must show beside the program."""

    command: tuple[str, ...]
    provider: Provider = Provider.ANY
    credentials: Mapping[str, str] = field(default_factory=dict)
    binds: tuple[str, ...] = ()
    network: bool = True
    env: Mapping[str, str] = field(default_factory=dict)


class OwnAcp(DrivenFrontend):
    """Made for being derived from: see `frontend_of`."""

    kind = FrontendKind.ACP
    driver = Acp.driver
    about: ClassVar[OwnAgent]

    def options(self, request: TurnRequest) -> Mapping[str, object]:
        require_library()
        if problem := self._problem():
            raise FrontendNotInstalled(f"{self.name}: {problem}", hint="Mend the settings.")
        program = self._program()
        assert program is not None
        return {"argv": [*program.argv, *self.about.command[1:]]}

    def prepare(self, request: TurnRequest, seat: Seat) -> Prepared:
        """Keys go by the variables that the settings say."""
        own = self.about.credentials
        named = {own[name]: value for name, value in seat.credentials.items()}
        prepared = super().prepare(request, replace(seat, credentials=named))
        return replace(prepared, env={**self.about.env, **prepared.env})

    def binds(self) -> tuple[str, ...]:
        program = self._program()
        shown = program.binds() if program else ()
        there = (path for path in self.about.binds if os.path.exists(path))
        return tuple(dict.fromkeys((*super().binds(), *shown, *there)))

    def find(self) -> FoundFrontend:
        about = (self.name, self.provider, self.kind)
        known = found(self.locator, about, self.about.command[0])
        problem = self._problem()
        # Not all of them say their version.
        return replace(known, installed=not problem, install="", problem=problem)

    def _program(self) -> Program | None:
        return self.locator.find(self.name, self.about.command[0])

    def _problem(self) -> str:
        if self._program() is None:
            return f"There is no program {self.about.command[0]!r} here."
        missing = [path for path in self.about.binds if not os.path.exists(path)]
        return f"{missing[0]} is not there." if missing else ""


def frontend_of(name: str, about: OwnAgent) -> type[OwnAcp]:
    says = {
        "name": name,
        "about": about,
        "provider": about.provider,
        "needs_network": about.network,
        "credentials": tuple(about.credentials),
    }
    return type(f"Own({name})", (OwnAcp,), says)
