"""The scripted agent: its steps, its memory, and how it is stopped."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from carrel.agents.conducting import conduct
from carrel.agents.frontends.script import Step, steps
from carrel.agents.frontends.scripted_driver import ScriptedDriver
from carrel.domain.agents import AgentEventType as Type
from carrel.domain.agents import (
    Continuation,
    Control,
    ControlKind,
    Permission,
    Seat,
    Told,
    TurnRequest,
    TurnResult,
)
from tests.agents.staging import INTERRUPT, WAIT_S, Heard, is_gone, seat_in

MCP = (sys.executable, str(Path(__file__).with_name("mcp_server.py")))


@pytest.fixture
def seat(tmp_path: Path) -> Seat:
    return seat_in(tmp_path)


def asking(*lines: str) -> TurnRequest:
    return TurnRequest("scripted", "\n".join(lines), session_id="s", run_id="r1")


async def play(
    seat: Seat, request: TurnRequest, heard: Heard | None = None
) -> tuple[TurnResult, Heard]:
    heard = heard or Heard()
    turn = conduct(ScriptedDriver(), request, seat, heard)
    return await asyncio.wait_for(turn, WAIT_S), heard


def going_on(heard: Heard, *lines: str) -> TurnRequest:
    return replace(asking(*lines), run_id="r2", continuation=Continuation("any", heard.key))


async def test_it_says_things(seat: Seat) -> None:
    result, heard = await play(seat, asking("say one", "hello there"))
    assert heard.texts == ["one", "turn 1: hello there"]
    assert result == TurnResult(True, "turn 1: hello there")


async def test_it_writes_and_appends(seat: Seat) -> None:
    result, heard = await play(
        seat, asking("write a/b.txt first line", "append a/b.txt second", "say done")
    )
    assert result.success
    assert Path(seat.workspace, "a/b.txt").read_text() == "first line\nsecond\n"
    calls = [told.payload["name"] for told in heard.of(Type.TOOL_CALL)]
    ids = [
        [told.payload["id"] for told in heard.of(type)]
        for type in (Type.TOOL_CALL, Type.TOOL_RESULT)
    ]
    assert calls == ["write", "append"]
    assert ids[0] == ids[1] and len(set(ids[0])) == 2


async def test_a_write_that_fails_is_an_error_of_the_tool(seat: Seat) -> None:
    Path(seat.workspace, "file").touch()
    result, heard = await play(seat, asking("write file/below x", "say went on"))
    assert result.final_output == "went on"
    assert heard.of(Type.TOOL_RESULT)[0].payload["is_error"] is True


async def test_it_runs_commands_in_the_workspace_with_the_turns_environment(seat: Seat) -> None:
    request = replace(asking("run pwd; echo $WORD; echo bad >&2; exit 3"), env={"WORD": "given"})
    result, heard = await play(seat, request)
    (told,) = heard.of(Type.TOOL_RESULT)
    assert told.payload["output"] == f"{seat.workspace}\ngiven\nbad\n"
    assert told.payload["is_error"] is True
    assert result == TurnResult(True)
    assert "WORD" not in os.environ


async def test_what_a_command_leaves_behind_is_ended(seat: Seat) -> None:
    _, heard = await play(seat, asking("run sleep 600 & echo $!"))
    pid = int(str(heard.of(Type.TOOL_RESULT)[0].payload["output"]))
    assert is_gone(pid)


async def test_a_turn_without_a_word_is_empty(seat: Seat) -> None:
    result, _ = await play(seat, asking("sleep 0"))
    assert result.error is not None and result.error.code == "empty_response"


@pytest.mark.parametrize(("step", "said"), [("fail no way", "no way"), ("crash", "crashed")])
async def test_it_fails(seat: Seat, step: str, said: str) -> None:
    result, heard = await play(seat, asking("say before", step, "say after"))
    assert result.error is not None and result.error.code == "agent_crashed"
    assert said in result.error.message
    assert heard.texts == ["before"]


@pytest.mark.parametrize("line", ["write", "sleep long", "tool x [1]", "repeat many say x", "ask"])
async def test_what_is_no_step_is_said_back(seat: Seat, line: str) -> None:
    _, heard = await play(seat, asking(line))
    assert heard.texts == [f"turn 1: {line}"]


def test_steps_are_repeated_as_they_are_wanted() -> None:
    found = list(steps("repeat 2 repeat 3 say x\nrepeat 0 say y\nrepeat 2 hello"))
    assert found == [Step("say", "x")] * 6 + [Step("echo", "hello")] * 2
    assert next(steps(f"repeat {10**30} say x")) == Step("say", "x")


# Conversations


async def test_it_remembers_how_many_turns_there_were(seat: Seat) -> None:
    _, first = await play(seat, asking("hello"))
    _, second = await play(seat, going_on(first, "hello"))
    assert second.texts == ["turn 2: hello"]
    assert second.key == first.key


async def test_the_same_session_without_a_continuation_is_a_new_conversation(seat: Seat) -> None:
    _, first = await play(seat, asking("hello"))
    _, other = await play(seat, replace(asking("hello"), run_id="r2"))
    assert other.texts == ["turn 1: hello"]
    assert other.key != first.key


@pytest.mark.parametrize("key", ["0" * 32, "../scripted/x", "", "nonsense"])
async def test_an_unknown_conversation_is_not_found(seat: Seat, key: str) -> None:
    request = replace(asking("hello"), continuation=Continuation("any", key))
    result, heard = await play(seat, request)
    assert result.error is not None and result.error.code == "continuation_not_found"
    assert not heard.all


# While it runs


@pytest.mark.parametrize("step", ["sleep 600", "run sleep 600", "repeat 100000000 say x"])
async def test_it_is_interrupted_at_any_step_and_can_be_gone_on_with(seat: Seat, step: str) -> None:
    heard = Heard(lambda told: INTERRUPT if told.payload.get("text") == "now" else None)
    began = time.monotonic()
    result, _ = await play(seat, asking("say now", step), heard)
    assert result.error is not None and result.error.code == "interrupted"
    assert time.monotonic() - began < 5
    _, second = await play(seat, going_on(heard, "hello"))
    assert second.texts == ["turn 2: hello"]


async def test_what_is_said_meanwhile_is_done_afterwards(seat: Seat) -> None:
    more = Control(ControlKind.INPUT, text="say more\nsay end")
    heard = Heard(lambda told: more if told.payload.get("text") == "now" else None)
    result, _ = await play(seat, asking("say now", "sleep 0.01", "say then"), heard)
    assert heard.texts == ["now", "then", "more", "end"]
    assert result.final_output == "end"


async def test_a_turn_has_its_time(seat: Seat) -> None:
    result, _ = await play(seat, replace(asking("say x", "sleep 600"), timeout_s=0.05))
    assert result.error is not None and result.error.code == "timeout"


# Permissions


@pytest.mark.parametrize("allow", [True, False])
async def test_it_asks_before_it_acts(tmp_path: Path, allow: bool) -> None:
    seat = seat_in(tmp_path, confined=False)

    def decide(told: Told) -> Control | None:
        if told.type is not Type.PERMISSION or "decision" in told.payload:
            return None
        return Control(ControlKind.PERMISSION, id=str(told.payload["id"]), allow=allow)

    result, heard = await play(seat, asking("write a.txt x"), Heard(decide))
    assert result.success
    assert Path(seat.workspace, "a.txt").exists() is allow
    question, decision = heard.of(Type.PERMISSION)
    assert question.payload["name"] == "write"
    assert decision.payload["decision"] == ("allow" if allow else "deny")


async def test_it_is_denied(seat: Seat) -> None:
    request = replace(asking("write a.txt x"), permission=Permission.DENY)
    _, heard = await play(seat, request)
    assert not Path(seat.workspace, "a.txt").exists()
    assert heard.of(Type.TOOL_RESULT)[0].payload["is_error"] is True


async def test_everything_is_allowed_only_where_walls_are(tmp_path: Path) -> None:
    request = replace(asking("hello"), permission=Permission.SANDBOXED)
    result, _ = await play(seat_in(tmp_path, confined=False), request)
    assert result.error is not None and result.error.code == "permission_denied"


# The tools of the space


async def test_it_uses_the_tools_of_the_space(seat: Seat) -> None:
    with_tools = replace(seat, mcp=MCP)
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


async def test_without_a_space_there_are_no_tools(seat: Seat) -> None:
    _, heard = await play(seat, asking("ask why?"))
    assert heard.of(Type.TOOL_RESULT)[0].payload["is_error"] is True


async def test_many_events(seat: Seat) -> None:
    result, heard = await play(seat, asking("repeat 20000 say x", "say end"))
    assert result.final_output == "end"
    assert len(heard.texts) == 20001
