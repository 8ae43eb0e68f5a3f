"""What `codex app-server` tells of a turn, as `codex exec --json` would have said it.

One translator is enough for both: they tell the same things by other names.
"""

from __future__ import annotations

from carrel.agents.frontends import lines
from carrel.agents.frontends.lines import Object

DENIED = "Permission was denied."
_ITEMS = {
    "agentMessage": "agent_message",
    "commandExecution": "command_execution",
    "fileChange": "file_change",
    "mcpToolCall": "mcp_tool_call",
    "reasoning": "reasoning",
    "webSearch": "web_search",
}
_WARNINGS = frozenset({"warning", "guardianWarning", "configWarning", "deprecationNotice"})
_QUIET = (
    "account/",
    "app/",
    "hook/",
    "mcpServer/",
    "model/",
    "rawResponse",
    "remoteControl/",
    "serverRequest/",
    "skills/",
    "thread/",
    "turn/",
)
"""How what has no meaning for a turn begins."""
_QUIET_ITEMS = frozenset({"userMessage", "hookPrompt"})


def as_exec(method: str, params: Object) -> Object | None:
    """A line of `codex exec`; None when that would have said nothing."""
    if method in ("item/started", "item/completed"):
        item = _item(lines.mapping(params, "item"))
        return None if item is None else {"type": method.replace("/", "."), "item": item}
    if method == "error":
        return {"type": "error", "message": lines.text(params, "error", "message")}
    if method in _WARNINGS:
        said = lines.text(params, "message") or lines.text(params, "summary")
        return {"type": "error", "message": said}
    if method == "turn/plan/updated":
        return {"type": "item.completed", "item": {"type": "todo_list", "items": _plan(params)}}
    if method.startswith(_QUIET) or method.startswith("item/"):
        return None
    return {"type": method, "params": params}


def completed(usage: Object) -> Object:
    """The end of a turn, with what the conversation has used."""
    return {
        "type": "turn.completed",
        "usage": {
            "input_tokens": lines.number(usage, "inputTokens"),
            "output_tokens": lines.number(usage, "outputTokens"),
            "cached_input_tokens": lines.number(usage, "cachedInputTokens"),
        },
    }


def _item(item: Object) -> Object | None:
    kind = lines.text(item, "type")
    if kind in _QUIET_ITEMS:
        return None
    said: dict[str, object] = {**item, "type": _ITEMS.get(kind, kind)}
    if kind == "commandExecution":
        denied = DENIED if item.get("status") == "declined" else ""
        said["aggregated_output"] = lines.text(item, "aggregatedOutput") or denied
        said["exit_code"] = item.get("exitCode")
    elif kind == "fileChange":
        said["changes"] = changes(item)
    elif kind == "reasoning":
        said["text"] = _thoughts(item)
    return said


def changes(item: Object) -> list[Object]:
    """Of files, in the words of `codex exec`."""
    found = lines.objects(item, "changes")
    return [{"path": one.get("path"), "kind": lines.text(one, "kind", "type")} for one in found]


def _thoughts(item: Object) -> str:
    for name in ("summary", "content"):
        parts = item.get(name)
        if isinstance(parts, list) and parts:
            return "\n".join(str(part) for part in parts)
    return ""


def _plan(params: Object) -> list[Object]:
    return [
        {"text": lines.text(one, "step"), "completed": one.get("status") == "completed"}
        for one in lines.objects(params, "plan")
    ]
