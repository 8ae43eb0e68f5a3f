"""What Codex asks of whoever it works for, and how that is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from carrel.agents.frontends import lines
from carrel.agents.frontends.lines import Object

Answer = Mapping[str, object]


@dataclass(frozen=True)
class Question:
    """Of a permission; `answer` says it in Codex's words."""

    id: str
    name: str
    input: Object
    answer: Callable[[bool], Answer]


def question(request: Object, changes: Mapping[str, Object]) -> Question | None:
    """None: this is no permission, and cannot be given. `changes` are those of files that were
    told of so far, by the id of their item."""
    params = lines.mapping(request, "params")
    item = lines.text(params, "itemId")
    reason = lines.text(params, "reason")
    why = {"reason": reason} if reason else {}
    match request.get("method"):
        case "item/commandExecution/requestApproval":
            id = lines.text(params, "approvalId") or item
            command = {"command": lines.text(params, "command"), **why}
            return Question(id, "shell", command, _decision)
        case "item/fileChange/requestApproval":
            change = {**changes.get(item, {}), **why}
            return Question(item, "apply_patch", change, _decision)
        case "item/permissions/requestApproval":
            wanted = lines.mapping(params, "permissions")
            return Question(
                item,
                "permissions",
                {"permissions": wanted, **why},
                lambda allow: _grant(allow, wanted),
            )
        case "mcpServer/elicitation/request":
            return _elicitation(f"mcp-{request.get('id')}", params)
    return None


def nothing_for(request: Object) -> Answer | None:
    """The answer to what is no permission, where there is one: nobody is there who knows."""
    match request.get("method"):
        case "item/tool/requestUserInput":
            return {"answers": {}}
        case "mcpServer/elicitation/request":
            return _elicited(False)
    return None


def _decision(allow: bool) -> Answer:
    """Once rather than always: the next question is asked again."""
    return {"decision": "accept" if allow else "decline"}


def _grant(allow: bool, wanted: Object) -> Answer:
    return {"permissions": wanted if allow else {}, "scope": "turn"}


def _elicitation(id: str, params: Object) -> Question | None:
    """Codex asks for a tool of an MCP server as if that server had; a form of the server's own
    has nobody who could fill it in."""
    meta = lines.mapping(params, "_meta")
    if meta.get("codex_approval_kind") != "mcp_tool_call":
        return None
    given = {"message": lines.text(params, "message"), "input": meta.get("tool_params")}
    return Question(id, f"mcp__{lines.text(params, 'serverName')}", given, _elicited)


def _elicited(allow: bool) -> Answer:
    return {"action": "accept" if allow else "decline", "content": None, "_meta": None}
