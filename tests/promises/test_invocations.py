"""docs/agents/control-planes.md, by HTTP and by `carrel`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.standins import serving
from tests.daemon.rig import ANSWER_S, Daemon, bad, fresh_daemon, good

# They share a daemon.
pytestmark = pytest.mark.xdist_group("invocations")

PAGE = Path(__file__).parents[2] / "docs" / "agents" / "control-planes.md"
STORED = "sk-planted-key-that-nobody-tells"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with fresh_daemon(listen=None) as found, found.equipped("claude-code", "codex-cli"):
        with found.local() as client:
            for name in ("anthropic", "openai"):
                good(client.put(f"/v1/credentials/{name}", json={"value": STORED}))
        yield found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    found = tmp_path / "project"
    found.mkdir()
    return found


def asked(project: Path, **more: Any) -> dict[str, Any]:
    folders = {"cwd": str(project), "state": str(project.parent / "state")}
    return {"frontend": "claude-code", "prompt": "hello", **folders, **more}


def carrel(daemon: Daemon, project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "carrel.cli.main", *words],
        cwd=project,
        env={**os.environ, "CARREL_DATA": str(daemon.data)},
        capture_output=True,
        text=True,
        timeout=ANSWER_S,
    )


def test_the_examples_run(daemon: Daemon, project: Path) -> None:
    (block,) = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    env = {**os.environ, "CARREL_DATA": str(daemon.data), "HOME": str(project.parent)}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=project,
        env=env,
        capture_output=True,
        text=True,
        timeout=ANSWER_S,
    )
    assert done.returncode == 0, done.stderr
    decode = json.JSONDecoder().raw_decode
    first, end = decode(done.stdout)
    second, _ = decode(done.stdout[end:].lstrip())
    (shown,) = (
        json.loads(one)
        for one in re.findall(r"^```json\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
        if "display_command" in one
    )
    for answer in (first, second):
        assert answer.keys() == shown.keys() and answer["spec"].keys() == shown["spec"].keys()
        assert answer["spec"]["cwd"] == str(project) and answer["credentials"]
        assert {*answer["spec"]["env"]} >= {*shown["spec"]["env"]}
    assert (first["stdin"], second["stdin"]) == ("What does this project do?", "hello")


def test_no_stored_key_is_told(daemon: Daemon, project: Path) -> None:
    with daemon.local() as client:
        for frontend in ("claude-code", "codex-cli"):
            for mode in ("interactive", "headless", "non_interactive"):
                one = asked(project, frontend=frontend, interaction_mode=mode)
                answer = client.post("/v1/invocations", json=one)
                assert good(answer)["credentials"] and STORED not in answer.text
    said = carrel(
        daemon, project, "invocation", "--agent", "codex-cli", "--state", "../s", "--json"
    )
    assert json.loads(said.stdout)["spec"]["io_mode"] == "pty" and STORED not in str(said)
    written = [one for one in project.parent.rglob("*") if one.is_file()]
    assert written and not [one for one in written if STORED.encode() in one.read_bytes()]


def test_what_was_asked_for_is_what_is_told(daemon: Daemon, project: Path) -> None:
    with daemon.local() as client:
        first = good(client.post("/v1/invocations", json=asked(project, io_mode="inherit")))
        spec = first["spec"]
        assert spec["io_mode"] == "inherit" and first["stdin"] is None
        assert spec["continuation"]["key"] in spec["argv"] and Path(spec["argv"][0]).is_absolute()
        again = asked(project, continuation=spec["continuation"], env={"OWN": "1"}, model="haiku")
        second = good(
            client.post("/v1/invocations", json={**again, "interaction_mode": "headless"})
        )
        assert second["spec"]["continuation"] == spec["continuation"]
        assert second["spec"]["env"]["OWN"] == "1" and second["keeps_stdin"]
    words = ("invocation", "hello", "--agent", "claude-code", "--state", "../state")
    resumed = carrel(daemon, project, *words, "--resume", spec["continuation"]["key"], "--json")
    assert json.loads(resumed.stdout)["spec"]["continuation"] == spec["continuation"]


def test_warnings_are_told(daemon: Daemon, project: Path) -> None:
    (project / ".mcp.json").write_text("{}")
    with daemon.local() as client:
        (warning,) = good(client.post("/v1/invocations", json=asked(project)))["warnings"]
        assert ".mcp.json" in warning
        assert not good(client.post("/v1/invocations", json=asked(project, trust=True)))["warnings"]
    said = carrel(daemon, project, "invocation", "--agent", "claude-code", "--state", "../state")
    assert said.stderr == f"! {warning}\n" and "--setting-sources" not in said.stderr
    assert said.stdout.startswith("/") and said.returncode == 0


def test_what_is_refused(daemon: Daemon, project: Path) -> None:
    with daemon.local() as client:

        def refused(status: int, code: str, **more: Any) -> dict[str, Any]:
            return bad(client.post("/v1/invocations", json=asked(project, **more)), status, code)

        problem = refused(422, "model_not_supported", model="gpt-5.5")
        assert "sonnet" in problem["detail"] and "sonnet" in problem["known"]
        refused(422, "unsupported_frontend", frontend="scripted")
        refused(422, "unsupported_frontend", frontend="none-of-them")
        refused(422, "provider_mismatch", continuation={"provider": "openai", "key": "k"})
        refused(404, "continuation_not_found", continuation={"provider": "anthropic", "key": "k"})
        assert "ask" in refused(403, "permission_denied", permission="sandboxed")["hint"]
        refused(422, "path_invalid", cwd="project")
        refused(422, "path_invalid", state="state")
        refused(404, "path_not_found", cwd=f"{project}/none")
        refused(422, "resolve_failed", kits=["kit:none"])
        assert not (project.parent / "state").exists()
        # What an agent may have made of its folder leads nowhere else.
        elsewhere = project.parent / "elsewhere"
        elsewhere.mkdir()
        (project.parent / "state").mkdir()
        (project.parent / "state" / "claude").symlink_to(elsewhere)
        refused(422, "resolve_failed")
        assert os.listdir(elsewhere) == []
    slip = carrel(daemon, project, "invocation", "--agent", "claude-code", "--json")
    assert slip.returncode == 2 and "--state" in slip.stderr


def test_kits_and_capabilities(daemon: Daemon, project: Path) -> None:
    with daemon.local() as client:
        assert good(client.post("/v1/kits/resolve", json={"kits": []})) == {
            "ok": True,
            "error": None,
        }
        none = good(client.post("/v1/kits/resolve", json={"kits": ["kit:none"]}))
        assert not none["ok"] and none["error"]["code"] == "resolve_failed"
        empty = {"kits": [], "frontend": "claude-code"}
        assert good(client.post("/v1/kits/describe", json=empty))["skills"] == []
        bad(client.post("/v1/kits/describe", json={"kits": ["kit:none"]}), 422, "resolve_failed")
        listed = good(client.get("/v1/agents"))
    assert carrel(daemon, project, "kit", "resolve", "kit:none").returncode == 1
    known = {one["name"]: one for one in listed["frontends"]}
    (openai,) = (one for one in listed["providers"] if one["id"] == "openai")
    assert {"codex-cli", "pi-sdk"} <= {*openai["frontends"]}
    assert {*known["codex-cli"]["models"], *known["pi-sdk"]["models"]} == {*openai["models"]}


def test_turns_in_spaces_are_refused_models_too(daemon: Daemon) -> None:
    """Before anything starts, and with the known ones; what they cost is counted by all turns."""
    with daemon.local() as client, serving() as api:
        endpoint = {"value": None, "endpoints": [api.url]}
        good(client.put("/v1/credentials/anthropic", json=endpoint))
        space = good(client.post("/v1/spaces", json={"agent": "agent-sdk"}))["id"]
        begun = client.post(f"/v1/spaces/{space}/turns", json={"prompt": "x", "model": "gpt-5.5"})
        assert "sonnet" in bad(begun, 422, "model_not_supported")["detail"]
        assert good(client.get(f"/v1/spaces/{space}/turns"))["turns"] == []
        known, spent = None, []
        for _ in range(2):
            asked = {"prompt": "hello", "env": {"ANTHROPIC_BASE_URL": api.url}}
            begun = client.post(f"/v1/spaces/{space}/turns", json={**asked, "continuation": known})
            turn = good(client.get(f"/v1/turns/{good(begun)['id']}", params={"wait_s": 60}))
            assert turn["state"] == "complete", turn
            known = turn["continuation"]
            spent.append(turn["usage"]["cost_usd"])
        assert spent[0] and spent[0] == spent[1]
        total = good(client.get(f"/v1/spaces/{space}"))["spent"]["cost_usd"]
        assert total == pytest.approx(sum(spent))
        good(client.delete(f"/v1/spaces/{space}", params={"force": True}))
