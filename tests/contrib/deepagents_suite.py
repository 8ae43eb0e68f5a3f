"""Run by test_deepagents.py, in the environment of the suites: the standard tests of a sandbox for
deepagents, and the example of our README."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from carrel_deepagents import CarrelSandbox
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolCall
from langchain_tests.integration_tests import SandboxIntegrationTests

README = Path(__file__).parents[2] / "contrib" / "deepagents" / "README.md"
MODEL = '"anthropic:claude-sonnet-4-5"'


@pytest.fixture(scope="module")
def shared_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CarrelSandbox]:
    """The suite calls `python`, which Debian has under another name."""
    project = tmp_path_factory.mktemp("project")
    program = project / "bin" / "python"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nexec python3 "$@"\n')
    program.chmod(0o755)
    env = {"PATH": "/workspace/bin:/usr/local/bin:/usr/bin:/bin"}
    with CarrelSandbox.create(project, env=env) as sandbox:
        yield sandbox


class TestCarrelSandbox(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self, shared_sandbox: CarrelSandbox) -> CarrelSandbox:
        return shared_sandbox


class ScriptedModel(GenericFakeChatModel):
    def bind_tools(self, *_: Any, **__: Any) -> ScriptedModel:
        return self


def test_the_example_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a model that says what is scripted."""
    example = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert example and MODEL in example[1]
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path)
    write = {"file_path": "/workspace/note.txt", "content": "by the agent\n"}
    calls: list[ToolCall] = [
        {"name": "write_file", "args": write, "id": "1"},
        {"name": "execute", "args": {"command": "cat note.txt > copy.txt"}, "id": "2"},
    ]
    said = [AIMessage("", tool_calls=[call]) for call in calls]
    model = ScriptedModel(messages=iter([*said, AIMessage("Done.")]))
    exec(example[1].replace(MODEL, "model"), {"model": model})
    assert (tmp_path / "result" / "copy.txt").read_text() == "by the agent\n"
    assert not list((tmp_path / "project").iterdir())


def test_what_cannot_run_is_an_answer(shared_sandbox: CarrelSandbox) -> None:
    failed = shared_sandbox.execute("pwd; echo to stderr >&2; exit 3")
    assert (failed.output, failed.exit_code) == ("/workspace\nto stderr\n", 3)
    late = shared_sandbox.execute("echo begun; sleep 60", timeout=1)
    assert late.exit_code == 124 and late.output.startswith("begun\n")
    long = shared_sandbox.execute("true " + "x" * (1 << 20))
    assert long.exit_code == 126 and "standard input" in long.output
    assert shared_sandbox.execute("head -c 5000000 /dev/zero").truncated
