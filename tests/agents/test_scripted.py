"""The scripted agent: its steps, its memory, and how it is stopped."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from carrel.agents.frontends.scripted_driver import ScriptedDriver, ScriptStep, steps
from carrel.agents.turns import conduct
from carrel.domain.turns import AgentEventType as Type
from carrel.domain.turns import (
    AgentSetup,
    Continuation,
    Control,
    ControlKind,
    Permission,
    Told,
    TurnRequest,
    TurnResult,
)
from tests.agents.staging import INTERRUPT, WAIT_S, Heard, is_gone, setup_in

MCP = (sys.executable, str(Path(__file__).with_name("mcp_server.py")))


@pytest.fixture
def setup(tmp_path: Path) -> AgentSetup:
    return setup_in(tmp_path)


def asking(*lines: str) -> TurnRequest:
    return TurnRequest("scripted", "\n".join(lines), session_id="s", run_id="r1")


async def play(
    setup: AgentSetup, request: TurnRequest, heard: Heard | None = None
) -> tuple[TurnResult, Heard]:
    heard = heard or Heard()
    turn = conduct(ScriptedDriver(), request, setup, heard)
    return await asyncio.wait_for(turn, WAIT_S), heard


def going_on(heard: Heard, *lines: str) -> TurnRequest:
    return replace(asking(*lines), run_id="r2", continuation=Continuation("any", heard.key))


async def test_it_says_things(setup: AgentSetup) -> None:
    result, heard = await play(setup, asking("say one", "hello there"))
    assert heard.texts == ["one", "turn 1: hello there"]
    assert result == TurnResult(True, "turn 1: hello there")


async def test_it_writes_and_appends(setup: AgentSetup) -> None:
    result, heard = await play(
        setup, asking("write a/b.txt first line", "append a/b.txt second", "say done")
    )
    assert result.success
    assert Path(setup.workspace, "a/b.txt").read_text() == "first line\nsecond\n"
    calls = [told.payload["name"] for told in heard.of(Type.TOOL_CALL)]
    ids = [
        [told.payload["id"] for told in heard.of(type)]
        for type in (Type.TOOL_CALL, Type.TOOL_RESULT)
    ]
    assert calls == ["write", "append"]
    assert ids[0] == ids[1] and len(set(ids[0])) == 2


async def test_a_write_that_fails_is_an_error_of_the_tool(setup: AgentSetup) -> None:
    Path(setup.workspace, "file").touch()
    result, heard = await play(setup, asking("write file/below x", "say went on"))
    assert result.final_output == "went on"
    assert heard.of(Type.TOOL_RESULT)[0].payload["is_error"] is True


async def test_it_runs_commands_in_the_workspace_with_the_turns_environment(
    setup: AgentSetup,
) -> None:
    request = replace(asking("run pwd; echo $WORD; echo bad >&2; exit 3"), env={"WORD": "given"})
    result, heard = await play(setup, request)
    (told,) = heard.of(Type.TOOL_RESULT)
    assert told.payload["output"] == f"{setup.workspace}\ngiven\nbad\n"
    assert told.payload["is_error"] is True
    assert result == TurnResult(True)
    assert "WORD" not in os.environ


async def test_what_a_command_leaves_behind_is_ended(setup: AgentSetup) -> None:
    _, heard = await play(setup, asking("run sleep 600 & echo $!"))
    pid = int(str(heard.of(Type.TOOL_RESULT)[0].payload["output"]))
    assert is_gone(pid)


async def test_a_turn_without_a_word_is_empty(setup: AgentSetup) -> None:
    result, _ = await play(setup, asking("sleep 0"))
    assert result.error is not None and result.error.code == "empty_response"


@pytest.mark.parametrize(("step", "said"), [("fail no way", "no way"), ("crash", "crashed")])
async def test_it_fails(setup: AgentSetup, step: str, said: str) -> None:
    result, heard = await play(setup, asking("say before", step, "say after"))
    assert result.error is not None and result.error.code == "agent_crashed"
    assert said in result.error.message
    assert heard.texts == ["before"]


@pytest.mark.parametrize("line", ["write", "sleep long", "tool x [1]", "repeat many say x", "ask"])
async def test_what_is_no_step_is_said_back(setup: AgentSetup, line: str) -> None:
    _, heard = await play(setup, asking(line))
    assert heard.texts == [f"turn 1: {line}"]


def test_steps_are_repeated_as_they_are_wanted() -> None:
    found = list(steps("repeat 2 repeat 3 say x\nrepeat 0 say y\nrepeat 2 hello"))
    assert found == [ScriptStep("say", "x")] * 6 + [ScriptStep("echo", "hello")] * 2
    assert next(steps(f"repeat {10**30} say x")) == ScriptStep("say", "x")


# Conversations


async def test_it_remembers_how_many_turns_there_were(setup: AgentSetup) -> None:
    _, first = await play(setup, asking("hello"))
    _, second = await play(setup, going_on(first, "hello"))
    assert second.texts == ["turn 2: hello"]
    assert second.key == first.key


async def test_the_same_session_without_a_continuation_is_a_new_conversation(
    setup: AgentSetup,
) -> None:
    _, first = await play(setup, asking("hello"))
    _, other = await play(setup, replace(asking("hello"), run_id="r2"))
    assert other.texts == ["turn 1: hello"]
    assert other.key != first.key


@pytest.mark.parametrize("key", ["0" * 32, "../scripted/x", "", "nonsense"])
async def test_an_unknown_conversation_is_not_found(setup: AgentSetup, key: str) -> None:
    request = replace(asking("hello"), continuation=Continuation("any", key))
    result, heard = await play(setup, request)
    assert result.error is not None and result.error.code == "continuation_not_found"
    assert not heard.all


# While it runs


@pytest.mark.parametrize("step", ["sleep 600", "run sleep 600", "repeat 100000000 say x"])
async def test_it_is_interrupted_at_any_step_and_can_be_gone_on_with(
    setup: AgentSetup, step: str
) -> None:
    heard = Heard(lambda told: INTERRUPT if told.payload.get("text") == "now" else None)
    began = time.monotonic()
    result, _ = await play(setup, asking("say now", step), heard)
    assert result.error is not None and result.error.code == "interrupted"
    assert time.monotonic() - began < 5
    _, second = await play(setup, going_on(heard, "hello"))
    assert second.texts == ["turn 2: hello"]


async def test_what_is_said_meanwhile_is_done_afterwards(setup: AgentSetup) -> None:
    more = Control(ControlKind.INPUT, text="say more\nsay end")
    heard = Heard(lambda told: more if told.payload.get("text") == "now" else None)
    result, _ = await play(setup, asking("say now", "sleep 0.01", "say then"), heard)
    assert heard.texts == ["now", "then", "more", "end"]
    assert result.final_output == "end"


async def test_a_turn_has_its_time(setup: AgentSetup) -> None:
    result, _ = await play(setup, replace(asking("say x", "sleep 600"), timeout_s=0.05))
    assert result.error is not None and result.error.code == "timeout"


# Permissions


@pytest.mark.parametrize("allow", [True, False])
async def test_it_asks_before_it_acts(tmp_path: Path, allow: bool) -> None:
    setup = setup_in(tmp_path, confined=False)

    def decide(told: Told) -> Control | None:
        if told.type is not Type.PERMISSION or "decision" in told.payload:
            return None
        return Control(ControlKind.PERMISSION, id=str(told.payload["id"]), allow=allow)

    result, heard = await play(setup, asking("write a.txt x"), Heard(decide))
    assert result.success
    assert Path(setup.workspace, "a.txt").exists() is allow
    question, decision = heard.of(Type.PERMISSION)
    assert question.payload["name"] == "write"
    assert decision.payload["decision"] == ("allow" if allow else "deny")


async def test_it_is_denied(setup: AgentSetup) -> None:
    request = replace(asking("write a.txt x"), permission=Permission.DENY)
    _, heard = await play(setup, request)
    assert not Path(setup.workspace, "a.txt").exists()
    assert heard.of(Type.TOOL_RESULT)[0].payload["is_error"] is True


async def test_everything_is_allowed_only_where_walls_are(tmp_path: Path) -> None:
    request = replace(asking("hello"), permission=Permission.SANDBOXED)
    result, _ = await play(setup_in(tmp_path, confined=False), request)
    assert result.error is not None and result.error.code == "permission_denied"


# The tools of the space


async def test_it_uses_the_tools_of_the_space(setup: AgentSetup) -> None:
    with_tools = replace(setup, mcp=MCP)
    prompt = asking('tool shout {"text": "hey"}', "tool none {}", "ask why?", "say end")
    result, heard = await play(with_tools, prompt)
    assert result.final_output == "end"
    outputs = [
        (told.payload["output"], told.payload["is_error"]) for told in heard.of(Type.TOOL_RESULT)
    ]
    assert outputs[0] == ("HEY", False)
    assert [told.payload["name"] for told in heard.of(Type.TOOL_CALL)] == [
        "shout",
        "none",
        "ask_user",
    ]


async def test_without_a_space_there_are_no_tools(setup: AgentSetup) -> None:
    _, heard = await play(setup, asking("ask why?"))
    assert heard.of(Type.TOOL_RESULT)[0].payload["is_error"] is True


async def test_many_events(setup: AgentSetup) -> None:
    result, heard = await play(setup, asking("repeat 20000 say x", "say end"))
    assert result.final_output == "end"
    assert len(heard.texts) == 20001
