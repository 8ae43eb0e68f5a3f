"""Keys that are kept, and the callers who would like to have them: by HTTP and by WebSocket."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemon.rig import ANSWER_S, LOOK_S, Daemon, bad, fresh_daemon, good

EVIL = {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}
NAMED = {"ANTHROPIC_BASE_URL": "http://127.0.0.1:8"}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with fresh_daemon() as found:
        client = found.local()
        said = {"value": "sk-planted", "endpoints": ["http://127.0.0.1:8"]}
        good(client.put("/v1/credentials/anthropic", json=said))
        yield found


@pytest.fixture
def guest(daemon: Daemon) -> httpx.Client:
    return daemon.tcp(daemon.token("label:team=blue"))


def new(daemon: Daemon, client: httpx.Client, **more: Any) -> str:
    said = {"agent": "claude-code", "labels": {"team": "blue"}, **more}
    with daemon.equipped("claude-code"):
        return str(good(client.post("/v1/spaces", json=said))["id"])


def begin(client: httpx.Client, space: str, **more: Any) -> httpx.Response:
    return client.post(f"/v1/spaces/{space}/turns", json={"prompt": "hello", **more})


def test_a_turn_of_a_guest(daemon: Daemon, guest: httpx.Client) -> None:
    space = new(daemon, guest)
    for env in (EVIL, {"NODE_OPTIONS": "--require=/workspace/x.js"}, {"https_proxy": "http://x"}):
        problem = bad(begin(guest, space, env=env), 403, "variable_refused")
        assert "anthropic" in problem["detail"] and problem["hint"]
    # Every other door to the same room.
    bad(begin(guest, space, env=EVIL, terminal=True), 403, "variable_refused")
    bad(begin(guest, space, env=EVIL, permission="ask"), 403, "variable_refused")
    bad(begin(guest, space, env=EVIL, frontend="agent-sdk"), 403, "variable_refused")


def test_a_space_of_a_guest(daemon: Daemon, guest: httpx.Client) -> None:
    """Whoever begins a turn in it: the variables are those of the space."""
    space = new(daemon, guest, env={"LD_PRELOAD": "/workspace/x.so"})
    bad(begin(guest, space), 403, "variable_refused")
    bad(begin(daemon.local(), space), 403, "variable_refused")
    good(guest.delete(f"/v1/spaces/{space}", params={"force": "true"}))


def test_a_token_of_one_space(daemon: Daemon) -> None:
    space = new(daemon, daemon.local())
    client = daemon.tcp(daemon.token(f"space:{space}"))
    bad(begin(client, space, env=EVIL), 403, "variable_refused")


def test_a_space_that_gets_its_agent_later(daemon: Daemon, guest: httpx.Client) -> None:
    space = new(daemon, guest, agent=None, env=EVIL)
    bad(begin(guest, space, frontend="claude-code"), 403, "variable_refused")


def test_a_request_of_a_guest(daemon: Daemon, guest: httpx.Client) -> None:
    said = {"instructions": "make it", "frontend": "claude-code", "env": EVIL}
    with (
        daemon.equipped("claude-code"),
        daemon.tcp_websocket("/v1/requests", daemon.token("label:team=blue")) as socket,
    ):
        bad(guest.post("/v1/requests", json=said), 403, "variable_refused")
        socket.send(json.dumps({"type": "generate", **said}))
        frame = json.loads(socket.recv(timeout=ANSWER_S))
    assert (frame["type"], frame["code"]) == ("error", "variable_refused")
    assert good(guest.get("/v1/requests"))["requests"] == []


def test_the_owner_names_the_endpoints(daemon: Daemon) -> None:
    client = daemon.local()
    space = new(daemon, client)
    problem = bad(begin(client, space, env=EVIL), 403, "variable_refused")
    assert "carrel auth set anthropic --endpoint" in problem["hint"]
    own = new(daemon, client, env=EVIL)
    bad(begin(client, own), 403, "variable_refused")
    # It comes as far as the program, which is not here.
    for env in (NAMED, {"NODE_OPTIONS": "--x"}, {**EVIL, "ANTHROPIC_API_KEY": "sk-own"}):
        bad(begin(client, space, env=env), 409, "frontend_not_installed")


def test_a_guest_with_an_endpoint_or_a_key_of_its_own(daemon: Daemon, guest: httpx.Client) -> None:
    space = new(daemon, guest)
    for env in (NAMED, {"LANG": "C"}, {**EVIL, "ANTHROPIC_AUTH_TOKEN": "own", "PATH": "/x"}):
        bad(begin(guest, space, env=env), 409, "frontend_not_installed")


def test_a_model_is_no_option(daemon: Daemon) -> None:
    client = daemon.local()
    space = new(daemon, client)
    for name in ("--dangerously-skip-permissions", "-c", "a\nb"):
        bad(begin(client, space, model=name), 422, "model_not_supported")


def test_endpoints_are_kept_beside_the_key(daemon: Daemon) -> None:
    client = daemon.local()
    bad(client.put("/v1/credentials/other", json={"endpoints": []}), 404, "credential_not_found")
    said = {"value": "sk-one", "endpoints": ["https://a.example/v1", "https://b.example"]}
    good(client.put("/v1/credentials/other", json=said))
    told = good(client.put("/v1/credentials/other", json={"value": "sk-two"}))
    assert told["endpoints"]["other"] == said["endpoints"] and "sk-two" not in json.dumps(told)
    file = daemon.data / "auth" / "other"
    assert file.read_text() == "sk-two"
    beside = file.with_name("other.endpoints")
    assert beside.stat().st_mode & 0o777 == 0o600
    bad(
        client.put("/v1/credentials/other", json={"endpoints": ["nowhere"]}), 422, "message_invalid"
    )
    assert good(client.delete("/v1/credentials/other"))["credentials"] == ["anthropic"]
    assert not beside.exists()
    guest = daemon.tcp(daemon.token("label:team=blue"))
    bad(guest.put("/v1/credentials/anthropic", json={"endpoints": []}), 403, "forbidden")


def test_what_looks_like_a_key_is_not_told(daemon: Daemon) -> None:
    client = daemon.local()
    env = {"MODE": "fast", "API_KEY": "hunter2hunter2", "X": "ghp_abcdefghijklmnopqrst"}
    space = new(daemon, client, agent=None, env=env)
    for told in (client.get(f"/v1/spaces/{space}").text, client.get("/v1/spaces").text):
        assert "hunter2" not in told and "ghp_" not in told and "fast" in told
    run = {"argv": ["sh", "-c", "echo $API_KEY"]}
    assert good(client.post(f"/v1/spaces/{space}/runs", json=run))["id"]


def files_with(folder: Path, text: bytes) -> list[str]:
    found = (one for one in folder.rglob("*") if one.is_file() and not one.is_symlink())
    return [str(one.relative_to(folder)) for one in found if text in one.read_bytes()]


def test_nothing_of_a_value_is_left(daemon: Daemon) -> None:
    """Of a removed space, though its changes are in the trash; and of a request that is over."""
    client = daemon.local()
    env = {"MODE": "plain-and-harmless", "API_KEY": "hunter3hunter3"}
    space = new(daemon, client, agent=None, env=env)
    good(client.put(f"/v1/spaces/{space}/files", params={"path": "a.txt"}, content=b"x"))
    assert files_with(daemon.data, b"hunter3hunter3") != []
    good(client.delete(f"/v1/spaces/{space}", params={"force": "true"}))
    said = {"instructions": "say done", "frontend": "scripted", "env": {"K": "hunter4hunter4"}}
    made = good(client.post("/v1/requests", json=said))
    path = f"/v1/requests/{made['request_id']}"
    until = time.monotonic() + ANSWER_S
    while good(client.get(path, params={"wait": 20}))["state"] not in ("done", "failed"):
        assert time.monotonic() < until
    # The log is emptied after the answer, and not while somebody reads from it.
    good(client.delete(path))
    while left := [*files_with(daemon.data, b"hunter3"), *files_with(daemon.data, b"hunter4")]:
        assert time.monotonic() < until, left
        good(client.get("/v1/spaces"))
        time.sleep(LOOK_S)
    back = good(client.post(f"/v1/trash/{space}/restore"))
    assert back["env"] == {"MODE": "plain-and-harmless"}
