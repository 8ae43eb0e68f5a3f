"""What the scripted agent does: files, commands and the tools of the space."""

from __future__ import annotations

import os
from typing import Any

from carrel.agents.environing import environment
from carrel.agents.frontends.script import Step
from carrel.agents.frontends.space_tools import SpaceTools, is_other
from carrel.agents.permitting import Permissions
from carrel.domain.agents import Seat, TurnRequest

DOES = ("write", "append", "run", "ask", "tool")
_BY_TOOL = ("ask", "tool")


class Hands:
    def __init__(
        self, request: TurnRequest, seat: Seat, permissions: Permissions, tools: SpaceTools
    ) -> None:
        self._request = request
        self._seat = seat
        self._permissions = permissions
        self._tools = tools

    async def do(self, id: str, step: Step) -> tuple[str, bool]:
        """What came of it, and whether that is an error."""
        name, given = call_of(step)
        by_tool = step.verb in _BY_TOOL
        # The space's own tools need no permission.
        free = by_tool and not is_other(name)
        if not free and not await self._permissions.allowed(id, name, given):
            return "Permission was denied.", True
        if by_tool:
            return await self._tools.call(name, given)
        try:
            if step.verb == "run":
                return await self._run(step.text)
            return self._write(step)
        except OSError as error:
            return str(error), True

    async def _run(self, command: str) -> tuple[str, bool]:
        from carrel.agents.frontends.shell import run_shell

        env = environment(self._request, self._seat)
        output, code = await run_shell(command, self._seat.workspace, env)
        return output, code != 0

    def _write(self, step: Step) -> tuple[str, bool]:
        path = os.path.join(self._seat.workspace, step.target)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a" if step.verb == "append" else "w") as file:
            file.write(f"{step.text}\n")
        return f"{len(step.text) + 1} characters", False


def call_of(step: Step) -> tuple[str, dict[str, Any]]:
    """The tool's name and what it is given, as it is told."""
    match step.verb:
        case "ask":
            return "ask_user", {"question": step.text}
        case "tool":
            return step.target, step.given or {}
        case "run":
            return "run", {"command": step.text}
        case verb:
            return verb, {"path": step.target, "text": step.text}
