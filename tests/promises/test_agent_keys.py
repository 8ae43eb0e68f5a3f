"""docs/agents.md: keys, a person's own set-up, the network and what a project brings, by plain
HTTP. No program of an agent is started here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemon.rig import Daemon, bad, fresh_daemon, good

pytestmark = pytest.mark.xdist_group("agent keys")

LONG_AGO = 1_600_000_000.0
"""When a login was good."""
IMPORT = "/v1/agents/claude-code/import"
SECRET = "sk-ant-planted-key-that-nobody-tells"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with fresh_daemon() as found, found.equipped("claude-code", "codex-cli", "codex-acp"):
        yield found


@pytest.fixture
def owner(daemon: Daemon) -> Iterator[httpx.Client]:
    """Whatever a test stores goes with it."""
    with daemon.local() as found:
        yield found
        for name in good(found.get("/v1/credentials"))["credentials"]:
            good(found.delete(f"/v1/credentials/{name}"))


def made(client: httpx.Client, agent: str, **asked: Any) -> str:
    return str(good(client.post("/v1/spaces", json={"agent": agent, **asked}))["id"])


def refused(client: httpx.Client, space: str, status: int, code: str, **turn: Any) -> str:
    """The hint."""
    answer = client.post(f"/v1/spaces/{space}/turns", json={"prompt": "hello", **turn})
    told = bad(answer, status, code)
    assert not good(client.get(f"/v1/spaces/{space}/turns"))["turns"]
    return str(told.get("hint", ""))


def test_keys_are_stored_and_never_told(daemon: Daemon, owner: httpx.Client) -> None:
    path = "/v1/credentials/own-key_1"
    asked = {"value": SECRET, "endpoints": ["https://one.example/v1"]}
    good(owner.put(path, json=asked))
    file = daemon.data / "auth" / "own-key_1"
    assert SECRET in file.read_text() and file.stat().st_mode & 0o777 == 0o600
    # A missing member stays as it is.
    good(owner.put(path, json={"value": SECRET + "2"}))
    told = owner.get("/v1/credentials")
    assert SECRET not in told.text and "own-key_1" in good(told)["credentials"]
    assert good(told)["endpoints"]["own-key_1"] == ["https://one.example/v1"]
    good(owner.put(path, json={"endpoints": []}))
    assert SECRET + "2" in file.read_text()
    assert not good(owner.get("/v1/credentials"))["endpoints"].get("own-key_1")
    bad(owner.put("/v1/credentials/Own", json={"value": "x"}), 422, "message_invalid")
    bad(owner.put("/v1/credentials/none", json={"endpoints": []}), 404, "credential_not_found")


def test_an_agent_without_a_key_does_not_begin(owner: httpx.Client) -> None:
    space = made(owner, "claude-code")
    assert good(owner.get(f"/v1/spaces/{space}"))["network"] == "open"
    assert "carrel auth set anthropic" in refused(owner, space, 422, "key_missing")
    listed = good(owner.get("/v1/agents"))["frontends"]
    (claude,) = (one for one in listed if one["name"] == "claude-code")
    assert claude["credentials"] == ["anthropic"] and not claude["logged_in"]
    assert claude["needs_network"] and claude["kind"] == "cli" and claude["path"]
    good(owner.put("/v1/credentials/anthropic", json={"value": SECRET}))
    (claude,) = (
        one for one in good(owner.get("/v1/agents"))["frontends"] if one["name"] == "claude-code"
    )
    assert claude["logged_in"] and SECRET not in str(claude)


def test_a_stored_key_goes_to_named_addresses_only(owner: httpx.Client) -> None:
    """Neither by a variable of the turn nor by one of its space; nor by a proxy."""
    good(owner.put("/v1/credentials/anthropic", json={"value": SECRET}))
    elsewhere = {"ANTHROPIC_BASE_URL": "https://elsewhere.example"}
    space = made(owner, "claude-code")
    assert "--endpoint" in refused(owner, space, 403, "variable_refused", env=elsewhere)
    named = {"endpoints": ["https://named.example/v1"]}
    good(owner.put("/v1/credentials/anthropic", json=named))
    refused(owner, space, 403, "variable_refused", env=elsewhere)
    beside = {"ANTHROPIC_BASE_URL": "https://named.example/v1beside"}
    refused(owner, space, 403, "variable_refused", env=beside)
    refused(owner, made(owner, "claude-code", env=elsewhere), 403, "variable_refused")


def test_a_closed_space_reaches_no_model(owner: httpx.Client) -> None:
    good(owner.put("/v1/credentials/anthropic", json={"value": SECRET}))
    space = made(owner, "claude-code", network="none")
    assert "--network open" in refused(owner, space, 422, "network_needed")
    assert good(owner.get(f"/v1/spaces/{made(owner, 'scripted')}"))["network"] == "none"


def test_an_imported_login_that_is_over(owner: httpx.Client) -> None:
    login = {"credential": "anthropic", "value": SECRET, "expires_at": LONG_AGO}
    kept = good(owner.put(IMPORT, json={"login": login, "files": {"CLAUDE.md": "QmUgYnJpZWYu"}}))
    assert kept["imported"] and SECRET not in str(kept)
    assert "carrel agents import" in refused(
        owner, made(owner, "claude-code"), 422, "login_expired"
    )
    # A stored key comes before it.
    good(owner.put("/v1/credentials/anthropic", json={"value": SECRET}))
    elsewhere = {"ANTHROPIC_BASE_URL": "https://elsewhere.example"}
    refused(owner, made(owner, "claude-code"), 403, "variable_refused", env=elsewhere)
    assert not good(owner.delete(IMPORT))["imported"]
    bad(owner.delete(IMPORT), 404, "credential_not_found")


def test_keys_in_variables_of_a_space_are_not_shown(owner: httpx.Client) -> None:
    env = {"API_TOKEN": "planted", "LEVEL": "3"}
    space = made(owner, "scripted", env=env)
    path = f"/v1/spaces/{space}"
    shown = good(owner.get(path))
    assert shown["env"] == {"API_TOKEN": "<hidden>", "LEVEL": "3"}
    ran = good(owner.post(f"{path}/exec", json={"argv": ["sh", "-c", "echo $API_TOKEN > a"]}))
    assert ran["run"]["exit"]["code"] == 0
    assert owner.get(f"{path}/files?path=a").text == "planted\n"
    good(owner.delete(path, params={"force": "true"}))
    back = good(owner.post(f"/v1/trash/{space}/restore"))
    assert back["env"] == {"LEVEL": "3"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    found = tmp_path / "project"
    (found / ".claude").mkdir(parents=True)
    (found / ".claude" / "settings.json").write_text("{}")
    return found


def folder(project: Path) -> dict[str, Any]:
    return {"project": {"kind": "folder", "location": str(project)}}


def test_what_a_project_brings_is_agreed_to(
    daemon: Daemon, owner: httpx.Client, project: Path
) -> None:
    """To just that content, in each space of the project, and by administrators."""
    path = f"/v1/spaces/{made(owner, 'claude-code', **folder(project))}"
    found = good(owner.get(f"{path}/trust"))
    assert found["frontend"] == "claude-code" and ".claude" in found["paths"]
    assert ".claude/settings.json" in found["files"] and not found["trusted"]
    assert not good(owner.get(f"{path}/trust", params={"frontend": "scripted"}))["files"]
    with daemon.tcp(daemon.token(f"space:{path.rpartition('/')[2]}")) as client:
        bad(client.post(f"{path}/trust", json={"digest": found["digest"]}), 403, "forbidden")
    bad(owner.post(f"{path}/trust", json={"digest": "0" * 64}), 409, "state_conflict")
    assert good(owner.post(f"{path}/trust", json={"digest": found["digest"]}))["trusted"]
    other = f"/v1/spaces/{made(owner, 'claude-code', **folder(project))}"
    assert good(owner.get(f"{other}/trust"))["trusted"]
    # It ends when one of the files changes, in that space.
    where = {"path": ".claude/settings.json"}
    assert owner.put(f"{other}/files", params=where, content=b'{"a": 1}').is_success
    assert not good(owner.get(f"{other}/trust"))["trusted"]
    assert good(owner.get(f"{path}/trust"))["trusted"]
    taken = {"digest": found["digest"], "trust": False}
    assert not good(owner.post(f"{path}/trust", json=taken))["trusted"]


def test_what_leads_out_cannot_be_agreed_to(owner: httpx.Client, project: Path) -> None:
    os.symlink("/etc", project / ".claude" / "commands")
    path = f"/v1/spaces/{made(owner, 'claude-code', **folder(project))}"
    found = good(owner.get(f"{path}/trust"))
    assert found["problem"]
    bad(owner.post(f"{path}/trust", json={"digest": found["digest"]}), 403, "not_trusted")


def test_an_agent_that_cannot_do_without_is_not_started(owner: httpx.Client, project: Path) -> None:
    good(owner.put("/v1/credentials/openai", json={"value": SECRET}))
    (project / ".codex").mkdir()
    (project / ".codex" / "config.toml").write_text("")
    space = made(owner, "codex-acp", **folder(project))
    assert "carrel trust" in refused(owner, space, 403, "not_trusted")


def test_where_programs_are_is_said_on_the_socket_only(
    daemon: Daemon, owner: httpx.Client, tmp_path: Path
) -> None:
    asked = {"path": f"{tmp_path}:/usr/bin"}
    assert good(owner.put("/v1/agents/path", json=asked))["frontends"]
    with daemon.tcp(daemon.token("admin")) as client:
        bad(client.put("/v1/agents/path", json=asked), 403, "forbidden")
    with daemon.tcp(daemon.token("label:a=b")) as client:
        found = good(client.get("/v1/agents"))["frontends"]
        assert found and not any(one["path"] for one in found)
        for path in ("/v1/credentials", "/v1/tokens", "/v1/df", "/v1/bases", "/metrics"):
            bad(client.get(path), 403, "forbidden")
