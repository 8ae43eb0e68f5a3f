"""docs/requests.md and docs/codesmith.md, by plain WebSocket, HTTP and standard input."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection

from carrel.daemon import places
from tests.daemon.requesting import daemon_with
from tests.daemon.rig import ANSWER_S, Daemon, bad, good

OUTCOMES = ("result", "error")
Frame = dict[str, Any]


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """As it comes, without a setting of its own."""
    with daemon_with({"request_agent": ""}) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "work"
    (found / "src").mkdir(parents=True)
    for place in (tmp_path, found, found / "src"):
        place.chmod(0o777)
    return found


def ask(socket: ClientConnection, **frame: Any) -> list[Frame]:
    """What is heard of one request, to its outcome."""
    socket.send(json.dumps(frame))
    heard = [json.loads(socket.recv(ANSWER_S))]
    while heard[-1]["type"] not in OUTCOMES:
        heard.append(json.loads(socket.recv(ANSWER_S)))
    return heard


def work_in(folder: Path, number: int, **more: Any) -> Frame:
    """As older clients ask: a tool, and no type."""
    steps = f"run echo x > {folder}/src/{number}.py\nsay done"
    asked = {"tool": "codesmith", "workspace_path": str(folder), "instructions": steps}
    return {**asked, "frontend": "scripted", **more}


def test_a_folder_is_seen_at_its_own_path_and_is_free_afterwards(
    daemon: Daemon, folder: Path
) -> None:
    with daemon.websocket("/v1/requests") as socket:
        for number in range(3):
            *_, result = ask(socket, **work_in(folder, number))
            assert [one["path"] for one in result["files"]] == [f"src/{number}.py"], result
            assert result["complete"] and result["workspace_path"] == str(folder)
    # Nobody has fetched the outcome of this one, and its folder is free all the same.
    with daemon.local() as client:
        asked = work_in(folder, 3)
        key = good(client.post("/v1/requests", json=asked))["key"]
        with daemon.websocket("/v1/requests") as socket:
            heard = ask(socket, type="resume", request_id=key)
            assert heard[-1]["complete"]
            assert ask(socket, **work_in(folder, 4))[-1]["complete"]
        # But not while somebody works in it.
        lasting = {**asked, "instructions": "sleep 600", "request_id": "lasting"}
        with daemon.websocket("/v1/requests") as socket:
            socket.send(json.dumps(lasting))
            while json.loads(socket.recv(ANSWER_S))["type"] != "event":
                pass
        refused = bad(client.post("/v1/requests", json=asked), 409, "project_in_use")
        assert refused["hint"]
        good(client.delete("/v1/requests/lasting"))
    assert sorted(os.listdir(folder / "src")) == [f"{number}.py" for number in range(5)]


@pytest.mark.parametrize("kind", ["link", "/var/tmp"])
def test_a_folder_is_seen_where_its_caller_says_it_is(
    daemon: Daemon, folder: Path, kind: str
) -> None:
    """By a way with links, and where sandboxes have a folder of their own."""
    named = folder.parent / "named"
    if kind == "link":
        named.symlink_to(folder)
    else:
        named = Path(tempfile.mkdtemp(dir=kind))
        named.chmod(0o777)
    try:
        steps = f"run mkdir -p {named}/made && echo x > {named}/made/a.py"
        asked = {"tool": "codesmith", "instructions": steps, "frontend": "scripted"}
        with daemon.websocket("/v1/requests") as socket:
            *_, result = ask(socket, **asked, workspace_path=f"{named}/")
        assert [one["path"] for one in result["files"]] == ["made/a.py"], result
        assert (named / "made" / "a.py").read_text() == "x\n"
    finally:
        if kind != "link":
            shutil.rmtree(named)


def test_an_unknown_model_makes_no_workspace(daemon: Daemon) -> None:
    asked = {"instructions": "say x", "frontend": "scripted", "model": "none"}
    with daemon.local() as client:
        refused = bad(client.post("/v1/requests", json=asked), 422, "model_not_supported")
        assert refused["known"] == ["scripted"] and "scripted" in refused["detail"]
    with daemon.websocket("/v1/requests") as socket:
        (told,) = ask(socket, type="generate", request_id="none", **asked)
        assert told["code"] == "model_not_supported" and told["step"] == "accept"


def test_every_frame_says_where_and_when(daemon: Daemon) -> None:
    with daemon.websocket("/v1/requests") as socket:
        heard = ask(
            socket,
            type="generate",
            instructions="write a.txt 1\nwrite b.txt 2",
            frontend="scripted",
        )
    (accepted,) = (one for one in heard if one["type"] == "accepted")
    where = {name: accepted[name] for name in ("space_id", "workspace_path")}
    assert Path(where["workspace_path"]).is_absolute()
    for one in heard:
        if one["type"] in ("progress", "result"):
            assert where.items() <= one.items(), one
        if one["type"] == "event":
            assert one["event"]["ts"] > 1_700_000_000, one
    appeared = [one["file"] for one in heard if one.get("file")]
    assert appeared == ["a.txt", "b.txt"]


def test_the_daemons_log_tells_of_it(daemon: Daemon) -> None:
    with daemon.local() as client:
        steps = "write a.txt one\nrun printf '1\\n2\\n' > \"$(printf 'b\\001c')\""
        asked = {"instructions": steps, "frontend": "scripted", "request_id": "told"}
        good(client.post("/v1/requests", json=asked))
        ended = good(client.get("/v1/requests/told", params={"wait": 60}))
        assert ended["state"] == "done"
    lines = [
        line for line in Path(places.log(daemon.data)).read_text().splitlines() if "told" in line
    ]
    words = [line.partition("): ")[2] for line in lines]
    assert words[0] == f"scripted in {daemon.data}/spaces/{ended['space_id']}/project"
    assert words[1:] == [
        "added a.txt",
        "added 'b\\x01c'",
        "added a.txt, 4 bytes, 1 lines",
        "added 'b\\x01c', 4 bytes, 2 lines",
        "complete: 2 files",
    ]


def test_who_names_no_agent_gets_no_scripted_one(daemon: Daemon) -> None:
    """The one that is installed and has a key, else a word on how to get one."""
    asked = {"instructions": "a stack in Python"}
    with daemon.local() as client:
        # The SDK is there: it is installed with the tests.
        keyless = bad(client.post("/v1/requests", json=asked), 422, "key_missing")
        assert "carrel auth set" in keyless["hint"]
        with daemon.equipped("claude-code", "codex-cli"):
            keyless = bad(client.post("/v1/requests", json=asked), 422, "key_missing")
            assert "claude-code has no key" in keyless["detail"]
            good(client.put("/v1/credentials/openai", json={"value": "sk-planted-key-1"}))
            made = good(client.post("/v1/requests", json=asked))
            assert made["frontend"] == "codex-cli"
            good(client.delete(f"/v1/requests/{made['key']}"))


def test_a_burst_has_all_places() -> None:
    """One at once and two that wait: three are taken."""
    settings = {"requests_at_once": 1, "requests_waiting": 2}
    with daemon_with(settings) as daemon, daemon.websocket("/v1/requests") as socket:
        for number in range(5):
            frame = {"type": "generate", "instructions": "sleep 600", "request_id": f"n{number}"}
            socket.send(json.dumps(frame))
        heard: dict[str, Frame] = {}
        while len(heard) < 5:
            frame = json.loads(socket.recv(ANSWER_S))
            heard.setdefault(frame["request_id"], frame)
        refused = sorted(name for name, one in heard.items() if one["type"] == "error")
        assert refused == ["n3", "n4"]
        assert all(
            heard[name]["code"] == "capacity" and heard[name]["retriable"] for name in refused
        )
        with daemon.local() as client:
            for name in ("n0", "n1", "n2"):
                good(client.delete(f"/v1/requests/{name}"))


def test_other_folders_can_be_read(daemon: Daemon, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "docs").mkdir(mode=0o755)
    (tmp_path / "docs" / "rules.txt").write_text("be brief\n")
    steps = f"run cp {tmp_path}/docs/rules.txt . && ! touch {tmp_path}/docs/more"
    asked = {"instructions": steps, "frontend": "scripted", "also_read": [f"{tmp_path}/docs"]}
    with daemon.websocket("/v1/requests") as socket:
        *_, result = ask(socket, type="generate", **asked)
    assert [(one["path"], one["text"]) for one in result["files"]] == [("rules.txt", "be brief\n")]
    assert os.listdir(tmp_path / "docs") == ["rules.txt"]


def test_codesmith_logs_workspace_and_files(daemon: Daemon, folder: Path) -> None:
    """Each on a line of its standard error; one job after the other in one folder."""
    env = {**os.environ, "CARREL_DATA": str(daemon.data)}
    command = [sys.executable, "-m", "carrel.cli.main", "codesmith", "--agent", "scripted"]
    arguments = [{**work_in(folder, number), "tool": None} for number in range(2)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        params: dict[str, Any] = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "promise", "version": "1"},
        }
        messages = [{"id": 0, "method": "initialize", "params": params}]
        for number, one in enumerate(arguments, start=1):
            given = {name: one[name] for name in ("instructions", "workspace_path")}
            call = {"name": "generate", "arguments": given}
            messages.append({"id": number, "method": "tools/call", "params": call})
        for message in messages:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            server.stdin.flush()
            answer = json.loads(server.stdout.readline())
            assert answer["id"] == message["id"] and not answer["result"].get("isError"), answer
        _, logged = server.communicate(timeout=ANSWER_S)
    told = logged.decode()
    for number in range(2):
        assert f": src/{number}.py\n" in told and f"added src/{number}.py, 1 line\n" in told, told
    assert told.count(f"workspace {folder}\n") == 2, told


def test_what_is_refused_says_of_which_frame_it_is(daemon: Daemon) -> None:
    """And ends nothing: the connection takes the next one."""
    ended = {"instructions": "write a 1", "frontend": "scripted", "request_id": "ended"}
    new = {**ended, "type": "generate"}
    late = {"type": "answer", "request_id": "ended", "text": "x"}
    frames: list[tuple[str | Frame, str, str, str]] = [
        ("{", "message_invalid", "", "read"),
        ({"type": "nope"}, "message_invalid", "", "read"),
        ({"type": "generate"}, "message_invalid", "generate", "accept"),
        ({**new, "nope": 1}, "message_invalid", "generate", "accept"),
        (
            {**ended, "type": "generate", "request_id": "a b"},
            "request_invalid",
            "generate",
            "accept",
        ),
        ({"type": "resume", "request_id": "never"}, "request_not_found", "resume", "resume"),
        (late, "state_conflict", "answer", "answer"),
        ({**new, "check": "true"}, "request_id_reused", "generate", "accept"),
    ]
    with daemon.websocket("/v1/requests") as socket:
        assert ask(socket, type="generate", **ended)[-1]["type"] == "result"
        for frame, code, to, step in frames:
            socket.send(frame if isinstance(frame, str) else json.dumps(frame))
            told = json.loads(socket.recv(ANSWER_S))
            assert (told["type"], told["code"], told["step"]) == ("error", code, step), told
            assert told.get("to", "") == to and not told["retriable"] and told["message"]
            if isinstance(frame, dict) and "request_id" in frame:
                assert told["request_id"] == frame["request_id"]
        # The same again is the one that there was, from its beginning.
        again = ask(socket, type="generate", **ended)
        assert again[0]["type"] == "accepted" and again[-1]["type"] == "result"
        after = again[-2]["seq"] if "seq" in again[-2] else again[-1]["seq"] - 1
        (last,) = (
            one
            for one in ask(socket, type="resume", request_id="ended", after=after)
            if one["type"] == "result"
        )
        assert last == again[-1]


def test_very_many_files(daemon: Daemon) -> None:
    """The first of them are told of, and the result counts all."""
    steps = "run mkdir d; cd d; touch $(seq 1200) $(printf %0250d 1)"
    asked = {"instructions": steps, "frontend": "scripted", "request_id": "many"}
    with daemon.websocket("/v1/requests") as socket:
        heard = ask(socket, type="generate", **asked)
    assert sum("file" in one for one in heard) == 1000
    assert heard[-1]["total_files"] == 1201
    log = Path(places.log(daemon.data)).read_text()
    assert log.count("request many ") == 1 + 200 + 200 + 1
