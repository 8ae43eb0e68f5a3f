"""The client's side of requests over WebSocket, and daemons with settings for them."""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from tests.daemon.rig import Daemon, fresh_daemon, good

FRAME_S = 60.0
"""For the next frame, on a busy machine."""
OUTCOMES = ("result", "error")
GATE = "run until [ -e go ]; do sleep 0.02; done"
"""A step of a scripted agent that lasts until somebody opens it."""
_numbers = itertools.count(1)


def new_name() -> str:
    """For a request; no two tests have the same."""
    return f"test-{next(_numbers)}"


class Talk:
    """One connection, and all that was heard on it."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.heard: list[dict[str, Any]] = []

    def say(self, type: str, **content: Any) -> None:
        self.connection.send(json.dumps({"type": type, **content}))

    def generate(self, instructions: str, **content: Any) -> str:
        name: str = content.pop("request_id", "") or new_name()
        self.say("generate", instructions=instructions, request_id=name, **content)
        return name

    def next(self) -> dict[str, Any]:
        frame: dict[str, Any] = json.loads(self.connection.recv(FRAME_S))
        self.heard.append(frame)
        return frame

    def until(self, *types: str, name: str = "") -> dict[str, Any]:
        """The next frame of such a type, of that request."""
        while True:
            frame = self.next()
            if frame["type"] in types and name in ("", frame.get("request_id")):
                return frame

    def outcome(self, name: str = "") -> dict[str, Any]:
        return self.until(*OUTCOMES, name=name)

    def made(self, instructions: str, **content: Any) -> dict[str, Any]:
        """From asking to the outcome."""
        return self.outcome(self.generate(instructions, **content))

    def closed(self) -> int:
        """With which code the server ended it."""
        with pytest.raises(ConnectionClosed) as caught:
            while True:
                self.connection.recv(FRAME_S)
        assert caught.value.rcvd is not None
        return caught.value.rcvd.code


def open_gate(client: httpx.Client, space_id: str) -> None:
    good(client.put(f"/v1/spaces/{space_id}/files", params={"path": "go"}, content=b""))


@contextlib.contextmanager
def talking(daemon: Daemon) -> Iterator[Talk]:
    with daemon.websocket("/v1/requests") as connection:
        yield Talk(connection)


SCRIPTED = {"request_agent": "scripted"}
"""For tests that name no agent."""


@contextlib.contextmanager
def daemon_with(settings: Mapping[str, object]) -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        config = Path(folder) / "config.toml"
        config.write_text(
            "".join(
                f"{name} = {json.dumps(one)}\n" for name, one in {**SCRIPTED, **settings}.items()
            )
        )
        patch.setenv("CARREL_CONFIG", str(config))
        with fresh_daemon() as daemon:
            yield daemon


def kept(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that everybody hears who asks; others are told while they are true."""
    return [frame for frame in frames if "seq" in frame]
