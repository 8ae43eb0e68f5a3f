"""What Pi says in its RPC mode, understood."""

from __future__ import annotations

import re
from collections.abc import Sequence

from carrel.agents.frontends import lines
from carrel.agents.frontends.lines import Object
from carrel.agents.results import failed
from carrel.domain.agents import AgentEventType, Told, TurnResult
from carrel.domain.errors import AgentCrashed, AgentError, Interrupted, ModelNotSupported

_UNKNOWN_MODEL = re.compile(r"model_not_found|model .{0,200} (does not exist|not found)", re.I)
_QUIET = frozenset(
    {
        "response",
        "agent_start",
        "agent_end",
        "agent_settled",
        "turn_start",
        "turn_end",
        "message_start",
        "tool_execution_update",
        "queue_update",
        "thinking_level_changed",
    }
)


class PiTranslator:
    """Events of one turn. Never raises."""

    def __init__(self) -> None:
        self._said = ""
        self._error: AgentError | None = None
        self._usage: dict[str, float] = {}

    def event(self, event: Object) -> Sequence[Told]:
        match lines.text(event, "type"):
            case "message_update":
                return _update(lines.mapping(event, "assistantMessageEvent"))
            case "message_end":
                return self._message(lines.mapping(event, "message"))
            case "tool_execution_start":
                id, name = lines.text(event, "toolCallId"), lines.text(event, "toolName")
                return (lines.tool_call(id, name, event.get("args", {})),)
            case "tool_execution_end":
                id, output = lines.text(event, "toolCallId"), _texts(event, "result")
                return (lines.tool_result(id, output, lines.flag(event, "isError")),)
            case "auto_retry_start":
                return (lines.log(f"Tries again: {lines.text(event, 'errorMessage')}"),)
            case "auto_retry_end":
                return ()
            case kind if kind in _QUIET:
                return ()
        return (lines.raw(lines.encode(event).encode()),)

    def settled(self) -> tuple[Sequence[Told], TurnResult]:
        """The turn is over: what is still to be told, and how it went."""
        told = (Told(AgentEventType.USAGE, self._usage),) if self._usage else ()
        if self._error is not None:
            return told, failed(self._error)
        return told, TurnResult(True, self._said)

    def _message(self, message: Object) -> Sequence[Told]:
        if message.get("role") != "assistant":
            return ()
        self._count(lines.mapping(message, "usage"))
        # A later answer makes an earlier failure good: that was tried again.
        self._error = _problem(message)
        said = _texts(message)
        if not said:
            return ()
        self._said = said
        return (lines.message(said),)

    def _count(self, usage: Object) -> None:
        cached = lines.number(usage, "cacheRead")
        written = lines.number(usage, "cacheWrite")
        parts = {
            "input_tokens": lines.number(usage, "input") + cached + written,
            "output_tokens": lines.number(usage, "output"),
            "cached_tokens": cached,
            "cost_usd": lines.amount(usage, "cost", "total"),
        }
        for name, value in parts.items():
            self._usage[name] = self._usage.get(name, 0) + value


def problem_of(said: str) -> AgentError:
    if _UNKNOWN_MODEL.search(said):
        return ModelNotSupported(lines.bounded(said, lines.MAX_RAW))
    return AgentCrashed(lines.bounded(said, lines.MAX_RAW) or "Pi gave up without a reason.")


def _problem(message: Object) -> AgentError | None:
    match message.get("stopReason"):
        case "aborted":
            return Interrupted("The turn was interrupted.")
        case "error":
            return problem_of(lines.text(message, "errorMessage"))
    return None


def _update(part: Object) -> Sequence[Told]:
    match part.get("type"):
        case "text_delta":
            said = lines.text(part, "delta")
            return (lines.delta(said),) if said else ()
        case "thinking_end":
            said = lines.text(part, "content")
            return (lines.log(said),) if said else ()
    return ()


def _texts(value: Object, *path: str) -> str:
    """The texts of its content."""
    parts = lines.objects(value, *path, "content")
    return "\n".join(lines.text(part, "text") for part in parts if part.get("type") == "text")
