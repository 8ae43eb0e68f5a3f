"""A frontend of one's own: the prompt is a shell script, and what it prints is what it says."""

from __future__ import annotations

from collections.abc import Sequence

from carrel.domain.agents import FoundFrontend, FrontendKind, Prepared
from carrel.domain.errors import ContinuationNotFound
from carrel.domain.turns import (
    AgentEventType,
    AgentSetup,
    Provider,
    Told,
    TurnError,
    TurnRequest,
    TurnResult,
)


class Shell:
    """Implements `carrel.domain.agents.Frontend`."""

    name = "shell"
    provider = Provider.ANY
    kind = FrontendKind.CLI
    needs_network = False
    credentials = ()

    def __init__(self, locator: object) -> None:
        """`locator` finds programs that `carrel agents install` brings; `sh` is everywhere."""

    def find(self) -> FoundFrontend:
        return FoundFrontend(self.name, self.provider, self.kind, installed=True, path="/bin/sh")

    def binds(self) -> tuple[str, ...]:
        return ()

    def prepare(self, request: TurnRequest, setup: AgentSetup) -> Prepared:
        if request.continuation is not None:
            raise ContinuationNotFound("A shell remembers nothing.")
        return Prepared(argv=("/bin/sh", "-s"), env=request.env, first=request.prompt.encode())

    def translator(self, request: TurnRequest) -> ShellTranslator:
        return ShellTranslator()


class ShellTranslator:
    """Implements `carrel.domain.agents.Translator`."""

    def __init__(self) -> None:
        self._last = ""

    def line(self, line: bytes) -> Sequence[Told]:
        self._last = line.decode(errors="replace")
        return [Told(AgentEventType.MESSAGE, {"text": self._last, "role": "assistant"})]

    def ended(self, code: int | None, stderr: str) -> TurnResult:
        if code == 0:
            return TurnResult(True, self._last)
        error = TurnError("agent_crashed", stderr[-1000:] or f"It ended with {code}.")
        return TurnResult(False, self._last, error)
