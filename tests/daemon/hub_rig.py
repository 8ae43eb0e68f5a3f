"""Speaking on the hub of a real daemon, from outside and from inside real sandboxes."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

from carrel.daemon import places
from tests.daemon.rig import ANSWER_S, Daemon, good

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


class Line:
    """A client on the daemon's own socket of the hub."""

    def __init__(self, daemon: Daemon) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(ANSWER_S)
        self._socket.connect(f"{places.folder(daemon.data)}/hub.sock")
        # A file for both directions would forget what it has read ahead.
        self._lines = self._socket.makefile("r")

    def send(self, type: str, payload: dict[str, Any], **fields: Any) -> None:
        said = json.dumps({"type": type, "payload": payload, **fields})
        self._socket.sendall(f"{said}\n".encode())

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
