"""The scripted agent: the prompt is what it does. Deterministic, for demos and tests.

    write PATH TEXT     the file holds that line        say TEXT         it says that
    append PATH TEXT    a line more in the file         ask QUESTION     asks the user of the space
    run COMMAND         by `sh -c`                      tool NAME JSON   a tool of the space, or
                                                        mcp__SERVER__TOOL of another server
    sleep SECONDS       waits                           repeat N STEP    that step, N times
    fail MESSAGE        the turn fails                  crash            the process is gone

Any other line is said back with the number of turns so far: `turn 2: hello`.
"""

from __future__ import annotations

from collections.abc import Mapping

from carrel.agents import programs
from carrel.agents.driven import DrivenFrontend
from carrel.domain.agents import Prepared
from carrel.domain.turns import KEY, AgentSetup, Provider, TurnRequest

TERMINAL = "carrel.agents.frontends.scripted_terminal"
FILE = "scripted-terminal.json"
AGAIN = "again"
"""What it was told first it was told already."""


class Scripted(DrivenFrontend):
    """Implements `Frontend` and `Interactive`."""

    name = "scripted"
    provider = Provider.ANY
    brought = ()
    needs_network = False
    driver = "carrel.agents.frontends.scripted_driver:ScriptedDriver"

    def program_options(self, request: TurnRequest) -> Mapping[str, object]:
        return {"own_process": True}

    def prepare_terminal(self, request: TurnRequest, setup: AgentSetup) -> Prepared:
        """Values of the environment go by the environment only."""
        prepared = self.prepare(request, setup)
        argv = programs.python(TERMINAL, f"{setup.state}/{FILE}")
        asked = (request.continuation.key,) if request.continuation else ()
        return Prepared(
            argv=(*argv, *asked),
            env=prepared.env,
            files={FILE: prepared.first},
            again=(*argv, KEY, AGAIN),
        )
