"""What `codex app-server` says, in the words of `codex exec`; and what it asks."""

from __future__ import annotations

import pytest

from carrel.agents.frontends.codex_driver import (
    CodexTranslator,
    as_exec,
    completed,
    nothing_for,
    question,
)
from carrel.agents.frontends.lines import Object, encode
from carrel.agents.turns import DENIED
from carrel.domain.turns import AgentEventType as Type
from carrel.domain.turns import Told


def told(method: str, params: Object) -> list[Told]:
    said = as_exec(method, params)
    return [] if said is None else list(CodexTranslator().line(encode(said).encode()))


@pytest.mark.parametrize(
    ("item", "name", "given"),
    [
        ({"type": "commandExecution", "command": "ls"}, "shell", {"command": "ls"}),
        (
            {
                "type": "fileChange",
                "changes": [{"path": "a", "kind": {"type": "add"}, "diff": "+x"}],
            },
            "apply_patch",
            {"changes": [{"path": "a", "kind": "add"}]},
        ),
        (
            {"type": "mcpToolCall", "server": "s", "tool": "t", "arguments": {"a": 1}},
            "mcp__s__t",
            {"a": 1},
        ),
        ({"type": "webSearch", "query": "q"}, "web_search", {"query": "q"}),
    ],
)
def test_tools(item: Object, name: str, given: object) -> None:
    (call,) = told("item/started", {"item": {"id": "i", **item}})
    assert (call.type, call.payload) == (Type.TOOL_CALL, {"id": "i", "name": name, "input": given})


@pytest.mark.parametrize(
    ("end", "output", "is_error"),
    [
        ({"aggregatedOutput": "out", "exitCode": 0, "status": "completed"}, "out", False),
        ({"aggregatedOutput": "out", "exitCode": 3, "status": "failed"}, "out", True),
        ({"aggregatedOutput": None, "exitCode": None, "status": "declined"}, DENIED, True),
    ],
)
def test_how_a_command_ended(end: Object, output: str, is_error: bool) -> None:
    item = {"type": "commandExecution", "id": "i", "command": "c", **end}
    _, result = told("item/completed", {"item": item})
    assert (result.payload["output"], result.payload["is_error"]) == (output, is_error)


def test_texts() -> None:
    (said,) = told("item/completed", {"item": {"type": "agentMessage", "id": "i", "text": "hey"}})
    assert (said.type, said.payload["text"]) == (Type.MESSAGE, "hey")
    thought = {"type": "reasoning", "id": "i", "summary": ["a", "b"], "content": []}
    (log,) = told("item/completed", {"item": thought})
    assert (log.type, log.payload["text"]) == (Type.LOG, "a\nb")
    (log,) = told("warning", {"message": "beware"})
    assert log.payload["text"] == "beware"
    (log,) = told("error", {"error": {"message": "no luck"}})
    assert log.payload["text"] == "no luck"
    plan = [{"step": "one", "status": "completed"}, {"step": "two", "status": "pending"}]
    (log,) = told("turn/plan/updated", {"plan": plan})
    assert log.payload["text"] == "[x] one\n[ ] two"


def test_what_is_used() -> None:
    used = completed({"inputTokens": 5, "outputTokens": 3, "cachedInputTokens": 2})
    (usage,) = CodexTranslator().line(encode(used).encode())
    expected = {"input_tokens": 5, "output_tokens": 3, "cached_tokens": 2}
    assert (usage.type, usage.payload) == (Type.USAGE, expected)


@pytest.mark.parametrize("method", ["turn/started", "account/updated", "item/plan/delta"])
def test_what_means_nothing_is_not_told(method: str) -> None:
    assert told(method, {"anything": 1}) == []


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("something/new", {"a": 1}),
        ("item/started", {"item": {"type": "somethingNew"}}),
        ("item/completed", {}),
        ("error", {"error": "a text"}),
        ("", {}),
    ],
)
def test_what_is_not_known_is_logged(method: str, params: Object) -> None:
    (log,) = told(method, params)
    assert log.type is Type.LOG


def asked(method: str, **params: object) -> Object:
    return {"id": 7, "method": method, "params": {"itemId": "i", **params}}


def test_questions() -> None:
    command = question(asked("item/commandExecution/requestApproval", command="ls"), {})
    assert command is not None
    assert (command.id, command.name, command.input) == ("i", "shell", {"command": "ls"})
    assert command.answer(True) == {"decision": "accept"}
    assert command.answer(False) == {"decision": "decline"}
    changes = {"i": {"changes": [{"path": "a"}]}}
    change = question(asked("item/fileChange/requestApproval", reason="why"), changes)
    assert change is not None and change.name == "apply_patch"
    assert change.input == {"changes": [{"path": "a"}], "reason": "why"}
    wanted = {"network": {"enabled": True}}
    more = question(asked("item/permissions/requestApproval", permissions=wanted), {})
    assert more is not None
    assert more.answer(True) == {"permissions": wanted, "scope": "turn"}
    assert more.answer(False) == {"permissions": {}, "scope": "turn"}


def test_a_tool_of_a_server_is_asked_for_and_a_form_is_not_filled_in() -> None:
    meta = {"codex_approval_kind": "mcp_tool_call", "tool_params": {"a": 1}}
    method = "mcpServer/elicitation/request"
    tool = question(asked(method, serverName="s", message="May it?", _meta=meta), {})
    assert tool is not None
    assert (tool.id, tool.name) == ("mcp-7", "mcp__s")
    assert tool.answer(True)["action"] == "accept"
    form = asked(method, serverName="s", message="Your name?", _meta=None)
    assert question(form, {}) is None
    refused = nothing_for(form)
    assert refused is not None and refused["action"] == "decline"
    assert nothing_for(asked("item/tool/requestUserInput")) == {"answers": {}}
    assert nothing_for(asked("something/new")) is None
