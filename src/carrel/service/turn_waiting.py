"""What an agent does and waits for, by the events of its turn."""

from __future__ import annotations

import asyncio

from carrel.domain.agents import Activity, AgentEvent, AgentEventType, Asked

_ASKS = "ask_user"
"""The tool of the space that waits for a person, whatever stands before its name."""
_WAITS = {
    Activity.INPUT: "waits for your input",
    Activity.WAITING: "asks for permission",
}


class Waiting:
    """The first `told` events were heard by an earlier daemon: they are no news."""

    def __init__(self, told: int, *, terminal: bool = False) -> None:
        self._told = told
        self._questions: set[str] = set()
        self._terminal = Activity.IDLE if terminal else Activity.WORKING
        self._news = ""
        self.up = asyncio.Event()
        """A terminal can be attached to."""
        self._heard = 0
        self.asking: dict[str, Asked] = {}
        """Permissions that wait for an answer."""

    @property
    def activity(self) -> Activity:
        if self.asking:
            return Activity.WAITING
        if self._questions:
            return Activity.INPUT
        return self._terminal

    def may_answer(self, permission: str) -> bool:
        """It is open, or may be: not all that was told has been heard again yet."""
        return permission in self.asking or self._heard < self._told

    def hear(self, event: AgentEvent) -> None:
        self._heard = event.seq
        match event.type:
            case AgentEventType.PERMISSION:
                self._asked(event)
            case AgentEventType.TOOL_CALL if str(event.payload.get("name")).endswith(_ASKS):
                self._questions.add(str(event.payload.get("id", "")))
            case AgentEventType.TOOL_RESULT:
                self._questions.discard(str(event.payload.get("id", "")))
            case AgentEventType.LOG if "supervision" in event.payload:
                self._supervised(str(event.payload["supervision"]))
            case AgentEventType.STATE if "activity" in event.payload:
                self._in_terminal(event)

    def _asked(self, event: AgentEvent) -> None:
        number, name = str(event.payload.get("id", "")), str(event.payload.get("name", ""))
        if "decision" in event.payload:
            self.asking.pop(number, None)
        else:
            self.asking[number] = Asked(number, name, event.payload.get("input"))
            self._tell(event, Activity.WAITING, name)

    def _supervised(self, what: str) -> None:
        if what == "started":
            self.up.set()
        self._terminal = Activity.IDLE if what == "started" else Activity.EXITED

    def _in_terminal(self, event: AgentEvent) -> None:
        try:
            self._terminal = Activity(str(event.payload["activity"]))
        except ValueError:
            return
        # Who is attached sees it.
        if self._terminal in _WAITS and not event.payload.get("attached"):
            self._tell(event, self._terminal, str(event.payload.get("what", "")))

    def _tell(self, event: AgentEvent, activity: Activity, what: str) -> None:
        if event.seq > self._told:
            self._news = f"{_WAITS[activity]}: {what}" if what else _WAITS[activity]

    def news(self) -> str:
        """What the agent has begun to wait for, and nobody was told yet."""
        news, self._news = self._news, ""
        return news if self.activity in _WAITS else ""
