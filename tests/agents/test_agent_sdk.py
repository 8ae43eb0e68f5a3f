"""The Claude Agent SDK with the program it carries, against a stand-in for the model's API."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from carrel.agents.conducting import conduct
from carrel.agents.frontends.agent_sdk import AgentSdk, bundled
from carrel.agents.frontends.agent_sdk_driver import AgentSdkDriver
from carrel.agents.locating import Locator
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
from carrel.domain.errors import ContinuationNotFound
from tests.agents.staging import INTERRUPT, WAIT_S, Heard, Held, seat_in, started
from tests.agents.standins import UNKNOWN_MODEL, Standin, serving

FRONTEND = AgentSdk(Locator(Path("/nonexistent")))
MCP = (sys.executable, str(Path(__file__).with_name("mcp_server.py")))


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def api() -> Iterator[Standin]:
    with serving() as standin:
        yield standin


@pytest.fixture
def seat(tmp_path: Path) -> Seat:
    return replace(seat_in(tmp_path), credentials={"anthropic": "dummy-key"})


def asking(api: Standin, prompt: str) -> TurnRequest:
    env = {"ANTHROPIC_BASE_URL": api.url, "CLAUDE_CODE_MAX_RETRIES": "1"}
    return TurnRequest("agent-sdk", prompt, session_id="s", run_id="r", env=env)


def going_on(request: TurnRequest, key: str) -> TurnRequest:
    return replace(request, continuation=Continuation("anthropic", key))


async def play(
    seat: Seat, request: TurnRequest, heard: Heard | None = None
) -> tuple[TurnResult, Heard]:
    heard = heard or Heard()
    turn = conduct(AgentSdkDriver(str(bundled())), request, seat, heard)
    return await asyncio.wait_for(turn, WAIT_S), heard


def code(result: TurnResult) -> str:
    return result.error.code if result.error else ""


async def test_a_turn_and_the_next_one(seat: Seat, api: Standin) -> None:
    result, first = await play(seat, asking(api, "hello"))
    assert result == TurnResult(True, "reply 1: hello")
    assert first.texts == ["reply 1: hello"] and first.of(Type.MESSAGE_DELTA)
    assert first.of(Type.USAGE)[0].payload["output_tokens"]
    assert api.requests[0].headers["x-api-key"] == "dummy-key"
    result, second = await play(seat, going_on(asking(api, "again"), first.key))
    assert result.final_output == "reply 2: again"
    assert second.key == first.key


async def test_it_writes_a_file(seat: Seat, api: Standin) -> None:
    result, heard = await play(seat, asking(api, "WRITE a.txt words"))
    assert result.success
    assert "words" in Path(seat.workspace, "a.txt").read_text()
    assert [told.payload["name"] for told in heard.of(Type.TOOL_CALL)] == ["Write"]
    assert heard.of(Type.TOOL_RESULT)[0].payload["is_error"] is False


async def test_an_unknown_conversation_is_not_found(seat: Seat, api: Standin) -> None:
    result, _ = await play(seat, going_on(asking(api, "hello"), str(uuid4())))
    assert code(result) == "continuation_not_found"
    with pytest.raises(ContinuationNotFound):
        FRONTEND.prepare(going_on(asking(api, "hello"), "a title"), seat)


async def test_an_unknown_model(seat: Seat, api: Standin) -> None:
    result, _ = await play(seat, replace(asking(api, "hello"), model=UNKNOWN_MODEL))
    assert code(result) == "model_not_supported"


async def test_it_is_interrupted_and_gone_on_with(seat: Seat, api: Standin) -> None:
    heard = Heard(lambda told: INTERRUPT if told.key else None)
    result, _ = await play(seat, asking(api, "SLEEP 600"), heard)
    assert code(result) == "interrupted"
    result, _ = await play(seat, going_on(asking(api, "hello"), heard.key))
    assert result.success


async def test_what_is_said_meanwhile_is_answered(seat: Seat, api: Standin) -> None:
    said: list[str] = []

    def once(told: Told) -> Control | None:
        if not told.key or said:
            return None
        said.append("more")
        return Control(ControlKind.INPUT, text="more")

    result, heard = await play(seat, asking(api, "hello"), Heard(once))
    assert heard.texts == ["reply 1: hello", "reply 2: more"]
    assert result.final_output == "reply 2: more"


@pytest.mark.parametrize("allow", [True, False])
async def test_it_asks(seat: Seat, api: Standin, allow: bool) -> None:
    def decide(told: Told) -> Control | None:
        if told.type is not Type.PERMISSION or "decision" in told.payload:
            return None
        return Control(ControlKind.PERMISSION, id=str(told.payload["id"]), allow=allow)

    request = replace(asking(api, "WRITE a.txt words"), permission=Permission.ASK)
    result, heard = await play(seat, request, Heard(decide))
    assert result.success
    assert Path(seat.workspace, "a.txt").exists() is allow
    assert heard.of(Type.PERMISSION)[0].payload["name"] == "Write"


async def test_it_is_denied(seat: Seat, api: Standin) -> None:
    request = replace(asking(api, "WRITE a.txt words"), permission=Permission.DENY)
    _, heard = await play(seat, request)
    assert not Path(seat.workspace, "a.txt").exists()
    assert heard.of(Type.PERMISSION)[0].payload["decision"] == "deny"


async def test_it_has_the_tools_of_the_space(seat: Seat, api: Standin) -> None:
    request = asking(api, 'USE mcp__carrel__shout {"text": "hey"}')
    _, heard = await play(replace(seat, mcp=MCP), request)
    assert heard.of(Type.TOOL_RESULT)[0].payload["output"] == "HEY"


async def test_two_at_once_have_their_own_keys(tmp_path: Path, api: Standin) -> None:
    turns = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        seat = replace(seat_in(tmp_path / name), credentials={"anthropic": f"key-{name}"})
        turns.append(play(seat, asking(api, name)))
    results = await asyncio.gather(*turns)
    assert [result.final_output for result, _ in results] == ["reply 1: one", "reply 1: two"]
    came = zip(api.texts(), api.requests, strict=True)
    assert {(text, seen.headers["x-api-key"]) for text, seen in came} == {
        ("one", "key-one"),
        ("two", "key-two"),
    }


async def test_nothing_is_left_of_a_turn_that_is_stopped(
    seat: Seat, api: Standin, tmp_path: Path
) -> None:
    held = Held(tmp_path)
    turn = asyncio.ensure_future(play(seat, asking(api, f"RUN {held.command}")))
    await held.taken()
    turn.cancel()
    await asyncio.wait({turn}, timeout=WAIT_S)
    assert turn.cancelled()
    assert held.is_free()


async def test_in_its_own_program(seat: Seat, api: Standin) -> None:
    request = asking(api, "hello")
    prepared = FRONTEND.prepare(request, seat)
    assert b"dummy-key" not in prepared.first
    async with started(prepared, seat, FRONTEND.translator(request)) as program:
        result = await program.result()
    assert result.final_output == "reply 1: hello"
    assert program.heard.key


def test_it_is_found() -> None:
    found = FRONTEND.find()
    assert found.installed and found.version and Path(found.path).is_file()
