"""docs/agents/control-planes.md, in Python: nothing but what `carrel` exports."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import carrel
from tests.agents.installed import MODULES, require_programs
from tests.agents.standins import Standin, serving

PAGE = Path(__file__).parents[2] / "docs" / "agents" / "control-planes.md"
TURN_S = 100.0
"""For a real agent on a busy machine."""
PROGRAMS = ("claude-code", "codex-cli", "pi-sdk", "claude-agent-acp", "codex-acp")
UNKNOWN = "no-such-model"
SESSIONS = {"gemini": "gemini", "kiro-cli": "kiro", "amazon-q": ""}
"""Agents that have a session's models beside its options, and the key of each."""
TAKING = {**SESSIONS, "opencode": "", "goose": ""}
AGENT = """#!/usr/bin/python3
# Speaks ACP, takes a model as these agents do, and says which one it was told.
import json, os, sys
MODELS, model = ["auto", "gemini-b"], "auto"

def send(**message):
    print(json.dumps({{"jsonrpc": "2.0", **message}}), flush=True)

for line in sys.stdin:
    asked = json.loads(line)
    method, answer = asked.get("method"), {{}}
    with open({log!r}, "a") as log:
        log.write(method + "\\n")
    if method == "initialize":
        answer = {{"protocolVersion": 1}}
    if method == "session/new":
        offered = [{{"modelId": one, "name": one}} for one in MODELS]
        answer = {{"sessionId": "1"}}
        answer["models"] = {{"currentModelId": model, "availableModels": offered}}
    if method == "session/set_model":
        model = asked["params"]["modelId"]
    if method == "session/prompt":
        says = {{"session": model}}
        says["goose"] = [os.environ.get("GOOSE_" + one) for one in ("PROVIDER", "MODEL")]
        settings = os.environ.get("XDG_CONFIG_HOME", "") + "/opencode/opencode.json"
        if os.path.exists(settings):
            says["settings"] = json.load(open(settings))
        chunk = {{"sessionUpdate": "agent_message_chunk"}}
        chunk["content"] = {{"type": "text", "text": json.dumps(says)}}
        send(method="session/update", params={{"sessionId": "1", "update": chunk}})
        answer = {{"stopReason": "end_turn"}}
    send(id=asked["id"], result=answer)
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder in which `carrel agents install` has been."""
    require_programs()
    own = tmp_path / "data" / "agents"
    own.mkdir(parents=True)
    for name in PROGRAMS:
        (own / name).symlink_to(MODULES.parent, target_is_directory=True)
    return own.parent


@pytest.fixture
def library(data: Path) -> carrel.Library:
    return carrel.open_library(data)


@pytest.fixture
def taking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> carrel.Library:
    """Where agents that no test can install are stood in for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in (*TAKING, "qchat"):
        program = folder / name
        program.write_text(AGENT.format(log=str(tmp_path / "asked")))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return carrel.open_library(tmp_path / "data")


@pytest.fixture
def setup(tmp_path: Path) -> carrel.AgentSetup:
    (tmp_path / "project").mkdir()
    return carrel.AgentSetup(workspace=str(tmp_path / "project"), state=str(tmp_path / "state"))


@pytest.fixture
def api() -> Iterator[Standin]:
    with serving() as standin:
        yield standin


def headless(
    library: carrel.Library, setup: carrel.AgentSetup, request: carrel.TurnRequest
) -> carrel.Invocation:
    return library.build_invocation(request, setup, carrel.InteractionMode.HEADLESS)


def start(invocation: carrel.Invocation, home: Path, **keys: str) -> subprocess.Popen[bytes]:
    """As the page says: these arguments, this folder, these variables and no others of ours."""
    spec = invocation.spec
    base = {"PATH": "/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}
    return subprocess.Popen(
        spec.argv,
        cwd=spec.cwd,
        env={**base, **spec.env, **keys},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


@pytest.mark.parametrize("at", range(2))
def test_the_examples_run(at: int, data: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert len(blocks) == 2
    project = tmp_path / "project"
    project.mkdir()
    env = {**os.environ, "CARREL_DATA": str(data), "HOME": str(tmp_path), "ANTHROPIC_API_KEY": ""}
    command = [sys.executable, "-c", blocks[at]]
    done = subprocess.run(
        command, cwd=project, env=env, capture_output=True, text=True, timeout=TURN_S
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "anthropic agent-sdk True opus" in said if at == 0 else "--model sonnet" in said


async def test_every_frontend_has_its_models(library: carrel.Library) -> None:
    found = {
        one.name: one for provider in await library.capabilities() for one in provider.frontends
    }
    assert {"scripted", "agent-sdk", *PROGRAMS, *TAKING} <= {*found}
    for name, one in found.items():
        assert name == "acp" or one.default_model in one.models, name
    for name in ("pi-sdk", "opencode"):
        assert all("/" in model for model in found[name].models)
    (anthropic,) = (one for one in await library.capabilities() if one.id == "anthropic")
    assert {one.name for one in anthropic.frontends} == {"claude-code", "agent-sdk"}
    assert set(found["claude-code"].models) <= set(anthropic.models)


@pytest.mark.parametrize(
    ("name", "key", "model", "says"),
    [
        *((name, key, "", {"session": "auto"}) for name, key in SESSIONS.items()),
        *((name, key, "gemini-b", {"session": "gemini-b"}) for name, key in SESSIONS.items()),
        ("opencode", "anthropic", "", {"settings": {"model": "anthropic/claude-sonnet-5"}}),
        ("opencode", "openai", "", {"settings": {"model": "openai/gpt-5.5"}}),
        ("goose", "anthropic", "", {"goose": ["anthropic", "claude-sonnet-5"]}),
        ("goose", "openai", "", {"goose": ["openai", "gpt-5.5"]}),
        ("goose", "openai", "gpt-6-sol", {"goose": ["openai", "gpt-6-sol"]}),
    ],
)
async def test_an_agent_is_told_the_model(
    taking: carrel.Library,
    setup: carrel.AgentSetup,
    name: str,
    key: str,
    model: str,
    says: dict[str, object],
) -> None:
    """The one that was named, else its default; with the key that it has."""
    near = dataclasses.replace(setup, credentials={key: "dummy"} if key else {})
    outcome = await taking.run_turn(carrel.TurnRequest(name, "hello", model=model), near)
    assert outcome.result.success, outcome
    assert json.loads(outcome.result.final_output).items() >= says.items()


@pytest.mark.parametrize("name", SESSIONS)
async def test_an_agent_that_takes_any_name_is_told_no_unknown_one(
    taking: carrel.Library, setup: carrel.AgentSetup, name: str, tmp_path: Path
) -> None:
    request = carrel.TurnRequest(name, "hello", model="gemini-none")
    outcome = await taking.run_turn(request, setup)
    error = outcome.result.error
    assert error is not None and error.code == "model_not_supported", outcome
    assert error.details["known"] == ["auto", "gemini-b"] and "gemini-b" in error.message
    assert "session/prompt" not in (tmp_path / "asked").read_text()


async def test_a_program_of_another_machine_is_not_installed(
    taking: carrel.Library, setup: carrel.AgentSetup, tmp_path: Path
) -> None:
    (tmp_path / "bin" / "gemini").write_bytes(b"\x7fELF, but not for this one")
    outcome = await taking.run_turn(carrel.TurnRequest("gemini", "hello"), setup)
    assert outcome.result.error is not None
    assert outcome.result.error.code == "frontend_not_installed", outcome


@pytest.mark.parametrize("name", ["claude-code", "codex-cli"])
def test_an_unknown_model_starts_nothing(
    library: carrel.Library, setup: carrel.AgentSetup, name: str
) -> None:
    request = carrel.TurnRequest(name, "hello", model=UNKNOWN)
    with pytest.raises(carrel.errors.CarrelError) as refused:
        headless(library, setup, request)
    assert refused.value.code == "model_not_supported"
    known = refused.value.details["known"]
    assert isinstance(known, list) and known and all(one in refused.value.message for one in known)
    assert not Path(setup.state).exists()
    # Whether an endpoint has it, only that can know.
    env = {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1", "OPENAI_BASE_URL": "http://127.0.0.1:1"}
    there = carrel.TurnRequest(name, "hello", model=UNKNOWN, env=env)
    assert UNKNOWN in str(headless(library, setup, there))


@pytest.mark.parametrize("name", ["scripted", "agent-sdk", "pi-sdk"])
async def test_an_unknown_model_runs_no_turn(
    library: carrel.Library, setup: carrel.AgentSetup, name: str
) -> None:
    outcome = await library.run_turn(carrel.TurnRequest(name, "hello", model=UNKNOWN), setup)
    error = outcome.result.error
    assert error is not None and error.code == "model_not_supported"
    assert "Known are: " in error.message and error.details["known"]


def test_what_an_invocation_says(
    library: carrel.Library,
    setup: carrel.AgentSetup,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    near = carrel.AgentSetup(workspace="project", state="state", credentials={"openai": "own-key"})
    found = library.build_invocation(carrel.TurnRequest("claude-code", "hello"), near)
    spec = found.spec
    assert spec.cwd == setup.workspace and Path(spec.argv[0]).is_absolute()
    assert spec.io_mode is carrel.IoMode.PTY and found.stdin is None and not found.keeps_stdin
    assert spec.continuation is not None and spec.continuation.key in spec.argv
    assert found.credentials["anthropic"][0] == "ANTHROPIC_API_KEY"
    again = carrel.TurnRequest("claude-code", "hello", continuation=spec.continuation)
    assert headless(library, near, again).spec.continuation == spec.continuation
    # A key that is given is in the environment, and nowhere else.
    codex = headless(library, near, carrel.TurnRequest("codex-cli", "hello"))
    assert codex.credentials == {} and codex.spec.env["OPENAI_API_KEY"] == "own-key"
    assert codex.spec.continuation is None
    assert "own-key" not in f"{codex.spec.argv} {codex.spec.display_command} {codex.stdin!r}"
    also = dataclasses.replace(near, also_read=(str(tmp_path / "docs"),))
    quiet = carrel.TurnRequest("claude-code", "hello", permission=carrel.Permission.DENY)
    argv = headless(library, also, quiet).spec.argv
    assert argv[argv.index("--add-dir") + 1] == str(tmp_path / "docs")
    for mode in carrel.IoMode:
        one = library.build_invocation(
            carrel.TurnRequest("claude-code", "hello", permission=carrel.Permission.DENY),
            *(near, carrel.InteractionMode.NON_INTERACTIVE, mode),
        )
        assert one.spec.io_mode is mode
        assert bool(one.warnings) == (mode is not carrel.IoMode.PIPES)
        assert one.stdin == b"hello" and not one.keeps_stdin


def test_what_a_project_brings_is_off_and_told(
    library: carrel.Library, setup: carrel.AgentSetup
) -> None:
    Path(setup.workspace, ".claude").mkdir()
    (warning,) = headless(library, setup, carrel.TurnRequest("claude-code", "hello")).warnings
    assert ".claude" in warning and "trust" in warning
    trusted = headless(library, setup, carrel.TurnRequest("claude-code", "hello", trust=True))
    assert not trusted.warnings


@pytest.mark.parametrize("where", ["project/state", "project/sub/state", "way/state"])
def test_a_project_does_not_bring_the_state(
    library: carrel.Library, setup: carrel.AgentSetup, tmp_path: Path, where: str
) -> None:
    """Claude Code runs hooks of `remote-settings.json`, which would be in there."""
    for name in (".git", "sub", "part"):
        Path(setup.workspace, name).mkdir()
    (tmp_path / "way").symlink_to(setup.workspace)
    own = str(tmp_path / where)
    within = dataclasses.replace(setup, workspace=f"{setup.workspace}/part", state=own)
    request = carrel.TurnRequest("claude-code", "hello")
    with pytest.raises(carrel.errors.CarrelError, match="within the project") as caught:
        headless(library, within, request)
    assert caught.value.code == "not_trusted" and not Path(own).exists()
    assert headless(library, within, dataclasses.replace(request, trust=True)).spec.argv


@pytest.mark.parametrize("frontend", ["claude-code", "claude-agent-acp"])
async def test_what_a_project_brings_above_the_folder_does_not_run(
    library: carrel.Library,
    setup: carrel.AgentSetup,
    api: Standin,
    tmp_path: Path,
    frontend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Claude Code takes `settings.local.json` from the top of the repository, and from the checkout
    that a worktree belongs to."""
    monkeypatch.setenv("HOME", str(tmp_path))
    top, ran = Path(setup.workspace), tmp_path / "ran"
    (top / ".claude").mkdir()
    (top / "part").mkdir()
    hook = {"hooks": [{"type": "command", "command": f"touch {ran}"}]}
    settings = {"hooks": {"SessionStart": [hook], "UserPromptSubmit": [hook]}}
    (top / ".claude" / "settings.local.json").write_text(json.dumps(settings))
    git = ("git", "-C", str(top), "-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    subprocess.run([*git, "worktree", "add", "-q", str(tmp_path / "linked")], check=True)
    (tmp_path / "linked" / "part").mkdir()
    (tmp_path / "way").symlink_to(top / "part")
    env = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "own-key"}
    env["CLAUDE_CODE_EXECUTABLE"] = str(MODULES / ".bin" / "claude")
    places = [tmp_path / "way", tmp_path / "linked" / "part"]
    for at in places if frontend == "claude-code" else places[:1]:
        request = carrel.TurnRequest(frontend, "hello", permission=carrel.Permission.DENY, env=env)
        within = dataclasses.replace(setup, workspace=str(at))
        if frontend == "claude-agent-acp":
            outcome = await asyncio.wait_for(library.run_turn(request, within), TURN_S)
            assert outcome.result.success, outcome
        else:
            invocation = headless(library, within, request)
            assert invocation.warnings
            with start(invocation, tmp_path) as process:
                assert process.communicate(invocation.stdin, timeout=TURN_S)[0]
    assert api.requests and not ran.exists()


def test_a_headless_program_that_asks_keeps_its_input(
    library: carrel.Library, setup: carrel.AgentSetup, api: Standin, tmp_path: Path
) -> None:
    request = carrel.TurnRequest(
        "claude-code",
        "WRITE yes.txt words",
        env={"ANTHROPIC_BASE_URL": api.url, "CLAUDE_CODE_MAX_RETRIES": "1"},
    )
    invocation = headless(library, setup, request)
    assert invocation.keeps_stdin and invocation.stdin is not None
    with start(invocation, tmp_path, ANTHROPIC_API_KEY="own-key") as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(invocation.stdin)
        process.stdin.flush()
        heard: list[dict[str, Any]] = []
        for line in process.stdout:
            heard.append(json.loads(line))
            said = heard[-1]["payload"]
            if heard[-1]["type"] == "permission" and "decision" not in said:
                answer = {"kind": "permission", "id": said["id"], "allow": True}
                process.stdin.write(json.dumps(answer).encode() + b"\n")
                process.stdin.flush()
    assert heard[-1]["type"] == "complete" and heard[-1]["payload"]["result"]["success"], heard
    assert "words" in Path(setup.workspace, "yes.txt").read_text()
    (key,) = {one["key"] for one in heard if one.get("key")}
    assert invocation.spec.continuation == carrel.Continuation("anthropic", key)
    assert api.requests[0].headers["x-api-key"] == "own-key"


def test_a_conversation_goes_on_by_its_continuation(
    library: carrel.Library, setup: carrel.AgentSetup, api: Standin, tmp_path: Path
) -> None:
    env = {"ANTHROPIC_BASE_URL": api.url, "CLAUDE_CODE_MAX_RETRIES": "1"}
    known = None
    for number in (1, 2):
        request = carrel.TurnRequest(
            *("claude-code", "hello"),
            continuation=known,
            permission=carrel.Permission.DENY,
            env=env,
        )
        invocation = headless(library, setup, request)
        with start(invocation, tmp_path, ANTHROPIC_API_KEY="own-key") as process:
            said, _ = process.communicate(invocation.stdin, timeout=TURN_S)
        *_, last = map(json.loads, said.splitlines())
        assert last["result"] == f"reply {number}: hello"
        known = invocation.spec.continuation
        assert known is not None and known.key == last["session_id"]


async def test_what_a_resumed_turn_cost(
    library: carrel.Library, setup: carrel.AgentSetup, api: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", setup.state)
    env = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "own-key"}
    known, costs = None, []
    for _ in range(4):
        events: list[carrel.AgentEvent] = []
        request = carrel.TurnRequest("agent-sdk", "hello", continuation=known, env=env)
        turn = library.run_turn(request, setup, events.append)
        outcome = await asyncio.wait_for(turn, TURN_S)
        assert outcome.result.success, outcome
        known = outcome.continuation
        costs += [one.payload["cost_usd"] for one in events if one.type == "usage"]
    assert len(costs) == 4 and len(set(costs)) == 1 and costs[0]
