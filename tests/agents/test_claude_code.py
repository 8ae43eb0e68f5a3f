"""Claude Code: the real program against a stand-in, and its recorded streams."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from carrel.agents.frontends.claude_code import ClaudeCode, session_key
from carrel.agents.programs import Locator
from carrel.domain.agents import Frontend, Interactive
from carrel.domain.errors import (
    ContinuationNotFound,
    FrontendNotInstalled,
    PermissionDenied,
    ProviderMismatch,
    ResolveFailed,
)
from carrel.domain.turns import AgentEventType as Type
from carrel.domain.turns import AgentSetup, Continuation, Permission, TurnRequest
from tests.agents.programs import pinned, run, seat_at
from tests.agents.standins import UNKNOWN_MODEL, Standin, serving
from tests.agents.terminals import terminal
from tests.sampling import beyond, whole_only

KEY = "sk-ant-planted-0123456789abcdefghijklmnop"


@pytest.fixture
def standin() -> Iterator[Standin]:
    with serving() as standin:
        yield standin


@pytest.fixture
def claude(tmp_path: Path) -> ClaudeCode:
    return ClaudeCode(pinned(tmp_path, "claude-code"))


@pytest.fixture
def setup(tmp_path: Path) -> AgentSetup:
    return seat_at(tmp_path, anthropic=KEY)


def asking(standin: Standin, prompt: str, run_id: str = "run-1") -> TurnRequest:
    env = {"ANTHROPIC_BASE_URL": standin.url, "CLAUDE_CODE_MAX_RETRIES": "1"}
    return TurnRequest("claude-code", prompt, "s", run_id, env=env)


def test_it_implements_the_contracts(claude: ClaudeCode) -> None:
    frontend: Frontend = claude
    interactive: Interactive = claude
    assert frontend.name == claude.name
    assert callable(interactive.prepare_terminal)


def test_a_turn_and_the_next_one(claude: ClaudeCode, setup: AgentSetup, standin: Standin) -> None:
    request = replace(asking(standin, "hello"), system_prompt="Speak softly.")
    first = run(claude, request, setup)
    assert first.result.success, first.result
    assert first.result.final_output == "reply 1: hello"
    assert [told.payload["text"] for told in first.of(Type.MESSAGE)] == ["reply 1: hello"]
    assert "".join(str(told.payload["text"]) for told in first.of(Type.MESSAGE_DELTA)) == (
        "reply 1: hello"
    )
    assert first.key == session_key(request)
    assert standin.requests[0].headers["x-api-key"] == KEY
    (usage,) = first.of(Type.USAGE)
    assert usage.payload["output_tokens"] == 20
    assert "Speak softly." in json.dumps(standin.requests[0].body)
    request = replace(asking(standin, "two", "run-2"), continuation=first.continuation)
    second = run(claude, replace(request, system_prompt="Speak clearly."), setup)
    assert second.result.final_output == "reply 2: two"
    assert second.key == first.key
    costs = [done.of(Type.USAGE)[0].payload["cost_usd"] for done in (first, second)]
    assert costs[0] == pytest.approx(costs[1])
    # What is said to it later takes the place of what was said first.
    body = json.dumps(standin.requests[-1].body)
    assert "Speak clearly." in body
    assert "Speak softly." not in body


def test_an_unknown_conversation(claude: ClaudeCode, setup: AgentSetup, standin: Standin) -> None:
    continuation = Continuation("anthropic", str(uuid4()))
    done = run(claude, replace(asking(standin, "hello"), continuation=continuation), setup)
    assert done.code == "continuation_not_found"
    assert not done.key


# In a sample it is tried in the suite of all frontends.
@whole_only
def test_an_unknown_model(claude: ClaudeCode, setup: AgentSetup, standin: Standin) -> None:
    done = run(claude, replace(asking(standin, "hello"), model=UNKNOWN_MODEL), setup)
    assert done.code == "model_not_supported"


def test_an_api_that_fails(claude: ClaudeCode, setup: AgentSetup, standin: Standin) -> None:
    done = run(claude, asking(standin, "FAIL 529"), setup)
    assert done.code == "agent_crashed"
    assert done.result.error is not None
    assert done.result.error.details["status"] == 529
    retries = [told.payload for told in done.of(Type.LOG) if told.payload.get("kind") == "retry"]
    assert "Try 1 of 1" in str(retries[0]["text"]) and isinstance(retries[0]["status"], int)


def recorded(setup: AgentSetup, standin: Standin) -> Callable[[], bool]:
    """It writes a conversation down a moment after it has asked the model."""
    records = Path(setup.state, "claude", "projects")

    def holds() -> bool:
        texts = [file.read_text() for file in records.glob("*/*.jsonl")]
        return bool(standin.requests) and any("HANG" in text for text in texts)

    return holds


@pytest.mark.parametrize("stop_by", [signal.SIGINT, *beyond(signal.SIGTERM)])
def test_an_interrupted_turn_can_be_resumed(
    claude: ClaudeCode, setup: AgentSetup, standin: Standin, stop_by: int
) -> None:
    done = run(claude, asking(standin, "HANG"), setup, recorded(setup, standin), stop_by)
    assert done.code == "interrupted"
    request = replace(asking(standin, "on", "run-2"), continuation=done.continuation)
    assert run(claude, request, setup).result.final_output == "reply 2: on"


# In a sample it is tried in the suite of all frontends.
@whole_only
def test_a_killed_turn_can_be_resumed(
    claude: ClaudeCode, setup: AgentSetup, standin: Standin
) -> None:
    done = run(claude, asking(standin, "HANG"), setup, recorded(setup, standin), signal.SIGKILL)
    assert done.code == "agent_crashed"
    request = replace(asking(standin, "on", "run-2"), continuation=done.continuation)
    assert run(claude, request, setup).result.success


def test_nothing_that_needs_a_permission(
    claude: ClaudeCode, setup: AgentSetup, standin: Standin
) -> None:
    file = Path(setup.workspace, "made.txt")
    request = replace(asking(standin, f"WRITE {file} x"), permission=Permission.DENY)
    done = run(claude, request, setup)
    assert done.result.success
    assert not file.exists()
    (denied,) = done.of(Type.PERMISSION)
    assert denied.payload["name"] == "Write"
    assert denied.payload["decision"] == "deny"
    assert denied.payload["input"] == {"file_path": str(file), "content": "x"}


def test_a_turn_that_writes_and_uses_a_tool_of_the_space(
    claude: ClaudeCode, setup: AgentSetup, standin: Standin
) -> None:
    server = str(Path(__file__).with_name("mcp_server.py"))
    setup = replace(setup, mcp=(sys.executable, server), mcp_env={"SPACE_PASS": "planted"})
    Path(setup.context, "notes.md").write_text("notes")
    file = Path(setup.workspace, "made.txt")
    prompt = f'WRITE {file} by hand\nUSE mcp__carrel__shout {{"text": "aloud"}}'
    request = replace(asking(standin, prompt), system_prompt="Be kind to readers.")
    done = run(claude, request, setup)
    assert done.result.success, done.result
    assert file.read_text() == "by hand"
    calls, answers = done.of(Type.TOOL_CALL), done.of(Type.TOOL_RESULT)
    assert [call.payload["name"] for call in calls] == ["Write", "mcp__carrel__shout"]
    assert [call.payload["id"] for call in calls] == [one.payload["id"] for one in answers]
    assert answers[0].payload["is_error"] is False and answers[1].payload["output"] == "ALOUD"
    assert "Be kind to readers." in json.dumps(standin.requests[0].body)
    assert setup.context in standin.texts()[0]
    _assert_unseen(claude, request, setup, "planted")


def test_secrets_are_in_the_environment_only(
    claude: ClaudeCode, setup: AgentSetup, standin: Standin
) -> None:
    request = asking(standin, "hello")
    _assert_unseen(claude, request, setup, KEY)


def test_a_subscription_goes_by_its_own_variable(claude: ClaudeCode, setup: AgentSetup) -> None:
    setup = replace(setup, credentials={"anthropic": "sk-ant-oat01-x"})
    prepared = claude.prepare(TurnRequest("claude-code", "hi"), setup)
    assert prepared.env["CLAUDE_CODE_OAUTH_TOKEN"] == "sk-ant-oat01-x"
    assert "ANTHROPIC_API_KEY" not in prepared.env


def test_what_the_turn_brings_wins_over_what_is_kept(claude: ClaudeCode, setup: AgentSetup) -> None:
    env = {"ANTHROPIC_AUTH_TOKEN": "own"}
    prepared = claude.prepare(TurnRequest("claude-code", "hi", env=env), setup)
    assert "ANTHROPIC_API_KEY" not in prepared.env
    assert prepared.env["ANTHROPIC_AUTH_TOKEN"] == "own"


@pytest.mark.parametrize("key", ["a title", "", "{6f0d3a0e-5c0b-4f5e-9d53-0d2f3c1b8a77}"])
def test_what_is_no_id_is_not_started(claude: ClaudeCode, setup: AgentSetup, key: str) -> None:
    request = TurnRequest("claude-code", "hi", continuation=Continuation("anthropic", key))
    with pytest.raises(ContinuationNotFound):
        claude.prepare(request, setup)


def test_what_is_refused_before_the_start(
    claude: ClaudeCode, setup: AgentSetup, tmp_path: Path
) -> None:
    request = TurnRequest("claude-code", "hi")
    with pytest.raises(ProviderMismatch):
        claude.prepare(replace(request, continuation=Continuation("openai", "x")), setup)
    with pytest.raises(ResolveFailed):
        claude.prepare(replace(request, kits=("kit:x",)), setup)
    open_seat = replace(setup, confined=False)
    with pytest.raises(PermissionDenied):
        claude.prepare(replace(request, permission=Permission.SANDBOXED), open_seat)
    with pytest.raises(FrontendNotInstalled) as caught:
        ClaudeCode(Locator(tmp_path / "none", search="")).prepare(request, setup)
    assert "carrel agents install claude-code" in caught.value.hint


def test_it_is_found(claude: ClaudeCode, tmp_path: Path) -> None:
    found = claude.find()
    assert found.installed
    assert found.version == "2.1.325"
    missing = ClaudeCode(Locator(tmp_path / "none", search="")).find()
    assert not missing.installed
    assert missing.install == "carrel agents install claude-code"


def _assert_unseen(
    claude: ClaudeCode, request: TurnRequest, setup: AgentSetup, secret: str
) -> None:
    prepared = claude.prepare(request, setup)
    assert secret not in " ".join(prepared.argv)
    assert not [name for name, text in prepared.files.items() if secret.encode() in text]
    assert secret.encode() not in prepared.first
    assert secret in prepared.env.values()


def test_a_terminal_asks_nothing_and_goes_on(
    claude: ClaudeCode, setup: AgentSetup, standin: Standin
) -> None:
    request = asking(standin, "hello")
    with terminal(claude.prepare_terminal(request, setup), setup) as first:
        first.until(lambda: "hello" in standin.texts())
        first.until(lambda: "reply 1" in _records(setup))
    (kept,) = Path(setup.state, "claude", "projects").glob("*/*.jsonl")
    again = Continuation("anthropic", kept.stem)
    request = replace(asking(standin, "more", "run-2"), continuation=again)
    with terminal(claude.prepare_terminal(request, setup), setup) as second:
        second.until(lambda: "reply 2: more" in _records(setup))


def _records(setup: AgentSetup) -> str:
    files = Path(setup.state, "claude", "projects").glob("*/*.jsonl")
    return "\n".join(file.read_text() for file in files)
