"""The events of a turn and its result.

`Emitter` gives what a frontend told its numbers and its conversation. A turn begins with
`state: running` and ends with `state` and `complete`, whatever happened; `complete` comes once, and
nothing after it.
"""

from __future__ import annotations

import inspect
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carrel.domain.errors import (
    AgentCrashed,
    AgentError,
    CarrelError,
    ContinuationNotFound,
    EmptyResponse,
    Interrupted,
)
from carrel.domain.turns import (
    AgentEvent,
    AgentEventType,
    Continuation,
    InteractionMode,
    Told,
    TurnError,
    TurnRequest,
    TurnResult,
    TurnState,
)

MAX_KEY = 1024
"""Characters of the key of a conversation: more nobody can go on with, and every event has it."""

OnEvent = Callable[[AgentEvent], object]
"""Called in order, from the loop that the turn runs in; what it returns is not used."""

_OURS = (AgentEventType.STATE, AgentEventType.COMPLETE)


class Emitter:
    """Emits the events of one turn. A callback that raises is told to all as a `log`, once, and is
    still called afterwards."""

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
        """The first error of each callback that raised."""
        return tuple(self._broken.values())

    def start(self) -> None:
        self._emit(AgentEventType.STATE, {"state": TurnState.RUNNING.value})

    def tell(self, told: Told) -> None:
        """Emits what a frontend told. Its `state` and `complete` become a `log`: they are ours."""
        if self._ended:
            return
        if 0 < len(told.key) <= MAX_KEY and (self.continuation is None or self._is_terminal):
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
        """Calls all hearers; gives the errors of those that failed for the first time."""
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


# The result of a turn: made, written down and read back


def failed(error: CarrelError) -> TurnResult:
    said = {"hint": error.hint, **error.details} if error.hint else error.details
    return TurnResult(False, error=TurnError(error.code, error.message, said))


def payload_of(result: TurnResult) -> dict[str, object]:
    """The result as it is written in a `complete` event."""
    return {
        "success": result.success,
        "final_output": result.final_output,
        "error": error_of(result.error),
    }


def error_of(error: TurnError | None) -> dict[str, object] | None:
    if error is None:
        return None
    return {"code": error.code, "message": error.message, "details": dict(error.details)}


def result_of(payload: object) -> TurnResult:
    """Reads what `payload_of` wrote; anything else counts as a crash."""
    if not isinstance(payload, Mapping) or not isinstance(payload.get("success"), bool):
        return failed(AgentCrashed("The agent's last message could not be read."))
    said: Mapping[str, Any] = payload
    error = said.get("error")
    return TurnResult(
        said["success"],
        str(said.get("final_output") or ""),
        _read_error(error) if isinstance(error, Mapping) else None,
    )


def _read_error(error: Mapping[str, Any]) -> TurnError:
    details = error.get("details")
    return TurnError(
        str(error.get("code") or AgentCrashed.code),
        str(error.get("message") or ""),
        dict(details) if isinstance(details, Mapping) else {},
    )


# The result of a program's turn, by what it told and how it ended

MAX_STDERR = 4096
"""Characters of the end of standard error that go into an error's details."""

STOPPED = frozenset(
    code for asked in (signal.SIGINT, signal.SIGTERM) for code in (128 + asked, -asked)
)
"""Exits of a program that was asked to stop, as shells and as Python count them."""


@dataclass
class TurnSoFar:
    """What a program has told of its turn so far."""

    asked: str = ""
    """The conversation that was to be gone on with."""
    key: str = ""
    said: str = ""
    """The last message."""
    acted: bool = False
    """A tool was called."""
    finished: bool = False
    interrupted: bool = False
    error: AgentError | None = None

    def meet(self, key: str) -> str:
        """A conversation's id came by; gives back what may be told of it: an id other than the
        one that was asked for is never gone on with."""
        self.key = self.key or key
        return self.key if self.key and self.asked in ("", self.key) else ""


def judge(heard: TurnSoFar, code: int | None, stderr: str) -> TurnResult:
    """The result of a program's turn. What it told counts for more than how it ended: one that was
    killed after its last word has done its turn."""
    if heard.asked and heard.key and heard.key != heard.asked:
        return failed(
            ContinuationNotFound(
                "The agent began another conversation than the requested one.",
                asked=heard.asked,
                began=heard.key,
            )
        )
    if heard.error is not None:
        return failed(heard.error)
    if heard.interrupted or (code in STOPPED and not heard.finished):
        return failed(Interrupted("The turn was interrupted."))
    if not heard.finished:
        return failed(_crash(code, stderr))
    if not heard.said and not heard.acted:
        return failed(EmptyResponse("The agent ended its turn without a message, and did nothing."))
    return TurnResult(True, heard.said)


NO_LOGIN = re.compile(r"\brun /login\b")
"""Claude Code's advice to a person in its own terminal."""


def key_refused(who: str, credential: str, source: str) -> AgentCrashed:
    """Instead of an agent's own advice, which is of no use in a space. `source` is the frontend
    whose login can be imported."""
    return AgentCrashed(
        f"The service did not accept the key of {who}, or there was none.",
        hint=f"Store a valid one: carrel auth set {credential}. "
        f"Or copy your own login anew: carrel agents import {source}",
    )


def _crash(code: int | None, stderr: str) -> AgentCrashed:
    how = "was killed by a signal" if code is None else f"ended with {code}"
    last = last_line(stderr)
    why = f": {last}" if last else "."
    return AgentCrashed(
        f"The agent {how} before it was done{why}", exit=code, stderr=stderr[-MAX_STDERR:]
    )


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:MAX_STDERR] if lines else ""
