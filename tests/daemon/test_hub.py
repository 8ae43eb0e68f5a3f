"""The hub of a real daemon, from outside and from inside real sandboxes."""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel.daemon import places
from tests.daemon.rig import ANSWER_S, Daemon, daemon_in, good

_SPEAK = """
import json, os, socket, sys
hub = socket.socket(socket.AF_UNIX)
hub.connect(os.environ["CARREL_HUB"])
lines = hub.makefile("rw")
for envelope in json.loads(sys.argv[1]):
    print(json.dumps(envelope), file=lines, flush=True)
    while True:
        answer = json.loads(lines.readline())
        if answer.get("reply_to") == envelope["id"]:
            break
    print(json.dumps(answer["payload"]))
"""
"""Says what it is told to, and tells the answers."""
PYTHON = "/usr/bin/python3"


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    folder = Path(tempfile.mkdtemp(prefix="carrel-"))
    folder.chmod(0o711)
    with daemon_in(folder) as found:
        yield found


class Line:
    """A client on the daemon's own socket of the hub."""

    def __init__(self, daemon: Daemon) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(ANSWER_S)
        self._socket.connect(f"{places.folder(daemon.data)}/hub.sock")
        self._lines = self._socket.makefile("rw")

    def send(self, type: str, payload: dict[str, Any], **fields: Any) -> None:
        print(json.dumps({"type": type, "payload": payload, **fields}), file=self._lines)
        self._lines.flush()

    def receive(self) -> dict[str, Any]:
        while True:
            found: dict[str, Any] = json.loads(self._lines.readline())
            if found["type"] != "heartbeat":
                return found

    def register(self, **fields: Any) -> dict[str, Any]:
        subscriptions = {"types": ["*"], "spaces": ["*"]}
        payload = {"kind": "app", "subscriptions": subscriptions, **fields}
        self.send("client_register", payload, id="r")
        return dict(self.receive()["payload"]["data"])

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@contextlib.contextmanager
def line_to(daemon: Daemon, **fields: Any) -> Iterator[Line]:
    with contextlib.closing(Line(daemon)) as line:
        line.register(**fields)
        yield line


def make(daemon: Daemon, **body: Any) -> str:
    with daemon.local() as client:
        return str(good(client.post("/v1/spaces", json=body))["id"])


def speak(daemon: Daemon, space: str, *envelopes: dict[str, Any]) -> list[dict[str, Any]]:
    """From inside the space; gives the payloads of the answers."""
    first = {"type": "client_register", "id": "r", "payload": {"kind": "agent"}}
    body = {"argv": [PYTHON, "-c", _SPEAK, json.dumps([first, *envelopes])]}
    with daemon.local() as client:
        done = good(client.post(f"/v1/spaces/{space}/exec", json=body))
    assert done["run"]["exit"]["code"] == 0, done
    return [json.loads(line) for line in done["stdout"].splitlines()][1:]


def progress(space: str, text: str) -> dict[str, Any]:
    payload = {"message": text}
    return {"type": "buffer_taskspace_progress", "id": text, "space": space, "payload": payload}


def test_a_space_speaks_of_itself_and_of_nobody_else(daemon: Daemon) -> None:
    space, other = make(daemon), make(daemon)
    with line_to(daemon) as line:
        own, foreign = speak(daemon, space, progress(space, "mine"), progress(other, "theirs"))
        assert own["data"]["sync"] == "disk"
        assert foreign["code"] == "space_not_found"
        heard = line.receive()
        while heard["type"] != "buffer_taskspace_progress":
            heard = line.receive()
    assert heard["payload"]["message"] == "mine"
    assert heard["sender"]["kind"] == "agent" and heard["sender"]["space"] == space
    assert heard["seq"] == own["data"]["seq"]


def test_the_log_has_everything_of_a_space_without_a_gap(daemon: Daemon) -> None:
    space = make(daemon)
    speak(daemon, space, progress(space, "one"))
    with daemon.local() as client:
        good(client.post(f"/v1/spaces/{space}/stop"))
        headers = {"Accept": "application/json"}
        params: dict[str, str | int] = {"space": space, "limit": 1000}
        told = good(client.get("/v1/events", params=params, headers=headers))["events"]
        good(client.delete(f"/v1/spaces/{space}", params={"force": "true"}))
    with line_to(daemon) as line:
        line.send("buffer_replay", {"space": space, "seq": 0}, id="x")
        answer = line.receive()
        last = answer["payload"]["data"]["replay_to"][space]
        found = [line.receive() for _ in range(last)]
    assert [one["seq"] for one in found] == list(range(1, last + 1))
    kept = [(one["type"], one["payload"]) for one in found]
    assert kept[: len(told)] == [(one["type"], one["data"]) for one in told]
    types = [one for one, _ in kept]
    assert {"space.state", "step.begun", "run.ended", "buffer_taskspace_progress"} <= set(types)
    states = [payload["to"] for type, payload in kept if type == "space.state"]
    assert (states[0], states[-1]) == ("creating", "removed")


def test_a_restart_keeps_numbers_cursors_and_sockets(daemon: Daemon) -> None:
    space = make(daemon)
    speak(daemon, space, progress(space, "before"))
    with line_to(daemon, consumer="me") as line:
        heard = line.receive()
        while heard["payload"].get("message") != "before":
            heard = line.receive()
        line.send("buffer_acknowledge", {"space": space, "seq": heard["seq"]}, id="a")
        while line.receive().get("reply_to") != "a":
            pass
    daemon.stop()
    daemon.start()
    (answer,) = speak(daemon, space, progress(space, "after"))
    assert answer["data"]["seq"] > heard["seq"]
    with line_to(daemon, consumer="me") as line:
        seen = [line.receive()]
        while seen[-1]["payload"].get("message") != "after":
            seen.append(line.receive())
        assert [one["seq"] for one in seen] == list(range(heard["seq"] + 1, seen[-1]["seq"] + 1))


def test_the_socket_goes_with_its_space(daemon: Daemon) -> None:
    space = make(daemon)
    folder = daemon.data / "spaces" / space / "hub"
    assert [path.name for path in folder.iterdir()] == ["hub.sock"]
    assert (folder / "hub.sock").stat().st_mode & 0o777 == 0o600
    with daemon.local() as client:
        good(client.delete(f"/v1/spaces/{space}", params={"force": "true"}))
    assert not folder.exists()


def test_a_token_sees_what_it_may_over_websocket(daemon: Daemon) -> None:
    blue, red = make(daemon, labels={"team": "blue"}), make(daemon, labels={"team": "red"})
    secret = daemon.token("label:team=blue")
    with daemon.tcp_websocket("/v1/hub", secret) as hub:
        wanted = {"kind": "app", "subscriptions": {"types": ["*"], "spaces": ["*"]}}
        hub.send(json.dumps({"type": "client_register", "id": "r", "payload": wanted}))
        assert json.loads(hub.recv(ANSWER_S))["payload"]["status"] == "success"
        for space, code in ((red, "space_not_found"), (blue, None)):
            hub.send(json.dumps(progress(space, "hello")))
            answer = json.loads(hub.recv(ANSWER_S))
            while answer.get("reply_to") != "hello":
                answer = json.loads(hub.recv(ANSWER_S))
            assert answer["payload"].get("code") == code
