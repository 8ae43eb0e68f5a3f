"""docs/agents.md and docs/agents/acp.md: what `carrel agents` says of programs that are here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.accounts import PYTEST, SOURCE, Account, run_as
from tests.agents.installed import MODULES, require_programs
from tests.daemon.requesting import daemon_with
from tests.daemon.rig import Daemon, good

TIMEOUT_S = 100.0
AGENT = """#!/usr/bin/python3
import json, sys
MODE, LOG = {mode!r}, {log!r}
with open(LOG, "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[1:] != ["acp"]:
    sys.exit("usage: NAME acp")
if MODE == "ends":
    sys.exit("error: /opt/lib/agent: No such file or directory")
if MODE == "older":
    sys.exit("error: unrecognized subcommand 'acp'\\n\\nCommands:\\n  chat\\n  login")
if MODE == "no login":
    print("Error: You are not logged in, please log in first", flush=True)
    sys.exit(1)
for line in sys.stdin:
    asked = json.loads(line)
    answer = {{"result": {{"protocolVersion": 1}}}}
    if asked["method"] == "session/new":
        assert asked["params"]["mcpServers"] == []
        details = "native binary not found for this machine"
        answer = {{"error": {{"code": -32603, "message": "no", "data": {{"details": details}}}}}}
        if MODE == "no key":
            answer = {{"error": {{"code": -32000, "message": "Authentication required"}}}}
        if MODE == "works":
            answer = {{"result": {{"sessionId": "1"}}}}
    print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], **answer}}), flush=True)
"""
PROGRAMS = {"amazon-q": "qchat", "kiro-cli": "kiro-cli"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    found = tmp_path / "bin"
    found.mkdir(mode=0o755)
    return found


@pytest.fixture
def daemon(folder: Path) -> Iterator[Daemon]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        with daemon_with({}) as found:
            yield found


def put(folder: Path, name: str, mode: str) -> None:
    """Whole or not at all, and another file than before."""
    draft = folder / f".{name}"
    draft.write_text(AGENT.format(mode=mode, log=str(folder.parent / f"{name}.log")))
    draft.chmod(0o755)
    draft.rename(folder / name)


def listed(daemon: Daemon) -> dict[str, dict[str, Any]]:
    with daemon.local() as client:
        return {one["name"]: one for one in good(client.get("/v1/agents"))["frontends"]}


def test_what_cannot_start_is_not_installed(daemon: Daemon, folder: Path) -> None:
    """The presets for Amazon Q and Kiro; tried with their own commands, once for each state."""
    before = listed(daemon)
    for name in PROGRAMS:
        assert not before[name]["installed"] and before[name]["install"]
        assert before[name]["problem"] == "" and before[name]["kind"] == "acp"
    assert before["kiro-cli"]["credentials"] == ["kiro"]
    kinds = (("ends", "no binary"), ("older", "older"), ("no key", "no login"), ("works",) * 2)
    for modes in kinds:
        works = modes[0] not in ("ends", "older")
        for program, mode in zip(PROGRAMS.values(), modes, strict=True):
            put(folder, program, mode)
        found = listed(daemon)
        for name, program in PROGRAMS.items():
            assert found[name]["path"] == str(folder / program)
            assert found[name]["installed"] is works, found[name]
            assert bool(found[name]["problem"]) is not works
        if modes[0] == "ends":
            assert "No such file or directory" in found["amazon-q"]["problem"]
            assert "native binary not found" in found["kiro-cli"]["problem"]
        if modes[0] == "older":
            assert "unrecognized subcommand" in found["amazon-q"]["problem"]
        listed(daemon)
    for program in PROGRAMS.values():
        tried = (folder.parent / f"{program}.log").read_text().split("\n")
        assert tried.count("acp") == len(kinds), tried


def test_real_adapters(daemon: Daemon, folder: Path) -> None:
    """One that is whole, and one without the program that it is for."""
    require_programs()
    with daemon.equipped("codex-acp"):
        assert listed(daemon)["codex-acp"]["installed"]
    half = daemon.data / "agents" / "codex-acp" / "node_modules"
    node = (path.name for path in MODULES.glob("node-linux-*"))
    for name in ("@agentclientprotocol/codex-acp", ".bin", *node):
        (half / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(
            MODULES / name, half / name, symlinks=True, copy_function=_linked, dirs_exist_ok=True
        )
    found = listed(daemon)["codex-acp"]
    assert found["path"].startswith(str(half)) and not found["installed"]
    assert "@openai/codex" in found["problem"], found


def _linked(source: str, target: str) -> None:
    """A whole copy would take a second: one of them is a hundred megabytes."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def test_an_agent_of_the_settings_is_tried_too(folder: Path) -> None:
    put(folder, "mine", "no binary")
    settings = {"agents.mine.command": [str(folder / "mine"), "acp"]}
    with daemon_with(settings) as daemon:
        found = listed(daemon)["mine"]
        assert not found["installed"] and "native binary not found" in found["problem"]
        put(folder, "mine", "works")
        assert listed(daemon)["mine"]["installed"]


@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_the_same_for_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    os.chown(data, ordinary_user.uid, ordinary_user.gid)
    test = "tests/promises/test_agents.py::test_what_cannot_start_is_not_installed"
    ran = run_as(
        ordinary_user,
        [*PYTEST, f"--basetemp={data / 'pytest'}", test],
        cwd=SOURCE,
        env={"TMPDIR": str(data), "PATH": os.environ["PATH"]},
        timeout=TIMEOUT_S,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
