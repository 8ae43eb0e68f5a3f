"""docs/instances.md and docs/api.md: how an instance begins, is reached and ends, by plain HTTP."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemon.requesting import daemon_with
from tests.daemon.rig import ANSWER_S, LOOK_S, Daemon, bad, good
from tests.instances.small import LAST_WORDS, put_small, small

INSTANCE = (
    "instance_id server state host port url transport token hold has_token socket inside_url pid "
    "started_in_ms project_path space_id runtime confined network notes warmth restarts clients "
    "created_at updated_at ready_at ended_at problem limits enforced ttl lease idle_timeout "
    "survive restart share"
)
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "promise", "version": "1"},
    },
}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with daemon_with({"instances_per_caller": 5}) as found:
        with found.local() as client:
            good(client.put("/v1/servers/small", json=small()))
        yield found


@pytest.fixture
def owner(daemon: Daemon) -> Iterator[httpx.Client]:
    """Whatever a test leaves ends with it."""
    with daemon.local() as found:
        yield found
        for one in good(found.get("/v1/instances"))["instances"]:
            good(found.delete(at(one)))


@pytest.fixture
def project(tmp_path: Path) -> str:
    return str(put_small(tmp_path))


def at(instance: dict[str, Any], rest: str = "") -> str:
    return f"/v1/instances/{instance['instance_id']}{rest}"


def start(client: httpx.Client, project: str, **asked: Any) -> dict[str, Any]:
    where = {} if "space_id" in asked else {"project_path": project}
    body = {"server": "small", **where, **asked}
    return dict(good(client.post("/v1/instances", json=body)))


def hello(instance: dict[str, Any], **headers: str) -> int:
    """What a client that speaks with it directly is answered."""
    given = {"Authorization": f"Bearer {instance['token']}", **headers}
    given["Accept"] = "application/json, text/event-stream"
    sent = {name: value for name, value in given.items() if value}
    return httpx.post(instance["url"], json=HELLO, headers=sent, timeout=ANSWER_S).status_code


def ended(client: httpx.Client, instance: dict[str, Any], by: str) -> dict[str, Any]:
    """When it has, in time; and nothing listens there any more."""
    until = time.monotonic() + ANSWER_S
    while (found := good(client.get(at(instance))))["state"] not in ("ended", "failed"):
        assert time.monotonic() < until, (by, found)
        time.sleep(LOOK_S)
    with pytest.raises(OSError):
        socket.create_connection((instance["host"], instance["port"]), timeout=ANSWER_S).close()
    return dict(found)


def test_a_start_answers_when_it_works(owner: httpx.Client, project: str) -> None:
    found = start(owner, project)
    assert {*INSTANCE.split()} <= {*found} and found["state"] == "ready"
    assert found["url"] == f"http://127.0.0.1:{found['port']}/mcp" and found["token"]
    assert found["project_path"] == project and found["network"] == "none" and found["confined"]
    assert found["started_in_ms"] > 0 and found["ready_at"] and found["ended_at"] is None
    assert found["warmth"] in ("cold", "forked", "started") and found["share"] == "none"
    assert hello(found) == 200


def test_only_who_has_the_token_comes_in(daemon: Daemon, owner: httpx.Client, project: str) -> None:
    found, other = start(owner, project), start(owner, project)
    assert hello({**found, "token": ""}, Authorization="") == 401
    assert hello({**found, "token": other["token"]}) == 401
    assert hello(found, Origin="http://evil.test") == 403
    assert hello(found, Host="evil.test") in (403, 421)
    (listed, *_) = good(owner.get("/v1/instances"))["instances"]
    assert "token" not in listed and listed["has_token"]
    again = good(owner.get(at(found)))
    assert again["token"] == found["token"] and not again.get("hold")
    with daemon.tcp(daemon.token("label:team=blue")) as elsewhere:
        bad(elsewhere.get(at(found)), 404, "instance_not_found")
        body = {"server": "small", "project_path": project}
        bad(elsewhere.post("/v1/instances", json=body), 403, "forbidden")


def test_releasing_it_twice_is_no_error(owner: httpx.Client, project: str) -> None:
    found = start(owner, project)
    assert good(owner.delete(at(found)))["status"] == "terminated"
    assert good(owner.delete(at(found)))["status"] == "already_gone"
    ended(owner, found, "release")
    bad(owner.get("/v1/instances/in_nobody"), 404, "instance_not_found")
    listed = good(owner.get("/v1/instances", params={"ended": "true"}))["instances"]
    assert found["instance_id"] in [one["instance_id"] for one in listed]


@pytest.mark.parametrize("how", ["ttl", "lease", "idle_timeout"])
def test_its_time_ends_it(owner: httpx.Client, project: str, how: str) -> None:
    found = start(owner, project, **{how: 1.0})
    assert found[how] == 1.0
    assert ended(owner, found, how)["problem"]


def test_a_heartbeat_renews_its_lease(owner: httpx.Client, project: str) -> None:
    found = start(owner, project, lease=30)
    assert good(owner.post(at(found, "/heartbeat")))["state"] == "ready"
    assert owner.get(at(found, "/logs")).headers["content-type"].startswith("text/plain")
    good(owner.delete(at(found)))
    assert good(owner.post(at(found, "/heartbeat")))["state"] == "ended"


def test_it_ends_with_its_owner(owner: httpx.Client, project: str) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        found = start(owner, project, owner_pid=process.pid)
        process.kill()
        process.wait()
    ended(owner, found, "owner_pid")


def test_one_that_is_shared_ends_with_its_last_hold(owner: httpx.Client, project: str) -> None:
    first, second = (start(owner, project, share="project") for _ in range(2))
    alone = start(owner, project)
    assert first["instance_id"] == second["instance_id"] != alone["instance_id"]
    assert first["hold"] != second["hold"] and good(owner.get(at(first)))["clients"] == 2
    for _ in range(2):
        # However often that is repeated, nobody else's share is given up.
        good(owner.delete(at(first), params={"hold": first["hold"]}))
        assert hello(second) == 200
    told = good(owner.delete(at(second), params={"hold": second["hold"]}))
    assert told["status"] == "terminated"
    ended(owner, second, "the last hold")


def test_one_that_crashes_begins_again_with_the_same_address(
    owner: httpx.Client, project: str
) -> None:
    found = start(owner, project, restart="on-failure")
    os.kill(found["pid"], signal.SIGKILL)
    until = time.monotonic() + ANSWER_S
    while (now := good(owner.get(at(found))))["state"] != "ready" or not now["restarts"]:
        assert time.monotonic() < until, now
        time.sleep(LOOK_S)
    assert (now["url"], now["token"]) == (found["url"], found["token"])
    assert hello(found) == 200
    once = start(owner, project)
    os.kill(once["pid"], signal.SIGKILL)
    assert ended(owner, once, "a crash")["state"] == "failed"


def test_in_a_space_it_sees_the_spaces_tree(owner: httpx.Client, project: str) -> None:
    wanted = {"project": {"kind": "folder", "location": project}}
    space = good(owner.post("/v1/spaces", json=wanted))["id"]
    put = owner.put(f"/v1/spaces/{space}/files", params={"path": "own.txt"}, content=b"own")
    assert put.is_success
    found = start(owner, project, space_id=space)
    assert found["space_id"] == space and found["inside_url"]
    call = {"name": "read", "arguments": {"path": "/workspace/own.txt"}}
    headers = {"Authorization": f"Bearer {found['token']}", "Accept": "application/json"}
    message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
    answer = httpx.post(found["url"], json=message, headers=headers, timeout=ANSWER_S)
    assert answer.json()["result"]["content"][0]["text"] == "own"
    assert not Path(project, "own.txt").exists()
    good(owner.post(f"/v1/spaces/{space}/stop"))
    ended(owner, found, "the end of its space")
    stopped = {"server": "small", "space_id": space}
    bad(owner.post("/v1/instances", json=stopped), 409, "state_conflict")
    good(owner.delete(f"/v1/spaces/{space}", params={"force": "true"}))


def test_a_client_of_streams_has_a_socket(owner: httpx.Client, project: str) -> None:
    server = {**small("streams"), "name": "lines"}
    found = start(owner, project, server=server, streams=True)
    assert not found["url"] and Path(found["socket"]).is_socket()
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(ANSWER_S)
        line.connect(found["socket"])
        with line.makefile("rw") as lines:
            lines.write('{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}\n')
            lines.flush()
            assert "echo" in lines.readline()


Broken = Callable[[str], dict[str, Any]]
REFUSED: dict[str, tuple[int, str, Broken]] = {
    "no server": (404, "server_not_found", lambda at: {"server": "nope", "project_path": at}),
    "no folder": (422, "project_not_found", lambda at: {"server": "small", "project_path": "/no"}),
    "a file": (422, "project_not_a_folder", lambda at: _small(f"{at}/small.py")),
    "relative": (422, "project_invalid", lambda at: _small("near")),
    "no space": (404, "space_not_found", lambda at: {"server": "small", "space_id": "sp_nobody"}),
    "both": (422, "message_invalid", lambda at: {**_small(at), "space_id": "sp_x"}),
    "neither": (422, "message_invalid", lambda at: {"server": "small"}),
    "not here": (
        409,
        "server_not_installed",
        lambda at: {**_small(at), "server": {"command": ["no-such-program"]}},
    ),
    "it ends": (502, "instance_failed", lambda at: {**_small(at), "server": small("fails")}),
    "in time": (
        502,
        "instance_failed",
        lambda at: {**_small(at), "server": small("never"), "ready_timeout": 0.5},
    ),
}


def _small(path: str) -> dict[str, Any]:
    return {"server": "small", "project_path": path}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_start_says_why(owner: httpx.Client, project: str, what: str) -> None:
    status, code, asked = REFUSED[what]
    told = bad(owner.post("/v1/instances", json=asked(project)), status, code)
    assert told["detail"]
    if what == "it ends":
        assert LAST_WORDS in str(told["output"]) and "1" in told["detail"]
    assert not good(owner.get("/v1/instances"))["instances"]


def test_a_caller_has_so_many_at_most(owner: httpx.Client, project: str) -> None:
    for _ in range(5):
        start(owner, project)
    told = owner.post("/v1/instances", json=_small(project))
    assert bad(told, 429, "too_many_instances")["hint"]


def test_servers_are_listed_and_added(owner: httpx.Client, project: str) -> None:
    found = {one["name"]: one for one in good(owner.get("/v1/servers"))["servers"]}
    assert {"serena", "everything", "filesystem", "carrel", "small"} <= {*found}
    good(owner.put("/v1/servers/mine", json=small()))
    good(owner.delete(at(start(owner, project, server="mine"))))
    good(owner.delete("/v1/servers/mine"))
    told = owner.post("/v1/instances", json={**_small(project), "server": "mine"})
    bad(told, 404, "server_not_found")
