"""WebSocket frames (RFC 6455) of a client: bytes in, messages out, and no socket.

No extensions are offered, so there are none. This is our own because `carrel exec` needs it:
the library that the daemon uses takes longer to import than the command takes to run, and a
client without extensions is these few lines. The tests talk to that library.
"""

from __future__ import annotations

import os
from binascii import b2a_base64

from carrel.client.http import HttpHead, ProtocolError

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
CONTINUATION = 0
MAX_MESSAGE = 64 * 1024 * 1024
"""The daemon sends output in pieces far smaller."""
NORMAL, GOING_AWAY, TOO_LARGE, SERVICE_RESTART = 1000, 1001, 1009, 1012
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class WebSocketMessage:
    """A text (`TEXT`), data (`BINARY`), or something about the connection: `CLOSE` with its
    `code` and the reason as data, `PING` to be answered, `PONG`."""

    __slots__ = ("code", "data", "kind")

    def __init__(self, kind: int, data: bytes, code: int = 0) -> None:
        self.kind = kind
        self.data = data
        self.code = code


def new_key() -> str:
    return b2a_base64(os.urandom(16), newline=False).decode()


def upgrade_headers(key: str) -> list[tuple[str, str]]:
    return [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", key),
    ]


def check_upgrade(head: HttpHead, key: str) -> None:
    """Raises `ProtocolError` when the other side did not agree to speak WebSocket."""
    import hashlib

    wanted = b2a_base64(hashlib.sha1(key.encode() + _GUID).digest(), newline=False).decode()
    if (
        head.status != 101
        or head.headers.get("upgrade", "").lower() != "websocket"
        or head.headers.get("sec-websocket-accept") != wanted
        or "sec-websocket-extensions" in head.headers
    ):
        raise ProtocolError("The daemon does not speak WebSocket here.")


def encode(kind: int, data: bytes) -> bytes:
    """One whole message in one frame, masked as a client has to."""
    size = len(data)
    if size < 126:
        head = bytes((0x80 | kind, 0x80 | size))
    elif size < 1 << 16:
        head = bytes((0x80 | kind, 0x80 | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x80 | kind, 0x80 | 127)) + size.to_bytes(8, "big")
    mask = os.urandom(4)
    return head + mask + masked(data, mask)


def encode_close(code: int = NORMAL, reason: str = "") -> bytes:
    return encode(CLOSE, code.to_bytes(2, "big") + reason.encode()[:123])


def masked(data: bytes, mask: bytes) -> bytes:
    """One XOR of two large numbers is far faster than one of each byte."""
    size = len(data)
    repeated = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")


class FrameParser:
    """What a server sends."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._kind = 0
        self._parts: list[bytes] = []
        self._size = 0

    def receive(self, data: bytes) -> list[WebSocketMessage]:
        """Raises `ProtocolError` for what no server may send."""
        self._buffer += data
        found = []
        while (frame := self._frame()) is not None:
            message = self._take(*frame)
            if message is not None:
                found.append(message)
        return found

    def _frame(self) -> tuple[bool, int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, second = buffer[0], buffer[1]
        if first & 0x70 or second & 0x80:
            raise ProtocolError("A WebSocket frame uses what was not agreed.")
        size, start = second, 2
        if size >= 126:
            start = 4 if size == 126 else 10
            if len(buffer) < start:
                return None
            size = int.from_bytes(buffer[2:start], "big")
        if size + self._size > MAX_MESSAGE:
            raise ProtocolError("A WebSocket message is too large.")
        if len(buffer) < start + size:
            return None
        data = bytes(buffer[start : start + size])
        del buffer[: start + size]
        return bool(first & 0x80), first & 0x0F, data

    def _take(self, final: bool, kind: int, data: bytes) -> WebSocketMessage | None:
        if kind >= CLOSE:
            return self._control(final, kind, data)
        if (kind == CONTINUATION) != bool(self._kind) or kind > BINARY:
            raise ProtocolError("WebSocket frames came in an order that cannot be.")
        self._kind = self._kind or kind
        self._parts.append(data)
        self._size += len(data)
        if not final:
            return None
        message = WebSocketMessage(self._kind, b"".join(self._parts))
        self._kind, self._parts, self._size = 0, [], 0
        return message

    def _control(self, final: bool, kind: int, data: bytes) -> WebSocketMessage:
        if not final or len(data) > 125 or kind > PONG or (kind == CLOSE and len(data) == 1):
            raise ProtocolError("A WebSocket control frame is not as it must be.")
        if kind == CLOSE:
            return WebSocketMessage(
                kind, data[2:], int.from_bytes(data[:2], "big") if data else 1005
            )
        return WebSocketMessage(kind, data)
