"""Pi's and ACP agents' own streams: recorded ones understood, made-up ones survived."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.agents.driven import DrivenTranslator
from carrel.agents.frontends import lines
from carrel.agents.frontends.acp_driver import AcpTranslator
from carrel.agents.frontends.claude_driver import ClaudeTranslator
from carrel.agents.frontends.codex_driver import CodexTranslator
from carrel.agents.frontends.pi_driver import PiTranslator
from carrel.domain.turns import AgentEventType as Type
from carrel.domain.turns import Told, TurnResult
from tests.agents.recordings import STREAMS, made_up, replay
from tests.agents.staging import code_of
from tests.sampling import examples

SHOWN = (Type.MESSAGE, Type.TOOL_CALL, Type.TOOL_RESULT, Type.USAGE)


def shown(told: list[Told]) -> list[Type]:
    return [one.type for one in told if one.type in SHOWN]


def retries(told: Iterable[Told]) -> list[tuple[str, object]]:
    """What was told of them, and the status of the API."""
    found = [one.payload for one in told if one.payload.get("kind") == "retry"]
    return [(str(one["text"]), one.get("status")) for one in found]


def test_all_frontends_tell_that_they_try_again() -> None:
    claude = replay(ClaudeTranslator(), "claude-code", "api_error").told
    assert retries(claude) == [("Try 1 of 1 again: overloaded (529)", 529)]
    (codex,) = retries(replay(CodexTranslator(), "codex-cli", "api_error").told)
    assert codex[0].startswith("Reconnecting... 1/1") and codex[1] is None
    failed = b'{"type": "error", "message": "Reconnecting... 2/5 (unexpected status 503 Service)"}'
    assert retries(CodexTranslator().line(failed))[0][1] == 503
    assert retries(pi("api_error")[0])[0][1] == 500
    acp_told = AcpTranslator()
    found = [one for update in updates("codex-acp", "api_error") for one in acp_told.update(update)]
    assert retries(found)[0][0].startswith("Reconnecting... 1/1: We")


# Pi


def pi(case: str) -> tuple[list[Told], TurnResult]:
    translator = PiTranslator()
    told: list[Told] = []
    for line in (STREAMS / "pi" / f"{case}.jsonl").read_bytes().split(b"\n"):
        told += translator.event(lines.decode(line) or {"type": "agent_start"})
    last, result = translator.settled()
    return [*told, *last], result


@pytest.mark.parametrize("case", ["text", "resume"])
def test_pi_says_something(case: str) -> None:
    told, result = pi(case)
    assert shown(told) == [Type.MESSAGE, Type.USAGE]
    assert result.success and result.final_output.startswith("reply")
    assert not [one for one in told if "raw" in one.payload]


def test_pi_writes() -> None:
    told, result = pi("write")
    assert shown(told) == [Type.TOOL_CALL, Type.TOOL_RESULT, Type.MESSAGE, Type.USAGE]
    assert result.success


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("unknown_model", "model_not_supported"),
        ("api_error", "agent_crashed"),
        ("interrupted", "interrupted"),
    ],
)
def test_pi_fails(case: str, code: str) -> None:
    _, result = pi(case)
    assert code_of(result) == code


@settings(max_examples=examples(40, exhaustive=400))
@given(st.lists(made_up("pi"), max_size=5))
def test_pi_may_say_anything(made: list[bytes]) -> None:
    translator = PiTranslator()
    for line in made:
        event = lines.decode(line)
        if event is not None:
            assert all(isinstance(one, Told) for one in translator.event(event))
    translator.settled()


# ACP


def updates(frontend: str, case: str) -> Iterator[dict[str, Any]]:
    """Those of the last prompt, and the answer to it."""
    asked: int | None = None
    found: list[dict[str, Any]] = []
    for row in (STREAMS / frontend / f"{case}.jsonl").read_text().split("\n"):
        recorded = json.loads(row) if row else {}
        message = json.loads(recorded["line"]) if recorded else {}
        if recorded.get("dir") == "in" and message.get("method") == "session/prompt":
            asked, found = message["id"], []
        elif message.get("method") == "session/update":
            found.append(message["params"]["update"])
        elif asked is not None and message.get("id") == asked and "result" in message:
            found.append(message["result"])
    yield from found


def acp(frontend: str, case: str) -> tuple[list[Told], TurnResult]:
    translator = AcpTranslator()
    told: list[Told] = []
    for one in updates(frontend, case):
        if "stopReason" in one:
            last, result = translator.ended(one["stopReason"], one.get("usage") or {})
            return [*told, *last], result
        told += translator.update(one)
    raise AssertionError("the prompt was not answered")


@pytest.mark.parametrize("case", ["text", "resume"])
@pytest.mark.parametrize("frontend", ["claude-acp", "codex-acp"])
def test_acp_says_something(frontend: str, case: str) -> None:
    told, result = acp(frontend, case)
    assert shown(told) == [Type.MESSAGE, Type.USAGE]
    assert result.success and result.final_output.startswith("reply")
    assert not [one for one in told if "raw" in one.payload]


@pytest.mark.parametrize("frontend", ["claude-acp", "codex-acp"])
def test_acp_writes(frontend: str) -> None:
    told, result = acp(frontend, "write")
    assert shown(told) == [Type.TOOL_CALL, Type.TOOL_RESULT, Type.MESSAGE, Type.USAGE]
    assert result.success


@pytest.mark.parametrize("frontend", ["claude-acp", "codex-acp"])
def test_acp_is_interrupted(frontend: str) -> None:
    assert code_of(acp(frontend, "interrupted")[1]) == "interrupted"


NAMES = sorted({name for one in updates("codex-acp", "write") for name in one})
KINDS = ("agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["completed", "failed", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*NAMES, "text", "type"]), inner, max_size=4)
    ),
    max_leaves=10,
)
UPDATES = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5)


@settings(max_examples=examples(40, exhaustive=400))
@given(st.lists(st.tuples(st.sampled_from(KINDS) | VALUES, UPDATES), max_size=5))
def test_acp_may_say_anything(made: list[tuple[object, dict[str, object]]]) -> None:
    translator = AcpTranslator()
    for kind, fields in made:
        told = translator.update({**fields, "sessionUpdate": kind})
        assert all(isinstance(one, Told) for one in told)
    translator.ended("end_turn", made[0][1] if made else {})


# Our own


@given(st.lists(st.binary() | st.from_regex(rb'\{"type":"(message|complete)".*\}'), max_size=5))
def test_a_program_may_say_anything(made: list[bytes]) -> None:
    translator = DrivenTranslator()
    for line in made:
        assert all(isinstance(one, Told) for one in translator.line(line))
    assert not translator.ended(0, "").success
