"""Requests over WebSocket: frame by frame, resumed, cancelled, answered, and bad clients."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from carrel.client import websocket
from carrel.client.address import Address
from carrel.client.http import HttpRequest
from carrel.client.link import Link
from carrel.service.requests.manager import TIED_S
from tests.agents.recording.running import wait_until
from tests.daemon.requesting import (
    GATE,
    OUTCOMES,
    Talk,
    daemon_with,
    kept,
    new_name,
    open_gate,
    talking,
)
from tests.daemon.rig import Daemon, bad, good

SCRIPT = "write src/a.py print(1)\nrun printf 'x\\ny\\n' > b.txt\nsay one\nsay done"


@pytest.fixture
def talk(daemon: Daemon) -> Iterator[Talk]:
    with talking(daemon) as found:
        yield found


def test_frame_by_frame(talk: Talk, client: httpx.Client) -> None:
    name = talk.generate(SCRIPT)
    result = talk.outcome(name)
    types = [frame["type"] for frame in talk.heard]
    assert types[0] == "accepted" and types[1] == "progress" and types[-1] == "result"
    assert {frame["request_id"] for frame in talk.heard} == {name}
    accepted = talk.heard[0]
    assert accepted["space_id"].startswith("sp_")
    assert accepted["workspace_path"].endswith(f"{accepted['space_id']}/project")
    progress = [frame["progress"] for frame in talk.heard if frame["type"] == "progress"]
    assert progress == sorted(progress) and 0 <= progress[0] < progress[-1] < 1
    events = [frame["event"] for frame in talk.heard if frame["type"] == "event"]
    assert {"tool_call", "message"} <= {event["type"] for event in events}
    numbers = [frame["seq"] for frame in kept(talk.heard)]
    assert numbers == sorted(set(numbers)), "each frame has a number of its own"
    assert result["complete"] and result["summary"] == "done" and result["total_files"] == 2
    one, two = result["files"]
    assert one == {
        **{"path": "b.txt", "change": "added", "bytes": 4, "lines": 2, "type": "file"},
        **{"language": one["language"], "executable": False, "text": "x\ny\n"},
    }
    assert (two["path"], two["language"], two["text"]) == ("src/a.py", "python", "print(1)\n")
    assert result["space_id"] == accepted["space_id"] and result["retained_until"] is None
    record = good(client.post(f"/v1/requests/{name}/done"))
    assert record["state"] == "done" and record["workspace"] == "gone"
    assert record["delivered_at"] is not None and record["result"]["files"][0]["path"] == "b.txt"
    bad(client.get(f"/v1/spaces/{accepted['space_id']}"), 404, "space_not_found")


def test_many_on_one_connection(talk: Talk) -> None:
    names = {talk.generate(f"write {number}.txt {number}"): number for number in range(6)}
    for _ in names:
        result = talk.outcome()
        number = names[result["request_id"]]
        assert [file["path"] for file in result["files"]] == [f"{number}.txt"]
        assert result["files"][0]["text"] == f"{number}\n"
    outcomes = [frame["request_id"] for frame in talk.heard if frame["type"] in OUTCOMES]
    assert sorted(outcomes) == sorted(names)


def test_all_that_can_be_said(talk: Talk, tmp_path: Any) -> None:
    (tmp_path / "old.txt").write_text("old\n")
    (tmp_path / "gone.txt").write_text("gone\n")
    result = talk.made(
        "append old.txt new\nrun rm gone.txt\nrun echo $COLOR > env",
        tool="codesmith",
        project=str(tmp_path),
        frontend="scripted",
        architecture={"layers": ["a", "b"]},
        context={"notes.md": "as a file"},
        retention={"policy": "ephemeral", "hold_s": 0},
        limits={"tier": "minimal", "timeout_s": 60, "pids": 200},
        check={"command": "cat env; exit 3", "timeout_s": 30},
        owner="ann",
        content=True,
        labels={"team": "blue"},
        env={"COLOR": "red"},
        network="none",
        runtime="auto",
    )
    changes = {file["path"]: file["change"] for file in result["files"]}
    assert changes == {"env": "added", "gone.txt": "deleted", "old.txt": "modified"}
    assert not result["complete"] and not result["needs_research"]
    said = json.dumps([frame for frame in talk.heard if frame["type"] == "event"])
    assert "layers" in said, "the agent says back what is no step"
    assert result["check"]["code"] == 3 and result["check"]["output"] == "red\n"
    assert talk.made("write a b", check=["test", "-f", "a"])["check"]["passed"]
    result = talk.made("write a b\nsay NEEDS RESEARCH: x", project="", retention="ephemeral")
    assert not result["complete"] and result["needs_research"] == ["x"]


@pytest.mark.parametrize(
    ("instructions", "code", "step", "retriable"),
    [
        ("fail it cannot be", "agent_crashed", "working", True),
        ("crash", "agent_crashed", "working", True),
    ],
)
def test_agents_that_fail(
    talk: Talk, instructions: str, code: str, step: str, retriable: bool
) -> None:
    error = talk.made(instructions)
    assert error["type"] == "error" and "to" not in error
    assert (error["code"], error["step"]) == (code, step)
    assert error["retriable"] is retriable and error["message"] and error["seq"]


def test_cancelled(talk: Talk, client: httpx.Client) -> None:
    name = talk.generate("run sleep 600")
    talk.until("event")
    talk.say("cancel", request_id=name)
    error = talk.outcome(name)
    assert error["code"] == "cancelled" and error["step"] == "working"
    path = f"/v1/spaces/{error['space_id']}"
    wait_until(lambda: client.get(path).status_code == 404)
    # Again it changes nothing, and nothing is told twice.
    talk.say("cancel", request_id=name)
    assert talk.made("write a b")["complete"]
    outcomes = [frame for frame in talk.heard if frame["type"] in OUTCOMES]
    assert len(outcomes) == 2


def test_cancelled_at_once_and_from_elsewhere(daemon: Daemon, talk: Talk) -> None:
    """What is said of one request is done in that order."""
    name = talk.generate("sleep 600")
    talk.say("cancel", request_id=name)
    assert talk.outcome(name)["code"] == "cancelled"
    name = talk.generate("sleep 600")
    talk.until("event")
    with talking(daemon) as other:
        other.say("cancel", request_id=name)
        assert other.outcome(name)["code"] == "cancelled"
    assert talk.outcome(name)["code"] == "cancelled"


def test_questions_and_their_answers(talk: Talk) -> None:
    name = talk.generate("ask Which colour?\nask And now?\nwrite a b")
    asked = talk.until("input_needed")
    assert asked["question"] == "Which colour?" and asked["id"] and asked["seq"]
    talk.say("answer", request_id=name, id="nobody-asked", text="red")
    assert talk.until("error")["to"] == "answer"
    talk.say("answer", request_id=name, id=asked["id"], text="red")
    talk.until("input_needed")
    talk.say("answer", request_id=name, answer="blue")
    assert talk.outcome(name)["complete"]
    said = json.dumps([frame for frame in talk.heard if frame["type"] == "event"])
    assert "red" in said and "blue" in said


@pytest.fixture(scope="module")
def heard(daemon: Daemon) -> list[dict[str, Any]]:
    """All frames of one request, which is still there to be heard again."""
    with talking(daemon) as talk:
        assert talk.made(SCRIPT, retention="retain")["complete"]
        return talk.heard


def test_resumed_anywhere(daemon: Daemon, heard: list[dict[str, Any]]) -> None:
    """Nothing is missing and nothing comes twice, wherever the connection was lost."""
    name, whole = heard[0]["request_id"], kept(heard)
    for place in range(len(whole)):
        with talking(daemon) as talk:
            talk.say("resume", request_id=name, after=whole[place]["seq"])
            talk.outcome(name)
            assert kept(talk.heard) == (whole[place + 1 :] or whole[-1:])


def test_lost_and_resumed_while_it_works(daemon: Daemon, client: httpx.Client) -> None:
    """Every other frame the connection breaks."""
    name, found = new_name(), list[dict[str, Any]]()
    steps = f"say one\nwrite a b\n{GATE}\nsay two"
    while not found or found[-1]["type"] not in OUTCOMES:
        with talking(daemon) as talk:
            if not found:
                talk.generate(steps, request_id=name, retention="retain")
            else:
                talk.say("resume", request_id=name, after=found[-1]["seq"])
            found += kept([talk.next()])
            if found and found[-1]["type"] not in OUTCOMES:
                found += kept([talk.next()])
            talk.connection.socket.close()
        if GATE.removeprefix("run ") in json.dumps(found[-2:]):
            open_gate(client, found[0]["space_id"])
    with talking(daemon) as talk:
        talk.say("resume", request_id=name)
        talk.outcome()
        assert kept(talk.heard) == found


def test_the_same_again_and_another_by_the_same_name(
    daemon: Daemon, talk: Talk, heard: list[dict[str, Any]]
) -> None:
    name = heard[0]["request_id"]
    with talking(daemon) as again:
        again.generate(SCRIPT, retention="retain", request_id=name)
        again.outcome(name)
        assert kept(again.heard) == kept(heard)
    talk.generate("write a b", request_id=name)
    error = talk.outcome(name)
    assert error["code"] == "request_id_reused" and error["to"] == "generate"
    assert error["step"] == "accept" and not error["retriable"]


def test_followed_twice_on_one_connection(talk: Talk, client: httpx.Client) -> None:
    """The second takes the first one's place: there is one outcome."""
    name = talk.generate(GATE, tied=True)
    accepted = talk.next()
    talk.until("event")
    talk.generate(GATE, tied=True, request_id=name)
    assert talk.until("accepted") == accepted
    open_gate(client, accepted["space_id"])
    assert talk.outcome(name)["complete"]
    assert talk.made("write a b")["complete"]
    outcomes = [frame["request_id"] for frame in talk.heard if frame["type"] in OUTCOMES]
    assert outcomes.count(name) == 1


def test_tied_to_its_connection(daemon: Daemon, client: httpx.Client) -> None:
    with talking(daemon) as talk:
        name = talk.generate("sleep 600", tied=True)
        talk.until("event")
        talk.connection.socket.close()
    wait_until(lambda: _state(client, name) == "cancelled")
    with talking(daemon) as talk:
        name = talk.generate("sleep 600", tied=True)
        # Before anything was heard of it.
        talk.connection.socket.close()
    begun = time.monotonic()
    wait_until(lambda: _state(client, name) in ("cancelled", ""))
    assert time.monotonic() - begun < TIED_S


def _state(client: httpx.Client, name: str) -> str:
    """Empty for one that never came to be. Whoever waits for its end would be there for it."""
    found = client.get(f"/v1/requests/{name}")
    return "" if found.status_code == 404 else str(good(found)["state"])


def test_an_outcome_that_was_sent_and_lost_is_there(daemon: Daemon, client: httpx.Client) -> None:
    """Who is lost right after it was sent gets all of it again, content included."""
    name = new_name()
    sock, rest = Link(Address(socket=daemon.socket)).websocket(HttpRequest("GET", "/v1/requests"))
    asked = {"type": "generate", "instructions": "write a b", "request_id": name}
    sock.sendall(websocket.encode(websocket.TEXT, json.dumps(asked).encode()))
    parser, found = websocket.FrameParser(), b""
    while b'"result"' not in found:
        # No ping is answered here.
        found += b"".join(message.data for message in parser.receive(rest or sock.recv(65536)))
        rest = b""
    sock.close()
    assert good(client.get("/v1/requests"))["requests"][0]["delivered_at"] is None
    with talking(daemon) as talk:
        talk.say("resume", request_id=name, after=0)
        assert talk.outcome(name)["files"][0]["text"] == "b\n"
    assert good(client.get(f"/v1/requests/{name}"))["workspace"] in ("there", "gone")


def test_who_does_not_read_holds_up_nobody_else(daemon: Daemon, client: httpx.Client) -> None:
    sock, rest = Link(Address(socket=daemon.socket)).websocket(HttpRequest("GET", "/v1/requests"))
    name, big = new_name(), "run head -c 3000000 /dev/urandom > big"
    asked = {"type": "generate", "instructions": big, "request_id": name}
    sock.sendall(websocket.encode(websocket.TEXT, json.dumps(asked).encode()))
    wait_until(lambda: _state(client, name) == "done")
    with talking(daemon) as talk:
        assert talk.made("write a b")["complete"]
    parser, last = websocket.FrameParser(), b""
    while b'"result"' not in last:
        for message in parser.receive(rest or sock.recv(1 << 20)):
            last = message.data if message.kind == websocket.TEXT else last
        rest = b""
    sock.close()
    assert len(b64decode(json.loads(last)["files"][0]["base64"])) == 3_000_000
    good(client.post(f"/v1/requests/{name}/done"))


@pytest.mark.parametrize(
    ("frame", "field", "step"),
    [
        (b"binary", "frame", "read"),
        ("{", "frame", "read"),
        ("[1]", "frame", "read"),
        ("[" * 10_000, "frame", "read"),
        ("1" * 5000, "frame", "read"),
        ({}, "type", "read"),
        ({"type": "unheard"}, "type", "read"),
        ({"type": ["generate"]}, "type", "read"),
        ({"type": "generate"}, "instructions", "accept"),
        ({"type": "generate", "instructions": 1}, "instructions", "accept"),
        ({"type": "generate", "instructions": "x", "nonsense": 1}, "nonsense", "accept"),
        ({"type": "generate", "instructions": "x", "project": 1}, "project", "accept"),
        ({"type": "generate", "instructions": "x", "project": {}}, "project.kind", "accept"),
        ({"type": "generate", "instructions": "x", "retention": "x"}, "retention", "accept"),
        (
            {"type": "generate", "instructions": "x", "retention": {"for": "1y"}},
            "retention.for",
            "accept",
        ),
        (
            {"type": "generate", "instructions": "x", "retention": {"for": "1h", "seconds": 1}},
            "retention.for",
            "accept",
        ),
        ({"type": "generate", "instructions": "x", "check": []}, "check", "accept"),
        ({"type": "generate", "instructions": "x", "limits": {"pids": 0}}, "limits.pids", "accept"),
        ({"type": "resume"}, "request_id", "resume"),
        ({"type": "resume", "request_id": "x", "after": -1}, "after", "resume"),
        ({"type": "cancel", "request_id": ""}, "request_id", "cancel"),
        ({"type": "answer", "request_id": "x", "allow": "yes"}, "allow", "answer"),
    ],
    ids=str,
)
def test_bad_frames(talk: Talk, frame: Any, field: str, step: str) -> None:
    """One answer each, which names the field; and the connection goes on."""
    sent = frame if isinstance(frame, bytes | str) else json.dumps(frame)
    talk.connection.send(sent)
    error = talk.next()
    assert (error["type"], error["code"]) == ("error", "message_invalid")
    assert (error["field"], error["step"]) == (field, step)
    assert error["hint"] and error["retriable"] is False and "seq" not in error
    talk.say("resume", request_id="nobody")
    assert talk.next()["code"] == "request_not_found"


def test_wrong_order(talk: Talk) -> None:
    for type, more in (("answer", {"text": "x"}), ("cancel", {}), ("resume", {}), ("done", {})):
        talk.say(type, request_id="nobody", **more)
        error = talk.next()
        assert (error["code"], error["to"], error["request_id"]) == (
            *("request_not_found", type),
            "nobody",
        )
    name = talk.generate("sleep 600")
    talk.until("event")
    talk.say("answer", request_id=name, text="to nothing")
    error = talk.until("error")
    assert (error["code"], error["to"], error["step"]) == ("state_conflict", "answer", "answer")
    talk.say("done", request_id=name)
    error = talk.until("error")
    assert (error["code"], error["to"]) == ("state_conflict", "done")
    talk.say("cancel", request_id=name)
    assert talk.outcome(name)["code"] == "cancelled"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ({"instructions": "  "}, "request_invalid"),
        ({"instructions": "x" * 200_001}, "request_invalid"),
        ({"instructions": "half \ud800"}, "message_invalid"),
        ({"instructions": "x", "tool": "other"}, "request_invalid"),
        ({"instructions": "x", "request_id": "rq_mine"}, "request_invalid"),
        ({"instructions": "x", "frontend": "nobody"}, "unsupported_frontend"),
        ({"instructions": "x", "project": "/nonexistent/folder"}, "project_not_found"),
        ({"instructions": "x", "retention": "versioned"}, "request_invalid"),
        ({"instructions": "x", "webhook": "ftp://x"}, "request_invalid"),
        ({"instructions": "x", "workspace_path": "/"}, "project_invalid"),
    ],
    ids=lambda one: str(one)[:40],
)
def test_refused(talk: Talk, content: dict[str, Any], code: str) -> None:
    talk.say("generate", **content)
    error = talk.outcome()
    assert error["code"] == code and error["message"] and error["hint"]
    assert error.get("request_id") == content.get("request_id") or "seq" in error


def test_too_large(talk: Talk) -> None:
    talk.connection.send(json.dumps({"type": "generate", "instructions": "x" * (2 << 20)}))
    assert talk.closed() == 1009


def test_over_tcp_with_a_token(daemon: Daemon) -> None:
    secret = daemon.token("label:team=blue")
    with daemon.tcp_websocket("/v1/requests", secret) as connection:
        talk = Talk(connection)
        result = talk.made("write a b")
        assert result["complete"]
        talk.say("generate", instructions="x", workspace_path="/tmp/x")
        assert talk.outcome()["code"] == "forbidden"
        name = talk.generate("write a b", request_id="mine", retention="retain")
        talk.outcome(name)
    other = daemon.token("label:team=green")
    with daemon.tcp_websocket("/v1/requests", other) as connection:
        talk = Talk(connection)
        talk.say("resume", request_id="mine")
        assert talk.next()["code"] == "request_not_found"
    with pytest.raises(InvalidStatus):
        daemon.tcp_websocket("/v1/requests", "crl_wrong")


def test_one_at_a_time_in_turns_and_a_full_line() -> None:
    settings = {"requests_at_once": 1, "requests_waiting": 3}
    with daemon_with(settings) as daemon, talking(daemon) as talk, daemon.local() as client:
        first = talk.generate(GATE, owner="ann")
        space = talk.next()["space_id"]
        waiting = [talk.generate("write a b", owner=who) for who in ("ann", "ann", "ben")]
        places: dict[str, int] = {}
        while len(places) < 3:
            frame = talk.until("queued")
            places[frame["request_id"]] = frame["place"]
        assert places[waiting[0]] == 1 and "seq" not in frame
        record = good(client.get(f"/v1/requests/{waiting[2]}"))
        assert record["state"] == "queued" and record["place"] == 2
        error = talk.made("write a b")
        assert error["code"] == "capacity" and error["retriable"] and error["step"] == "accept"
        open_gate(client, space)
        # Ben's is not after all of Ann's.
        ended = [talk.outcome()["request_id"] for _ in range(4)]
        assert ended == [first, waiting[0], waiting[2], waiting[1]]
        last = [one for one in talk.heard if one["type"] == "queued"][-1]
        assert (last["request_id"], last["place"]) == (waiting[1], 1)
        talk.generate("sleep 600")
        talk.until("event")
        daemon.stop()
        assert talk.closed() == 1012
