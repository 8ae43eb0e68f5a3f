"""docs/instances.md: every way to learn a server's port, what makes it ready, whose it is and what
outlives the daemon, by plain HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemon.rig import ANSWER_S, LOOK_S, Daemon, bad, fresh_daemon, good
from tests.instances.small import SCRIPT, command, put_small, small
from tests.promises.test_hub import line
from tests.promises.test_instance_lives import at, hello, start

pytestmark = pytest.mark.xdist_group("instance ways")

PYTHON = "/usr/bin/python3"
WAYS = """
import socket, sys
from http.server import ThreadingHTTPServer as Server
how, where = sys.argv[1], sys.argv[2]
code = open(PROJECT + "/small.py").read().split("mode = ")[0]
exec(code)
if how == "socket":
    server = Server(("127.0.0.1", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=int(where))
else:
    server = Server(("127.0.0.1", int(where) if how == "reserved" else 0), Handler)
if how == "file":
    open(where, "w").write(str(server.server_address[1]))
if how == "log":
    print("listening on 127.0.0.1:%d" % server.server_address[1], flush=True)
server.serve_forever()
"""
PLACES = {"socket": "{fd}", "file": "{port_file}", "reserved": "{port}", "log": "-", "process": "-"}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with fresh_daemon() as found:
        with found.local() as client:
            good(client.put("/v1/servers/small", json=small()))
        yield found


@pytest.fixture
def owner(daemon: Daemon) -> Iterator[httpx.Client]:
    """Whatever a test leaves ends with it."""
    with daemon.local() as found:
        yield found
        with contextlib.suppress(httpx.HTTPError):
            for one in good(found.get("/v1/instances"))["instances"]:
                found.delete(at(one))


@pytest.fixture
def project(tmp_path: Path) -> str:
    tmp_path.chmod(0o755)
    put_small(tmp_path)
    (tmp_path / "ways.py").write_text(f"PROJECT = {str(tmp_path)!r}\n{WAYS}")
    return str(tmp_path)


@pytest.mark.parametrize("how", PLACES)
def test_how_the_port_is_learned(owner: httpx.Client, project: str, how: str) -> None:
    by = {"by": how, **({"line": r"listening on .*:(\d+)"} if how == "log" else {})}
    words = [PYTHON, "{project}/ways.py", how, PLACES[how]]
    server = {"command": words, "port": by, "name": "way"}
    found = start(owner, project, server=server)
    assert found["server"] == "way" and hello(found) == 200
    assert hello({**found, "token": "other"}) == 401


def test_a_server_on_standard_streams_is_offered_over_http(
    owner: httpx.Client, project: str
) -> None:
    server = {"command": command("streams"), "transport": "stdio"}
    found = start(owner, project, server=server)
    assert found["url"] and hello(found) == 200
    told = owner.post("/v1/instances", json={"server": "small", "project_path": project, "x": 1})
    bad(told, 422, "message_invalid")


def test_places_are_filled(owner: httpx.Client, project: str) -> None:
    """In words and in variables; and it has files of its own."""
    server = {
        **small(),
        "env": {"OWN_PROJECT": "{project}", "OWN_STATE": "{state}"},
        "files": {"made.txt": "from the definition"},
    }
    found = start(owner, project, server=server)
    assert read(found, "/proc/self/environ").count(f"OWN_PROJECT={project}") == 1
    state = read(found, "/proc/self/environ").partition("OWN_STATE=")[2].partition("\0")[0]
    assert read(found, f"{state}/made.txt") == "from the definition"


def read(instance: dict[str, Any], path: str) -> str:
    """What its tool reads."""
    call = {"name": "read", "arguments": {"path": path}}
    message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
    headers = {"Authorization": f"Bearer {instance['token']}", "Accept": "application/json"}
    answer = httpx.post(instance["url"], json=message, headers=headers, timeout=ANSWER_S)
    return str(answer.raise_for_status().json()["result"]["content"][0]["text"])


def test_one_call_of_a_tool_is_part_of_being_ready(owner: httpx.Client, project: str) -> None:
    call = {"name": "echo", "arguments": {"word": "hello"}}
    assert start(owner, project, tool_ready=call)["state"] == "ready"


def test_what_it_sees(owner: httpx.Client, project: str) -> None:
    """Its project, which it may write, and nothing of the machine's network; without walls all."""
    found = start(owner, project)
    assert found["confined"] and found["network"] == "none"
    assert read(found, f"{project}/small.py") == SCRIPT
    wide = start(owner, project, network="open")
    assert wide["network"] == "open" and any("token" in one for one in wide["notes"])
    free = start(owner, project, confined=False)
    assert not free["confined"] and free["notes"]
    listed = {one["instance_id"]: one for one in good(owner.get("/v1/instances"))["instances"]}
    assert not listed[free["instance_id"]]["confined"]


def test_who_has_a_token_of_a_space(daemon: Daemon, owner: httpx.Client, project: str) -> None:
    """Starts it there only, and with walls."""
    wanted = {"project": {"kind": "folder", "location": project}, "labels": {"team": "mcp"}}
    space = good(owner.post("/v1/spaces", json=wanted))["id"]
    for scope in (f"space:{space}", "label:team=mcp"):
        with daemon.tcp(daemon.token(scope)) as client:
            found = start(client, project, space_id=space)
            assert good(client.get(at(found)))["token"] == found["token"]
            here = {"server": "small", "project_path": project}
            bad(client.post("/v1/instances", json=here), 403, "forbidden")
            free = {"server": "small", "space_id": space, "confined": False}
            bad(client.post("/v1/instances", json=free), 422, "message_invalid")
            good(client.delete(at(found)))
    listed = good(owner.get("/v1/instances", params={"space": space, "ended": "true"}))
    assert len(listed["instances"]) == 2
    good(owner.delete(f"/v1/spaces/{space}", params={"force": "true"}))


def test_it_ends_with_a_connection_to_the_hub(
    daemon: Daemon, owner: httpx.Client, project: str
) -> None:
    """And its states are told there."""
    heard = {"types": ["instance.state"], "spaces": ["*"]}
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(line(daemon, "app", subscriptions=heard))
        client = stack.enter_context(line(daemon, "ide"))
        listed = listener.data("client_list")["clients"]
        (own,) = (one["client_id"] for one in listed if one["kind"] == "ide")
        found = start(owner, project, hub_client=own)
        client.close()
        state = ""
        while state != "ended":
            told = listener.next()
            if found["instance_id"] in json.dumps(told["payload"]):
                state = told["payload"]["to"]
    assert good(owner.get(at(found)))["problem"]


def test_limits_are_told(owner: httpx.Client, project: str) -> None:
    found = start(owner, project, limits={"memory_bytes": 256 << 20})
    assert found["limits"]["memory_bytes"] == 256 << 20
    assert [one for one in found["enforced"] if one["kind"] == "memory"]


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's tests have no control group")
def test_one_that_takes_more_memory_is_ended(owner: httpx.Client, project: str) -> None:
    """And says so."""
    eats = SCRIPT.replace("given = message", 'eaten = b"x" * (300 << 20); given = message')
    assert eats != SCRIPT
    Path(project, "small.py").write_text(eats)
    found = start(owner, project, limits={"memory_bytes": 100 << 20})
    with pytest.raises((httpx.HTTPError, KeyError)):
        read(found, "/proc/version")
    until = time.monotonic() + ANSWER_S
    while (now := good(owner.get(at(found))))["state"] not in ("ended", "failed"):
        assert time.monotonic() < until, now
        time.sleep(LOOK_S)
    assert "memory" in json.dumps(now["problem"]), now


def test_whose_start_is_given_up_gets_none(owner: httpx.Client, project: str) -> None:
    asked = {"server": small("never"), "project_path": project, "ready_timeout": 600}
    with pytest.raises(httpx.ReadTimeout):
        owner.post("/v1/instances", json=asked, timeout=1.0)
    until = time.monotonic() + ANSWER_S
    while good(owner.get("/v1/instances"))["instances"]:
        assert time.monotonic() < until
        time.sleep(LOOK_S)


def test_an_end_of_the_daemon(project: str) -> None:
    """A stop ends all but those that shall survive it; a kill ends none."""
    with fresh_daemon() as daemon:
        with daemon.local() as client:
            good(client.put("/v1/servers/small", json=small()))
            lasting, other = start(client, project, survive=True), start(client, project)
        daemon.kill()
        daemon.start()
        with daemon.local() as client:
            for one in (lasting, other):
                now = good(client.get(at(one)))
                assert (now["state"], now["url"]) == ("ready", one["url"]) and hello(one) == 200
        daemon.stop()
        assert hello(lasting) == 200
        with pytest.raises(httpx.TransportError):
            hello(other)
        daemon.start()
        with daemon.local() as client:
            assert good(client.get(at(lasting)))["state"] == "ready"
            assert good(client.get(at(other)))["state"] == "ended"
            good(client.delete(at(lasting)))
            state = daemon.data / "instances" / lasting["instance_id"]
            assert not os.path.exists(state)
