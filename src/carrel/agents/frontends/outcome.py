"""How a turn of a program went, judged from what it told and from how it ended."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from carrel.agents.results import failed
from carrel.domain.agents import TurnResult
from carrel.domain.errors import (
    AgentCrashed,
    AgentError,
    ContinuationNotFound,
    EmptyResponse,
    Interrupted,
)

MAX_STDERR = 4096
"""Characters of the end of standard error that go into an error's details."""

STOPPED = frozenset(
    code for asked in (signal.SIGINT, signal.SIGTERM) for code in (128 + asked, -asked)
)
"""Exits of a program that was asked to stop, as shells and as Python count them."""


@dataclass
class Heard:
    """What a turn has told so far."""

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


def judge(heard: Heard, code: int | None, stderr: str) -> TurnResult:
    """What it told counts for more than how it ended: a program that was killed after its
    last word has done its turn."""
    if heard.asked and heard.key and heard.key != heard.asked:
        return failed(
            ContinuationNotFound(
                "The agent began another conversation than the one that was asked for.",
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
        return failed(EmptyResponse("The agent ended its turn without a word or a deed."))
    return TurnResult(True, heard.said)


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
