"""Tools that an editor answers, when one is connected to the space."""

from __future__ import annotations

from typing import Annotated, Any

import anyio
from pydantic import Field

from carrel.domain.errors import DeadlinePassed
from carrel.mcp.desk import ANSWER_S, Desk
from carrel.mcp.results import Answered

EDITOR_S = 30.0
"""For an editor to answer; some ask their user first."""


class EditorTools:
    """`NoReceiver` when no editor is connected."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def get_selection(self) -> Answered:
        """What the user has selected in the editor that is connected to this space."""
        return await self._ask("ide_get_selection", {})

    async def ide_operation(
        self,
        operation: Annotated[str, Field(description="Its name; editors have their own.")],
        arguments: Any = None,
    ) -> Answered:
        """Have the editor that is connected to this space do something."""
        return await self._ask("ide_operation", {"operation": operation, "arguments": arguments})

    async def _ask(self, type: str, payload: dict[str, Any]) -> Answered:
        hub = await self._desk.hub()
        with anyio.move_on_after(ANSWER_S):
            data = await hub.request(type, payload, space=hub.space, deadline_s=EDITOR_S)
            return Answered(data=data)
        raise DeadlinePassed("The editor did not answer.", hint="Ask again, or do without.")
