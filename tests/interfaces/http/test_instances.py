"""Instances over HTTP: started, looked at, let go; and their older spelling."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.daemon.rig import ANSWER_S, LOOK_S, Daemon, bad, good
from tests.instances.small import LAST_WORDS, PYTHON, put_small, small

ABSENT = "in_aaaaaaaaaaaa"
HANDSHAKE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return put_small(tmp_path)


@pytest.fixture
def added(client: httpx.Client) -> Iterator[str]:
    """The small server, by a name."""
    name = f"small-{uuid4().hex[:8]}"
    good(client.put(f"/v1/servers/{name}", json=small()))
    yield name
    good(client.delete(f"/v1/servers/{name}"))


def start(client: httpx.Client, server: Any, project: Path, **more: Any) -> dict[str, Any]:
    body = {"server": server, "project_path": str(project), **more}
    found: dict[str, Any] = good(client.post("/v1/instances", json=body))
    return found


def greet(instance: dict[str, Any]) -> str:
    """As its own client does it."""
    token = instance["token"]
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    response = httpx.post(instance["url"], json=HANDSHAKE, headers=headers, timeout=ANSWER_S)
    return str(good(response)["result"]["serverInfo"]["name"])


def test_one_from_its_start_to_its_end(client: httpx.Client, project: Path) -> None:
    made = start(client, small(), project, ttl=600, lease=300.5, idle_timeout=60)
    path = f"/v1/instances/{made['instance_id']}"
    assert made["state"] == "ready" and made["server"] == "custom"
    assert made["host"] == "127.0.0.1" and made["url"].endswith(f":{made['port']}/mcp")
    assert made["transport"] == "streamable-http" and made["project_path"] == str(project)
    assert (made["ttl"], made["lease"], made["idle_timeout"]) == (600, 300.5, 60)
    assert made["pid"] > 0 and made["started_in_ms"] > 0 and made["confined"] is True
    assert greet(made) == "small"
    again = good(client.get(path))
    assert again["token"] == made["token"] and again["clients"] == 1
    listed = good(client.get("/v1/instances"))["instances"]
    mine = next(one for one in listed if one["instance_id"] == made["instance_id"])
    assert "token" not in mine
    assert good(client.post(f"{path}/heartbeat"))["state"] == "ready"
    logs = client.get(f"{path}/logs", params={"limit": 1000})
    assert logs.headers["content-type"].startswith("text/plain") and '"POST /mcp' in logs.text
    assert good(client.delete(path)) == {"status": "terminated"}
    assert good(client.delete(path)) == {"status": "already_gone"}
    with pytest.raises(httpx.ConnectError):
        greet(made)
    ended = good(client.get("/v1/instances", params={"ended": "true"}))["instances"]
    assert {"ended"} == {one["state"] for one in ended if one["instance_id"] == made["instance_id"]}


def test_who_shares_gives_up_its_own_share(client: httpx.Client, project: Path) -> None:
    one, two = [start(client, small(), project, share="project") for _ in "12"]
    path = f"/v1/instances/{one['instance_id']}"
    assert two["instance_id"] == one["instance_id"] and two["hold"] != one["hold"]
    assert good(client.get(path))["hold"] is None
    for _ in "12":
        # Asked again when no answer came.
        assert good(client.delete(path, params={"hold": one["hold"]})) == {"status": "released"}
        assert good(client.get(path))["clients"] == 1
    assert greet(two) == "small"
    assert good(client.delete(path, params={"hold": two["hold"]})) == {"status": "terminated"}
    assert good(client.delete(path, params={"hold": two["hold"]})) == {"status": "already_gone"}
    bad(client.delete(path, params={"hold": "x" * 256}), 422, "message_invalid")


def test_in_a_space(client: httpx.Client, project: Path) -> None:
    origin = {"project": {"kind": "folder", "location": str(project)}}
    space = good(client.post("/v1/spaces", json=origin))
    try:
        wanted = {"server": small(), "space_id": space["name"]}
        made = good(client.post("/v1/instances", json=wanted))
        assert made["space_id"] == space["id"] and made["project_path"] == ""
        assert greet(made) == "small"
        listed = good(client.get("/v1/instances", params={"space": space["name"]}))
        assert [one["instance_id"] for one in listed["instances"]] == [made["instance_id"]]
        assert good(client.delete(f"/v1/instances/{made['instance_id']}"))["status"] == "terminated"
    finally:
        client.delete(f"/v1/spaces/{space['id']}", params={"force": "true"})
    bad(client.get("/v1/instances", params={"space": "nowhere"}), 404, "space_not_found")


def test_where_its_socket_is_is_told_to_the_owner(
    client: httpx.Client, daemon: Daemon, space: dict[str, Any]
) -> None:
    wanted = {"server": "carrel", "space_id": space["id"], "streams": True}
    made = good(client.post("/v1/instances", json=wanted))
    assert made["socket"].startswith(str(daemon.data))
    with daemon.tcp(daemon.token(f"space:{space['id']}")) as guest:
        seen = good(guest.get(f"/v1/instances/{made['instance_id']}"))
    assert str(daemon.data) not in str(seen) and seen["socket"].startswith("<data>")


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"project_path": "/tmp", "space_id": "sp_x"},
        {"project_path": ""},
        {"project_path": "/tmp", "ttl": 0},
        {"project_path": "/tmp", "lease": "60"},
        {"project_path": "/tmp", "restart": "always"},
        {"project_path": "/tmp", "unknown": 1},
        {"project_path": "/tmp", "server": {"command": []}},
        {"project_path": "/tmp", "server": {"command": ["x"], "path": "mcp"}},
        {"project_path": "/tmp", "server": {"command": ["x", "{nowhere}"]}},
        {"project_path": "/tmp", "server": {"command": ["x"], "port": {"by": "log"}}},
        {"project_path": "{tmp}", "server": small(), "owner_pid": 2**31 - 1},
    ],
)
def test_what_cannot_be_asked(client: httpx.Client, tmp_path: Path, wrong: dict[str, Any]) -> None:
    wrong = {name: str(tmp_path) if one == "{tmp}" else one for name, one in wrong.items()}
    bad(
        client.post("/v1/instances", json={"server": "everything", **wrong}), 422, "message_invalid"
    )


def test_what_is_not_there(client: httpx.Client, tmp_path: Path) -> None:
    here = {"project_path": str(tmp_path)}
    unknown = client.post("/v1/instances", json={"server": "nobody-knows", **here})
    bad(unknown, 404, "server_not_found")
    missing = {"command": ["/nonexistent/server"], "install": "apt install it"}
    response = client.post("/v1/instances", json={"server": missing, **here})
    assert "apt install it" in bad(response, 409, "server_not_installed")["hint"]
    nowhere = {"server": small(), "project_path": str(tmp_path / "none")}
    bad(client.post("/v1/instances", json=nowhere), 422, "project_not_found")
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/heartbeat"), ("GET", "/logs")):
        response = client.request(method, f"/v1/instances/{ABSENT}{path}")
        bad(response, 404, "instance_not_found")


def test_a_server_that_fails(client: httpx.Client, project: Path) -> None:
    body = {"server": small("fails"), "project_path": str(project)}
    problem = bad(client.post("/v1/instances", json=body), 502, "instance_failed")
    assert LAST_WORDS in problem["detail"] and LAST_WORDS in problem["output"]
    assert problem["exit_code"] == 1
    listed = good(client.get("/v1/instances", params={"ended": "true"}))["instances"]
    [failed] = [one for one in listed if one["project_path"] == str(project)]
    assert failed["state"] == "failed" and LAST_WORDS in failed["problem"]["message"]
    path = f"/v1/instances/{failed['instance_id']}"
    assert LAST_WORDS in client.get(f"{path}/logs").text
    assert good(client.delete(path)) == {"status": "already_gone"}


def test_one_that_is_never_ready(client: httpx.Client, project: Path) -> None:
    late = small("never", readiness={"timeout_s": 0.5})
    body = {"server": late, "project_path": str(project)}
    bad(client.post("/v1/instances", json=body), 502, "instance_failed")


def test_who_hangs_up_gets_none(daemon: Daemon, client: httpx.Client, project: Path) -> None:
    body = httpx.Request(
        "POST", "http://carrel", json={"server": small("never"), "project_path": str(project)}
    ).read()
    head = f"POST /v1/instances HTTP/1.1\r\nHost: carrel\r\nContent-Length: {len(body)}\r\n"
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(daemon.socket)
        caller.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        _until(lambda: _states(client, project) == ["starting"])
    _until(lambda: _states(client, project) == [])


def _states(client: httpx.Client, project: Path) -> list[str]:
    listed = good(client.get("/v1/instances"))["instances"]
    return [one["state"] for one in listed if one["project_path"] == str(project)]


def _until(holds: Any) -> None:
    """Nobody tells when it is so; each look is a request."""
    until = time.monotonic() + ANSWER_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(LOOK_S)


# Servers


def test_the_kinds_of_servers(client: httpx.Client) -> None:
    known = {one["name"]: one for one in good(client.get("/v1/servers"))["servers"]}
    assert {"serena", "everything", "filesystem", "carrel"} <= set(known)
    assert known["filesystem"]["transport"] == "stdio" and known["filesystem"]["streams"]
    assert known["everything"]["env"] == ["PORT"] and known["everything"]["install"]


def test_one_that_is_added(client: httpx.Client, added: str, project: Path) -> None:
    known = {one["name"]: one for one in good(client.get("/v1/servers"))["servers"]}
    assert known[added]["source"] == "added" and known[added]["installed"]
    assert known[added]["command"][0] == PYTHON
    made = start(client, added, project)
    assert made["server"] == added and greet(made) == "small"
    good(client.delete(f"/v1/instances/{made['instance_id']}"))


def test_what_cannot_be_added(client: httpx.Client) -> None:
    bad(client.put("/v1/servers/Bad_Name", json=small()), 422, "message_invalid")
    bad(client.put("/v1/servers/small", json={}), 422, "message_invalid")
    bad(client.delete("/v1/servers/everything"), 404, "server_not_found")
    long = small(install="x" * (2 << 20))
    bad(client.put("/v1/servers/small", json=long), 413, "too_large")


# Scopes


def test_tokens(daemon: Daemon, client: httpx.Client, project: Path, added: str) -> None:
    """A space's token has instances in that space only, and those of others do not exist."""
    origin = {"project": {"kind": "folder", "location": str(project)}}
    space = good(client.post("/v1/spaces", json=origin))
    try:
        own = daemon.tcp(daemon.token(f"space:{space['id']}"))
        here = {"server": added, "project_path": str(project)}
        bad(own.post("/v1/instances", json=here), 403, "forbidden")
        inside = {"server": added, "space_id": space["id"]}
        described = {**inside, "server": small()}
        bad(own.post("/v1/instances", json=described), 403, "forbidden")
        bad(own.post("/v1/instances", json={**here, "confined": False}), 403, "forbidden")
        made = good(own.post("/v1/instances", json=inside))
        assert greet(made) == "small"
        foreign = start(client, added, project)
        bad(own.get(f"/v1/instances/{foreign['instance_id']}"), 404, "instance_not_found")
        listed = good(own.get("/v1/instances"))["instances"]
        assert [one["instance_id"] for one in listed] == [made["instance_id"]]
        for one in (made, foreign):
            good(client.delete(f"/v1/instances/{one['instance_id']}"))
    finally:
        client.delete(f"/v1/spaces/{space['id']}", params={"force": "true"})


# The older spelling


def test_the_older_spelling(client: httpx.Client, added: str, project: Path) -> None:
    wanted = {"project_path": str(project), "server": added, "client": "old"}
    response = client.post("/request-session", json=wanted)
    assert response.status_code == 201
    session = response.json()
    assert set(session) == {"session_id", "host", "port", "url", "token"}
    assert greet(session) == "small"
    release = {"session_id": session["session_id"]}
    for status in ("terminated", "already_gone"):
        told = good(client.post("/release-session", json=release))
        assert told == {"status": status, **release}


@pytest.mark.parametrize("body", [b"{}", b'{"project_path": ""}', b"[]", b"{", b"\xff", b""])
def test_the_older_spelling_without_a_path(client: httpx.Client, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    problem = bad(
        client.post("/request-session", content=body, headers=headers), 400, "message_invalid"
    )
    assert problem["error"] == "Invalid or missing 'project_path'"


def test_the_older_spelling_fails(client: httpx.Client, added: str, project: Path) -> None:
    nowhere = {"project_path": "/nonexistent/project", "server": added}
    problem = bad(client.post("/request-session", json=nowhere), 400, "project_not_found")
    assert problem["error"] == "Invalid or missing 'project_path'"
    name = f"fails-{uuid4().hex[:8]}"
    good(client.put(f"/v1/servers/{name}", json=small("fails")))
    here = {"project_path": str(project), "server": name}
    problem = bad(client.post("/request-session", json=here), 500, "instance_failed")
    assert LAST_WORDS in problem["error"]
    good(client.delete(f"/v1/servers/{name}"))
    for named in ({"session_id": ABSENT}, {"session_id": 17}):
        unknown = client.post("/release-session", json=named)
        assert bad(unknown, 404, "instance_not_found")["error"]
    for body in (b"{}", b'{"session_id": ""}', b'{"session_id": [1]}', b"[]", b"{", b"\xff", b""):
        headers = {"Content-Type": "application/json"}
        response = client.post("/release-session", content=body, headers=headers)
        nothing = bad(response, 404, "instance_not_found")
        assert nothing["error"] == "Invalid or missing 'session_id'"
