"""A few words with the hub, and out again: for programs that are started for that alone.

Blocks, needs nothing beside the standard library, and imports as little as `link` does. Who
wants to listen for longer takes `Hub`, which connects again.
"""

from __future__ import annotations

import json
import os

from carrel.client import websocket
from carrel.client.address import CONNECT_S, PATH, HubAddress, starter
from carrel.client.http import HttpRequest, ProtocolError
from carrel.client.link import READ_BYTES, Link

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Iterator, Sequence
    from typing import Any

MISSED = 3
"""Heartbeats without a word from the hub after which the connection counts as lost."""


class HubLine:
    """One connection, registered. Raises the hub's errors, and `DaemonUnavailable` whenever
    the connection fails."""

    def __init__(self, where: HubAddress, *, start: bool = True) -> None:
        self.space = ""
        """The one that this runs in; empty outside."""
        self._where = where
        self._link = Link(where.place, start=starter(where.place, start))
        self._sock: _socket.socket | None = None
        self._lines: list[bytes] = []
        self._rest = b""
        self._parser: websocket.FrameParser | None = None
        self._heartbeat_s = CONNECT_S
        self._count = 0
        # A question goes by its id, and two programs may ask in one space.
        self._ids = os.urandom(6).hex()

    def open(
        self, name: str = "", *, types: Sequence[str] = (), spaces: Sequence[str] = ()
    ) -> HubLine:
        if self._where.lines:
            self._sock = self._link.connect()
        else:
            self._open_socket()
        payload = {
            "kind": "agent" if self._where.inside else "cli",
            "name": name,
            "subscriptions": {"types": list(types), "spaces": list(spaces)},
        }
        try:
            welcome = self.ask({"type": "client_register", "payload": payload})
        except BaseException:
            self.close()
            raise
        self.space = welcome["space"]
        self._heartbeat_s = welcome["heartbeat_s"]
        return self

    def _open_socket(self) -> None:
        try:
            self._sock, begun = self._link.websocket(HttpRequest("GET", PATH))
        except (OSError, ProtocolError) as error:
            raise _broken(error) from error
        self._parser = websocket.FrameParser()
        self._take(begun)

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        self._link.close()

    def __enter__(self) -> HubLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, envelope: dict[str, Any]) -> Any:
        """The data of the answer. What comes before it is dropped."""
        self._count += 1
        number = f"{self._ids}-{self._count}"
        self._send({**envelope, "id": number})
        for answer in self.envelopes():
            payload = answer.get("payload") or {}
            # What is refused before the hub knows us has no number.
            ours = answer.get("reply_to") == number or self._count == 1
            if ours and answer.get("type") == "error":
                raise _error(payload)
            if answer.get("reply_to") == number and answer.get("type") == "response":
                if payload.get("status") == "error":
                    raise _error(payload.get("error"))
                return payload.get("data")
        raise ended()

    def envelopes(self) -> Iterator[dict[str, Any]]:
        """As `lines`; what is wrong with one of them is not the end of the others."""
        for line in self.lines():
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict):
                yield found

    def lines(self) -> Iterator[bytes]:
        """Envelopes as they come, to the end of the connection."""
        while True:
            while self._lines:
                yield self._lines.pop(0)
            data = self._receive()
            if not data:
                return
            self._take(data)

    def _take(self, data: bytes) -> None:
        if self._parser is None:
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines += [line for line in lines if line]
            return
        try:
            found = self._parser.receive(data)
        except ProtocolError as error:
            raise _broken(error) from error
        for message in found:
            if message.kind == websocket.TEXT:
                self._lines.append(message.data)
            elif message.kind == websocket.PING:
                self._write(websocket.encode(websocket.PONG, message.data))

    def _receive(self) -> bytes:
        assert self._sock is not None
        for _ in range(2 * MISSED):
            self._sock.settimeout(self._heartbeat_s / 2)
            try:
                return self._sock.recv(READ_BYTES)
            except TimeoutError:
                self._send({"type": "heartbeat"})
            except OSError as error:
                raise _broken(error) from error
        raise _broken(TimeoutError(), MISSED * self._heartbeat_s)

    def _send(self, envelope: dict[str, Any]) -> None:
        data = json.dumps(envelope, ensure_ascii=False).encode("utf-8", "replace")
        self._write(
            data + b"\n" if self._parser is None else websocket.encode(websocket.TEXT, data)
        )

    def _write(self, data: bytes) -> None:
        assert self._sock is not None
        try:
            self._sock.settimeout(CONNECT_S)
            self._sock.sendall(data)
        except OSError as error:
            raise _broken(error) from error


def ended() -> Exception:
    """The hub closed the connection before all was said."""
    return _broken(ConnectionResetError("the hub closed it"))


def _error(problem: object) -> Exception:
    from carrel.client.problems import error_in

    return error_in(problem)


def _broken(error: Exception, timeout_s: float = CONNECT_S) -> Exception:
    from carrel.client.problems import broken

    return broken(error, timeout_s)
