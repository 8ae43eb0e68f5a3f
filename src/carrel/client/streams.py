"""The sync side of what is said over a WebSocket: one thread, one `poll`, connected again when
lost.
"""

from __future__ import annotations

import contextlib
import select
import time

from carrel.client.exchange import ExchangeOutput, Lost, RetryDelay, RunExchange, SocketExchange
from carrel.client.http import ProtocolError

TYPE_CHECKING = False

if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from carrel.client.link import Link
    from carrel.client.request_frames import RequestExchange, RequestFrame


READ_BYTES = 256 * 1024
MAX_READS = 16
"""In one go, before the caller gets to write out what came."""
QUIET_S = 20.0
"""Without a byte, after which we ask whether somebody is still there."""
DEAD_S = 60.0
"""Without a byte, after which nobody is."""
GOODBYE_S = 1.0
"""For the daemon to hear that we leave; it is there, and only has to read it."""
HIGH_WATER = 1024 * 1024
"""Of input that the command does not have; until it sinks, no more should be given."""
_WOULD_BLOCK = ("SSLWantReadError", "SSLWantWriteError")


class SocketStream:
    """Not for several threads."""

    def __init__(self, link: Link, exchange: SocketExchange) -> None:
        self.exchange = exchange
        self._link = link
        self._sock: _socket.socket | None = None
        self._heard_at = 0.0
        self._asked_at = 0.0
        self._backoff: RetryDelay | None = None
        self._may_start = True
        self._left = False
        self._fresh = False
        """Something came with the connection, which the caller has not seen."""

    def open(self) -> Self:
        """Raises what stands in the way: the space's errors, `DaemonUnavailable`."""
        try:
            self._connect()
        except (OSError, ProtocolError) as error:
            self.close()
            from carrel.client.problems import broken

            raise broken(error, self._link.timeout_s) from error
        return self

    def close(self) -> None:
        """Leaves; what was asked for goes on. Whoever was waited for says so."""
        self._left = True
        if self._sock is not None and not self.exchange.ended:
            with contextlib.suppress(OSError):
                self._say_goodbye(self._sock)
        self._drop()

    def _say_goodbye(self, sock: _socket.socket) -> None:
        """Until it is heard: a connection that is closed with output unread takes with it what
        we said last."""
        self.exchange.leave()
        self._flush()
        until = time.monotonic() + GOODBYE_S
        while (left_s := until - time.monotonic()) > 0:
            sock.settimeout(left_s)
            if not sock.recv(READ_BYTES):
                return

    def _drop(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def fileno(self) -> int:
        return -1 if self._sock is None else self._sock.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, readers: Sequence[int] = (), timeout_s: float | None = None) -> set[int]:
        """Moves what can be moved, waiting until there is something or the time is over.
        Gives those of `readers` that can be read. Raises the errors of `open`."""
        poll = select.poll()
        for reader in readers:
            poll.register(reader, select.POLLIN)
        try:
            if self._sock is None:
                self._reconnect()
            self._flush()
        except (OSError, ProtocolError) as error:
            self._lost(error)
        sock = self._sock
        own = -1
        if sock is not None:
            own = sock.fileno()
            writing = select.POLLOUT if self.exchange.out else 0
            poll.register(own, select.POLLIN | writing)
        pause_ms = 0 if self._fresh else self._pause_ms(timeout_s)
        self._fresh = False
        ready = {number for number, _ in poll.poll(pause_ms)}
        try:
            if own in ready:
                self._receive()
            self._flush()
            self._check_alive()
        except (OSError, ProtocolError) as error:
            self._lost(error)
        return ready - {own}

    # Moving

    def _receive(self) -> None:
        assert self._sock is not None
        for _ in range(MAX_READS):
            try:
                data = self._sock.recv(READ_BYTES)
            except OSError as error:
                if _would_block(error):
                    return
                raise
            self._heard_at = time.monotonic()
            self.exchange.receive(data)
            self._backoff = None
            if self.exchange.ended:
                self._flush()
                self._drop()
                return

    def _flush(self) -> None:
        """A connection that breaks here is noticed when it is read, after what came before: that
        the command runs, for instance."""
        out = self.exchange.out
        while out and self._sock is not None:
            try:
                sent = self._sock.send(out[:READ_BYTES])
            except OSError:
                return
            del out[:sent]

    def _pause_ms(self, timeout_s: float | None) -> int | None:
        now = time.monotonic()
        if self._sock is None:
            until = self._backoff.next_at if self._backoff is not None else now
        else:
            until = max(self._heard_at, self._asked_at) + QUIET_S
        pause_s = max(0.0, until - now)
        if timeout_s is not None:
            pause_s = min(pause_s, timeout_s)
        return int(pause_s * 1000) + 1 if pause_s else 0

    def _check_alive(self) -> None:
        if self._sock is None:
            return
        now = time.monotonic()
        if now - self._heard_at > DEAD_S:
            raise Lost("Nothing came for too long.")
        if now - max(self._heard_at, self._asked_at) >= QUIET_S:
            self._asked_at = now
            self.exchange.ping()

    # Connecting

    def _connect(self) -> None:
        request = self.exchange.connecting()
        sock, rest = self._link.websocket(request, start=self._may_start)
        sock.settimeout(0)
        self._sock = sock
        self._heard_at = self._asked_at = time.monotonic()
        self._may_start = True
        self._fresh = bool(rest)
        self.exchange.connected(rest)
        if self.exchange.ended:
            self._drop()

    def _lost(self, error: Exception) -> None:
        """One who says goodbye is not called back to life: the daemon is awaited then, not
        started."""
        self._drop()
        self.exchange.lost(error)
        if self._backoff is None:
            self._may_start = not (isinstance(error, Lost) and error.going)
            self._backoff = RetryDelay(time.monotonic())

    def _reconnect(self) -> None:
        from carrel.domain.errors import DaemonError

        assert self._backoff is not None
        if time.monotonic() < self._backoff.next_at:
            return
        try:
            self._connect()
            return
        except (DaemonError, OSError, ProtocolError) as error:
            self._drop()
            self.exchange.lost(error)
            if not self._backoff.failed(time.monotonic()):
                raise self.exchange.gone() from error


class RunStream(SocketStream):
    """Of a command."""

    exchange: RunExchange

    def __init__(self, link: Link, exchange: RunExchange) -> None:
        super().__init__(link, exchange)

    @property
    def full(self) -> bool:
        """Whether no more input should be given now."""
        return self.exchange.unconfirmed > HIGH_WATER or self._sock is None

    def __iter__(self) -> Iterator[ExchangeOutput]:
        """All output to the end of the command."""
        while True:
            yield from self.exchange.take()
            if self.exchange.ended or self._left:
                return
            self.wait()


class RequestFrames(SocketStream):
    """Of a request."""

    exchange: RequestExchange

    def __init__(self, link: Link, exchange: RequestExchange) -> None:
        super().__init__(link, exchange)

    def heard(self, timeout_s: float | None = None) -> list[RequestFrame]:
        """What came; waits for something, at most so long."""
        if not (self.exchange.ended or self._left):
            self.wait(timeout_s=timeout_s)
        return list(iter(self.exchange.next, None))

    def __iter__(self) -> Iterator[RequestFrame]:
        """To the outcome, which is the last."""
        while True:
            yield from iter(self.exchange.next, None)
            if self.exchange.ended or self._left:
                return
            self.wait()


def run_through(
    link: Link,
    exchange: RunExchange,
    pieces: Iterator[bytes] | None,
    heard: Callable[[ExchangeOutput], None],
) -> None:
    """A command to its end: what it is to read goes in while what it writes comes out. None: it
    reads nothing."""
    with RunStream(link, exchange).open() as stream:
        while True:
            # All of it may have come with the connection.
            for output in exchange.take():
                heard(output)
            if exchange.ended:
                return
            while pieces is not None and not stream.full:
                piece = next(pieces, None)
                if piece is None:
                    pieces = None
                    exchange.close_input()
                else:
                    exchange.input(piece)
            stream.wait()


def _would_block(error: OSError) -> bool:
    return isinstance(error, BlockingIOError) or type(error).__name__ in _WOULD_BLOCK
