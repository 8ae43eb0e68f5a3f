"""What is known of an agent in a terminal, by what its hooks tell."""

from __future__ import annotations

import asyncio
from collections import deque

from carrel.agents.frontends.lines import Object, log
from carrel.agents.listening import too_late
from carrel.agents.terminals.telling import Heard, heard
from carrel.agents.terminals.tmux import Tmux
from carrel.domain.agents import Activity, AgentEventType, Continuation, Stage, Told
from carrel.domain.errors import CarrelError, ContinuationNotFound

_READY = (Activity.IDLE, Activity.INPUT, Activity.WORKING)
"""When it can be spoken to: a question about a permission would take the words for its
answer."""
MAX_WHAT = 500


class Mind:
    """`stop` is set when another conversation answers than the one that was asked for."""

    def __init__(
        self, stage: Stage, screen: Tmux, asked: Continuation | None, stop: asyncio.Event
    ) -> None:
        self._stage = stage
        self._screen = screen
        self._stop = stop
        self._asked = asked.key if asked else ""
        self._activity = Activity.NONE
        self._shown = Activity.NONE
        self._heard: deque[Heard] = deque()
        self._pending: deque[str] = deque()
        self._news = asyncio.Event()
        self.key = self._asked
        self.begun = False
        """Something was said in it: a restart goes on with it."""
        self.refused = 0
        """How often it ended without a word when it was to go on with a conversation."""
        self._resuming = False
        self.said = ""
        self.lost: ContinuationNotFound | None = None

    # From the agent

    def heard(self, told: Object) -> None:
        found = heard(told)
        self._resuming, self.refused = False, 0
        if found.key and not self._is_ours(found.key):
            return
        self.key = found.key or self.key
        self.begun = self.begun or found.begun
        self._activity = found.activity or self._activity
        for event in found.events:
            if event.payload.get("role") == "assistant":
                # Now: who listens may be told only later, when the agent has ended already.
                self.said = str(event.payload["text"])
        self._heard.append(found)
        self._news.set()

    def _is_ours(self, key: str) -> bool:
        """The first conversation that shows is the one that was asked for; later ones were
        begun by a person."""
        if self._asked and key != self._asked:
            self.lost = ContinuationNotFound(
                "Another conversation answered than the one that was asked for.",
                asked=self._asked,
                came=key,
            )
            self._stop.set()
        self._asked = ""
        return self.lost is None

    def is_up(self) -> None:
        """By the look of it; what it told itself is better."""
        if self._activity is Activity.NONE:
            self.heard({"hook_event_name": "SessionStart"})

    def starts(self, *, resumed: bool) -> None:
        self._resuming = resumed

    def ended(self) -> None:
        """Until it says that it is there again it cannot be spoken to."""
        self._activity = Activity.NONE
        self.refused += self._resuming

    # To the agent, and to who listens

    def say(self, text: str) -> None:
        self._pending.append(text)
        self._news.set()

    async def speak(self) -> None:
        """Tells what changed, and types what is to be said when it can be."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._heard:
                found = self._heard.popleft()
                self._pass_on(found)
                await self._show(found)
            while self._pending and self._activity in _READY:
                await self._type(self._pending.popleft())

    def _pass_on(self, found: Heard) -> None:
        for event in found.events:
            self._stage.tell(event)

    async def _show(self, found: Heard) -> None:
        if found.activity is None or found.activity is self._shown:
            return
        self._shown = found.activity
        payload: dict[str, object] = {
            "activity": found.activity.value,
            "attached": await self._screen.attached(),
        }
        if found.what:
            payload["what"] = found.what[:MAX_WHAT]
        self._stage.tell(Told(AgentEventType.STATE, payload, self.key))

    async def _type(self, text: str) -> None:
        try:
            await self._screen.type(text)
        except CarrelError as error:
            self._stage.tell(log(f"What was said could not be typed: {error.message}"))

    def close(self) -> None:
        """What it told last is not lost with it."""
        for found in self._heard:
            self._pass_on(found)
        while self._pending:
            self._stage.tell(too_late(self._pending.popleft()))
