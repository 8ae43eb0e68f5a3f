"""Dedicated MCP servers from the command line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters

from tests.cli.program import PROGRAM, TIMEOUT_S, Program
from tests.cli.test_starting import modules_of
from tests.daemon.rig import LOOK_S
from tests.instances.installed import MODULES, require
from tests.instances.small import LAST_WORDS, command, put_small
from tests.interfaces.http.test_instances import HANDSHAKE

NAME = "small"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return put_small(folder)


@pytest.fixture(autouse=True)
def _added(carrel: Program) -> Iterator[None]:
    carrel.good("instance", "add", NAME, "--", *command("http"))
    carrel.good("instance", "add", "lines", "--transport", "stdio", "--", *command("streams"))
    yield
    for one in carrel.json("instance", "ls")["instances"]:
        carrel.good("instance", "stop", one["instance_id"])
    for name in (NAME, "lines"):
        carrel.good("instance", "remove", name)


def greet(url: str, headers: dict[str, str]) -> str:
    answer = httpx.post(url, json=HANDSHAKE, headers=headers, timeout=TIMEOUT_S)
    return str(answer.json()["result"]["serverInfo"]["name"])


def live(carrel: Program) -> list[str]:
    return [one["instance_id"] for one in carrel.json("instance", "ls")["instances"]]


def test_from_its_start_to_its_end(carrel: Program, project: Path) -> None:
    """A path is relative to where one stands."""
    words = ("--ttl", "1h", "--idle", "10m", "--memory", "512M", "-e", "A=b", "--restart")
    made = carrel.json("instance", "start", NAME, "project", *words)
    assert made["project_path"] == str(project) and made["ttl"] == 3600
    assert made["limits"]["memory_bytes"] == 512 << 20 and made["restart"] == "on-failure"
    name = made["instance_id"]
    listed = carrel.good("instance", "ls")
    assert name in listed and NAME in listed and str(project) in listed
    shown = carrel.good("instance", "show", name)
    assert made["url"] in shown and "after 60m, when idle for 10m" in shown
    assert "POST /mcp" in carrel.good("instance", "logs", name)
    assert carrel.good("instance", "stop", name) == f"{name} terminated\n"
    assert carrel.json("instance", "stop", name)["status"] == "already_gone"
    assert name not in carrel.good("instance", "ls") and live(carrel) == []
    assert name in carrel.good("instance", "ls", "--all")


def test_in_a_space(carrel: Program, project: Path) -> None:
    space = carrel.good("new", str(project)).strip()
    try:
        made = carrel.json("instance", "start", NAME, "--space", space)
        assert made["project_path"] == ""
        listed = carrel.json("instance", "ls", "--space", space)["instances"]
        assert [one["instance_id"] for one in listed] == [made["instance_id"]]
        carrel.good("instance", "stop", made["instance_id"])
    finally:
        carrel("rm", "--force", space)
    assert "project or" in carrel.bad(2, "instance", "start", NAME, ".", "--space", "x")


def test_unconfined_is_loud(carrel: Program, project: Path) -> None:
    done = carrel("instance", "start", NAME, str(project), "--unconfined", "--json")
    assert done.code == 0, done
    made = json.loads(done.out)
    assert made["confined"] is False and "Nothing confines" in done.err
    assert all(note in done.err for note in made["notes"])
    assert "process !" in carrel.good("instance", "ls")
    carrel.good("instance", "stop", made["instance_id"])


def test_failures(carrel: Program, project: Path) -> None:
    carrel.good("instance", "add", "failing", "--", *command("fails"))
    done = carrel("instance", "start", "failing", str(project))
    assert done.code == 1 and LAST_WORDS in done.err and "carrel: failing ended" in done.err
    carrel.good("instance", "remove", "failing")
    carrel.bad(3, "instance", "start", "nobody-knows", str(project))
    carrel.bad(3, "instance", "show", "in_aaaaaaaaaaaa")
    carrel.bad(3, "instance", "remove", "everything")
    carrel.bad(2, "instance", "start", NAME, "--tool-ready", "echo={")
    carrel.good("instance", "add", "absent", "--", "/nonexistent/server")
    carrel.bad(7, "instance", "start", "absent", str(project))
    carrel.good("instance", "remove", "absent")


def test_servers(carrel: Program) -> None:
    words = ("--port-line", r"at (\d+)", "--path", "/sse", "--transport", "sse", "--warm", "1")
    carrel.good("instance", "add", "mine", *words, "-e", "A=b", "--", *command("http"))
    known = {one["name"]: one for one in carrel.json("instance", "servers")["servers"]}
    mine = known["mine"]
    assert mine["port"] == {"by": "log", "line": r"at (\d+)"} and mine["transport"] == "sse"
    assert mine["path"] == "/sse" and mine["warm"] == 1 and mine["env"] == ["A"]
    assert "mine" in carrel.good("instance", "servers")
    carrel.good("instance", "remove", "mine")


# Kept as long as a command runs


@contextmanager
def running(carrel: Program, *words: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    with carrel.start(
        "instance", "run", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def config_of(process: subprocess.Popen[bytes]) -> str:
    """All of it: it is written before the first note."""
    assert process.stdout is not None and process.stderr is not None
    while b"until Ctrl-C" not in (line := process.stderr.readline()):
        assert line, "it ended"
    os.set_blocking(process.stdout.fileno(), False)
    text = process.stdout.read()
    return text.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_until_a_signal(carrel: Program, project: Path, number: signal.Signals) -> None:
    with running(carrel, NAME, str(project), stdin=subprocess.DEVNULL) as process:
        entry = json.loads(config_of(process))["mcpServers"][NAME]
        assert entry["type"] == "http"
        assert greet(entry["url"], entry.get("headers", {})) == "small"
        [name] = live(carrel)
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == 0
        assert process.stderr is not None
        assert f"{name}: terminated." in process.stderr.read().decode()
    assert live(carrel) == []


def test_run_until_its_input_ends(carrel: Program, project: Path) -> None:
    words = (NAME, str(project), "--format", "codex")
    with running(carrel, *words, stdin=subprocess.PIPE) as process:
        entry = tomllib.loads(config_of(process))["mcp_servers"][NAME]
        assert greet(entry["url"], entry.get("http_headers", {})) == "small"
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(TIMEOUT_S) == 0
    assert live(carrel) == []


def test_run_that_is_killed(carrel: Program, project: Path) -> None:
    with running(carrel, NAME, str(project), stdin=subprocess.DEVNULL) as process:
        config_of(process)
        assert len(live(carrel)) == 1
    _until(lambda: live(carrel) == [])


def test_who_runs_a_shared_one_keeps_it(carrel: Program, project: Path) -> None:
    """Who began it leaves first."""
    words = (NAME, str(project), "--share")
    with running(carrel, *words, stdin=subprocess.DEVNULL) as first:
        config_of(first)
        with running(carrel, *words, stdin=subprocess.DEVNULL) as second:
            entry = json.loads(config_of(second))["mcpServers"][NAME]
            [name] = live(carrel)
            first.send_signal(signal.SIGINT)
            assert first.wait(TIMEOUT_S) == 0 and first.stderr is not None
            assert f"{name}: released." in first.stderr.read().decode()
            shown = carrel.json("instance", "show", name)
            assert (shown["state"], shown["clients"]) == ("ready", 1)
            assert greet(entry["url"], entry.get("headers", {})) == "small"
            second.send_signal(signal.SIGINT)
            assert second.wait(TIMEOUT_S) == 0 and second.stderr is not None
            assert f"{name}: terminated." in second.stderr.read().decode()


def test_a_share_is_given_up_by_its_name(carrel: Program, project: Path) -> None:
    words = ("instance", "start", NAME, str(project), "--share")
    one = carrel.json(*words)
    name, hold = one["instance_id"], one["hold"]
    assert "hold" in carrel.good(*words)
    for _ in "12":
        assert carrel.good("instance", "stop", name, "--hold", hold) == f"{name} released\n"
    assert carrel.good("instance", "stop", name) == f"{name} terminated\n"


def _until(holds: Any) -> None:
    """Nobody tells when it is so; each look is a command."""
    until = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(LOOK_S)


# On standard input and output


async def test_connect_with_the_official_client(carrel: Program, project: Path) -> None:
    words = ["instance", "connect", "lines", str(project)]
    server = StdioServerParameters(command=str(PROGRAM), args=words, env=carrel.env)
    async with Client(server, mode="legacy") as client:
        result = await client.call_tool("echo", {"message": "hello"})
        assert "hello" in str(result.content)
        assert len(live(carrel)) == 1
    _until(lambda: live(carrel) == [])


async def test_connect_to_a_real_server(carrel: Program, project: Path) -> None:
    require("filesystem")
    program = str(MODULES / "mcp-server-filesystem")
    carrel.good("instance", "add", "real", "--transport", "stdio", "--", program, "{project}")
    words = ["instance", "connect", "real", str(project)]
    server = StdioServerParameters(command=str(PROGRAM), args=words, env=carrel.env)
    async with Client(server) as client:
        path = str(project / "written.txt")
        await client.call_tool("write_file", {"path": path, "content": "by a tool"})
    assert (project / "written.txt").read_text() == "by a tool"
    carrel.good("instance", "remove", "real")
    _until(lambda: live(carrel) == [])


def test_connect_until_a_signal(carrel: Program, project: Path) -> None:
    words = ("instance", "connect", "lines", str(project))
    with carrel.start(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(HELLO)
        process.stdin.flush()
        assert b"serverInfo" in process.stdout.readline()
        process.terminate()
        assert process.wait(TIMEOUT_S) == 128 + signal.SIGTERM
    assert live(carrel) == []


def test_connect_ends_with_its_input(carrel: Program, project: Path) -> None:
    """What was asked last is still answered."""
    question = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/list"}).encode() + b"\n"
    done = carrel("instance", "connect", "lines", str(project), stdin=HELLO + question)
    assert done.code == 0 and done.err == "", done
    assert [json.loads(line)["id"] for line in done.out.splitlines()] == [1, 7]
    assert live(carrel) == []


HELLO = json.dumps(HANDSHAKE).encode() + b"\n"


def test_connect_tells_why_its_server_ended(carrel: Program, project: Path) -> None:
    crash = json.dumps({"jsonrpc": "2.0", "method": "crash"}).encode() + b"\n"
    mine, theirs = socket.socketpair()
    with mine, theirs:
        mine.sendall(HELLO + crash)
        words = ("instance", "connect", "lines", str(project))
        with carrel.start(
            *words, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            _, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 1 and LAST_WORDS in err.decode()
    assert live(carrel) == []


def test_connect_without_streams(carrel: Program, project: Path) -> None:
    error = carrel.bad(2, "instance", "connect", NAME, str(project))
    assert "standard streams" in error


def test_connect_imports_almost_nothing(carrel: Program, project: Path) -> None:
    loaded = modules_of(["instance", "connect", "lines", str(project)], carrel.env)
    heavy = {"click", "asyncio", "http", "msgspec", "dataclasses", "websockets", "mcp", "socket"}
    assert loaded.isdisjoint(heavy)
