"""The lines of `codex exec --json`, understood."""

from __future__ import annotations

import re
from collections.abc import Sequence

from carrel.agents.frontends import lines
from carrel.agents.frontends.lines import Object
from carrel.agents.frontends.outcome import Heard, judge, last_line
from carrel.domain.agents import AgentEventType, Told, TurnResult
from carrel.domain.errors import (
    AgentCrashed,
    AgentError,
    ContinuationNotFound,
    ModelNotSupported,
)

_UNKNOWN_THREAD = re.compile(r"no rollout found|thread/resume failed|no saved session")
_UNKNOWN_MODEL = re.compile(
    r"\bmodel\b.*(does not exist|not supported|not found)|model_not_found", re.DOTALL
)
_FAILED = re.compile(r"^Error\b|panicked", re.MULTILINE)
_REFUSED = re.compile(r"requires approval")
_QUIET = frozenset({"turn.started", "item.updated"})


class CodexTranslator:
    """Implements `Translator`."""

    def __init__(self, asked: str = "") -> None:
        self._heard = Heard(asked)
        self._started = False
        self._called: set[str] = set()

    def line(self, line: bytes) -> Sequence[Told]:
        if not line.strip():
            return ()
        event = lines.decode(line)
        if event is None:
            return (lines.raw(line),)
        kind = lines.text(event, "type")
        match kind:
            case "thread.started":
                key = self._heard.meet(lines.text(event, "thread_id"))
                return (lines.log("Codex", key),)
            case "item.started" | "item.completed":
                return self._item(lines.mapping(event, "item"), kind == "item.completed", line)
            case "turn.completed":
                self._heard.finished = True
                return (_usage(event, bool(self._heard.asked)),)
            case "turn.failed":
                said = lines.text(event, "error", "message")
                self._heard.error = problem_of(said)
                return (lines.log(said),)
            case "error":
                return (lines.log(lines.text(event, "message")),)
        self._started = self._started or kind == "turn.started"
        return () if kind in _QUIET else (lines.raw(line),)

    def ended(self, code: int | None, stderr: str) -> TurnResult:
        heard = self._heard
        if heard.error is None and not heard.finished:
            if _UNKNOWN_THREAD.search(stderr):
                heard.error = ContinuationNotFound(
                    "Codex has no such conversation.", asked=heard.asked
                )
            elif code and _UNKNOWN_MODEL.search(last_line(stderr)):
                heard.error = ModelNotSupported(last_line(stderr))
            elif code == 1 and self._started and not _FAILED.search(stderr):
                # Its way to end when it is interrupted; every failure has a word of its own.
                heard.interrupted = True
        return judge(heard, code, stderr)

    def _item(self, item: Object, completed: bool, line: bytes) -> Sequence[Told]:
        match lines.text(item, "type"):
            case "agent_message":
                said = lines.text(item, "text")
                self._heard.said = said or self._heard.said
                return (lines.message(said),) if said and completed else ()
            case "reasoning":
                return (lines.log(lines.text(item, "text")),) if completed else ()
            case "error":
                return (lines.log(lines.text(item, "message")),) if completed else ()
            case "todo_list":
                return (lines.log(_todo(item)),) if completed else ()
            case "command_execution":
                given = {"command": lines.text(item, "command")}
                return self._tool(item, "shell", given, completed)
            case "file_change":
                given_changes = {"changes": item.get("changes", [])}
                return self._tool(item, "apply_patch", given_changes, completed)
            case "web_search":
                query = {"query": lines.text(item, "query")}
                return self._tool(item, "web_search", query, completed)
            case "mcp_tool_call":
                name = f"mcp__{lines.text(item, 'server')}__{lines.text(item, 'tool')}"
                return self._tool(item, name, item.get("arguments"), completed)
        return (lines.raw(line),)

    def _tool(self, item: Object, name: str, given: object, completed: bool) -> Sequence[Told]:
        """Some are told when they begin and when they end, some only then."""
        id = lines.text(item, "id")
        told: list[Told] = []
        if id not in self._called:
            self._called.add(id)
            self._heard.acted = True
            told.append(lines.tool_call(id, name, given))
        if completed:
            output = _output(item)
            if _REFUSED.search(output) and item.get("error"):
                asked = {"id": id, "name": name, "input": given, "decision": "deny"}
                told.append(Told(AgentEventType.PERMISSION, asked))
            told.append(lines.tool_result(id, output, _is_error(item)))
        return told


def problem_of(said: str) -> AgentError:
    if _UNKNOWN_MODEL.search(said):
        return ModelNotSupported(said)
    return AgentCrashed(lines.bounded(said, lines.MAX_RAW) or "Codex gave up without a reason.")


def _is_error(item: Object) -> bool:
    code = item.get("exit_code")
    failed = isinstance(code, int) and code != 0
    return failed or lines.text(item, "status") in ("failed", "declined") or bool(item.get("error"))


def _output(item: Object) -> str:
    """Of whichever kind of tool it is."""
    said = lines.text(item, "aggregated_output") or lines.text(item, "error", "message")
    if said:
        return said
    parts = lines.objects(item, "result", "content")
    return "\n".join(lines.text(part, "text") or f"({part.get('type')})" for part in parts)


def _todo(item: Object) -> str:
    marks = [
        f"[{'x' if lines.flag(one, 'completed') else ' '}] {lines.text(one, 'text')}"
        for one in lines.objects(item, "items")
    ]
    return "\n".join(marks)


def _usage(event: Object, resumed: bool) -> Told:
    """Codex counts from the conversation's beginning: `scope` says so where that is more than
    this turn."""
    usage = lines.mapping(event, "usage")
    payload: dict[str, object] = {
        "input_tokens": lines.number(usage, "input_tokens"),
        "output_tokens": lines.number(usage, "output_tokens"),
        "cached_tokens": lines.number(usage, "cached_input_tokens"),
    }
    if resumed:
        payload["scope"] = "conversation"
    return Told(AgentEventType.USAGE, payload)
