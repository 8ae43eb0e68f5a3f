"""Codex's stream, understood: as recorded, and as nobody would write it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.agents.frontends.codex_driver import CodexTranslator
from carrel.domain.turns import AgentEventType as Type
from tests.agents.recordings import SESSION, made_up, play, replay
from tests.sampling import examples


@pytest.mark.parametrize(
    ("case", "types"),
    [
        ("text", [Type.MESSAGE, Type.USAGE]),
        ("resume", [Type.MESSAGE, Type.USAGE]),
        ("denied", [Type.MESSAGE, Type.USAGE]),
        ("write", [Type.TOOL_CALL, Type.TOOL_RESULT, Type.MESSAGE, Type.USAGE]),
        ("run", [Type.TOOL_CALL, Type.TOOL_RESULT, Type.MESSAGE, Type.USAGE]),
        ("mcp", [Type.TOOL_CALL, Type.TOOL_RESULT, Type.MESSAGE, Type.USAGE]),
    ],
)
def test_turns_that_end_well(case: str, types: list[Type]) -> None:
    done = replay(CodexTranslator(SESSION if case == "resume" else ""), "codex-cli", case)
    assert done.result.success, done.result
    assert done.result.final_output == done.only(Type.MESSAGE).payload["text"]
    assert done.types == types
    assert done.told[0].key == SESSION
    assert not [told for told in done.told if "raw" in told.payload]


@pytest.mark.parametrize(
    ("case", "asked", "code"),
    [
        ("unknown_session", SESSION, "continuation_not_found"),
        ("malformed_session", "nonsense", "continuation_not_found"),
        ("unknown_model", "", "model_not_supported"),
        ("api_error", "", "agent_crashed"),
        ("interrupted", "", "interrupted"),
    ],
)
def test_turns_that_do_not(case: str, asked: str, code: str) -> None:
    done = replay(CodexTranslator(asked), "codex-cli", case)
    assert done.code == code
    assert not asked or not [told for told in done.told if told.key]


def test_a_command_that_fails() -> None:
    answer = replay(CodexTranslator(), "codex-cli", "run").only(Type.TOOL_RESULT)
    assert answer.payload["is_error"] is True


def test_a_tool_of_the_space() -> None:
    done = replay(CodexTranslator(), "codex-cli", "mcp")
    assert str(done.only(Type.TOOL_CALL).payload["name"]).startswith("mcp__")
    assert done.only(Type.TOOL_RESULT).payload["output"] == "HELLO"


def test_a_tool_that_it_may_not_use() -> None:
    done = replay(CodexTranslator(), "codex-cli", "denied_mcp")
    assert done.only(Type.PERMISSION).payload["decision"] == "deny"
    assert done.only(Type.TOOL_RESULT).payload["is_error"] is True


def test_the_usage_of_a_resumed_turn_is_the_conversations() -> None:
    first = replay(CodexTranslator(), "codex-cli", "text").only(Type.USAGE).payload
    second = replay(CodexTranslator(SESSION), "codex-cli", "resume").only(Type.USAGE).payload
    assert "scope" not in first
    assert second["scope"] == "conversation"


def line(**event: object) -> bytes:
    return json.dumps(event).encode()


def item(**fields: object) -> bytes:
    return line(type="item.completed", item=fields)


def test_neither_a_word_nor_a_deed() -> None:
    done = play(CodexTranslator(), [line(type="turn.completed", usage={})])
    assert done.code == "empty_response"


def test_items_that_are_told_only_at_their_end() -> None:
    change = item(type="file_change", id="1", changes=[{"path": "a", "kind": "add"}])
    todo = item(type="todo_list", id="2", items=[{"text": "a", "completed": True}])
    done = play(CodexTranslator(), [change, todo, line(type="turn.completed")])
    assert done.types[:2] == [Type.TOOL_CALL, Type.TOOL_RESULT]
    assert done.only(Type.LOG).payload["text"] == "[x] a"
    assert done.result.success


@pytest.mark.parametrize(
    ("code", "stderr", "expected"),
    [
        (None, "", "agent_crashed"),
        (1, "", "interrupted"),
        (1, "Error: no", "agent_crashed"),
        (101, "thread 'main' panicked", "agent_crashed"),
        (0, "", "agent_crashed"),
        (143, "", "interrupted"),
    ],
)
def test_how_it_ended_without_a_last_word(code: int | None, stderr: str, expected: str) -> None:
    done = play(CodexTranslator(), [line(type="turn.started")], code, stderr)
    assert done.code == expected


@settings(max_examples=examples(40, exhaustive=400))
@given(st.lists(made_up("codex-cli")), st.none() | st.integers(), st.text())
def test_nothing_raises(lines: list[bytes], code: int | None, stderr: str) -> None:
    done = play(CodexTranslator("asked"), lines, code, stderr)
    json.dumps([dict(told.payload) for told in done.told])
    assert done.result.success is (done.result.error is None)
