"""ACP agents: two real ones against stand-ins for the models' APIs, and one that misbehaves."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from carrel.agents import turns
from carrel.agents.driven import DrivenFrontend
from carrel.agents.frontends.acp import COMMAND, Acp, ClaudeAgentAcp, CodexAcp
from carrel.agents.frontends.acp_presets import PRESETS
from carrel.agents.programs import Locator
from carrel.agents.turns import conduct
from carrel.agents.wire import load
from carrel.domain.errors import FrontendNotInstalled
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
from tests.agents.staging import (
    INTERRUPT,
    PINNED,
    WAIT_S,
    Heard,
    Held,
    code_of,
    pinned,
    setup_in,
)
from tests.agents.standins import Standin, serving
from tests.sampling import beyond, whole_only

MCP = (sys.executable, str(Path(__file__).with_name("mcp_server.py")))
ODD = Path(__file__).with_name("acp_agent.py")
REAL = (ClaudeAgentAcp, CodexAcp)


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def api() -> Iterator[Standin]:
    with serving() as standin:
        yield standin


@pytest.fixture
def setup(tmp_path: Path) -> AgentSetup:
    keys = {"anthropic": "dummy-key", "openai": "dummy-key"}
    return replace(setup_in(tmp_path), credentials=keys)


def name_of(frontend: type[DrivenFrontend]) -> str:
    return frontend.name


@pytest.fixture(params=REAL, ids=name_of)
def real(request: pytest.FixtureRequest, tmp_path: Path) -> DrivenFrontend:
    cls: type[DrivenFrontend] = request.param
    return cls(pinned(tmp_path, cls.name))


@pytest.fixture
def claude(tmp_path: Path) -> DrivenFrontend:
    return ClaudeAgentAcp(pinned(tmp_path, ClaudeAgentAcp.name))


def asking(frontend: DrivenFrontend, api: Standin, prompt: str) -> TurnRequest:
    if isinstance(frontend, CodexAcp):
        env = {"OPENAI_BASE_URL": f"{api.url}/v1"}
        model = "gpt-5.5"
    else:
        env = {
            "ANTHROPIC_BASE_URL": api.url,
            "CLAUDE_CODE_EXECUTABLE": str(PINNED / "node_modules/.bin/claude"),
            "CLAUDE_CODE_MAX_RETRIES": "1",
        }
        model = ""
    return TurnRequest(frontend.name, prompt, "s", "r", model, env=env)


def going_on(request: TurnRequest, key: str) -> TurnRequest:
    return replace(request, continuation=Continuation("any", key))


async def play(
    frontend: DrivenFrontend, setup: AgentSetup, request: TurnRequest, heard: Heard | None = None
) -> tuple[TurnResult, Heard]:
    heard = heard or Heard()
    driver = load(frontend.driver, frontend.options(request))
    return await asyncio.wait_for(conduct(driver, request, setup, heard), WAIT_S), heard


# The real ones. What every frontend does in a space is in tests/conformance: conversations and
# models that are not there, and turns of the driver as a program of its own.


# Claude's has turns, tools and questions in the suite of all frontends.
@pytest.mark.parametrize("real", [CodexAcp, *beyond(ClaudeAgentAcp)], indirect=True, ids=name_of)
async def test_a_turn_and_the_next_one(
    real: DrivenFrontend, setup: AgentSetup, api: Standin
) -> None:
    """Which writes a file, and uses a tool of the space."""
    result, first = await play(real, setup, asking(real, api, "hello"))
    assert result == TurnResult(True, "reply 1: hello")
    assert first.texts == ["reply 1: hello"] and first.of(Type.MESSAGE_DELTA)
    assert first.of(Type.USAGE)[0].payload["output_tokens"]
    prompt = 'WRITE a.txt words\nUSE mcp__carrel__shout {"text": "hey"}'
    request = going_on(asking(real, api, prompt), first.key)
    result, second = await play(real, replace(setup, mcp=MCP), request)
    assert result == TurnResult(True, f"reply 2: {prompt}")
    assert second.texts == [f"reply 2: {prompt}"] and second.key == first.key
    assert "words" in Path(setup.workspace, "a.txt").read_text()
    calls, answers = second.of(Type.TOOL_CALL), second.of(Type.TOOL_RESULT)
    assert len(calls) == len(answers) == 2
    for call, answer in zip(calls, answers, strict=True):
        assert call.payload["input"] and call.payload["id"] == answer.payload["id"]
        assert answer.payload["is_error"] is False
    assert "HEY" in str(answers[1].payload["output"])


# Claude's is stopped below; both are interrupted in the same way.
@pytest.mark.parametrize("real", [CodexAcp, *beyond(ClaudeAgentAcp)], indirect=True, ids=name_of)
async def test_it_is_interrupted_and_gone_on_with(
    real: DrivenFrontend, setup: AgentSetup, api: Standin, tmp_path: Path
) -> None:
    """By a turn that may write nothing."""
    held, heard = Held(tmp_path), Heard()
    request = asking(real, api, f"RUN {held.command}")
    turn = asyncio.ensure_future(play(real, setup, request, heard))
    await held.taken()
    heard.controls.put_nowait(INTERRUPT)
    result, _ = await turn
    assert code_of(result) == "interrupted"
    assert held.is_free()
    again = going_on(asking(real, api, "WRITE a.txt words"), heard.key)
    result, _ = await play(real, setup, replace(again, permission=Permission.DENY))
    assert result.success, result.error
    assert not Path(setup.workspace, "a.txt").exists()


async def test_what_is_said_meanwhile_is_answered(
    claude: DrivenFrontend, setup: AgentSetup, api: Standin
) -> None:
    more = Control(ControlKind.INPUT, text="more")
    heard = Heard(lambda told: more if told.key else None)
    result, _ = await play(claude, setup, asking(claude, api, "hello"), heard)
    assert heard.texts == ["reply 1: hello", "reply 2: more"]
    assert result.final_output == "reply 2: more"


# In a sample it asks in the suite of all frontends.
@whole_only
async def test_it_asks(claude: DrivenFrontend, setup: AgentSetup, api: Standin) -> None:
    def decide(told: Told) -> Control | None:
        if told.type is not Type.PERMISSION or "decision" in told.payload:
            return None
        allow = "yes.txt" in str(told.payload)
        return Control(ControlKind.PERMISSION, id=str(told.payload["id"]), allow=allow)

    prompt = "WRITE no.txt words\nWRITE yes.txt words"
    request = replace(asking(claude, api, prompt), permission=Permission.ASK)
    result, heard = await play(claude, setup, request, Heard(decide))
    assert result.success, result.error
    assert [path.name for path in Path(setup.workspace).glob("*.txt")] == ["yes.txt"]
    assert len(heard.of(Type.PERMISSION)) == 4


# Claude's starts a program of its own, which starts the command.
@pytest.mark.parametrize("real", [ClaudeAgentAcp, *beyond(CodexAcp)], indirect=True, ids=name_of)
async def test_nothing_is_left_of_a_turn_that_is_stopped(
    real: DrivenFrontend, setup: AgentSetup, api: Standin, tmp_path: Path
) -> None:
    held = Held(tmp_path)
    turn = asyncio.ensure_future(play(real, setup, asking(real, api, f"RUN {held.command}")))
    await held.taken()
    turn.cancel()
    await asyncio.wait({turn}, timeout=WAIT_S)
    assert turn.cancelled()
    assert held.is_free()


# One that misbehaves


def odd(how: str) -> tuple[Acp, TurnRequest]:
    command = shlex.join((sys.executable, str(ODD), how))
    request = TurnRequest("acp", "hello", "s", "r", env={COMMAND: command})
    return Acp(Locator(Path("/nonexistent"))), request


async def test_one_that_dies_says_why(setup: AgentSetup) -> None:
    frontend, request = odd("dies")
    result, _ = await play(frontend, setup, request)
    assert code_of(result) == "agent_crashed"
    assert result.error is not None and "7" in result.error.message
    assert result.error.details["stderr"] == "out of paper"


async def test_one_that_cannot_load(setup: AgentSetup) -> None:
    frontend, request = odd("plain")
    result, _ = await play(frontend, setup, going_on(request, "k"))
    assert code_of(result) == "continuation_not_found"
    assert result.error is not None and "cannot" in result.error.message


async def test_one_that_says_nothing(setup: AgentSetup) -> None:
    frontend, request = odd("plain")
    result, _ = await play(frontend, setup, request)
    assert code_of(result) == "empty_response"


async def test_one_that_refuses(setup: AgentSetup) -> None:
    frontend, request = odd("refuses")
    result, _ = await play(frontend, setup, request)
    assert code_of(result) == "agent_crashed"


async def test_strange_things_are_logged(setup: AgentSetup) -> None:
    frontend, request = odd("strange")
    result, heard = await play(frontend, setup, request)
    assert result.final_output == "x"
    assert any("from_the_future" in str(told.payload) for told in heard.of(Type.LOG))


async def test_one_that_goes_on_when_it_is_interrupted_is_stopped(
    setup: AgentSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "INTERRUPT_S", 0.1)
    frontend, request = odd("hangs")
    heard = Heard(lambda told: INTERRUPT if told.type is Type.MESSAGE_DELTA else None)
    result, _ = await play(frontend, setup, request, heard)
    assert code_of(result) == "interrupted"


def test_which_agent_is_meant_must_be_said(setup: AgentSetup) -> None:
    frontend = Acp(Locator(Path("/nonexistent"), search=os.defpath))
    for command in ("", "no-such-program --acp", *PRESETS):
        with pytest.raises(FrontendNotInstalled):
            frontend.prepare(TurnRequest("acp", "hello", env={COMMAND: command}), setup)


def test_they_are_found(tmp_path: Path) -> None:
    locator = pinned(tmp_path, *(cls.name for cls in REAL))
    for cls in REAL:
        found = cls(locator).find()
        # The one of Claude's is pinned without Claude Code itself, which its own tests name.
        whole = cls is not ClaudeAgentAcp
        assert (found.installed, bool(found.problem)) == (whole, not whole), found.problem
