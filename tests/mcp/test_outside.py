"""`carrel mcp` outside a space: by standard input and output, and over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters

from carrel import AsyncClient
from carrel.client.aio_spaces import AsyncSpace
from carrel.domain.hub import HUB_SOCKET
from tests.cli.program import PROGRAM
from tests.daemon.rig import Daemon
from tests.mcp.rig import STEP_S, answer, call, heard, person

MANAGING = {
    "space_state",
    "update_space",
    "list_spaces",
    "spawn_space",
    "wait_for_space",
    "message_space",
    "list_changes",
    "read_file",
    "delete_space",
}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
HEADERS = {"Accept": "application/json, text/event-stream"}


def environment(daemon: Daemon, **more: str) -> dict[str, str]:
    usual = {name: value for name, value in os.environ.items() if not name.startswith("CARREL_")}
    return {**usual, "CARREL_DATA": str(daemon.data), **more}


@contextlib.contextmanager
def serving(daemon: Daemon, *words: str, **env: str) -> Iterator[str]:
    """`carrel mcp --http` for everybody, unless words or a variable say otherwise; its URL."""
    command = [str(PROGRAM), "mcp", "--no-token", "--http", *(words or ("127.0.0.1:0",))]
    # As it is begun with few descriptors.
    command = ["sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh", *command]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment(daemon, **env)
    ) as server:
        try:
            assert server.stderr is not None
            line = server.stderr.readline()
            assert line.startswith("carrel mcp: http://") and line.endswith("/mcp\n"), line
            yield line.removeprefix("carrel mcp: ").strip()
        finally:
            server.terminate()
            server.wait(STEP_S)


# They share a server.
over_http = pytest.mark.xdist_group("mcp over http")


@pytest.fixture(scope="module")
def url(daemon: Daemon) -> Iterator[str]:
    """Of one for everybody, also by another name."""
    with serving(daemon, "127.0.0.1:0", "--allow-host", "desk.example") as url:
        yield url


def hello(url: str, **headers: str) -> httpx.Response:
    return httpx.post(url, json=HELLO, headers={**HEADERS, **headers}, timeout=STEP_S)


def test_silent_strangers_keep_nobody_out(daemon: Daemon) -> None:
    """Neither by the places of connections, nor by those of descriptors."""
    with serving(daemon, CARREL_MCP_TOKEN="secret") as url, contextlib.ExitStack() as strangers:
        where = httpx.URL(url)
        for _ in range(STRANGERS):
            one = socket.create_connection((where.host, where.port or 0), STEP_S)
            strangers.enter_context(one).sendall(b"POST /mcp HTTP/1.1\r\nHost:")
        assert hello(url, Authorization="Bearer secret").status_code == 200
        assert hello(url).status_code == 401


STRANGERS = 400
"""More than there are places for who has shown no token."""


async def test_managing_spaces(
    daemon: Daemon, client: AsyncClient, plain: AsyncSpace, tmp_path: Path
) -> None:
    server = StdioServerParameters(
        command=str(PROGRAM), args=["mcp"], env={"CARREL_DATA": str(daemon.data)}
    )
    (tmp_path / "file").write_text("content")
    async with Client(server) as tools:
        assert {one.name for one in (await tools.list_tools()).tools} == MANAGING
        made = (await call(tools, "spawn_space", project=str(tmp_path))).good
        space = await client.get(made["id"])
        assert (await space.run(["cat", "file"], check=True)).stdout == "content"
        changed = await call(tools, "update_space", space=made["id"], description="mine")
        assert changed.good["description"] == "mine"
        state = (await call(tools, "space_state", space=made["id"])).good
        assert (state["description"], state["children"]) == ("mine", [])
        listed = {one["id"] for one in (await call(tools, "list_spaces")).good["spaces"]}
        assert {made["id"], plain.id} <= listed
        assert (await call(tools, "message_space", space=plain.id, text="hello")).good["seq"]
        waited = await call(tools, "wait_for_space", space=plain.id, states=["ready"])
        assert waited.good["reached"] is True
        assert (await call(tools, "space_state")).code == "message_invalid"
        assert (await call(tools, "log_progress", message="x")).code == "message_invalid"

        await space.run(["sh", "-c", "echo work > more"], check=True)
        async with person(daemon, space.id) as user:
            deleting = asyncio.create_task(call(tools, "delete_space", space=space.id))
            await answer(user, "yes")
            assert (await deleting).good == {"removed": space.id}


async def test_a_token_sees_what_it_may(daemon: Daemon, client: AsyncClient) -> None:
    async with client.space(labels={"team": "blue"}) as blue, client.space() as other:
        env = {"CARREL_URL": f"http://{daemon.address}"}
        env["CARREL_TOKEN"] = daemon.token("label:team=blue")
        server = StdioServerParameters(command=str(PROGRAM), args=["mcp"], env=env)
        async with Client(server) as tools:
            listed = (await call(tools, "list_spaces")).good["spaces"]
            assert [one["id"] for one in listed] == [blue.id]
            assert (await call(tools, "space_state", space=other.id)).code == "space_not_found"


async def test_a_token_of_one_space_speaks_for_it(daemon: Daemon, plain: AsyncSpace) -> None:
    env = {"CARREL_URL": f"http://{daemon.address}"}
    env["CARREL_TOKEN"] = daemon.token(f"space:{plain.id}")
    server = StdioServerParameters(command=str(PROGRAM), args=["mcp"], env=env)
    async with Client(server) as tools:
        assert (await call(tools, "space_state")).good["id"] == plain.id
        assert (await call(tools, "log_progress", message="from afar")).good["seq"]


def test_nothing_but_answers_on_standard_output(daemon: Daemon) -> None:
    """Also to what is no message; and its end is the end of its input."""
    calls: list[dict[str, Any]] = [
        HELLO,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "list_spaces"}},
        {"jsonrpc": "2.0", "id": 4, "method": "no/such"},
    ]
    with subprocess.Popen(
        [str(PROGRAM), "mcp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(daemon),
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        for text in ["no JSON", *map(json.dumps, calls)]:
            print(text, file=server.stdin, flush=True)
        found = {}
        while 4 not in found or 3 not in found:
            said = json.loads(server.stdout.readline())
            assert said["jsonrpc"] == "2.0"
            found[said.get("id")] = said
        out, err = server.communicate(timeout=STEP_S)
        for line in out.splitlines():
            assert json.loads(line)["jsonrpc"] == "2.0"
    assert server.returncode == 0 and "Traceback" not in err, err
    assert found[3]["result"]["structuredContent"]["spaces"] is not None
    assert {one["name"] for one in found[2]["result"]["tools"]} == MANAGING
    assert "error" in found[4]


async def test_the_end_of_its_input_ends_what_it_waits_for(
    daemon: Daemon, plain: AsyncSpace
) -> None:
    hub = daemon.data / "spaces" / plain.id / "hub" / HUB_SOCKET
    asking = {"name": "ask_user", "arguments": {"question": "Well?"}}
    begun = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    calling = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": asking}
    async with person(daemon, plain.id) as user:
        server = await asyncio.create_subprocess_exec(
            str(PROGRAM),
            "mcp",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(daemon, CARREL_HUB=str(hub)),
        )
        assert server.stdin is not None
        for message in (HELLO, begun, calling):
            server.stdin.write(json.dumps(message).encode() + b"\n")
        question = await heard(user, "buffer_user_question")
        server.stdin.close()
        async with asyncio.timeout(STEP_S):
            _, err = await server.communicate()
        assert (server.returncode, err) == (0, b"")
        assert (question.sender.kind, question.sender.space) == ("agent", plain.id)


def test_a_space_that_is_gone(daemon: Daemon, tmp_path: Path) -> None:
    """It does not turn to the daemon outside instead."""
    ended = subprocess.run(
        [str(PROGRAM), "mcp"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(daemon, CARREL_HUB=str(tmp_path / "hub.sock")),
        timeout=STEP_S,
        check=False,
    )
    assert ended.returncode == 6 and ended.stdout == "", ended
    assert ended.stderr.startswith("carrel: ") and "Traceback" not in ended.stderr


@over_http
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_over_http(url: str, mode: str) -> None:
    assert not url.endswith(":0/mcp")
    async with Client(url, mode=mode) as tools:
        assert (await call(tools, "list_spaces")).good["spaces"] is not None


@over_http
def test_who_calls_it_by_another_name_is_refused(url: str) -> None:
    port = httpx.URL(url).port
    assert hello(url).status_code == 200
    assert hello(url, Host=f"localhost:{port}").status_code == 200
    assert hello(url, Host=f"desk.example:{port}").status_code == 200
    assert hello(url, Host=f"evil.example:{port}").status_code in (403, 421)
    assert hello(url, Host=f"127.0.0.1:{port}.evil.example").status_code in (403, 421)
    assert hello(url, Origin=f"http://127.0.0.1:{port}").status_code == 200
    for origin in ("http://evil.example", f"http://localhost:{port}.evil.example", "null"):
        assert hello(url, Origin=origin).status_code == 403


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_others_need_a_token(daemon: Daemon, address: str) -> None:
    refused = subprocess.run(
        [str(PROGRAM), "mcp", "--http", address],
        capture_output=True,
        text=True,
        env=environment(daemon),
        timeout=STEP_S,
        check=False,
    )
    assert refused.returncode == 5 and "CARREL_MCP_TOKEN" in refused.stderr, refused
    assert refused.stdout == ""


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "127.0.0.1:70000", ":80"])
def test_what_is_no_address(daemon: Daemon, address: str) -> None:
    refused = subprocess.run(
        [str(PROGRAM), "mcp", "--http", address],
        capture_output=True,
        text=True,
        env=environment(daemon),
        timeout=STEP_S,
        check=False,
    )
    assert refused.returncode == 2 and "127.0.0.1:0" in refused.stderr, refused


@pytest.mark.parametrize("inside", [False, True])
def test_it_makes_a_token_when_it_is_given_none(
    daemon: Daemon, plain: AsyncSpace, inside: bool
) -> None:
    """Whoever reaches the address has no tools: not those that make spaces, and none else."""
    env = environment(daemon)
    if inside:
        env["CARREL_HUB"] = str(daemon.data / "spaces" / plain.id / "hub" / HUB_SOCKET)
    command = [str(PROGRAM), "mcp", "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as server:
        try:
            assert server.stderr is not None
            url, header = (server.stderr.readline()[len("carrel mcp: ") : -1] for _ in range(2))
            name, value = header.split(": ")
            assert value.startswith("Bearer ") and len(value) > 40
            for method in ("initialize", "tools/list", "tools/call"):
                for given in ({}, {name: "Bearer no"}, {name: value[:-1]}, {name: value[7:]}):
                    body = {**HELLO, "method": method}
                    refused = httpx.post(url, json=body, headers={**HEADERS, **given})
                    assert refused.status_code == 401
            assert hello(url, **{name: value}).status_code == 200
        finally:
            server.terminate()
            server.wait(STEP_S)


async def test_with_a_token(daemon: Daemon) -> None:
    with serving(daemon, "0.0.0.0:0", CARREL_MCP_TOKEN="open sesame") as shown:
        url = shown.replace("0.0.0.0", "127.0.0.1")
        for headers in ({}, {"Authorization": "Bearer no"}, {"Authorization": "open sesame"}):
            refused = hello(url, **headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
        assert hello(url, Authorization="bearer open sesame").status_code == 200
        assert hello(url, Authorization="Bearer open sesame", Host="evil").status_code == 421
    with serving(daemon, "127.0.0.1:0", "--token", "t") as url:
        assert hello(url).status_code == 401
        assert hello(url, Authorization="Bearer t").status_code == 200
