"""WebSocket frames: against themselves cut at every byte, and against another implementation."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol

from carrel.client import websocket
from carrel.client.http import HttpHead, ProtocolError, ResponseParser, request_head
from carrel.client.websocket import FrameParser

SIZES = [0, 1, 125, 126, 65535, 65536, 200_000]


def unmasked(kind: int, data: bytes, *, final: bool = True) -> bytes:
    """A frame as a server writes it."""
    return Frame(Opcode(kind), data, fin=final).serialize(mask=False)


@pytest.mark.parametrize("size", SIZES)
def test_what_a_client_sends_is_understood(size: int) -> None:
    server = ServerProtocol(state=State.OPEN, max_size=None)
    data = bytes(index % 251 for index in range(size))
    server.receive_data(websocket.encode(websocket.BINARY, data))
    [event] = server.events_received()
    assert isinstance(event, Frame)
    assert event.opcode is Opcode.BINARY and bytes(event.data) == data


@pytest.mark.parametrize("size", SIZES)
def test_what_a_server_sends_is_understood(size: int) -> None:
    server = ServerProtocol(state=State.OPEN)
    data = bytes(size)
    server.send_binary(data)
    server.send_text(b"text")
    server.send_ping(b"ping")
    server.send_close(1012, "again")
    wire = b"".join(piece for piece in server.data_to_send() if piece is not SEND_EOF)
    found = [(one.kind, one.data, one.code) for one in FrameParser().receive(wire)]
    assert found == [
        (websocket.BINARY, data, 0),
        (websocket.TEXT, b"text", 0),
        (websocket.PING, b"ping", 0),
        (websocket.CLOSE, b"again", 1012),
    ]


def test_the_handshake_is_agreed_upon() -> None:
    server = ServerProtocol()
    key = websocket.new_key()
    head = request_head("GET", "/x", [("Host", "carrel"), *websocket.upgrade_headers(key)])
    server.receive_data(head)
    [request] = server.events_received()
    server.send_response(server.accept(request))  # type: ignore[arg-type]
    parser = ResponseParser()
    parser.receive(b"".join(server.data_to_send()))
    assert parser.head is not None
    websocket.check_upgrade(parser.head, key)
    with pytest.raises(ProtocolError):
        websocket.check_upgrade(parser.head, websocket.new_key())


@pytest.mark.parametrize(
    "head",
    [
        HttpHead(200, {}),
        HttpHead(101, {"upgrade": "h2c"}),
        HttpHead(101, {"upgrade": "websocket", "sec-websocket-accept": "x"}),
    ],
)
def test_one_who_does_not_agree_is_refused(head: HttpHead) -> None:
    with pytest.raises(ProtocolError):
        websocket.check_upgrade(head, websocket.new_key())


@settings(deadline=None)
@given(
    messages=st.lists(
        st.tuples(
            st.sampled_from([websocket.TEXT, websocket.BINARY]),
            st.lists(st.binary(max_size=300), min_size=1, max_size=4),
        ),
        max_size=6,
    ),
    places=st.lists(st.integers(0, 5000), max_size=10),
    interrupt=st.booleans(),
)
def test_messages_are_the_same_however_they_are_cut(
    messages: list[tuple[int, list[bytes]]], places: list[int], interrupt: bool
) -> None:
    """In fragments, with a ping between them, at any byte."""
    wire = b""
    for kind, parts in messages:
        for at, part in enumerate(parts):
            final = at == len(parts) - 1
            wire += unmasked(kind if at == 0 else websocket.CONTINUATION, part, final=final)
            if interrupt and not final:
                wire += unmasked(websocket.PING, b"?")
    marks = sorted({0, len(wire), *(place % (len(wire) + 1) for place in places)})
    parser = FrameParser()
    found = []
    for a, b in pairwise(marks):
        found += parser.receive(wire[a:b])
    whole = [(one.kind, one.data) for one in found if one.kind != websocket.PING]
    assert whole == [(kind, b"".join(parts)) for kind, parts in messages]


@pytest.mark.parametrize(
    "wire",
    [
        websocket.encode(websocket.TEXT, b"masked"),
        bytes((0xC1, 0)),
        bytes((0x83, 0)),
        bytes((0x8B, 0)),
        bytes((0x80, 0)),
        bytes((0x01, 0, 0x81, 0)),
        bytes((0x09, 0)),
        bytes((0x89, 126, 0, 126)) + bytes(126),
        bytes((0x88, 1, 0)),
        bytes((0x82, 127)) + (1 << 40).to_bytes(8, "big"),
    ],
    ids=[
        "masked",
        "reserved bit",
        "unknown kind",
        "unknown control",
        "continues nothing",
        "begins twice",
        "control in parts",
        "control too long",
        "half a close code",
        "too large",
    ],
)
def test_what_no_server_may_send_is_refused(wire: bytes) -> None:
    with pytest.raises(ProtocolError):
        FrameParser().receive(wire)


@settings(deadline=None)
@given(st.binary(max_size=200), st.binary(min_size=4, max_size=4))
def test_masking_is_what_it_should_be(data: bytes, mask: bytes) -> None:
    wanted = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
    assert websocket.masked(data, mask) == wanted
