"""Pi, by its RPC mode."""

from __future__ import annotations

from collections.abc import Mapping

from carrel.agents.driven import DrivenFrontend
from carrel.agents.programs import found
from carrel.domain.agents import FoundFrontend
from carrel.domain.turns import Provider, TurnRequest

PROGRAM = "pi"

KNOWN_GAPS = (
    "It has no MCP client: the tools of the space are not there.",
    "A turn that is killed before its first reply cannot be gone on with.",
)


class PiSdk(DrivenFrontend):
    name = "pi-sdk"
    provider = Provider.OPENAI
    credentials = ("openai",)
    brought = (".pi",)
    goes_without = True
    driver = "carrel.agents.frontends.pi_driver:PiDriver"

    def options(self, request: TurnRequest) -> Mapping[str, object]:
        return {"argv": self.locator.require(self.name, PROGRAM).argv}

    def binds(self) -> tuple[str, ...]:
        return self.locator.binds(self.name, PROGRAM)

    def find(self) -> FoundFrontend:
        return found(self.locator, (self.name, self.provider, self.kind), PROGRAM)
