"""A client that goes the moment it has its result: it has it."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator

import httpx
from websockets.client import ClientProtocol
from websockets.frames import Close, CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from tests.daemon.requesting import FRAME_S, new_name
from tests.daemon.rig import Daemon, good


@contextlib.contextmanager
def connected(daemon: Daemon) -> Iterator[tuple[socket.socket, ClientProtocol]]:
    """Bytes as they come, so that it is known what came together."""
    protocol = ClientProtocol(parse_uri("ws://carrel/v1/requests"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(FRAME_S)
        connection.connect(daemon.socket)
        protocol.send_request(protocol.connect())
        connection.sendall(b"".join(protocol.data_to_send()))
        protocol.receive_data(connection.recv(1 << 20))
        (answer,) = protocol.events_received()
        assert isinstance(answer, Response) and answer.status_code == 101
        yield connection, protocol


def test_it_is_asked_together_with_its_result_whether_it_has_it(
    daemon: Daemon, client: httpx.Client
) -> None:
    """Asked a moment later, one that has gone would not be heard to say goodbye."""
    name = new_name()
    asked = {"type": "generate", "request_id": name, "owner": name, "instructions": "write a.txt a"}
    with connected(daemon) as (connection, protocol):
        protocol.send_text(json.dumps(asked).encode())
        connection.sendall(b"".join(protocol.data_to_send()))
        heard: list[Frame] = []
        while not any(b'"type":"result"' in bytes(frame.data) for frame in heard):
            protocol.receive_data(connection.recv(1 << 20))
            heard = [one for one in protocol.events_received() if isinstance(one, Frame)]
        assert [frame.opcode for frame in heard][-2:] == [Opcode.TEXT, Opcode.PING]
        # It does not answer, and goes.
        goodbye = Frame(Opcode.CLOSE, Close(CloseCode.NORMAL_CLOSURE, "").serialize())
        connection.sendall(goodbye.serialize(mask=True))
    assert delivered(client, name)


def delivered(client: httpx.Client, owner: str) -> bool:
    """Lists take no outcome."""
    until = time.monotonic() + FRAME_S
    while time.monotonic() < until:
        (found,) = good(client.get("/v1/requests", params={"owner": owner}))["requests"]
        if found["delivered_at"] is not None:
            return True
    return False
