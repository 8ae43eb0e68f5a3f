"""A client that goes the moment it has its result: it has it."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from websockets.client import ClientProtocol
from websockets.frames import Close, CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from tests.daemon.requesting import FRAME_S, new_name, talking
from tests.daemon.rig import LOOK_S, Daemon, good


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


@pytest.mark.parametrize(
    ("code", "has_it"),
    [(CloseCode.NORMAL_CLOSURE, True), (CloseCode.GOING_AWAY, False), (1009, False), (1011, False)],
)
def test_it_is_asked_together_with_its_result_whether_it_has_it(
    daemon: Daemon, client: httpx.Client, code: int, has_it: bool
) -> None:
    """Asked a moment later, one that has gone would not be heard to say goodbye. One to whom the
    result is too large, or that is left, says goodbye as well."""
    name = new_name()
    with connected(daemon) as (connection, protocol):
        send(connection, protocol, generate(name, "write a.txt a"))
        heard: list[Frame] = []
        while not any(b'"type":"result"' in bytes(frame.data) for frame in heard):
            protocol.receive_data(connection.recv(1 << 20))
            heard = [one for one in protocol.events_received() if isinstance(one, Frame)]
        assert [frame.opcode for frame in heard][-2:] == [Opcode.TEXT, Opcode.PING]
        # It does not answer, and goes.
        connection.sendall(goodbye(code))
        while connection.recv(1 << 20):
            pass
    if has_it:
        assert found(client, name, lambda one: one["delivered_at"] is not None)
    else:
        with connected(daemon) as (connection, protocol):
            send(connection, protocol, {"type": "resume", "request_id": name, "after": 0})
            said = b""
            while b'"type":"result"' not in said:
                said += connection.recv(1 << 20)
            # Whatever the first goodbye was taken for has been written down by now.
            (one,) = good(client.get("/v1/requests", params={"owner": name}))["requests"]
            assert one["delivered_at"] is None
        assert b'"text":"a\\n"' in said
    good(client.post(f"/v1/requests/{name}/done"))


def test_what_was_said_last_is_done(daemon: Daemon, client: httpx.Client) -> None:
    """As a page says it that is being left."""
    name = new_name()
    with connected(daemon) as (connection, protocol):
        send(connection, protocol, generate(name, "sleep 1000"))
        assert found(client, name, lambda one: one["state"] == "working")
        protocol.send_text(json.dumps({"type": "cancel", "request_id": name}).encode())
        connection.sendall(b"".join(protocol.data_to_send()) + goodbye(CloseCode.GOING_AWAY))
    assert found(client, name, lambda one: one["state"] == "cancelled")


def test_what_was_said_first_and_last_at_once_is_done(daemon: Daemon, client: httpx.Client) -> None:
    name = new_name()
    with connected(daemon) as (connection, protocol):
        protocol.send_text(json.dumps(generate(name, "sleep 1000")).encode())
        protocol.send_text(json.dumps({"type": "cancel", "request_id": name}).encode())
        connection.sendall(b"".join(protocol.data_to_send()) + goodbye(CloseCode.GOING_AWAY))
    assert found(client, name, lambda one: one["state"] == "cancelled")


def test_who_only_watches_does_not_take_it(daemon: Daemon, client: httpx.Client) -> None:
    """An administrator hears the outcome of another's request, who has it still to come."""
    name = new_name()
    with daemon.tcp(daemon.token("label:team=blue")) as tenant:
        body = {"instructions": "write a.txt a", "owner": name}
        asked = good(tenant.post("/v1/requests", json=body))
        with client.stream("GET", f"/v1/requests/{asked['key']}/events") as events:
            assert "event: result" in list(events.iter_lines())
        with talking(daemon) as talk:
            talk.say("resume", request_id=asked["key"], after=0)
            talk.outcome()
        (one,) = good(client.get("/v1/requests", params={"owner": name}))["requests"]
        assert one["delivered_at"] is None
        record = good(tenant.get(f"/v1/requests/{asked['key']}"))
        assert record["result"]["files"][0]["text"] == "a\n"
        assert found(client, name, lambda one: one["delivered_at"] is not None)


def send(connection: socket.socket, protocol: ClientProtocol, frame: dict[str, Any]) -> None:
    protocol.send_text(json.dumps(frame).encode())
    connection.sendall(b"".join(protocol.data_to_send()))


def generate(name: str, instructions: str) -> dict[str, Any]:
    asked = {"type": "generate", "request_id": name, "owner": name}
    return {**asked, "instructions": instructions}


def goodbye(code: int) -> bytes:
    return Frame(Opcode.CLOSE, Close(code, "").serialize()).serialize(mask=True)


def found(client: httpx.Client, owner: str, so: Callable[[dict[str, Any]], bool]) -> bool:
    """Lists take no outcome."""
    until = time.monotonic() + FRAME_S
    while time.monotonic() < until:
        listed = good(client.get("/v1/requests", params={"owner": owner}))["requests"]
        if listed and so(listed[0]):
            return True
        time.sleep(LOOK_S)
    return False
