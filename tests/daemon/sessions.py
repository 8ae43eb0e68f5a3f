"""The client's side of a command over WebSocket."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

FRAME_S = 30.0
"""For the next frame, on a busy machine."""


class Session:
    """What a client has seen of a run."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.run: dict[str, Any] = {}
        self.out = {1: b"", 2: b""}
        self.dropped = 0
        self.confirmed: int | None = 0

    def send(self, message: object) -> None:
        self.connection.send(message if isinstance(message, bytes) else json.dumps(message))

    def next(self) -> dict[str, Any] | None:
        """A text frame; None for a piece of output and for what is said of the input."""
        frame = self.connection.recv(FRAME_S)
        if isinstance(frame, str):
            message: dict[str, Any] = json.loads(frame)
            self.run = message.get("run", self.run)
            if message["type"] != "input":
                return message
            self.confirmed = message["bytes"]
            return None
        stream, offset = struct.unpack_from("!BQ", frame)
        self.dropped += offset - len(self.out[stream]) - self.dropped
        self.out[stream] += frame[9:]
        return None

    def until(self, kind: str) -> dict[str, Any]:
        while True:
            message = self.next()
            if message is not None:
                assert message["type"] == kind, message
                return message

    def until_output(self, text: bytes, stream: int = 1) -> None:
        while text not in self.out[stream]:
            message = self.next()
            assert message is None, message

    def closed(self) -> tuple[int, str]:
        """How the server ended it."""
        with pytest.raises(ConnectionClosed) as caught:
            while True:
                self.connection.recv(FRAME_S)
        assert caught.value.rcvd is not None
        return caught.value.rcvd.code, caught.value.rcvd.reason
