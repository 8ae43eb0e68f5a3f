"""docs/codesmith.md, by lines of JSON on standard input and output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.rig import ANSWER_S, LOOK_S, Daemon, good

ARGUMENTS = {
    *("instructions", "workspace_path", "architecture", "research_context", "frontend"),
    *("model", "check"),
}
ANSWER = {
    *("files", "total_files", "complete", "needs_research", "summary", "workspace_path"),
    *("check", "request_id", "notes"),
}
FILE = {"path", "change", "lines", "bytes", "language", "type", "executable", "text"}


class Server:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.number = 0
        self.heard: list[dict[str, Any]] = []

    def say(self, method: str, params: dict[str, Any], **more: Any) -> None:
        assert self.process.stdin is not None
        message = {"jsonrpc": "2.0", "method": method, "params": params, **more}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        self.say(method, params, id=self.number)
        assert self.process.stdout is not None
        while (found := json.loads(self.process.stdout.readline())).get("id") != self.number:
            self.heard.append(found)
        return dict(found["result"])

    def generate(self, **arguments: Any) -> dict[str, Any]:
        """Its object, which is the text too."""
        asked = {"name": "generate", "arguments": arguments, "_meta": {"progressToken": "t"}}
        found = self.ask("tools/call", **asked)
        (text,) = (one["text"] for one in found["content"])
        assert json.loads(text) == found["structuredContent"]
        assert bool(found.get("isError")) == ("code" in found["structuredContent"])
        return dict(found["structuredContent"])


@contextmanager
def serving(daemon: Daemon, *words: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "carrel.cli.main", "codesmith", "--agent", "scripted", *words]
    env = {**os.environ, "CARREL_DATA": str(daemon.data)}
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=nowhere) as process:
        server = Server(process)
        who = {"name": "promise", "version": "1"}
        server.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=who)
        yield server
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(ANSWER_S) == 0


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + ANSWER_S
    while not done():
        assert time.monotonic() < end
        time.sleep(LOOK_S)


def live(daemon: Daemon) -> list[str]:
    with daemon.local() as http:
        found = good(http.get("/v1/requests", params={"live": "true"}))["requests"]
    return [one["key"] for one in found]


def test_one_tool_that_makes_files(daemon: Daemon) -> None:
    with serving(daemon) as smith:
        (tool,) = smith.ask("tools/list")["tools"]
        assert tool["name"] == "generate" and {*tool["inputSchema"]["properties"]} == ARGUMENTS
        assert tool["inputSchema"]["required"] == ["instructions"]
        steps = "write a.py print(1)\nrun chmod +x a.py\nsay It is done."
        told = smith.generate(instructions=steps, check="python3 a.py")
        assert {*told} == ANSWER and told["complete"] and told["summary"] == "It is done."
        (made,) = told["files"]
        assert {*made} == FILE and made["executable"] and made["text"] == "print(1)\n"
        assert told["check"]["passed"] and told["check"]["output"] == "1\n"
        assert told["workspace_path"] is None and told["notes"] == []
        shown = [one["params"]["progress"] for one in smith.heard if "progress" in one["method"]]
        assert shown == sorted(shown) and shown[0] >= 0 and shown[-1] <= 1
        with daemon.local() as http:
            path = f"/v1/requests/{told['request_id']}"
            until(lambda: good(http.get(path))["workspace"] != "there")
        failed = smith.generate(instructions="write a.py print(1)", check="false")
        assert not failed["complete"] and not failed["check"]["passed"]


def test_what_is_known_and_how_to_build_it(daemon: Daemon) -> None:
    """The agent finds it; and what it asks for in vain is told."""
    with serving(daemon, "--env", "OWN=given") as smith:
        steps = "run cat /agent/context/*/* /agent/context/* > all.txt; echo $OWN >> all.txt"
        known = {"rules.md": "be brief\n", "more.md": "and clear\n"}
        asked = {"research_context": known, "architecture": {"layers": ["one"]}}
        told = smith.generate(instructions=steps, **asked)
        (made,) = (one for one in told["files"] if one["path"] == "all.txt")
        for text in ("be brief", "and clear", "given"):
            assert text in made["text"], made
        asking = smith.generate(instructions="ask Which?\nwrite a 1")
        assert "Which?" in str(asking["needs_research"]) and not asking["complete"]
        two = smith.generate(instructions="say nothing was made")
        assert two["total_files"] == 0 and not two["complete"]


def test_what_is_too_large_can_be_fetched(daemon: Daemon) -> None:
    with serving(daemon) as smith:
        told = smith.generate(instructions="run head -c 100000 /dev/zero > big")
        assert "text" not in told["files"][0] and told["request_id"] in told["notes"][0]
        with daemon.local() as http:
            path = f"/v1/requests/{told['request_id']}/files/big"
            assert len(http.get(path).content) == 100_000


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({}, "message_invalid"),
        ({"instructions": ""}, "message_invalid"),
        ({"instructions": "x", "nope": 1}, "message_invalid"),
        ({"instructions": "x", "workspace_path": "near"}, "message_invalid"),
        ({"instructions": "x", "workspace_path": "/nowhere"}, "project_not_found"),
        ({"instructions": "x", "workspace_path": "/"}, "project_invalid"),
        ({"instructions": "x", "workspace_path": "DATA"}, "project_invalid"),
        ({"instructions": "x", "workspace_path": "FILE"}, "project_not_a_folder"),
        ({"instructions": "fail no luck"}, "agent_crashed"),
        ({"instructions": "x", "frontend": "nobody"}, "unsupported_frontend"),
        ({"instructions": "x", "model": "none"}, "model_not_supported"),
    ],
)
def test_what_fails_is_told_and_the_server_goes_on(
    daemon: Daemon, tmp_path: Path, asked: dict[str, Any], code: str
) -> None:
    (tmp_path / "file").write_text("x")
    places = {"DATA": str(daemon.data), "FILE": str(tmp_path / "file")}
    found = {name: places.get(value, value) for name, value in asked.items()}
    with serving(daemon) as smith:
        told = smith.generate(**found)
        assert told["code"] == code and {*told} >= {"code", "message", "hint"}, told
        assert smith.generate(instructions="write a 1")["complete"]


def test_who_cancels_or_ends_leaves_no_agent(daemon: Daemon) -> None:
    with serving(daemon) as smith:
        before = live(daemon)
        for _ in range(2):
            smith.number += 1
            params = {"name": "generate", "arguments": {"instructions": "sleep 600"}}
            smith.say("tools/call", params, id=smith.number)
        until(lambda: len(live(daemon)) == len(before) + 2)
        smith.say("notifications/cancelled", {"requestId": smith.number})
        smith.ask("ping")
        until(lambda: len(live(daemon)) == len(before) + 1)
        smith.process.kill()
        smith.process.wait()
        until(lambda: len(live(daemon)) == len(before))
        # `serving` ends it with its input, and expects that it says so.
        smith.process.returncode = 0
