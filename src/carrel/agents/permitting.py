"""What an agent may do: decided by the turn, or by whoever runs it."""

from __future__ import annotations

import asyncio

from carrel.domain.agents import (
    AgentEventType,
    Control,
    Permission,
    Seat,
    Stage,
    Told,
    TurnRequest,
)
from carrel.domain.errors import PermissionDenied

ANSWER_S = 300.0
"""For a person to see the question and to answer it; then the answer is no."""

OWN_TOOLS = "mcp__carrel__"
"""How the names of the space's own tools begin, which need no permission."""


def permission_of(request: TurnRequest, seat: Seat) -> Permission:
    """Raises `PermissionDenied`: everything is allowed only where walls confine."""
    if request.permission is None:
        return Permission.SANDBOXED if seat.confined else Permission.ASK
    if request.permission is Permission.SANDBOXED and not seat.confined:
        raise PermissionDenied(
            "`sandboxed` allows everything, and nothing confines the agent here.",
            hint="Run the turn in a space, or use `ask` or `deny`.",
        )
    return request.permission


class Permissions:
    """The questions of one turn."""

    def __init__(self, mode: Permission, stage: Stage, answer_s: float | None = None) -> None:
        self.mode = mode
        self._stage = stage
        self._answer_s = ANSWER_S if answer_s is None else answer_s
        self._open: dict[str, asyncio.Future[bool]] = {}

    async def allowed(self, id: str, name: str, given: object) -> bool:
        """The question and the decision are told, except where everything is allowed."""
        if self.mode is Permission.SANDBOXED:
            return True
        asked = {"id": id, "name": name, "input": given}
        allow = False
        try:
            allow = self.mode is Permission.ASK and await self._ask(id, asked)
        finally:
            # Also of a question that the agent takes back.
            decision = "allow" if allow else "deny"
            self._stage.tell(Told(AgentEventType.PERMISSION, {**asked, "decision": decision}))
        return allow

    def answer(self, control: Control) -> None:
        """An answer that comes too late, or to nothing, changes nothing."""
        waiting = self._open.get(control.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(control.allow)

    def give_up(self) -> None:
        """The answer to all that is open is no."""
        for waiting in self._open.values():
            if not waiting.done():
                waiting.set_result(False)

    async def _ask(self, id: str, asked: dict[str, object]) -> bool:
        self._open[id] = asyncio.get_running_loop().create_future()
        self._stage.tell(Told(AgentEventType.PERMISSION, asked))
        try:
            # Not `wait_for`: that may lose a cancellation that comes with an answer.
            async with asyncio.timeout(self._answer_s):
                return await self._open[id]
        except TimeoutError:
            return False
        finally:
            del self._open[id]
