"""Claude Code's stream, understood: as recorded, and as nobody would write it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.agents.frontends.claude_driver import ClaudeTranslator
from carrel.agents.frontends.lines import MAX_OUTPUT, MAX_RAW
from carrel.domain.turns import AgentEventType as Type
from tests.agents.recordings import SESSION, made_up, play, replay
from tests.sampling import examples


@pytest.mark.parametrize(
    ("case", "types"),
    [
        ("text", [Type.MESSAGE, Type.USAGE]),
        ("resume", [Type.MESSAGE, Type.USAGE]),
        ("write", [Type.TOOL_CALL, Type.TOOL_RESULT, Type.MESSAGE, Type.USAGE]),
        ("run", [Type.TOOL_CALL, Type.TOOL_RESULT, Type.MESSAGE, Type.USAGE]),
        ("mcp", [Type.TOOL_CALL, Type.TOOL_RESULT, Type.MESSAGE, Type.USAGE]),
        (
            "denied",
            [Type.TOOL_CALL, Type.PERMISSION, Type.TOOL_RESULT, Type.MESSAGE, Type.USAGE],
        ),
    ],
)
def test_turns_that_end_well(case: str, types: list[Type]) -> None:
    done = replay(ClaudeTranslator(SESSION if case == "resume" else ""), "claude-code", case)
    assert done.result.success, done.result
    assert done.result.final_output == done.only(Type.MESSAGE).payload["text"]
    assert done.types == types
    assert done.told[0].key == SESSION
    deltas = [str(told.payload["text"]) for told in done.told if told.type is Type.MESSAGE_DELTA]
    assert "".join(deltas) == done.result.final_output
    assert not [told for told in done.told if "raw" in told.payload]


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("unknown_session", "continuation_not_found"),
        ("unknown_model", "model_not_supported"),
        ("api_error", "agent_crashed"),
        ("interrupted", "interrupted"),
    ],
)
def test_turns_that_do_not(case: str, code: str) -> None:
    done = replay(ClaudeTranslator(SESSION if "session" in case else ""), "claude-code", case)
    assert not done.result.success
    assert done.code == code
    assert Type.MESSAGE not in done.types


def test_a_command_that_fails() -> None:
    answer = replay(ClaudeTranslator(), "claude-code", "run").only(Type.TOOL_RESULT)
    assert answer.payload["is_error"] is True


def test_usage_is_of_the_turn() -> None:
    first = replay(ClaudeTranslator(), "claude-code", "text").only(Type.USAGE).payload
    second = replay(ClaudeTranslator(SESSION), "claude-code", "resume").only(Type.USAGE).payload
    assert first == second
    assert first["cost_usd"]


def test_another_conversation_than_the_one_asked_for() -> None:
    done = replay(ClaudeTranslator("another"), "claude-code", "text")
    assert done.code == "continuation_not_found"
    assert not [told for told in done.told if told.key]


def line(**event: object) -> bytes:
    return json.dumps(event).encode()


def result(**more: object) -> bytes:
    return line(type="result", subtype="success", is_error=False, **more)


def test_neither_a_word_nor_a_deed() -> None:
    assert play(ClaudeTranslator(), [result(result="")]).code == "empty_response"


def test_a_deed_without_a_word_is_enough() -> None:
    call = {"type": "tool_use", "id": "1", "name": "Write", "input": {}}
    done = play(
        ClaudeTranslator(),
        [line(type="assistant", message={"model": "m", "content": [call]}), result(result="")],
    )
    assert done.result.success


def test_what_an_agent_of_the_agent_says_is_not_its_message() -> None:
    said = {"model": "m", "content": [{"type": "text", "text": "inner"}]}
    inner = line(type="assistant", parent_tool_use_id="1", message=said)
    done = play(ClaudeTranslator(), [inner, result(result="outer")])
    assert done.types == []
    assert done.result.final_output == "outer"


@pytest.mark.parametrize(
    ("code", "stderr", "expected"),
    [
        (None, "", "agent_crashed"),
        (1, "Error: no", "agent_crashed"),
        (0, "", "agent_crashed"),
        (143, "", "interrupted"),
        (130, "", "interrupted"),
        (1, "No conversation found with session ID: x", "continuation_not_found"),
    ],
)
def test_how_it_ended_without_a_last_word(code: int | None, stderr: str, expected: str) -> None:
    done = play(ClaudeTranslator(), [], code, stderr)
    assert done.code == expected
    if expected == "agent_crashed" and done.result.error:
        assert done.result.error.details["stderr"] == stderr


def test_a_last_word_counts_for_more_than_the_end() -> None:
    assert play(ClaudeTranslator(), [result(result="done")], None).result.success


def test_what_is_unknown_or_much_is_kept_in_part() -> None:
    unknown = line(type="something_new", text="x" * 100_000)
    block = {"type": "tool_result", "tool_use_id": "1", "content": "y" * 1_000_000}
    much = line(type="user", message={"content": [block]})
    deep = b"[" * 100_000
    done = play(ClaudeTranslator(), [unknown, much, deep, b"", b"\xff\xfe"])
    assert [told.type for told in done.told] == [Type.LOG, Type.TOOL_RESULT, Type.LOG, Type.LOG]
    assert len(str(done.told[0].payload["raw"])) < MAX_RAW + 100
    assert len(str(done.told[1].payload["output"])) < MAX_OUTPUT + 100


@settings(max_examples=examples(40, exhaustive=400))
@given(st.lists(made_up("claude-code")), st.none() | st.integers(), st.text())
def test_nothing_raises(lines: list[bytes], code: int | None, stderr: str) -> None:
    done = play(ClaudeTranslator("asked"), lines, code, stderr)
    json.dumps([dict(told.payload) for told in done.told])
    assert done.result.success is (done.result.error is None)
