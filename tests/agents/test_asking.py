"""Turns that ask, of the programs that are driven for that: beside what the suite says."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from carrel.agents.frontends.claude_driver import ClaudeAskingDriver
from carrel.agents.frontends.pi_driver import PiDriver
from carrel.agents.registry import Registry
from carrel.agents.turns import conduct
from carrel.domain.agents import Frontend
from carrel.domain.turns import AgentEventType as Type
from carrel.domain.turns import (
    AgentSetup,
    Control,
    ControlKind,
    Permission,
    Told,
    TurnRequest,
    TurnResult,
)
from tests.agents.staging import (
    PINNED,
    WAIT_S,
    Heard,
    Program,
    code_of,
    pinned,
    setup_in,
    started,
)
from tests.agents.standins import Standin, serving
from tests.sampling import beyond

MCP = (sys.executable, str(Path(__file__).parent / "mcp_server.py"))
NAMES = ("claude-code", "codex-cli", "pi-sdk")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def api() -> Iterator[Standin]:
    with serving() as standin:
        yield standin


@pytest.fixture
def setup(tmp_path: Path) -> AgentSetup:
    keys = {"openai": "dummy-key", "anthropic": "dummy-key"}
    return replace(setup_in(tmp_path), credentials=keys)


@pytest.fixture(params=NAMES)
def frontend(request: pytest.FixtureRequest, tmp_path: Path) -> Frontend:
    return Registry(pinned(tmp_path, request.param)).get(request.param)


def asking(frontend: Frontend, api: Standin, prompt: str) -> TurnRequest:
    claude = frontend.name == "claude-code"
    env = {"ANTHROPIC_BASE_URL": api.url} if claude else {"OPENAI_BASE_URL": f"{api.url}/v1"}
    model = "" if claude else "small"
    return TurnRequest(frontend.name, prompt, "s", "r", model, permission=Permission.ASK, env=env)


def open_question(program: Program) -> str:
    return str(program.heard.of(Type.PERMISSION)[-1].payload["id"])


async def test_what_is_said_meanwhile_is_heard(
    frontend: Frontend, setup: AgentSetup, api: Standin
) -> None:
    request = asking(frontend, api, "WRITE a.txt words")
    async with started(
        frontend.prepare(request, setup), setup, frontend.translator(request)
    ) as program:
        await program.until(Type.PERMISSION)
        await program.say(Control(ControlKind.INPUT, text="and then"))
        await program.say(Control(ControlKind.PERMISSION, id=open_question(program), allow=True))
        result = await program.result()
    assert result == TurnResult(True, "reply 2: and then"), program.heard.all
    assert program.heard.texts == ["reply 1: WRITE a.txt words", "reply 2: and then"]
    tokens = [told.payload["output_tokens"] for told in program.heard.of(Type.USAGE)]
    assert sum(map(int, map(str, tokens))) == 60
    assert Path(setup.workspace, "a.txt").read_text().strip() == "words"


ASK, DENY = Permission.ASK, Permission.DENY
# Each of the programs, and each of the permissions.
EACH = [("claude-code", ASK), ("codex-cli", DENY)]
EACH += beyond(("claude-code", DENY), ("codex-cli", ASK))
each = pytest.mark.parametrize(("frontend", "permission"), EACH, indirect=["frontend"])


@each
async def test_the_spaces_own_tools_need_no_permission(
    frontend: Frontend, setup: AgentSetup, api: Standin, permission: Permission
) -> None:
    setup = replace(setup, mcp=MCP)
    tool = "mcp__carrel__shout" if frontend.name == "claude-code" else "shout"
    request = asking(frontend, api, f'USE {tool} {{"text": "aloud"}}')
    request = replace(request, permission=permission, answer_s=0.1)
    async with started(
        frontend.prepare(request, setup), setup, frontend.translator(request)
    ) as program:
        result = await program.result()
    assert result.success, result
    (output,) = program.heard.of(Type.TOOL_RESULT)
    assert (output.payload["output"], output.payload["is_error"]) == ("ALOUD", False)
    assert not program.heard.of(Type.PERMISSION)


RULES = {
    "claude-code": (".claude/settings.json", '{"permissions": {"allow": ["Bash(touch *)"]}}'),
    "codex-cli": (".codex/rules/default.rules", 'prefix_rule(["touch"], decision="allow")'),
}


@each
async def test_what_the_project_allows_itself_is_not_allowed(
    frontend: Frontend, setup: AgentSetup, api: Standin, permission: Permission
) -> None:
    """Also when a terminal has noted before that the project is trusted. What the project tells
    agents is read all the same."""
    path, rules = RULES[frontend.name]
    file = Path(setup.workspace, path)
    file.parent.mkdir(parents=True)
    file.write_text(rules)
    for name in ("CLAUDE.md", "AGENTS.md"):
        Path(setup.workspace, name).write_text("Remember the word kumquat.")
    noted = Path(setup.state, "claude", ".claude.json")
    noted.parent.mkdir()
    trusted = {"projects": {setup.workspace: {"hasTrustDialogAccepted": True}}}
    noted.write_text(json.dumps(trusted))
    request = replace(asking(frontend, api, "RUN touch b.txt"), answer_s=0.1, permission=permission)
    async with started(
        frontend.prepare(request, setup), setup, frontend.translator(request)
    ) as program:
        await program.result()
    assert not Path(setup.workspace, "b.txt").exists()
    assert "kumquat" in json.dumps(api.requests[0].body)
    if permission is Permission.ASK:
        assert len(program.heard.of(Type.PERMISSION)) == 2


# Pi's turns are those of one program, and what it does then is in the suite, as for Claude's.
@pytest.mark.parametrize("frontend", ("codex-cli", *beyond("claude-code", "pi-sdk")), indirect=True)
async def test_a_model_that_is_not_there(
    frontend: Frontend, setup: AgentSetup, api: Standin
) -> None:
    request = replace(asking(frontend, api, "hello"), model="no-such-model")
    async with started(
        frontend.prepare(request, setup), setup, frontend.translator(request)
    ) as program:
        assert code_of(await program.result()) == "model_not_supported"


async def test_pi_does_nothing_without_what_asks(
    tmp_path: Path, setup: AgentSetup, api: Standin
) -> None:
    """A Pi that leaves out the last option, which is the extension."""
    bin = PINNED / "node_modules" / ".bin"
    bare = tmp_path / "pi"
    bare.write_text(f'#!/bin/bash\nexec {bin}/node {bin}/pi "${{@:1:$#-2}}"\n')
    bare.chmod(0o755)
    request = asking(Registry(pinned(tmp_path, "pi-sdk")).get("pi-sdk"), api, "WRITE a.txt words")
    driver = PiDriver([str(bare)])
    result = await asyncio.wait_for(conduct(driver, request, setup, Heard()), WAIT_S)
    assert code_of(result) == "agent_crashed" and "extension" in str(result.error)
    assert not api.requests and not Path(setup.workspace, "a.txt").exists()


PRELUDE = """\
import json, sys
def say(**message):
    print(json.dumps(message), flush=True)
def hear():
    return json.loads(sys.stdin.readline())
def ask(id, **request):
    say(type="control_request", request_id=id, request=request)
assert hear()["message"]["content"] == "hello"
"""
WRITE = 'ask("q", subtype="can_use_tool", tool_name="Write", input={"a": 1}, tool_use_id="t")\n'
TWO = WRITE + WRITE.replace('"q"', '"r"').replace('"t"', '"u"')
DONE = """\
say(type="assistant", session_id="k", message={"content": [{"type": "text", "text": "done"}]})
say(type="result", session_id="k", is_error=False, result="done")
"""


async def play(script: str, setup: AgentSetup, heard: Heard) -> TurnResult:
    """One turn with a program that stands in for Claude Code, and does what that rarely does."""
    driver = ClaudeAskingDriver([sys.executable, "-c", PRELUDE + script])
    request = TurnRequest("claude-code", "hello", permission=Permission.ASK)
    return await asyncio.wait_for(
        conduct(driver, request, replace(setup, context=""), heard), WAIT_S
    )


def decisions(heard: Heard) -> list[object]:
    return [told.payload.get("decision") for told in heard.of(Type.PERMISSION)]


async def test_a_request_that_nobody_knows_is_refused(setup: AgentSetup) -> None:
    script = 'ask("q", subtype="something_new")\nassert hear()["response"]["subtype"] == "error"\n'
    assert await play(script + DONE, setup, Heard()) == TurnResult(True, "done")


async def test_a_question_that_is_taken_back(setup: AgentSetup) -> None:
    """When it has been told: the one after it is answered by then."""
    script = f"{TWO}hear()\nsay(type='control_cancel_request', request_id='q')\n{DONE}"

    def decide(told: Told) -> Control | None:
        second = told.type is Type.PERMISSION and told.payload["id"] == "u"
        return Control(ControlKind.PERMISSION, id="u", allow=True) if second else None

    heard = Heard(decide)
    assert (await play(script, setup, heard)).success
    assert decisions(heard) == [None, None, "allow", "deny"]


async def test_it_crashes_while_it_waits(setup: AgentSetup) -> None:
    heard = Heard()
    result = await play(f'{WRITE}sys.stdin.close()\nsys.exit("no more")\n', setup, heard)
    assert code_of(result) == "agent_crashed" and "no more" in str(result.error)
    assert decisions(heard) == [None, "deny"]


async def test_questions_at_once_are_answered_in_any_order(setup: AgentSetup) -> None:
    """The first one when the second has been."""
    script = (
        f"{TWO}answers = [hear()['response'], hear()['response']]\n"
        "found = [(one['request_id'], one['response']['behavior']) for one in answers]\n"
        "assert found == [('r', 'deny'), ('q', 'allow')], found\n"
    )

    def decide(told: Told) -> Control | None:
        if told.type is not Type.PERMISSION:
            return None
        if told.payload["id"] == "u" and "decision" not in told.payload:
            return Control(ControlKind.PERMISSION, id="u", allow=False)
        if told.payload["id"] == "u":
            return Control(ControlKind.PERMISSION, id="t", allow=True)
        return None

    assert await play(script + DONE, setup, Heard(decide)) == TurnResult(True, "done")
