"""What an ACP agent tells of a session, understood."""

from __future__ import annotations

import re
from collections.abc import Sequence

from carrel.agents.frontends import lines
from carrel.agents.frontends.lines import Object
from carrel.agents.results import failed
from carrel.domain.agents import AgentEventType, Told, TurnResult
from carrel.domain.errors import AgentCrashed, AgentError, Interrupted, ModelNotSupported

_UNKNOWN_MODEL = re.compile(
    r"model_not_found|issue with the selected model|model .{0,200} does not exist", re.I
)
_QUIET = frozenset(
    {
        "available_commands_update",
        "config_option_update",
        "current_mode_update",
        "session_info_update",
        "usage_update",
        "user_message_chunk",
    }
)
_ENDED = ("completed", "failed")


class AcpTranslator:
    """Updates of one turn. A message comes in parts, and is whole when something else comes."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._kind = ("", "")
        self._said = ""
        self._open: dict[str, str] = {}
        """Calls whose input was not told yet, with their names."""

    def update(self, update: Object) -> Sequence[Told]:
        kind = lines.text(update, "sessionUpdate")
        if kind in ("agent_message_chunk", "agent_thought_chunk"):
            return self._part(kind, update)
        if kind in _QUIET:
            return ()
        whole = self._whole()
        if kind == "tool_call":
            name = lines.text(update, "title") or lines.text(update, "kind")
            self._open[lines.text(update, "toolCallId")] = name
        if kind in ("tool_call", "tool_call_update"):
            return [*whole, *self._tool(update)]
        return [*whole, lines.raw(lines.encode(update).encode())]

    def ended(self, reason: str, usage: Object) -> tuple[Sequence[Told], TurnResult]:
        """What is still to be told, and how the turn went."""
        told = list(self._whole())
        if usage:
            told.append(_usage(usage))
        match reason:
            case "end_turn":
                return told, TurnResult(True, self._said)
            case "cancelled":
                return told, failed(Interrupted("The turn was interrupted."))
        return told, failed(AgentCrashed(f"The agent stopped: {reason}.", reason=reason))

    def _part(self, kind: str, update: Object) -> Sequence[Told]:
        said = lines.text(update, "content", "text")
        what = (kind, lines.text(update, "messageId"))
        told = list(self._whole()) if what != self._kind else []
        self._kind = what
        self._parts.append(said)
        if said and kind == "agent_message_chunk":
            told.append(lines.delta(said))
        return told

    def _whole(self) -> Sequence[Told]:
        said, kind = "".join(self._parts), self._kind[0]
        self._parts, self._kind = [], ("", "")
        if not said:
            return ()
        if kind == "agent_thought_chunk":
            return (lines.log(said),)
        self._said = said
        return (lines.message(said),)

    def _tool(self, update: Object) -> Sequence[Told]:
        """A call is told with its input, which may come after its beginning."""
        id = lines.text(update, "toolCallId")
        given = update.get("rawInput")
        ended = lines.text(update, "status") in _ENDED
        told = []
        if id in self._open and (given or ended):
            told.append(lines.tool_call(id, self._open.pop(id), given or {}))
        if ended:
            is_error = lines.text(update, "status") == "failed"
            told.append(lines.tool_result(id, _output(update), is_error))
        return told


def problem_of(message: str, data: object) -> AgentError:
    """Of an error that the agent answered with."""
    said = f"{message}: {lines.encode(data)}" if data else message
    if _UNKNOWN_MODEL.search(said):
        return ModelNotSupported(lines.bounded(said, lines.MAX_RAW))
    return AgentCrashed(lines.bounded(said, lines.MAX_RAW))


def _output(update: Object) -> str:
    texts = [lines.text(part, "content", "text") for part in lines.objects(update, "content")]
    shown = "\n".join(text for text in texts if text)
    raw = update.get("rawOutput")
    if shown or raw is None:
        return shown
    return raw if isinstance(raw, str) else lines.encode(raw)


def _usage(usage: Object) -> Told:
    cached = lines.number(usage, "cachedReadTokens")
    written = lines.number(usage, "cachedWriteTokens")
    payload = {
        "input_tokens": lines.number(usage, "inputTokens") + cached + written,
        "output_tokens": lines.number(usage, "outputTokens"),
        "cached_tokens": cached,
    }
    return Told(AgentEventType.USAGE, payload)
