"""The Claude Agent SDK with the program it carries, against a stand-in for the model's API.

What every frontend does in a space is in tests/conformance: conversations and models that are not
there, and turns of the driver as a program of its own.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from carrel.agents.frontends.agent_sdk import AgentSdk, bundled
from carrel.agents.frontends.agent_sdk_driver import AgentSdkDriver
from carrel.agents.programs import Locator
from carrel.agents.turns import conduct
from carrel.domain.errors import ContinuationNotFound
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
from tests.agents.staging import INTERRUPT, WAIT_S, Heard, Held, setup_in
from tests.agents.standins import Standin, serving
from tests.sampling import whole_only

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
def setup(tmp_path: Path) -> AgentSetup:
    return replace(setup_in(tmp_path), credentials={"anthropic": "dummy-key"})


def asking(api: Standin, prompt: str) -> TurnRequest:
    env = {"ANTHROPIC_BASE_URL": api.url, "CLAUDE_CODE_MAX_RETRIES": "1"}
    return TurnRequest("agent-sdk", prompt, session_id="s", run_id="r", env=env)


def going_on(request: TurnRequest, key: str) -> TurnRequest:
    return replace(request, continuation=Continuation("anthropic", key))


async def play(
    setup: AgentSetup, request: TurnRequest, heard: Heard | None = None
) -> tuple[TurnResult, Heard]:
    heard = heard or Heard()
    turn = conduct(AgentSdkDriver(str(bundled())), request, setup, heard)
    return await asyncio.wait_for(turn, WAIT_S), heard


def code(result: TurnResult) -> str:
    return result.error.code if result.error else ""


async def test_a_turn_and_the_next_one(setup: AgentSetup, api: Standin) -> None:
    result, first = await play(setup, asking(api, "hello"))
    assert result == TurnResult(True, "reply 1: hello")
    assert first.texts == ["reply 1: hello"] and first.of(Type.MESSAGE_DELTA)
    assert first.of(Type.USAGE)[0].payload["output_tokens"]
    assert api.requests[0].headers["x-api-key"] == "dummy-key"
    prompt = 'WRITE a.txt words\nUSE mcp__carrel__shout {"text": "hey"}'
    request = going_on(asking(api, prompt), first.key)
    result, second = await play(replace(setup, mcp=MCP), request)
    assert result.success and result.final_output == f"reply 2: {prompt}"
    assert second.key == first.key
    assert "words" in Path(setup.workspace, "a.txt").read_text()
    assert second.of(Type.TOOL_CALL)[0].payload["name"] == "Write"
    assert len(second.of(Type.TOOL_CALL)) == 2
    written, shouted = second.of(Type.TOOL_RESULT)
    assert written.payload["is_error"] is False and shouted.payload["output"] == "HEY"


def test_what_is_no_key_of_a_conversation(setup: AgentSetup, api: Standin) -> None:
    with pytest.raises(ContinuationNotFound):
        FRONTEND.prepare(going_on(asking(api, "hello"), "a title"), setup)


def test_its_key_is_not_in_what_its_program_reads(setup: AgentSetup, api: Standin) -> None:
    assert b"dummy-key" not in FRONTEND.prepare(asking(api, "hello"), setup).first


async def test_it_is_interrupted_and_gone_on_with(setup: AgentSetup, api: Standin) -> None:
    heard = Heard(lambda told: INTERRUPT if told.key else None)
    result, _ = await play(setup, asking(api, "SLEEP 600"), heard)
    assert code(result) == "interrupted"
    result, _ = await play(setup, going_on(asking(api, "hello"), heard.key))
    assert result.success


async def test_what_is_said_meanwhile_is_answered(setup: AgentSetup, api: Standin) -> None:
    said: list[str] = []

    def once(told: Told) -> Control | None:
        if not told.key or said:
            return None
        said.append("more")
        return Control(ControlKind.INPUT, text="more")

    result, heard = await play(setup, asking(api, "hello"), Heard(once))
    assert heard.texts == ["reply 1: hello", "reply 2: more"]
    assert result.final_output == "reply 2: more"


async def test_it_asks(setup: AgentSetup, api: Standin) -> None:
    def decide(told: Told) -> Control | None:
        if told.type is not Type.PERMISSION or "decision" in told.payload:
            return None
        allow = "yes.txt" in str(told.payload)
        return Control(ControlKind.PERMISSION, id=str(told.payload["id"]), allow=allow)

    prompt = "WRITE no.txt words\nWRITE yes.txt words"
    request = replace(asking(api, prompt), permission=Permission.ASK)
    result, heard = await play(setup, request, Heard(decide))
    assert result.success
    assert [path.name for path in Path(setup.workspace).glob("*.txt")] == ["yes.txt"]
    asked = [told for told in heard.of(Type.PERMISSION) if "decision" not in told.payload]
    assert [told.payload["name"] for told in asked] == ["Write", "Write"]


# In a sample one of the questions above is answered with no.
@whole_only
async def test_it_is_denied(setup: AgentSetup, api: Standin) -> None:
    request = replace(asking(api, "WRITE a.txt words"), permission=Permission.DENY)
    _, heard = await play(setup, request)
    assert not Path(setup.workspace, "a.txt").exists()
    assert heard.of(Type.PERMISSION)[0].payload["decision"] == "deny"


# In a sample one turn shows its key; two at once have theirs in the suite of all frontends.
@whole_only
async def test_two_at_once_have_their_own_keys(tmp_path: Path, api: Standin) -> None:
    turns = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        setup = replace(setup_in(tmp_path / name), credentials={"anthropic": f"key-{name}"})
        turns.append(play(setup, asking(api, name)))
    results = await asyncio.gather(*turns)
    assert [result.final_output for result, _ in results] == ["reply 1: one", "reply 1: two"]
    came = zip(api.texts(), api.requests, strict=True)
    assert {(text, seen.headers["x-api-key"]) for text, seen in came} == {
        ("one", "key-one"),
        ("two", "key-two"),
    }


async def test_nothing_is_left_of_a_turn_that_is_stopped(
    setup: AgentSetup, api: Standin, tmp_path: Path
) -> None:
    held = Held(tmp_path)
    turn = asyncio.ensure_future(play(setup, asking(api, f"RUN {held.command}")))
    await held.taken()
    turn.cancel()
    await asyncio.wait({turn}, timeout=WAIT_S)
    assert turn.cancelled()
    assert held.is_free()


def test_it_is_found() -> None:
    found = FRONTEND.find()
    assert found.installed and found.version and Path(found.path).is_file()
