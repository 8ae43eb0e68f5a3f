"""A server that does to one connection after the other just what a test says."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from carrel.client.address import Address

STEP_S = 20.0
"""For one step of a script, on a busy machine."""

Act = Callable[["Guest"], None]


class Guest:
    """A connection, as its script sees it."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(STEP_S)
        self.socket = connection
        self.heads: list[bytes] = []
        self.gone = threading.Event()
        """Set when the connection was closed on this side."""

    def request(self) -> bytes:
        """The next head, and what of the body came with it."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self.socket.recv(65536)
            if not piece:
                return b""
            data += piece
        self.heads.append(data)
        return data

    def answer(self, body: bytes = b"{}", status: int = 200, headers: str = "") -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        self.socket.sendall(head.encode() + body)

    def receive_all(self) -> bytes:
        """Until the client goes away."""
        pieces = []
        with contextlib.suppress(ConnectionError):
            while piece := self.socket.recv(65536):
                pieces.append(piece)
        return b"".join(pieces)


class Peer:
    def __init__(self, folder: Path, acts: Sequence[Act]) -> None:
        self.path = folder / "socket"
        self.guests: list[Guest] = []
        self.failure: BaseException | None = None
        self._acts = acts
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen(16)
        self._listener.settimeout(STEP_S)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def place(self) -> Address:
        return Address(socket=str(self.path))

    def start(self) -> Peer:
        self._thread.start()
        return self

    def _serve(self) -> None:
        try:
            for act in self._acts:
                connection, _ = self._listener.accept()
                guest = Guest(connection)
                self.guests.append(guest)
                with connection:
                    act(guest)
                guest.gone.set()
        except BaseException as error:
            self.failure = error

    def abort(self) -> None:
        """The test has failed, and the script need not go on."""
        self._listener.shutdown(socket.SHUT_RDWR)
        for guest in self.guests:
            with contextlib.suppress(OSError):
                guest.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(STEP_S)
        self._listener.close()

    def close(self) -> None:
        self._thread.join(STEP_S)
        self._listener.close()
        assert not self._thread.is_alive(), "the script was not played to its end"
        if self.failure is not None:
            raise self.failure


@contextlib.contextmanager
def peer(*acts: Act) -> Iterator[Peer]:
    """Serves as many connections as there are acts, and looks at the end that all came."""
    with tempfile.TemporaryDirectory(prefix="carrel-") as folder:
        one = Peer(Path(folder), acts).start()
        try:
            yield one
        except BaseException:
            one.abort()
            raise
        one.close()
