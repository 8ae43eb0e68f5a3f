"""Real agents on both sides of `carrel codesmith`: one calls it, others work for it."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.installed import require_programs
from tests.agents.recording.programs import CLAUDE as CLAUDE_PROGRAM
from tests.agents.recording.programs import CLAUDE_MODEL, Desk
from tests.agents.standins import Standin, serving
from tests.cli.program import PROGRAM
from tests.conformance.desks import equipped, name_endpoint
from tests.conformance.frontends import CLAUDE, CODEX, Case
from tests.daemon.rig import Daemon
from tests.mcp.rig import STEP_S
from tests.mcp.smith import client, good, paths

pytestmark = pytest.mark.xdist_group("codesmith agents")

TURN_S = 2 * STEP_S
"""For a real agent on a busy machine."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    require_programs()
    with equipped(tmp_path_factory.mktemp("codesmith")) as daemon:
        yield daemon


@pytest.fixture
def standin() -> Iterator[Standin]:
    with serving() as standin:
        yield standin


def words_of(case: Case, standin: Standin) -> list[str]:
    """Of the program, so that agents find their model."""
    found = [f"--env={name}={value}" for name, value in case.env(standin.url).items()]
    return [f"--agent={case.name}", *found, *([f"--model={case.model}"] if case.model else [])]


@pytest.mark.parametrize("case", [CLAUDE, CODEX], ids=str)
async def test_they_work_for_it(
    daemon: Daemon, standin: Standin, case: Case, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    heard: list[str] = []
    with daemon.local() as local:
        name_endpoint(local, case.key, standin.url)

    async def report(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    async with client(daemon.data, *words_of(case, standin)) as tools:
        arguments = {
            "instructions": f"{case.write('made.txt', 'by an agent')}\nRUN echo one >> more.txt",
            "workspace_path": str(tmp_path),
            "check": "cat made.txt",
        }
        called = await tools.call_tool("generate", arguments, progress_callback=report)
    content = good(called.model_dump(by_alias=True, mode="json"))
    assert paths(content) == ["made.txt", "more.txt"] and content["complete"], content
    assert content["check"]["output"].strip() == "by an agent"
    assert (tmp_path / "more.txt").read_text() == "one\n"
    assert any(case.name in one for one in heard), heard


async def test_claude_code_calls_it(daemon: Daemon, standin: Standin, tmp_path: Path) -> None:
    """And goes on with what comes back."""
    desk = Desk(tmp_path / "desk", standin.url).make()
    server = {
        "command": str(PROGRAM),
        "args": ["codesmith"],
        "env": {"CARREL_DATA": str(daemon.data)},
    }
    asked = {"instructions": "write made.py x = 1\nsay made by another", "frontend": "scripted"}
    done = await asyncio.to_thread(_claude, desk, server, asked)
    assert done.returncode == 0, done.stderr
    (told,) = _results(standin)
    content = json.loads(told)
    assert content["complete"] and content["summary"] == "made by another"
    (made,) = content["files"]
    assert (made["path"], made["lines"], made["text"]) == ("made.py", 1, "x = 1\n")


def _claude(desk: Desk, server: Any, asked: Any) -> subprocess.CompletedProcess[str]:
    config = json.dumps({"mcpServers": {"codesmith": server}})
    prompt = f"USE mcp__codesmith__generate {json.dumps(asked)}"
    return subprocess.run(
        [
            *(str(CLAUDE_PROGRAM), "-p", prompt, "--model", CLAUDE_MODEL),
            *("--permission-mode", "bypassPermissions"),
            *("--mcp-config", config, "--strict-mcp-config"),
        ],
        cwd=desk.project,
        env=desk.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TURN_S,
        check=False,
    )


def _results(standin: Standin) -> list[str]:
    """Of tools, as the model was told last."""
    blocks = [
        block
        for message in standin.of("/v1/messages")[-1].body["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "tool_result"
    ]
    return [
        block["content"]
        if isinstance(block["content"], str)
        else "".join(part["text"] for part in block["content"])
        for block in blocks
    ]
