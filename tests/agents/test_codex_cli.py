"""Codex: the real program against a stand-in."""

from __future__ import annotations

import json
import signal
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.agents.frontends import codex_config
from carrel.agents.frontends.codex_cli import CodexCli
from carrel.agents.programs import Locator
from carrel.domain.agents import Frontend, Interactive
from carrel.domain.errors import ContinuationNotFound, FrontendNotInstalled, ProviderMismatch
from carrel.domain.turns import AgentEventType as Type
from carrel.domain.turns import AgentSetup, Attachment, Continuation, Permission, TurnRequest
from tests.agents.programs import pinned, run, seat_at
from tests.agents.standins import UNKNOWN_MODEL, Standin, serving
from tests.agents.terminals import terminal
from tests.sampling import whole_only

KEY = "sk-planted-0123456789abcdefghijklmnop"
MODEL = "plain"
"""One that Codex does not know: it then offers the model its plain tools."""


@pytest.fixture
def standin() -> Iterator[Standin]:
    with serving() as standin:
        yield standin


@pytest.fixture
def codex(tmp_path: Path) -> CodexCli:
    return CodexCli(pinned(tmp_path, "codex-cli"))


@pytest.fixture
def setup(tmp_path: Path) -> AgentSetup:
    return seat_at(tmp_path, openai=KEY)


def asking(standin: Standin, prompt: str) -> TurnRequest:
    env = {"OPENAI_BASE_URL": f"{standin.url}/v1"}
    return TurnRequest("codex-cli", prompt, "s", "run-1", model=MODEL, env=env)


def test_it_implements_the_contracts(codex: CodexCli) -> None:
    frontend: Frontend = codex
    interactive: Interactive = codex
    assert frontend.name == codex.name
    assert callable(interactive.prepare_terminal)


def test_a_turn_with_text(codex: CodexCli, setup: AgentSetup, standin: Standin) -> None:
    done = run(codex, asking(standin, "hello"), setup)
    assert done.result.success, done.result
    assert done.result.final_output == "reply 1: hello"
    assert [told.payload["text"] for told in done.of(Type.MESSAGE)] == ["reply 1: hello"]
    assert done.key
    assert standin.requests[0].headers["authorization"] == f"Bearer {KEY}"
    (usage,) = done.of(Type.USAGE)
    assert usage.payload == {"input_tokens": 100, "output_tokens": 20, "cached_tokens": 40}


def test_a_turn_that_writes(codex: CodexCli, setup: AgentSetup, standin: Standin) -> None:
    done = run(codex, asking(standin, "WRITE made.txt by-hand"), setup)
    assert done.result.success, done.result
    assert Path(setup.workspace, "made.txt").read_text() == "by-hand"
    (call,), (answer,) = done.of(Type.TOOL_CALL), done.of(Type.TOOL_RESULT)
    assert call.payload["id"] == answer.payload["id"]
    assert answer.payload["is_error"] is False


def test_a_command_that_fails(codex: CodexCli, setup: AgentSetup, standin: Standin) -> None:
    done = run(codex, asking(standin, "RUN echo aloud; exit 3"), setup)
    (answer,) = done.of(Type.TOOL_RESULT)
    assert answer.payload["is_error"] is True
    assert "aloud" in str(answer.payload["output"])


def test_a_resumed_conversation_is_the_old_one(
    codex: CodexCli, setup: AgentSetup, standin: Standin
) -> None:
    first = run(codex, asking(standin, "one"), setup)
    request = replace(asking(standin, "two"), continuation=first.continuation)
    second = run(codex, request, setup)
    assert second.result.final_output == "reply 2: two"
    assert second.key == first.key
    (usage,) = second.of(Type.USAGE)
    assert usage.payload["scope"] == "conversation"
    assert usage.payload["input_tokens"] == 200


def test_a_conversation_stays_with_its_endpoint(
    codex: CodexCli, setup: AgentSetup, standin: Standin
) -> None:
    first = run(codex, asking(standin, "one"), setup)
    for permission in (Permission.SANDBOXED, Permission.ASK):
        request = replace(asking(standin, "two"), env={}, model="", continuation=first.continuation)
        done = run(codex, replace(request, permission=permission), setup)
        assert done.code == "continuation_not_found" and done.result.error
        assert "another endpoint" in done.result.error.message


def test_an_unknown_conversation(codex: CodexCli, setup: AgentSetup, standin: Standin) -> None:
    continuation = Continuation("openai", str(uuid4()))
    done = run(codex, replace(asking(standin, "hello"), continuation=continuation), setup)
    assert done.code == "continuation_not_found"
    assert not done.key


# In a sample it is tried in the suite of all frontends.
@whole_only
def test_an_unknown_model(codex: CodexCli, setup: AgentSetup, standin: Standin) -> None:
    done = run(codex, replace(asking(standin, "hello"), model=UNKNOWN_MODEL), setup)
    assert done.code == "model_not_supported"


@pytest.mark.parametrize(
    ("stop_by", "code"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "agent_crashed")]
)
def test_a_stopped_turn_can_be_resumed(
    codex: CodexCli, setup: AgentSetup, standin: Standin, stop_by: int, code: str
) -> None:
    done = run(codex, asking(standin, "HANG"), setup, lambda: bool(standin.requests), stop_by)
    assert done.code == code
    request = replace(asking(standin, "on"), continuation=done.continuation)
    assert run(codex, request, setup).result.final_output == "reply 2: on"


def test_nothing_is_written_when_it_may_not(
    codex: CodexCli, setup: AgentSetup, standin: Standin
) -> None:
    request = replace(asking(standin, "WRITE made.txt x"), permission=Permission.DENY)
    run(codex, request, setup)
    assert not Path(setup.workspace, "made.txt").exists()


def test_the_space_tools_and_what_the_agent_is_told(
    codex: CodexCli, setup: AgentSetup, standin: Standin
) -> None:
    server = str(Path(__file__).with_name("mcp_server.py"))
    setup = replace(setup, mcp=(sys.executable, server), mcp_env={"SPACE_PASS": "planted"})
    Path(setup.context, "notes.md").write_text("notes")
    request = asking(standin, 'USE shout {"text": "aloud"}')
    request = replace(request, system_prompt='Be "kind"\nto readers.')
    done = run(codex, request, setup)
    assert [told.payload["output"] for told in done.of(Type.TOOL_RESULT)] == ["ALOUD"]
    assert [told.payload["name"] for told in done.of(Type.TOOL_CALL)] == ["mcp__carrel__shout"]
    assert json.dumps('Be "kind"\nto readers.') in json.dumps(standin.requests[0].body)
    assert setup.context in standin.texts()[0]
    _assert_unseen(codex, request, setup, "planted")


def test_secrets_are_in_the_environment_only(
    codex: CodexCli, setup: AgentSetup, standin: Standin
) -> None:
    request = asking(standin, "hello")
    _assert_unseen(codex, request, setup, KEY)


@pytest.mark.parametrize("key", ["a-name", "", "01a1e3b1a2ea7351887a3d2f8f8cf263"])
def test_what_is_no_id_is_not_started(codex: CodexCli, setup: AgentSetup, key: str) -> None:
    request = TurnRequest("codex-cli", "hi", continuation=Continuation("openai", key))
    with pytest.raises(ContinuationNotFound):
        codex.prepare(request, setup)


def test_what_is_refused_before_the_start(
    codex: CodexCli, setup: AgentSetup, tmp_path: Path
) -> None:
    request = TurnRequest("codex-cli", "hi")
    with pytest.raises(ProviderMismatch):
        codex.prepare(replace(request, continuation=Continuation("anthropic", "x")), setup)
    with pytest.raises(FrontendNotInstalled):
        CodexCli(Locator(tmp_path / "none", search="")).prepare(request, setup)


def test_pictures_go_along(codex: CodexCli, setup: AgentSetup) -> None:
    attachments = (Attachment("/a.png", "image/png"), Attachment("/b.txt", "text/plain"))
    prepared = codex.prepare(TurnRequest("codex-cli", "hi", attachments=attachments), setup)
    assert "--image=/a.png" in prepared.argv
    assert b"- /b.txt" in prepared.first


def test_it_is_found(codex: CodexCli) -> None:
    found = codex.find()
    assert found.installed
    assert found.version == "0.166.0"


@given(st.text())
def test_any_text_can_be_in_the_settings(text: str) -> None:
    setup = AgentSetup("/w", "/s", "", True, (text, text), {"NAME": "x"})
    request = TurnRequest("codex-cli", "", system_prompt=text)
    said = codex_config.text(request, setup, {"OPENAI_BASE_URL": text})
    read = tomllib.loads(said.decode())
    assert read["mcp_servers"]["carrel"]["args"] == [text]
    assert read["mcp_servers"]["carrel"]["env_vars"] == ["NAME"]
    assert read.get("developer_instructions", "") == text


def _assert_unseen(codex: CodexCli, request: TurnRequest, setup: AgentSetup, secret: str) -> None:
    prepared = codex.prepare(request, setup)
    assert secret not in " ".join(prepared.argv)
    assert not [name for name, text in prepared.files.items() if secret.encode() in text]
    assert secret.encode() not in prepared.first
    assert secret in prepared.env.values()


def test_a_terminal_asks_nothing_and_goes_on(
    codex: CodexCli, setup: AgentSetup, standin: Standin
) -> None:
    with terminal(codex.prepare_terminal(asking(standin, "hello"), setup), setup) as first:
        first.until(lambda: "reply 1: hello" in _records(setup))
    (record,) = _files(setup)
    again = Continuation("openai", record.stem[-36:])
    request = replace(asking(standin, "more"), continuation=again)
    with terminal(codex.prepare_terminal(request, setup), setup) as second:
        second.until(lambda: "reply 2: more" in _records(setup))


def _files(setup: AgentSetup) -> list[Path]:
    return list(Path(setup.state, "codex", "sessions").rglob("*.jsonl"))


def _records(setup: AgentSetup) -> str:
    return "\n".join(file.read_text() for file in _files(setup))
