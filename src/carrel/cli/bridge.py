"""Bytes between our standard streams and a server's socket, for `instance connect` and `mcp`."""

from __future__ import annotations

import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

SERVER, READER, SIGNAL, QUIET = "server", "reader", "signal", "quiet"
"""How it can end: the server closed; nobody reads our output; a signal came; nothing came any
more after our input had ended."""
READ_BYTES = 64 * 1024
WRITE_BYTES = 4096
"""A pipe that takes anything takes that much at once: our own streams stay blocking, because
others may share them."""
QUIET_S = 30.0
"""For a server to say more after the last question; one that does not end then is ended."""
_SHUT_WR = 1
_GONE = select.POLLERR | select.POLLHUP | select.POLLNVAL


class StdioBridge:
    """Moves bytes between our standard streams and a socket, as they come: no protocol, one
    thread. What one side does not take is not read from the other, so that nothing piles up."""

    def __init__(self, sock: _socket.socket, wake: int) -> None:
        """`wake` can be read when a signal came."""
        sock.setblocking(False)
        self._sock = sock
        self._wake = wake
        self._asked = b""
        self._told = b""
        self._input_open = True
        self._shut = False
        self._server_open = True
        self._spoke, self._heard = False, False
        """Whether we have said anything, and the server."""

    @property
    def refused(self) -> bool:
        """Whether the server went without a word to a client that wanted something."""
        return not self._heard and (self._spoke or self._input_open)

    def run(self) -> str:
        """Moves bytes until one of them ends; says which."""
        while self._server_open or self._told:
            if ended := self._step():
                return ended
        return SERVER

    def _step(self) -> str:
        found = self._ready()
        if not found:
            return QUIET
        if self._wake in found:
            return SIGNAL
        if 1 in found and (found[1] & _GONE or not self._write()):
            return READER
        if 0 in found:
            self._read()
        mask = found.get(self._sock.fileno(), 0)
        if mask & select.POLLOUT:
            self._send()
        if mask & (select.POLLIN | _GONE) and not self._told:
            self._receive()
        return ""

    def _ready(self) -> dict[int, int]:
        """What is not waited for is left out: its hanging up would wake us again and again."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(1, select.POLLOUT if self._told else 0)
        if self._input_open and not self._asked:
            poll.register(0, select.POLLIN)
        wanted = select.POLLOUT if self._asked else 0
        if not self._told and self._server_open:
            wanted |= select.POLLIN
        if wanted:
            poll.register(self._sock, wanted)
        waiting = self._input_open or self._told
        return dict(poll.poll(None if waiting else QUIET_S * 1000))

    def _read(self) -> None:
        self._asked = os.read(0, READ_BYTES)
        self._input_open = bool(self._asked)
        self._spoke = self._spoke or self._input_open
        self._half_close()

    def _send(self) -> None:
        try:
            self._asked = self._asked[self._sock.send(self._asked) :]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            # It listens no more; what it still has to say comes first.
            self._asked = b""
        self._half_close()

    def _half_close(self) -> None:
        if self._input_open or self._asked or self._shut:
            return
        self._shut = True
        try:
            self._sock.shutdown(_SHUT_WR)
        except OSError:
            return

    def _receive(self) -> None:
        try:
            self._told = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            self._told = b""
        self._server_open = bool(self._told)
        self._heard = self._heard or self._server_open

    def _write(self) -> bool:
        """False when nobody reads any more."""
        try:
            self._told = self._told[os.write(1, self._told[:WRITE_BYTES]) :]
        except BrokenPipeError:
            return False
        return True
