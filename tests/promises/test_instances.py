"""docs/instances.md and docs/editors.md: the older API, and Serena on projects that have settings
for it, by plain HTTP."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.accounts import PYTEST, SOURCE, Account, run_as
from tests.daemon.requesting import daemon_with
from tests.daemon.rig import ANSWER_S, Daemon, bad, good
from tests.instances.installed import require, search_path
from tests.instances.projects import MODULE, make_project
from tests.instances.small import put_small, small

TIMEOUT_S = 100.0
AS_ANOTHER = (
    "test_the_older_api_has_a_port_without_tokens",
    "test_what_runs_in_a_space_is_no_client[bubblewrap]",
    "test_what_runs_in_a_space_is_no_client[landlock]",
    "test_what_runs_in_a_space_is_no_client[process]",
    "test_who_is_no_client_keeps_nobody_out",
)
ASK = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
body = '{"session_id": "in_of_nobody"}'
connection.request("POST", "/release-session", body, {"content-type": "application/json"})
print(connection.getresponse().status)
"""

FLOOD = """
import socket, sys
head = b"POST /release-session HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nContent-Length: 2\\r\\n\\r\\n{}"
held = []
for number in range(10**9):
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    connection.sendall(head * 8)
    held = [*held[-600:], connection]
    if number == 2000:
        print("many", flush=True)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def daemon(port: int) -> Iterator[Daemon]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", search_path())
        with daemon_with({"instances.legacy_port": port}) as found:
            _add_servers(found)
            yield found


def _add_servers(daemon: Daemon) -> None:
    with daemon.local() as client:
        good(client.put("/v1/servers/small", json=small()))
        good(client.put("/v1/servers/broken", json=small("fails")))


@pytest.fixture
def older(daemon: Daemon, port: int) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=ANSWER_S) as client:
        yield client


def failed(response: httpx.Response, status: int) -> str:
    """What an older client shows."""
    assert response.status_code == status, response.text
    return str(response.json()["error"])


def test_the_older_api_has_a_port_without_tokens(
    daemon: Daemon, older: httpx.Client, tmp_path: Path
) -> None:
    asked = {"project_path": str(put_small(tmp_path)), "server": "small"}
    session = good(older.post("/request-session", json=asked))
    assert session.keys() >= {"session_id", "host", "port", "url", "token"}
    assert session["url"].startswith(f"http://{session['host']}:{session['port']}/")
    named = {"session_id": session["session_id"]}
    with daemon.local() as client:
        assert good(client.get(f"/v1/instances/{named['session_id']}"))["state"] == "ready"
    released = good(older.post("/release-session", json=named))
    assert released == {"status": "terminated", **named}
    again = good(older.post("/release-session", json=named))
    assert again == {"status": "already_gone", **named}
    told = [line for line in daemon.log().splitlines() if named["session_id"] in line]
    project = asked["project_path"]
    steps = [line.partition(f" in {project}: ")[2].rstrip(")") for line in told]
    assert [steps[0], steps[1], steps[-1]] == ["starting", "ready", "ended"], told
    nowhere = {"project_path": str(tmp_path / "none"), "server": "small"}
    for body in ({}, nowhere, {"project_path": 3}, {"project_path": ""}):
        said = failed(older.post("/request-session", json=body), 400)
        assert said == "Invalid or missing 'project_path'"
    broken = {**asked, "server": "broken"}
    assert "I cannot go on like this" in failed(older.post("/request-session", json=broken), 500)


@pytest.mark.parametrize(
    "body",
    [
        *({}, {"session_id": None}, {"session_id": ""}, {"session_id": []}, {"session_id": {}}),
        *({"session_id": True}, {"session_id": 1.5}, {"session_id": "in_of_nobody"}, [], None),
        *({"session_id": 7}, {"session_id": -1}, {"session_id": 10**30}, {"session_id": "7"}),
        *({"session_id": "../x"}, {"session_id": "a\0b"}, {"session_id": "\ud800"}),
        {"session_id": "x" * 100_000},
    ],
    ids=repr,
)
def test_what_is_no_session_is_not_found(older: httpx.Client, body: Any) -> None:
    headers = {"content-type": "application/json"}
    answered = older.post("/release-session", content=json.dumps(body), headers=headers)
    assert failed(answered, 404)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"session_id": 1' + b"0" * 5000 + b"}"])
def test_what_cannot_be_read_is_not_found(older: httpx.Client, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    assert failed(older.post("/release-session", content=content, headers=headers), 404)
    assert failed(older.post("/release-session", content=content), 404)


def test_that_port_has_nothing_else(daemon: Daemon, older: httpx.Client) -> None:
    """Not with a token either; and no page comes in, by whatever name."""
    token = {"Authorization": f"Bearer {daemon.token('admin')}"}
    for path in ("/v1/health", "/v1/spaces", "/v1/instances", "/v1/openapi.json", "/"):
        bad(older.get(path), 404, "route_not_found")
        bad(older.get(path, headers=token), 404, "route_not_found")
    named = {"session_id": "in_of_nobody"}
    for headers in ({"Origin": "http://localhost:3000"}, {"Origin": "null"}, {"Host": "evil.test"}):
        bad(older.post("/release-session", json=named, headers=headers), 403, "forbidden")
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    upgrade["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    assert older.get("/v1/hub", headers={**upgrade, **token}).status_code in (403, 404)
    with daemon.tcp() as elsewhere:
        bad(elsewhere.post("/release-session", json=named), 401, "authentication_failed")


@pytest.mark.parametrize("runtime", ["bubblewrap", "landlock", "process"])
def test_what_runs_in_a_space_is_no_client(
    daemon: Daemon, port: int, tmp_path: Path, runtime: str
) -> None:
    """With the machine's network, and where the daemon is an ordinary user's, as the same user;
    also a process that has left all others behind."""
    (tmp_path / "ask.py").write_text(ASK)
    wanted = {
        "project": {"kind": "folder", "location": str(tmp_path)},
        "network": "open",
        "runtime": runtime,
    }
    asking = ["python3", "ask.py", str(port)]
    apart = f"(setsid python3 ask.py {port} > said &) ; until [ -s said ]; do sleep 0.05; done"
    with daemon.local() as client:
        space = good(client.post("/v1/spaces", json=wanted))["id"]
        for argv in (asking, ["sh", "-c", f"{apart}; cat said"]):
            path = f"/v1/spaces/{space}/exec"
            ran = good(client.post(path, json={"argv": argv, "timeout_s": ANSWER_S}))
            assert ran["stdout"].strip() == "403", ran
        good(client.delete(f"/v1/spaces/{space}", params={"force": "true"}))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_nobody_else_is_a_client(daemon: Daemon, port: int, ordinary_user: Account) -> None:
    asked = run_as(ordinary_user, ["/usr/bin/python3", "-I", "-c", ASK, str(port)])
    assert asked.stdout.strip() == "403", asked
    alone = ["/usr/bin/setpriv", "--no-new-privs", "/usr/bin/python3", "-I", "-c", ASK, str(port)]
    assert run_as(Account(0, 0), alone).stdout.strip() == "403"
    assert run_as(Account(0, 0), alone[2:]).stdout.strip() == "404"


def test_who_is_no_client_keeps_nobody_out(daemon: Daemon, port: int) -> None:
    """However often it connects; here as what has given up rights, as in a space."""
    words = ["setpriv", "--no-new-privs", "python3", "-I", "-c", FLOOD, str(port)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as flood:
        try:
            assert flood.stdout is not None and flood.stdout.readline() == b"many\n"
            for _ in range(5):
                with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=ANSWER_S) as client:
                    assert failed(client.post("/release-session", json={"session_id": "x"}), 404)
            assert flood.poll() is None
        finally:
            flood.kill()


SETTINGS = """\
# the name by which the project can be referenced within Serena
project_name: "shop"

# list of language servers to use for the project
language_servers:
- {language}  # the main one

encoding: "utf-8"
ignored_paths: []
"""
"""As Serena writes them."""
WORK = {"name": "find_symbol", "arguments": {"name_path_pattern": "Wagon/total"}}
WRONG_S = 40.0
"""Far less than what a server that does not answer is given; it starts in three."""


def project_with(path: Path, language: str) -> Path:
    project = make_project(path, "Wagon")
    (project.path / ".serena").mkdir()
    (project.path / ".serena" / "project.yml").write_text(SETTINGS.format(language=language))
    return project.path


def call(instance: dict[str, Any], tool: str, **arguments: object) -> str:
    """As a client of the protocol that knows only the answer of the start."""
    headers = {"accept": "application/json, text/event-stream"}
    headers["authorization"] = f"Bearer {instance['token']}"
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": NAMED}
    with httpx.Client(headers=headers, timeout=ANSWER_S) as client:
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        begun = client.post(instance["url"], json=message).raise_for_status()
        client.headers["mcp-session-id"] = begun.headers["mcp-session-id"]
        told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        client.post(instance["url"], json=told).raise_for_status()
        message |= {"id": 2, "method": "tools/call"}
        message["params"] = {"name": tool, "arguments": arguments}
        return client.post(instance["url"], json=message).raise_for_status().text


NAMED = {"name": "promise", "version": "1"}


@pytest.mark.parametrize("space", [False, True])
def test_serena_works_with_the_settings_that_it_wrote(
    daemon: Daemon, tmp_path: Path, space: bool
) -> None:
    """In both kinds of sandboxes; what was changed is told, and the project is as it was."""
    require("serena")
    tmp_path.chmod(0o755)
    project = project_with(tmp_path / "shop", "python")
    before = (project / ".serena" / "project.yml").read_bytes()
    with daemon.local() as client:
        where: dict[str, Any] = {"project_path": str(project)}
        if space:
            wanted = {"project": {"kind": "folder", "location": str(project)}}
            where = {"space_id": good(client.post("/v1/spaces", json=wanted))["id"]}
        asked = {"server": "serena", **where, **({"tool_ready": WORK} if space else {})}
        started = good(client.post("/v1/instances", json=asked))
        (note,) = (one for one in started["notes"] if "python_jedi" in one)
        assert "`python`" in note
        assert MODULE in call(started, "find_symbol", name_path_pattern="Wagon/total")
        good(client.delete(f"/v1/instances/{started['instance_id']}"))
    assert (project / ".serena" / "project.yml").read_bytes() == before


MISSING = {
    "klingon": ({}, "Unknown language server key: 'klingon'"),
    "python_ty": ({"tool_ready": WORK}, "python_ty: Could not find 'uvx'"),
}


@pytest.mark.parametrize("language", MISSING)
def test_serena_says_what_is_missing(daemon: Daemon, tmp_path: Path, language: str) -> None:
    """At once, also where a tool is to answer."""
    require("serena")
    project, (more, why) = project_with(tmp_path / "shop", language), MISSING[language]
    problem = refused(daemon, {"project_path": str(project), **more})
    assert why in problem["detail"]
    assert "language_servers" in problem["hint"] and problem["output"]


def refused(daemon: Daemon, asked: dict[str, Any]) -> dict[str, Any]:
    """Long before its time to answer is over."""
    begun = time.monotonic()
    with daemon.local() as client:
        answered = client.post("/v1/instances", json={"server": "serena", **asked})
    problem: dict[str, Any] = answered.json()
    assert (answered.status_code, problem["code"]) == (502, "instance_failed"), problem
    assert time.monotonic() - begun < WRONG_S
    return problem


def test_a_tool_that_cannot_be_called_is_no_reason_to_wait(daemon: Daemon, tmp_path: Path) -> None:
    require("serena")
    project = project_with(tmp_path / "shop", "python_jedi")
    wrong = {"name": "find_symbol", "arguments": {"name": "x"}}
    problem = refused(daemon, {"project_path": str(project), "tool_ready": wrong})
    assert "the call cannot work" in problem["detail"]


@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_the_same_for_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    os.chown(data, ordinary_user.uid, ordinary_user.gid)
    words = [f"tests/promises/test_instances.py::{name}" for name in AS_ANOTHER]
    ran = run_as(
        ordinary_user,
        [*PYTEST, f"--basetemp={data / 'pytest'}", *words],
        cwd=SOURCE,
        env={"TMPDIR": str(data), "PATH": os.environ["PATH"]},
        timeout=TIMEOUT_S,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert f"{len(words)} passed" in ran.stdout, ran.stdout[-3000:]
