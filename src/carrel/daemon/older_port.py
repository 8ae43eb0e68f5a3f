"""The port of the older API, where a client shows no token: who connects is told by the kernel. See
`carrel.instances.owners`.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

from carrel.instances.owners import OwnersConnections
from carrel.interfaces.http.connections import last_answer, not_owners

HOST = "127.0.0.1"
BACKLOG = 4096
"""Who finds it full tries again after a second, then after three."""
MOST_UNKNOWN = 256
"""Connections that are looked at together; the others wait in the kernel, the oldest first."""
MOST_REFUSED = 256
"""Connections that may still read that they are refused; one more, and the oldest goes."""
MOST_UNREAD = 1 << 20
"""Bytes that are taken of one of them."""
AGAIN_S = 0.1
"""Until the next try when there was no descriptor for a connection."""


class OlderListener:
    """Accepts connections, and has each looked at before it takes a place among those of the
    daemon."""

    def __init__(
        self,
        listener: socket.socket,
        owners: OwnersConnections,
        make: Callable[[], asyncio.Protocol],
    ) -> None:
        """`make` is for the owner's connections; others only hear that they are refused."""
        self._listener = listener
        self._owners = owners
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._unknown: set[asyncio.Task[None]] = set()
        self._refused: deque[asyncio.Transport] = deque()
        self._closed = False
        self._listen()

    def close(self) -> None:
        """Idempotent."""
        self._closed = True
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for task in self._unknown:
            task.cancel()
        for transport in self._refused:
            transport.abort()

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """All who wait, so that one look is for many."""
        while len(self._unknown) < MOST_UNKNOWN:
            try:
                came, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                self._loop.remove_reader(self._listener)
                self._loop.call_later(AGAIN_S, self._listen)
                return
            came.setblocking(False)
            task = self._loop.create_task(self._admit(came))
            self._unknown.add(task)
            task.add_done_callback(self._admitted)
        self._loop.remove_reader(self._listener)

    def _admitted(self, task: asyncio.Task[None]) -> None:
        self._unknown.discard(task)
        if not self._unknown:
            self._listen()

    async def _admit(self, came: socket.socket) -> None:
        try:
            make = self._make if await self._owners(came) else _Refusal
            transport, protocol = await self._loop.connect_accepted_socket(make, came)
            if isinstance(protocol, _Refusal):
                self._refused.append(transport)
            while len(self._refused) > MOST_REFUSED:
                self._refused.popleft().abort()
        except OSError:
            came.close()
        except asyncio.CancelledError:
            came.close()
            raise


class _Refusal(asyncio.Protocol):
    """Says that this is not for the one who came, and takes what that one still sends: who is cut
    off in the middle of it might not read why."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._left = MOST_UNREAD
        self._answered = False

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self._transport.abort()
        elif not self._answered:
            self._answered = True
            self._transport.write(last_answer(not_owners(), HTTPStatus.FORBIDDEN))
            self._transport.write_eof()


def listen(port: int) -> socket.socket:
    """On the loopback alone. OSError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
