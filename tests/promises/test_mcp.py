"""docs/mcp.md: each tool as an agent in a space has it, and outside of one by lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import carrel
from carrel.client.spaces import Space
from tests.daemon.rig import ANSWER_S, Daemon, good
from tests.promises.test_helpers import does, tool

PAGE = Path(__file__).parents[2] / "docs" / "mcp.md"
PROGRESS = "buffer_taskspace_progress"
ABOUT_SPACES = {
    *("space_state", "update_space", "list_spaces", "spawn_space", "wait_for_space"),
    *("message_space", "list_changes", "read_file", "delete_space"),
}
WITHIN = {"log_progress", "ask_user", "read_messages", "present_walkthrough", "get_selection"}


@pytest.fixture
def space(client: carrel.Client, tmp_path: Path) -> Iterator[Space]:
    (tmp_path / "a.txt").write_text("a\n")
    with client.space(tmp_path, agent="scripted") as found:
        yield found


def waiting(daemon: Daemon, space: Space) -> list[dict[str, Any]]:
    """What waits for a person."""
    with daemon.local() as http:
        found = good(http.get("/v1/inbox"))
    return [one for one in found["items"] if one["space"] == space.id]


def test_an_agent_reports(daemon: Daemon, client: carrel.Client, space: Space) -> None:
    progress, signal, shown = does(
        *(client, space),
        tool("log_progress", message="half", category="milestone", percent=50),
        tool("signal_user", message="look", priority="high", suggested_actions=["open it"]),
        tool("present_walkthrough", content="# What I did"),
    )
    assert progress["seq"] < signal["seq"] < shown["seq"]
    with contextlib.closing(client.events(after=0, spaces=[space.id], types=[PROGRESS])) as heard:
        told = next(one for one in heard if one.type != "gap").data
    assert told["message"] == "half" and told["percent"] == 50
    (one,) = waiting(daemon, space)
    assert one["kind"] == "signal" and one["text"] == "look" and one["priority"] == "high"


def test_an_agent_asks(daemon: Daemon, client: carrel.Client, space: Space) -> None:
    asked, review = does(
        *(client, space),
        tool("ask_user", question="Which?", choices=["left", "right"], timeout_s=0),
        tool("request_review", summary="It is done."),
    )
    assert not asked["answered"] and asked["question_id"] and not review["answered"]
    assert {one["kind"] for one in waiting(daemon, space)} == {"question"}
    with daemon.local() as http:
        path = f"/v1/inbox/{asked['question_id']}/answer"
        assert http.post(path, json={"answer": "left"}).is_success
    (again,) = does(client, space, tool("ask_user", question_id=asked["question_id"]))
    assert again["answered"] and again["answer"] == "left"


def test_an_agent_knows_its_space(client: carrel.Client, space: Space) -> None:
    state, updated, listed, kept, messages, changes, read = does(
        *(client, space, "write b.txt b"),
        tool("space_state"),
        tool("update_space", description="what it is for"),
        tool("list_spaces"),
        tool("checkpoint", message="so far"),
        tool("read_messages"),
        tool("list_changes", space=space.id),
        tool("read_file", space=space.id, path="a.txt"),
    )
    assert state["id"] == space.id and state["state"] == "running" and state["children"] == []
    assert updated["description"] == "what it is for" == space.refresh().description
    assert [one["id"] for one in listed["spaces"]] == [space.id]
    assert kept["id"] and kept["files"] == 1
    assert messages["messages"] == []
    assert changes["code"] == read["code"] == "forbidden"


def test_what_an_agent_is_refused(client: carrel.Client, space: Space) -> None:
    with client.space(None) as other:
        found = does(
            *(client, space),
            tool("get_selection"),
            tool("wait_for_space", space=other.id),
            tool("wait_for_space", space="parsr"),
            tool("log_progress", mesage="x"),
            tool("log_progress", message="x", category="y"),
        )
    codes = [one["code"] for one in found]
    assert codes == ["no_receiver", *["space_not_found"] * 2, *["message_invalid"] * 2]
    assert all({*one} == {"code", "message", "hint"} for one in found)


def test_another_agent_needs_a_persons_yes(
    daemon: Daemon, client: carrel.Client, space: Space
) -> None:
    """To just that; and the space that is made shares what its maker has."""
    asked = {"name": "other", "frontend": "agent-sdk", "timeout_s": 0}
    (told,) = does(client, space, tool("spawn_space", **asked))
    assert told["code"] == "agreement_needed"
    (item,) = waiting(daemon, space)
    assert item["own"] and item["choices"] and item["id"] in told["hint"]
    assert "agent-sdk" in item["text"]
    with daemon.local() as http:
        answer = {"answer": "yes"}
        assert http.post(f"/v1/inbox/{item['id']}/answer", json=answer).is_success
    # One such space, and not another.
    again = {**asked, "name": "more", "question_id": item["id"]}
    made, refused = does(
        *(client, space, tool("spawn_space", **asked, question_id=item["id"])),
        tool("spawn_space", **again),
    )
    assert refused["code"]
    child = client.get(made["id"])
    assert child.info.agent == "agent-sdk" and child.info.parent == space.id
    assert child.info.network == space.info.network == "none"
    child.remove(force=True)


def test_deleting_work_needs_a_persons_yes(
    daemon: Daemon, client: carrel.Client, space: Space
) -> None:
    spawned, waited, told = does(
        *(client, space),
        tool("spawn_space", name="done", initial_prompt="write a.txt 1", frontend="scripted"),
        tool("wait_for_space", space="done"),
        tool("delete_space", space="done", timeout_s=0),
    )
    assert waited["turn"]["state"] == "complete"
    (item,) = waiting(daemon, space)
    assert item["id"] in told["hint"]
    with daemon.local() as http:
        assert http.post(f"/v1/inbox/{item['id']}/answer", json={"answer": "yes"}).is_success
    # Nothing is asked where nothing would be lost.
    gone, _, empty = does(
        *(client, space, tool("delete_space", space="done", question_id=item["id"])),
        tool("spawn_space", name="empty", frontend="scripted"),
        tool("delete_space", space="empty"),
    )
    assert gone["removed"] and empty["removed"] and not waiting(daemon, space)
    with pytest.raises(carrel.errors.SpaceNotFound):
        client.get(spawned["id"]).run(["true"])


# Outside of a space


class Server:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._number = 0

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        assert self._process.stdin is not None and self._process.stdout is not None
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()
        while (found := json.loads(self._process.stdout.readline())).get("id") != self._number:
            pass
        return dict(found["result"])

    def call(self, name: str, **arguments: Any) -> tuple[bool, dict[str, Any]]:
        """Whether it is an error, and its object, which is the text too."""
        found = self.ask("tools/call", name=name, arguments=arguments)
        (text,) = (one["text"] for one in found["content"])
        assert json.loads(text) == found["structuredContent"]
        return bool(found.get("isError")), found["structuredContent"]


@contextmanager
def serving(daemon: Daemon, **env: str) -> Iterator[Server]:
    whole = {**os.environ, "CARREL_DATA": str(daemon.data), **env}
    command = [sys.executable, "-m", "carrel.cli.main", "mcp"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=whole
    ) as process:
        server = Server(process)
        who = {"name": "promise", "version": "1"}
        told = server.ask(
            "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=who
        )
        assert told["serverInfo"]["name"]
        yield server
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(ANSWER_S) == 0


def test_outside_there_are_the_tools_about_spaces(daemon: Daemon, tmp_path: Path) -> None:
    with serving(daemon) as server:
        tools = {one["name"]: one for one in server.ask("tools/list")["tools"]}
        assert {*tools} >= ABOUT_SPACES and not {*tools} & WITHIN
        assert all(one["inputSchema"] and one["outputSchema"] for one in tools.values())
        assert server.call("log_progress", message="x")[1]["code"] == "message_invalid"
        failed, made = server.call(
            "spawn_space", project=str(tmp_path), frontend="scripted", initial_prompt="write b b"
        )
        assert not failed and made["state"] == "ready"
        named = {"space": made["name"]}
        failed, waited = server.call("wait_for_space", **named, timeout_s=50)
        assert waited["reached"] and waited["turn"]["state"] == "complete"
        _, changed = server.call("list_changes", **named)
        assert [one["path"] for one in changed["changes"]] == ["b"] and changed["total"] == 1
        assert server.call("read_file", **named, path="b")[1]["text"] == "b\n"
        assert server.call("space_state", space="parsr") == (
            True,
            {
                "code": "space_not_found",
                "message": "There is no space 'parsr'.",
                "hint": "`carrel ls` lists them.",
            },
        )
        assert server.call("update_space", **named, description="d")[1]["description"] == "d"
        assert server.call("message_space", **named, text="hello")[1]["seq"]
        failed, asked = server.call("delete_space", **named, timeout_s=0)
        assert failed and asked["code"], asked
        with daemon.local() as http:
            http.delete(f"/v1/spaces/{made['id']}", params={"force": "true"})


DEFAULTS = {
    ("spawn_space", "timeout_s"): 300,
    ("wait_for_space", "timeout_s"): 60,
    ("list_changes", "limit"): 200,
    ("read_file", "size"): 128 << 10,
    ("delete_space", "timeout_s"): 300,
}


def test_the_arguments_are_those_of_the_page(daemon: Daemon) -> None:
    """With what they are when nothing is said; more of them are refused."""
    table = PAGE.read_text().split("| tool | arguments | answer |")[1].split("\n\n")[0]
    rows = (row.split("|")[1:3] for row in table.splitlines()[2:])
    named = {tool.strip().strip("`"): {*re.findall(r"`(\w+)`", words)} for tool, words in rows}
    with serving(daemon) as server:
        tools = {one["name"]: one["inputSchema"] for one in server.ask("tools/list")["tools"]}
        for name, schema in tools.items():
            assert {*schema["properties"]} <= named[name] | {"space"}, name
            assert schema["additionalProperties"] is False
        for (name, argument), value in DEFAULTS.items():
            assert tools[name]["properties"][argument]["default"] == value, (name, argument)
        for name in tools:
            failed, told = server.call(name, nope=1, **SPACE.get(name, {}))
            assert failed and told["code"] == "message_invalid", (name, told)
        # Outside, a space has to be named.
        assert server.call("space_state")[1]["code"] == "message_invalid"


SPACE = {"spawn_space": {"project": "/nowhere"}}


def test_a_token_is_told_of_its_own(daemon: Daemon, client: carrel.Client) -> None:
    """And by HTTP only who shows the token comes in."""
    words = [sys.executable, "-m", "carrel.cli.main", "mcp", "--http", "127.0.0.1:0"]
    env = {**os.environ, "CARREL_DATA": str(daemon.data)}
    with subprocess.Popen(words, stderr=subprocess.PIPE, env=env, text=True) as process:
        try:
            assert process.stderr is not None
            address = process.stderr.readline().split()[-1]
            kind, secret = process.stderr.readline().split()[-2:]
            assert address.endswith("/mcp") and kind == "Bearer"
            who = {"name": "promise", "version": "1"}
            params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": who}
            hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
            accepts = {"Accept": "application/json, text/event-stream"}
            own = {**accepts, "Authorization": f"Bearer {secret}"}
            for headers, status in (
                (own, 200),
                (accepts, 401),
                ({**own, "Authorization": "Bearer other"}, 401),
                ({**own, "Origin": "http://evil.test"}, 403),
                ({**own, "Host": "evil.test"}, 421),
            ):
                told = httpx.post(address, json=hello, headers=headers, timeout=ANSWER_S)
                assert told.status_code == status, (headers, told.text)
        finally:
            process.terminate()
