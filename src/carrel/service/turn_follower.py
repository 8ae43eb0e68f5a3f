"""Follows one turn of an agent: its events, what it waits for, its end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Callable, Collection

from carrel.domain.agents import Events, Translator, TurnLog
from carrel.domain.runs import Piece, RunRecord, RunState, Stream
from carrel.domain.runtimes import ExitReason
from carrel.domain.turns import (
    NOTHING_SPENT,
    Activity,
    AgentEvent,
    AgentEventType,
    Asked,
    Control,
    InteractionMode,
    LogKind,
    Told,
    Turn,
    TurnError,
    TurnResult,
    Usage,
)
from carrel.service.runs import Runs

MOST_OPEN = 100
"""Of permissions and questions that one turn waits for at the same time. An agent waits for a
few; what writes more is no agent, and they are all kept in memory."""
MAX_NUMBER = 255
MAX_NAME = 1024
MAX_INPUT = 64 << 10
"""Characters, as JSON: a person who decides does not read more. The log has all of it."""
ONLY_RETRIES_S = 60.0
"""Most agents get through within their first tries; a person need not know of those."""
_ASKS = "ask_user"
"""The tool of the space that waits for a person, whatever stands before its name."""
_NO_PROGRESS = (AgentEventType.STATE, AgentEventType.LOG, AgentEventType.USAGE)
"""Events that come between retries, too."""
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
        self.since = 0.0
        """When its activity last became another one; 0: it has been the same from the start."""
        self.asking: dict[str, Asked] = {}
        """Permissions that wait for an answer."""
        self._retrying: tuple[float, object] | None = None
        """Since when nothing came but retries, and the last status of the API."""

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

    def doing(self, now: float) -> str:
        """What there is to say beside the activity: that it has only retried for a while."""
        if self._retrying is None or now - self._retrying[0] < ONLY_RETRIES_S:
            return ""
        since, status = self._retrying
        why = f" ({status})" if isinstance(status, int) and 100 <= status < 600 else ""
        return f"retrying{why} for {int((now - since) / 60)} min"

    def hear(self, event: AgentEvent) -> None:
        before = self.activity
        self._understand(event)
        if self.activity is not before:
            self.since = event.ts

    def _understand(self, event: AgentEvent) -> None:
        self._heard = event.seq
        if event.payload.get("kind") == LogKind.RETRY:
            since = self._retrying[0] if self._retrying else event.ts
            self._retrying = (since, event.payload.get("status"))
        elif event.type not in _NO_PROGRESS:
            self._retrying = None
        match event.type:
            case AgentEventType.PERMISSION:
                self._asked(event)
            case AgentEventType.TOOL_CALL if str(event.payload.get("name")).endswith(_ASKS):
                self._asked_user(str(event.payload.get("id", "")))
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
        elif number in self.asking or _has_room(self.asking, number):
            given = _bounded(event.payload.get("input"))
            self.asking[number] = Asked(number, name[:MAX_NAME], given)
            self._tell(event, Activity.WAITING, name)

    def _asked_user(self, number: str) -> None:
        if _has_room(self._questions, number):
            self._questions.add(number)

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


def _has_room(open_now: Collection[str], number: str) -> bool:
    return len(open_now) < MOST_OPEN and len(number) <= MAX_NUMBER


def _bounded(given: object) -> object:
    """Of something large, its beginning."""
    text = json.dumps(given, ensure_ascii=False, default=str)
    if len(text) <= MAX_INPUT:
        return given
    return f"{text[:MAX_INPUT]}… ({len(text)} characters in all)"


# From what an agent writes to the events of its turn.

MAX_LINE = 4 << 20
"""A longer line is no event of any frontend; what is beyond is not looked at."""
STDERR_BYTES = 64 << 10
"""The end of what it complained about is enough to know why."""
READER = "turn"
"""An agent that writes faster than it is understood waits, and nothing is missed."""
AT_ONCE = 500
"""Events that are kept together."""
MAX_RESULT = 256 << 10
"""Characters of each text of an outcome: it is in the record, and the record is on no space's
disk. The log has what the agent said."""
MOST_SPENT = 1 << 53
"""No model gives so many tokens; what an agent says is added up, and must stay a number."""

_SHORT = {
    ExitReason.TIMEOUT: TurnError("timeout", "The agent was not done in its time."),
    ExitReason.STOPPED: TurnError("interrupted", "The space was stopped."),
    ExitReason.MEMORY: TurnError("agent_crashed", "The agent reached the limit of memory."),
    ExitReason.DISK: TurnError("agent_crashed", "The agent reached the limit of disk."),
    ExitReason.LOST: TurnError("agent_crashed", "Nobody knows how the agent ended."),
}
"""What is known of an end better than the frontend knows it."""


class Followed:
    """Events on their way to the log, but for the first `told`, which are there already."""

    def __init__(self, told: int = 0, *, terminal: bool = False) -> None:
        self._told = told
        self._waiting: list[AgentEvent] = []
        self._own = NOTHING_SPENT
        self._conversation: Usage | None = None
        self.waiting = Waiting(told, terminal=terminal)

    def hear(self, event: AgentEvent) -> None:
        if event.type is AgentEventType.USAGE:
            found = usage_in(event)
            if event.payload.get("scope") == "conversation":
                self._conversation = found
            else:
                self._own = plus(self._own, found)
        self.waiting.hear(event)
        if event.seq > self._told:
            self._waiting.append(event)

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self) -> list[AgentEvent]:
        taken, self._waiting = self._waiting, []
        return taken

    @property
    def is_cumulative(self) -> bool:
        """The frontend tells what the whole conversation has used, not this turn of it."""
        return self._conversation is not None

    def usage(self, earlier: Usage) -> Usage:
        """Of this turn; `earlier` is what the turns before it used."""
        if self._conversation is None:
            return dataclasses.replace(self._own, turns=1)
        return dataclasses.replace(_minus(self._conversation, earlier), turns=1)


class Lines:
    """Whole lines from pieces of a stream, of which some may be missing."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._offset = 0
        self._skipping = False

    def feed(self, piece: Piece) -> tuple[list[bytes], int]:
        """The lines that are whole now, and how many bytes before them nobody has seen."""
        missed = piece.offset - self._offset
        self._offset = piece.offset + len(piece.data)
        if missed:
            # What is left of a line is none.
            self._rest, self._skipping = bytearray(), True
        *lines, rest = piece.data.split(b"\n")
        if lines:
            lines[0], self._rest = bytes(self._rest) + lines[0], bytearray()
        self._rest += rest
        if self._skipping and lines:
            lines, self._skipping = lines[1:], False
        if len(self._rest) > MAX_LINE:
            self._rest, self._skipping = bytearray(), True
        return [line[:MAX_LINE] for line in lines], missed

    def end(self) -> list[bytes]:
        """What has no end of its own."""
        return [] if self._skipping or not self._rest else [bytes(self._rest)]


class Following:
    def __init__(self, runs: Runs, log: TurnLog, turn: Turn, translator: Translator) -> None:
        self._runs = runs
        self._log = log
        self._turn = turn
        self._translator = translator

    async def to_end(
        self, events: Events, followed: Followed, interrupted: Callable[[], bool]
    ) -> TurnResult:
        events.start()
        for note in self._turn.notes:
            events.tell(Told(AgentEventType.LOG, {"text": note}))
        record = await self._runs.get(self._turn.run_id)
        lines = Lines()
        found = self._runs.follow(record, Stream.STDOUT, 0, READER)
        async with contextlib.aclosing(found) as pieces:
            async for piece in pieces:
                whole, missed = lines.feed(piece)
                if missed:
                    text = f"{missed} bytes of the agent's output were too much to be kept."
                    events.tell(Told(AgentEventType.LOG, {"text": text}))
                await self._translate(whole, events, followed)
        await self._translate(lines.end(), events, followed)
        record = await self._runs.wait(self._turn.run_id)
        result = self._outcome(record, await self._stderr(record), interrupted())
        return _verified(bounded(result), self._turn, events)

    async def _translate(self, lines: list[bytes], events: Events, followed: Followed) -> None:
        for line in lines:
            for told in self._translator.line(line):
                events.tell(told)
            if len(followed) >= AT_ONCE:
                await self._flush(followed)
        await self._flush(followed)

    async def _flush(self, followed: Followed) -> None:
        if taken := followed.take():
            await self._log.tell(self._turn.space_id, taken)
        if news := followed.waiting.news():
            await self._log.alert(self._turn.space_id, f"{self._turn.frontend} {news}")

    async def _stderr(self, record: RunRecord) -> str:
        pieces: list[bytes] = []
        size = 0
        async with contextlib.aclosing(self._runs.follow(record, Stream.STDERR, 0)) as found:
            async for piece in found:
                pieces.append(piece.data)
                size += len(piece.data)
                while size - len(pieces[0]) > STDERR_BYTES:
                    size -= len(pieces.pop(0))
        return b"".join(pieces)[-STDERR_BYTES:].decode(errors="replace")

    def _outcome(self, record: RunRecord, stderr: str, interrupted: bool) -> TurnResult:
        if record.state is RunState.FAILED or record.exit is None:
            code = record.failure_code or "agent_crashed"
            return TurnResult(False, error=TurnError(code, record.failure or "It never ran."))
        result = self._translator.ended(record.exit.code, stderr)
        if result.success:
            return result
        if (known := _SHORT.get(record.exit.reason)) is not None:
            return dataclasses.replace(result, error=known)
        if interrupted:
            error = TurnError("interrupted", "The agent was interrupted.")
            return dataclasses.replace(result, error=error)
        return result


def bounded(result: TurnResult) -> TurnResult:
    """The beginning of what it says."""
    error = result.error
    if error is not None:
        told = json.dumps(error.details, default=str)
        details = error.details if len(told) <= MAX_RESULT else {"details": _beginning(told)}
        error = TurnError(_beginning(error.code), _beginning(error.message), details)
    return dataclasses.replace(result, final_output=_beginning(result.final_output), error=error)


def _beginning(text: str) -> str:
    if len(text) <= MAX_RESULT:
        return text
    return f"{text[:MAX_RESULT]}… ({len(text)} characters in all)"


def _verified(result: TurnResult, turn: Turn, events: Events) -> TurnResult:
    """A turn that goes on with a conversation goes on with that one, or did not."""
    found = events.continuation
    if turn.mode is InteractionMode.INTERACTIVE:
        return result  # The supervisor saw to it; later ones were begun by a person.
    if turn.asked is None or not result.success or found is None or found == turn.asked:
        return result
    error = TurnError(
        "continuation_not_found",
        f"The agent began another conversation than {turn.asked.key}.",
        {"asked": turn.asked.key, "found": found.key},
    )
    return dataclasses.replace(result, success=False, error=error)


def encode_control(control: Control) -> bytes:
    """One line."""
    return json.dumps(dataclasses.asdict(control)).encode() + b"\n"


def usage_in(event: AgentEvent) -> Usage:
    found = event.payload
    return Usage(
        _whole(found.get("input_tokens")),
        _whole(found.get("output_tokens")),
        _whole(found.get("cached_tokens")),
        _cost(found.get("cost_usd")),
    )


def plus(one: Usage, other: Usage) -> Usage:
    return Usage(
        min(MOST_SPENT, one.input_tokens + other.input_tokens),
        min(MOST_SPENT, one.output_tokens + other.output_tokens),
        min(MOST_SPENT, one.cached_tokens + other.cached_tokens),
        min(MOST_SPENT, one.cost_usd + other.cost_usd),
        one.turns + other.turns,
    )


def _minus(one: Usage, other: Usage) -> Usage:
    return Usage(
        max(0, one.input_tokens - other.input_tokens),
        max(0, one.output_tokens - other.output_tokens),
        max(0, one.cached_tokens - other.cached_tokens),
        max(0.0, one.cost_usd - other.cost_usd),
    )


def _whole(value: object) -> int:
    return min(value, MOST_SPENT) if isinstance(value, int) and value > 0 else 0


def _cost(value: object) -> float:
    return float(min(value, MOST_SPENT)) if isinstance(value, int | float) and value > 0 else 0.0
