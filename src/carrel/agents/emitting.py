"""Gives what a frontend told its place: numbers, the conversation, a beginning and an end.

A turn begins with `state: running` and ends with `state` and `complete`, whatever happened;
`complete` comes once, and nothing after it.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence

from carrel.agents.results import error_of, payload_of
from carrel.domain.agents import (
    AgentEvent,
    AgentEventType,
    Continuation,
    InteractionMode,
    Told,
    TurnRequest,
    TurnResult,
    TurnState,
)

OnEvent = Callable[[AgentEvent], object]
"""Called in order, from the loop that the turn runs in; what it returns is not used."""

_OURS = (AgentEventType.STATE, AgentEventType.COMPLETE)


class Emitter:
    """One turn's. A callback that raises is told to all as a `log`, once, and is called on."""

    def __init__(
        self,
        request: TurnRequest,
        provider: str,
        hearers: Sequence[OnEvent],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._request = request
        self._is_terminal = request.mode is InteractionMode.INTERACTIVE
        """There a person may begin another conversation, and the agent tells what it does."""
        self._provider = provider
        self._hearers = hearers
        self._clock = clock
        self._seq = 0
        self._ended = False
        self._broken: dict[int, str] = {}
        self.continuation: Continuation | None = None

    @property
    def broken(self) -> tuple[str, ...]:
        """What the callbacks that raised said first."""
        return tuple(self._broken.values())

    def start(self) -> None:
        self._emit(AgentEventType.STATE, {"state": TurnState.RUNNING.value})

    def tell(self, told: Told) -> None:
        """Beginning and end are not a frontend's to tell: such a thing becomes a `log`."""
        if self._ended:
            return
        if told.key and (self.continuation is None or self._is_terminal):
            self.continuation = Continuation(self._provider, told.key)
        if self._is_terminal and told.type is AgentEventType.STATE:
            self._emit(told.type, {"state": TurnState.RUNNING.value, **told.payload})
        elif told.type in _OURS:
            self._emit(AgentEventType.LOG, {"raw": {"type": told.type.value, **told.payload}})
        else:
            self._emit(told.type, told.payload)

    def finish(self, result: TurnResult) -> None:
        if self._ended:
            return
        state = TurnState.COMPLETE if result.success else TurnState.ERROR
        payload: dict[str, object] = {"state": state.value}
        if result.error is not None:
            payload["error"] = error_of(result.error)
        self._emit(AgentEventType.STATE, payload)
        self._ended = True
        self._emit(AgentEventType.COMPLETE, {"result": payload_of(result)})

    def _emit(self, type: AgentEventType, payload: Mapping[str, object]) -> None:
        news = self._hand_out(type, payload)
        # Nothing follows `complete`: of callbacks that break there, only `broken` tells.
        while news and not self._ended:
            text = f"A callback for events failed: {'; '.join(news)}"
            news = self._hand_out(AgentEventType.LOG, {"text": text})

    def _hand_out(self, type: AgentEventType, payload: Mapping[str, object]) -> list[str]:
        """What went wrong for the first time."""
        self._seq += 1
        event = AgentEvent(
            type,
            self._clock(),
            self._seq,
            self._request.session_id,
            self._request.run_id,
            payload,
            self.continuation,
        )
        news = []
        for index, hearer in enumerate(self._hearers):
            problem = _call(hearer, event)
            if problem and index not in self._broken:
                self._broken[index] = problem
                news.append(problem)
        return news


def _call(hearer: OnEvent, event: AgentEvent) -> str:
    try:
        returned = hearer(event)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if returned is not None and inspect.iscoroutine(returned):
        returned.close()
        return "TypeError: a callback for events cannot be a coroutine function"
    return ""
