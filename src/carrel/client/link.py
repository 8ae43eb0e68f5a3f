"""The sync client's connections: asks, waits for the answer, keeps the connection."""

from __future__ import annotations

# The module `socket` wraps this in Python enums and selectors, and takes as long to import as
# the daemon takes to answer. It is used where names are looked up.
import _socket
import select

from carrel.client.address import CONNECT_S, Address, check_peer, connect_unix
from carrel.client.http import (
    TIMEOUT_S,
    HttpAnswer,
    HttpRequest,
    ProtocolError,
    ResponseParser,
    operation,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Concatenate, ParamSpec, TypeVar

    from carrel.client.http import HttpHead

    P = ParamSpec("P")
    T = TypeVar("T")

READ_BYTES = 256 * 1024
MAX_IDLE = 4
"""Connections that are kept for the next request."""


class Link:
    """To one daemon. `start` is called when nobody listens, and returns when somebody does.
    May be used by several threads; a connection belongs to one request at a time."""

    def __init__(
        self,
        place: Address,
        *,
        timeout_s: float = TIMEOUT_S,
        start: Callable[[], None] | None = None,
    ) -> None:
        self.place = place
        self.timeout_s = timeout_s
        self.start = start
        self._idle: list[_socket.socket] = []

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def ask(self, request: HttpRequest) -> HttpAnswer:
        """The whole answer, whatever it is. `DaemonUnavailable`."""
        with self.open(request) as stream:
            return HttpAnswer(stream.head, stream.read())

    def json(self, request: HttpRequest) -> Any:
        """The answer's content. Raises the error that the answer is, if it is one."""
        return self.ask(request).json()

    def call(self, kind: type[T], name: str, *named: str, member: str = "", **options: Any) -> T:
        """As `AsyncLink.call`."""
        from carrel.client.models import decode

        content = self.json(operation(name, *named, **options))
        return decode(content[member] if member else content, kind)

    def blocking(
        self, work: Callable[Concatenate[Link, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Work with this link that takes as long as it takes: see `AsyncLink.blocking`."""
        return work(self, *args, **kwargs)

    def open(self, request: HttpRequest, *, start: bool = True) -> StreamedAnswer:
        """An answer whose body is read as it comes. `DaemonUnavailable`."""
        timeout_s = self.timeout_s if request.timeout_s is None else request.timeout_s
        tries = 2 if request.again and isinstance(request.body, bytes) else 1
        while True:
            tries -= 1
            sock = self._take(start)
            try:
                return self._send(sock, request, timeout_s)
            except (OSError, ProtocolError) as error:
                sock.close()
                if tries and not isinstance(error, TimeoutError):
                    continue
                raise _broken(error, timeout_s) from error
            except BaseException:
                sock.close()
                raise

    def _send(self, sock: _socket.socket, request: HttpRequest, timeout_s: float) -> StreamedAnswer:
        sock.settimeout(timeout_s)
        stream = StreamedAnswer(sock, timeout_s, self._give_back)
        try:
            sock.sendall(request.beginning(self.place))
            for piece in request.pieces():
                sock.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            # One who refuses a large body says so, and does not listen to all of it.
            stream.read_head()
            stream.parser.reusable = False
        else:
            stream.read_head()
        return stream

    def websocket(
        self, request: HttpRequest, *, start: bool = True
    ) -> tuple[_socket.socket, bytes]:
        """A connection that has become a WebSocket, and what came on it already. Raises the
        error with which it was refused, `DaemonUnavailable`, or as the connection breaks
        `OSError` and `ProtocolError`: the caller knows how to begin again."""
        from carrel.client.websocket import check_upgrade, new_key, upgrade_headers

        key = new_key()
        request.headers = [*request.headers, *upgrade_headers(key)]
        sock = self.connect(start=start)
        try:
            stream = self._send(sock, request, self.timeout_s)
            if stream.head.status != 101:
                HttpAnswer(stream.head, stream.read()).check()
            check_upgrade(stream.head, key)
        except BaseException:
            sock.close()
            raise
        return sock, stream.parser.rest

    # Connections

    def _take(self, start: bool) -> _socket.socket:
        while self._idle:
            sock = self._idle.pop()
            if is_quiet(sock.fileno()):
                return sock
            sock.close()
        return self.connect(start=start)

    def _give_back(self, sock: _socket.socket) -> None:
        if len(self._idle) < MAX_IDLE:
            self._idle.append(sock)
        else:
            sock.close()

    def connect(self, *, start: bool = True) -> _socket.socket:
        """A new connection. `DaemonUnavailable`, or why the daemon could not be started."""
        try:
            return _connect(self.place)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if self.start is None or not start:
                raise _unreachable(self.place, error) from error
        except OSError as error:
            raise _unreachable(self.place, error) from error
        self.start()
        try:
            return _connect(self.place)
        except OSError as error:
            raise _unreachable(self.place, error) from error


class AnswerStream:
    """One answer on its way. Reading it to its end gives the connection back; leaving it
    earlier closes it."""

    def __init__(self, connection: Any, timeout_s: float, give_back: Callable[[Any], None]) -> None:
        self.parser = ResponseParser()
        self._connection = connection
        self._timeout_s = timeout_s
        self._give_back = give_back
        self._waiting: list[bytes] = []

    @property
    def head(self) -> HttpHead:
        assert self.parser.head is not None
        return self.parser.head

    def _finish(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None or self.head.status == 101:
            return
        if self.parser.reusable and not self.parser.rest:
            self._give_back(connection)
        else:
            connection.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self.head.status != 101:
            connection.close()


class StreamedAnswer(AnswerStream):
    """Read from a socket."""

    def read_head(self) -> None:
        while self.parser.head is None:
            self._waiting += self.parser.receive(self._connection.recv(READ_BYTES))

    def __iter__(self) -> Iterator[bytes]:
        """The parts of the body. `DaemonUnavailable` when it breaks off."""
        while True:
            while self._waiting:
                yield self._waiting.pop(0)
            if self.parser.done:
                self._finish()
                return
            if self._connection is None:
                return
            try:
                self._waiting += self.parser.receive(self._connection.recv(READ_BYTES))
            except (OSError, ProtocolError) as error:
                self.close()
                raise _broken(error, self._timeout_s) from error

    def read(self) -> bytes:
        return b"".join(self)

    def __enter__(self) -> StreamedAnswer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_quiet(descriptor: int) -> bool:
    """An idle connection on which something comes was closed by the other side."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return not poll.poll(0)


def _connect(place: Address) -> _socket.socket:
    if not place.socket:
        return _connect_tcp(place)
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_S)
        connect_unix(sock.connect, place.socket)
        check_peer(sock, place)
    except BaseException:
        sock.close()
        raise
    return sock


def _connect_tcp(place: Address) -> _socket.socket:
    import socket

    sock = socket.create_connection((place.host, place.port), timeout=CONNECT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not place.tls:
        return sock
    import ssl

    try:
        return ssl.create_default_context().wrap_socket(sock, server_hostname=place.host)
    except BaseException:
        sock.close()
        raise


def _unreachable(place: Address, error: Exception) -> Exception:
    from carrel.client.problems import unreachable

    return unreachable(place, error)


def _broken(error: Exception, timeout_s: float) -> Exception:
    from carrel.client.problems import broken

    return broken(error, timeout_s)


# What the async client needs an event loop for.


def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return work(*args, **kwargs)


def shielded(work: T) -> T:
    return work
