"""`carrel codesmith` as its clients see it: by the SDK's own client, and line by line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel import AsyncClient
from carrel.linux import mounts
from carrel.mcp.codesmith.tool import TEXT_BYTES
from tests.cli.program import PROGRAM
from tests.daemon.rig import Daemon
from tests.daemon.rig import good as answered
from tests.mcp.dialogue import Message, encoded, initialize, request
from tests.mcp.rig import STEP_S
from tests.mcp.smith import (
    Smith,
    bad,
    begun,
    client,
    environment,
    gone,
    good,
    memory_of,
    paths,
    running,
    smith,
    work_of,
)

MEMORY = 60 << 20
IDLE_S = 2.0
"""So long nothing may be done. A timer of a second or less would show."""
AT_ONCE_S = 1.0
"""For agents to be gone."""
WELL_BEFORE_S = 8.0
"""A request whose client was never there is given up later than that."""


@pytest.fixture
async def tool(daemon: Daemon) -> AsyncIterator[Smith]:
    async with smith(daemon.data) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """To work in. As root its owner is a user of the space."""
    tmp_path.chmod(0o755)
    found = tmp_path / "work"
    found.mkdir()
    (found / "old.txt").write_text("old\n")
    return found


@pytest.fixture(autouse=True)
def _nothing_stays(daemon: Daemon) -> Iterator[None]:
    """Whatever a test does, no workspace is left."""
    with daemon.local() as http:
        before = _spaces(http)
        yield
        until = time.monotonic() + STEP_S
        while (left := _spaces(http) - before) and time.monotonic() < until:
            time.sleep(0.01)
        assert not left


def _spaces(http: Any) -> set[str]:
    found = answered(http.get("/v1/spaces", params={"limit": 1000}))["spaces"]
    return {one["id"] for one in found}


def result_of(called: Any) -> dict[str, Any]:
    return dict(called.model_dump(by_alias=True, mode="json"))


# What it makes


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_something_made(daemon: Daemon, mode: str) -> None:
    reports: list[tuple[float, str]] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        assert total == 1.0
        reports.append((progress, message or ""))

    async with client(daemon.data, mode=mode) as tools:
        (offered,) = (await tools.list_tools()).tools
        assert offered.name == "generate" and offered.input_schema["required"] == ["instructions"]
        said = "write app/main.py print('hi')\nrun printf '\\0\\1' > raw\nsay It is done."
        called = await tools.call_tool(
            "generate", {"instructions": said, "check": "cat app/main.py"}, progress_callback=heard
        )
    content = good(result_of(called))
    assert content["complete"] and content["summary"] == "It is done."
    assert content["workspace_path"] is None and content["needs_research"] == []
    made, raw = content["files"]
    assert (made["path"], made["lines"], made["language"]) == ("app/main.py", 1, "python")
    assert (made["change"], made["text"]) == ("added", "print('hi')\n")
    assert (raw["path"], raw["lines"], raw["bytes"]) == ("raw", None, 2) and "text" not in raw
    assert content["check"]["passed"] and content["check"]["output"] == "print('hi')\n"
    figures = [progress for progress, _ in reports]
    assert figures == sorted(set(figures)) and figures[0] >= 0 and figures[-1] < 1
    assert any("workspace" in message for _, message in reports), reports
    # What has no text here can be had for a while.
    (note,) = content["notes"]
    assert f"carrel request fetch {content['request_id']}" in note
    async with AsyncClient(data=daemon.data, autostart=False) as carrel:
        assert await carrel.requests.fetch(content["request_id"], "raw") == b"\0\1"
        await carrel.requests.done(content["request_id"])


async def test_in_a_folder(tool: Smith, folder: Path) -> None:
    """It is the agent's own, and nothing else is."""
    beside = folder.parent / "beside.txt"
    said = f"write new.py x = 1\nappend old.txt more\nrun echo out > {beside} || true"
    tool.call(1, "mine", instructions=said, workspace_path=str(folder))
    content = good(await tool.result(1))
    assert {file["path"]: file["change"] for file in content["files"]} == {
        "new.py": "added",
        "old.txt": "modified",
    }
    assert content["workspace_path"] == str(folder) and content["notes"] == []
    assert (folder / "new.py").read_text() == "x = 1\n" and not beside.exists()
    assert (folder / "old.txt").read_text() == "old\nmore\n"
    assert sorted(os.listdir(folder)) == ["new.py", "old.txt"]
    assert all(one["params"]["progressToken"] == "mine" for one in tool.heard if "method" in one)
    _, told = await tool.end()
    assert all(line.startswith("[codesmith] ") for line in told.splitlines())
    assert f"workspace {folder}" in told
    assert "added new.py, 1 line" in told and "modified old.txt, 2 lines" in told


async def test_two_at_once(tool: Smith) -> None:
    """Neither waits for the other, and each has what it asked for."""
    mark = f"{time.time():.6f}"
    tool.call("slow", instructions=f"write slow.txt 1\nrun sleep 3600 # {mark}")
    await begun(mark)
    tool.call("quick", instructions="write quick.txt 2")
    assert paths(good(await tool.result("quick"))) == ["quick.txt"]
    for pid in running(mark):
        os.kill(pid, signal.SIGTERM)
    assert paths(good(await tool.result("slow"))) == ["slow.txt"]


async def test_what_is_missing(tool: Smith) -> None:
    """A question that nobody can answer, and what the agent says itself."""
    said = "write a.txt 1\nask Which colour?\nsay Done.\nNEEDS RESEARCH:\n- the port"
    tool.call(1, instructions=said)
    content = good(await tool.result(1))
    assert "Which colour?" in content["needs_research"] and content["complete"] is False
    tool.call(2, instructions="say nothing to do")
    content = good(await tool.result(2))
    assert content["complete"] is False and content["files"] == []
    tool.call(3, instructions="write a.txt 1", check="echo no >&2; exit 3")
    content = good(await tool.result(3))
    assert content["complete"] is False
    assert (content["check"]["code"], content["check"]["output"]) == (3, "no\n")


async def test_much_text(tool: Smith, daemon: Daemon) -> None:
    """It is listed, and the answer stays small."""
    tool.call(1, instructions=f"run seq {TEXT_BYTES} > long.txt\nwrite short.txt 1")
    content = good(await tool.result(1))
    long, short = content["files"]
    assert long["lines"] == TEXT_BYTES and "text" not in long and short["text"] == "1\n"
    assert len(content["notes"]) == 1
    async with AsyncClient(data=daemon.data, autostart=False) as carrel:
        whole = await carrel.requests.fetch(content["request_id"], "long.txt")
        assert whole.endswith(b"\n%d\n" % TEXT_BYTES)
        await carrel.requests.done(content["request_id"])


# What ends it


async def test_cancelling(daemon: Daemon) -> None:
    mark = f"{time.time():.6f}"
    async with client(daemon.data) as tools:
        arguments = {"instructions": f"write a.txt 1\nrun sleep 3600 # {mark}"}
        called = asyncio.create_task(tools.call_tool("generate", arguments))
        await begun(mark)
        called.cancel()
        assert await gone(mark, STEP_S) < AT_ONCE_S
        # It goes on.
        again = await tools.call_tool("generate", {"instructions": "write b.txt 1"})
        assert paths(good(result_of(again))) == ["b.txt"]


async def test_cancelled_before_it_began(tool: Smith) -> None:
    mark = f"{time.time():.6f}"
    tool.call(1, instructions=f"run sleep 3600 # {mark}")
    tool.cancel(1)
    tool.cancel("nothing")
    tool.call(2, instructions="write a.txt 1")
    assert paths(good(await tool.result(2))) == ["a.txt"]
    assert not running(mark)
    out, _ = await tool.end()
    assert out == b"" and not [one for one in tool.heard if one.get("id") == 1]


@pytest.mark.parametrize("how", ["end of input", "killed", "nobody listens"])
async def test_its_agents_end_with_it(daemon: Daemon, how: str) -> None:
    """Within a second; a busy machine has a second chance."""
    took = [await _ended_by(daemon, how)]
    if took[0] >= AT_ONCE_S:
        took.append(await _ended_by(daemon, how))
    assert min(took) < AT_ONCE_S, took


async def _ended_by(daemon: Daemon, how: str) -> float:
    mark = f"{time.time():.6f}"
    async with smith(daemon.data) as tool:
        tool.call(1, instructions=f"run sleep 3600 # {mark}")
        await begun(mark)
        since = time.monotonic()
        if how == "killed":
            tool.process.kill()
        elif how == "end of input":
            assert tool.process.stdin is not None
            tool.process.stdin.close()
        else:
            tool.process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
        await gone(mark, STEP_S)
        await tool.process.wait()
        return time.monotonic() - since


async def test_the_end_right_after_a_call(daemon: Daemon) -> None:
    """Whether its request was taken already or not."""
    mark = f"{time.time():.6f}"
    async with smith(daemon.data) as tool:
        tool.call(1, instructions=f"run sleep 3600 # {mark}")
        await tool.end()
    with daemon.local() as http:
        until = time.monotonic() + WELL_BEFORE_S
        while answered(http.get("/v1/requests", params={"live": True}))["requests"]:
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
    assert not running(mark)


# What it is told


async def test_nothing_but_messages(daemon: Daemon) -> None:
    """Whatever comes, and whatever the agent does."""
    said: list[Message | bytes] = [
        *(b"garbage", b"\xff\xfe\x00", b"{" * 5000, b"[]"),
        request(1, "tools/call", {"name": "no_such"}),
        request(2, "tools/call", {"name": "generate", "arguments": {"instructions": "crash"}}),
        request(3, "tools/call", {"name": "generate", "arguments": {"instructions": "fail no"}}),
        request(4, "tools/call", {"name": "generate", "arguments": {"instructions": ""}}),
        request(5, "no/such"),
    ]
    async with smith(daemon.data) as tool:
        tool.say(*said)
        found = {id: await tool.answer(id) for id in (1, 2, 3, 4, 5)}
        out, told = await tool.end()
    assert out == b"" and "Traceback" not in told
    assert all(line.startswith("[codesmith] ") for line in told.splitlines())
    assert bad(found[1]["result"])["code"] == "message_invalid"
    assert bad(found[2]["result"])["code"] == "agent_crashed"
    assert bad(found[3]["result"])["message"] == "no"
    assert bad(found[4]["result"])["code"] == "message_invalid"
    assert found[5]["error"]["code"] == -32601


def test_a_daemon_that_cannot_be(tmp_path: Path) -> None:
    """That is an answer too."""
    asked = request(1, "tools/call", {"name": "generate", "arguments": {"instructions": "x"}})
    ran = subprocess.run(
        [PROGRAM, "codesmith"],
        input=encoded([initialize(), asked, request(2, "ping")]),
        capture_output=True,
        env={**environment(tmp_path), "CARREL_URL": "nonsense"},
        timeout=STEP_S,
        check=True,
    )
    _, refused, pong = map(json.loads, ran.stdout.splitlines())
    assert bad(refused["result"])["code"] == "message_invalid" and pong["result"] == {}
    assert b"Traceback" not in ran.stderr


async def test_names_that_are_no_text(tool: Smith) -> None:
    said = "run printf x > \"$(printf 'a\\nb')\"; printf y > \"$(printf '\\377')\""
    tool.call(1, instructions=said)
    assert paths(good(await tool.result(1))) == ["a\nb", "\\xff"]
    _, told = await tool.end()
    assert "added a\\nb, 1 line" in told and "added \\xff, 1 line" in told


async def test_folders_that_are_none(tool: Smith, daemon: Daemon, folder: Path) -> None:
    """Each has a code and a sentence, and nothing is written."""
    (folder.parent / "root").symlink_to("/")
    read_only = folder.parent / "read-only"
    read_only.mkdir(mode=0o555)
    async with AsyncClient(data=daemon.data, autostart=False) as carrel, carrel.space() as space:
        inside = space.info.path
        wanted = {
            str(folder / "old.txt"): "project_not_a_folder",
            str(folder / "missing"): "project_not_found",
            str(folder.parent / "root"): "project_invalid",
            "/": "project_invalid",
            "/etc": "project_invalid",
            "/proc/self": "project_invalid",
            str(inside): "project_invalid",
            str(daemon.data): "project_invalid",
            str(daemon.data / "spaces"): "project_invalid",
            "work": "message_invalid",
            f"{folder}/\0": "project_invalid",
            str(read_only): "project_read_only",
        }
        for number, (path, code) in enumerate(wanted.items(), 1):
            tool.call(number, instructions="write a.txt 1", workspace_path=path)
            assert bad(await tool.result(number))["code"] == code, path
    tool.call(99, instructions="write a.txt 1", workspace_path=str(folder))
    assert paths(good(await tool.result(99))) == ["a.txt"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
async def test_a_folder_where_something_is_mounted(tool: Smith, folder: Path) -> None:
    """That as such is no reason to refuse it."""
    subprocess.run(["mount", "-t", "tmpfs", "x", folder], check=True, timeout=STEP_S)
    try:
        tool.call(1, instructions="write a.txt 1", workspace_path=str(folder))
        assert paths(good(await tool.result(1))) == ["a.txt"]
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True, timeout=STEP_S)
        tool.call(2, instructions="write b.txt 1", workspace_path=str(folder))
        assert bad(await tool.result(2))["code"] == "project_read_only"
    finally:
        mounts.detach_all(str(folder))
    assert os.listdir(folder) == ["old.txt"]


async def test_a_folder_that_is_in_use(tool: Smith, folder: Path) -> None:
    mark = f"{time.time():.6f}"
    tool.call(1, instructions=f"run sleep 3600 # {mark}", workspace_path=str(folder))
    await begun(mark)
    tool.call(2, instructions="write a.txt 1", workspace_path=str(folder))
    assert bad(await tool.result(2))["code"] == "project_in_use"
    tool.cancel(1)
    await gone(mark, AT_ONCE_S)


# What it costs


async def test_it_is_small_and_still(daemon: Daemon) -> None:
    async with smith(daemon.data) as tool:
        pid = tool.process.pid
        await _is_still(pid)
        before = memory_of(pid)
        tool.call(1, "p", instructions="write a.txt 1")
        good(await tool.result(1))
        during = memory_of(pid)
        await _is_still(pid)
        assert before < MEMORY and during < MEMORY and memory_of(pid) < MEMORY
        assert not any(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


async def _is_still(pid: int) -> None:
    """What it does last after an answer may take a moment."""
    until = time.monotonic() + STEP_S
    while True:
        before = work_of(pid)
        await asyncio.sleep(IDLE_S)
        if work_of(pid) == before:
            return
        assert time.monotonic() < until, "it does something"


async def test_it_starts_the_daemon(own_daemon: Daemon) -> None:
    await asyncio.to_thread(own_daemon.stop)
    async with smith(own_daemon.data) as tool:
        assert not running_daemon(own_daemon)
        tool.call(1, instructions="write a.txt 1", frontend="scripted")
        assert paths(good(await tool.result(1))) == ["a.txt"]


def running_daemon(daemon: Daemon) -> bool:
    from carrel.daemon import control

    return bool(control.status(daemon.data).pid)
