"""Servers on streams, offered over HTTP: asked by the official SDK's client."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.types import CreateMessageRequestParams, CreateMessageResult, ElicitResult, TextContent

from carrel.domain.instances import ToolCall
from carrel.domain.server_adapter import NotReady
from carrel.instances import inside
from carrel.instances.handshake import greet
from carrel.instances.inside import bridge
from tests.instances.inside.serving import TOKEN, WAIT_S, Served, connected, served
from tests.instances.installed import MODULES, require
from tests.instances.rig import PYTHON, SCRIPT
from tests.sampling import whole_only

# They share a bridge.
pytestmark = pytest.mark.xdist_group("bridges")
BRIDGE = [sys.executable, "-I", str(inside.BRIDGE)]
SERVER = """\
import asyncio, os, subprocess, sys
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import SamplingMessage, TextContent
from pydantic import BaseModel

server = MCPServer("probe")

class Colour(BaseModel):
    name: str

@server.tool()
async def count(upto: int, ctx: Context) -> str:
    for number in range(upto):
        await ctx.report_progress(number, upto, f"step {number}")
    return "counted"

@server.tool()
async def think(ctx: Context) -> str:
    words = [SamplingMessage(role="user", content=TextContent(type="text", text="why?"))]
    said = await ctx.session.create_message(words, max_tokens=10)
    return said.content.text

@server.tool()
async def choose(ctx: Context) -> str:
    said = await ctx.elicit("Which?", Colour)
    return said.data.name

@server.tool()
async def hang() -> str:
    print("hanging", file=sys.stderr, flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("cancelled", file=sys.stderr, flush=True)

@server.tool()
def about() -> list[str]:
    return [str(os.getpid()), str("CARREL_TOKEN" in os.environ), os.environ.get("PLANTED", "")]

@server.tool()
def leak() -> int:
    return subprocess.Popen(["sleep", "1000"], start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid

@server.tool()
def crash() -> str:
    print("last words", file=sys.stderr, flush=True)
    os._exit(3)

server.run("stdio")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("bridge")
    (folder / "server.py").write_text(SERVER)
    command = [sys.executable, str(folder / "server.py")]
    with served(folder, BRIDGE, command, {"PLANTED": "here"}) as found:
        yield found


def answers() -> dict[str, Any]:
    async def sample(_: Any, params: CreateMessageRequestParams) -> CreateMessageResult:
        said = TextContent(type="text", text="because")
        return CreateMessageResult(role="assistant", content=said, model="none")

    async def elicit(*_: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": "green"})

    return {"sampling_callback": sample, "elicitation_callback": elicit}


def text_of(result: Any) -> str:
    assert not result.is_error, result
    return "".join(part.text for part in result.content)


async def gone(pid: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while alive(pid):
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


async def said(server: Served, words: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while words not in server.log.read_text():
            await asyncio.sleep(0.01)


async def exchange(client: Client) -> None:
    """Messages of both directions pass."""
    steps: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        steps.append(message)

    counted = await client.call_tool("count", {"upto": 5}, progress_callback=note)
    assert text_of(counted) == "counted"
    assert steps == [f"step {number}" for number in range(5)]
    assert text_of(await client.call_tool("think", {})) == "because"
    assert text_of(await client.call_tool("choose", {})) == "green"


async def test_a_process_for_each_session_which_ends_with_it(server: Served) -> None:
    """Two clients speak in both ways: to load a server of the SDK takes a second."""
    async with (
        connected(server.url, mode="auto", **answers()) as one,
        connected(server.inside_url, "", mode="legacy", **answers()) as two,
    ):
        about = [await client.call_tool("about", {}) for client in (one, two)]
        pids = [int(answer.content[0].text) for answer in about]  # type: ignore[union-attr]
        assert pids[0] != pids[1]
        rest = [part.text for part in about[0].content[1:]]  # type: ignore[union-attr]
        assert rest == ["False", "here"]
        await asyncio.gather(exchange(one), exchange(two))
        await cancel(one, server)
        leaked = int(text_of(await one.call_tool("leak", {})))
        assert alive(leaked)
    for pid in (*pids, leaked):
        await gone(pid)


async def cancel(client: Client, server: Served) -> None:
    """What is cancelled is cancelled there."""
    call = asyncio.create_task(client.call_tool("hang", {}))
    await said(server, "hanging")
    call.cancel()
    await said(server, "cancelled")
    assert text_of(await client.call_tool("count", {"upto": 0})) == "counted"


async def test_a_server_that_dies_is_told(server: Served) -> None:
    async with connected(server.url) as client:
        with pytest.raises(MCPError, match="The server has ended"):
            await client.call_tool("crash", {})
        with pytest.raises(MCPError):
            await client.call_tool("count", {"upto": 0})
    assert "last words" in server.log.read_text()
    async with connected(server.url) as client:
        assert text_of(await client.call_tool("count", {"upto": 0})) == "counted"


async def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with served(tmp_path, BRIDGE, ["/nowhere/server"]) as server:
        for _ in range(2):
            with pytest.raises(NotReady, match=r"cannot be started.*/nowhere/server"):
                async with asyncio.timeout(WAIT_S):
                    await greet(server.url, {"Authorization": f"Bearer {TOKEN}"})


async def test_who_has_no_token_or_another_name_is_refused(server: Served) -> None:
    async with httpx2.AsyncClient(timeout=WAIT_S) as http:
        assert (await http.post(server.url, json={})).status_code == 401
        own = {"Authorization": f"Bearer {TOKEN}"}
        evil = {**own, "Host": "evil.example", "Content-Type": "application/json"}
        assert (await http.post(server.url, json={}, headers=evil)).status_code == 421
        assert (await http.get(f"{server.inside_url}x")).status_code == 404
        lost = {**own, "Mcp-Session-Id": "lost"}
        assert (await http.post(server.url, json={}, headers=lost)).status_code == 404


async def test_the_end_of_the_bridge_ends_all(tmp_path: Path) -> None:
    with served(tmp_path, BRIDGE, [PYTHON, "-I", "-S", SCRIPT, "stdio"]) as server:
        async with connected(server.url) as client:
            pid = json.loads(text_of(await client.call_tool("about", {})))["pid"]
            leaked = int(text_of(await client.call_tool("spawn", {})))
            server.process.terminate()
            await asyncio.to_thread(server.process.wait, WAIT_S)
            await gone(pid)
            await gone(leaked)
    assert "Traceback" not in server.log.read_text()


# In a sample it speaks through one in `test_real.py` and `test_warm.py`.
@whole_only
async def test_the_real_filesystem_server(tmp_path: Path) -> None:
    require("filesystem")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a.txt").write_text("hello")
    command = [str(MODULES / "mcp-server-filesystem"), str(tmp_path / "tree")]
    with served(tmp_path, BRIDGE, command, {"PATH": os.environ["PATH"]}) as server:
        async with asyncio.timeout(WAIT_S):
            own = {"Authorization": f"Bearer {TOKEN}"}
            listing = ToolCall("list_directory", {"path": str(tmp_path / "tree")})
            greeting = await greet(server.url, own, listing)
            assert greeting.name
        async with connected(server.url) as client:
            path = str(tmp_path / "tree" / "a.txt")
            assert text_of(await client.call_tool("read_text_file", {"path": path})) == "hello"
            large = "x" * 6_000_000
            await client.call_tool("write_file", {"path": path, "content": large})
            assert Path(path).read_text() == large


def test_a_process_between_two_programs_has_its_mark() -> None:
    again = 'exec sh -c "$0" "$0"'
    with subprocess.Popen(["sh", "-c", again, again], env={"MARK": "x"}) as restless:
        try:
            assert all(bridge.has(restless.pid, b"MARK=x") for _ in range(3000))
        finally:
            restless.kill()
        os.waitid(os.P_PID, restless.pid, os.WEXITED | os.WNOWAIT)
        assert not bridge.has(restless.pid, b"MARK=x"), "a zombie"
    assert not bridge.has(restless.pid, b"MARK=x")


def test_who_has_no_mark_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a sandbox are looked at when a server is killed."""
    monkeypatch.setattr(bridge, "EXECUTING_WAITS", 10_000_000)
    assert not bridge.has(os.getpid(), b"MARK=x")
    with subprocess.Popen(["sleep", "60"], env={}) as bare:
        assert not bridge.has(bare.pid, b"MARK=x")
        bare.kill()
