"""One connection: who may make it, and how much time and room its client gets.

A subclass of uvicorn's protocol, because most of this has to be known before there is a
request: who connects, how slowly a head comes, how much of it there is.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from asyncio import TimerHandle
from collections import Counter
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from carrel.domain.access import LOCAL
from carrel.domain.errors import (
    CarrelError,
    DaemonUnavailable,
    Forbidden,
    MessageInvalid,
    RequestError,
)
from carrel.hub.rates import Intake, Pace
from carrel.interfaces.http.answers import PROBLEM, details_of, encode

MAX_CONNECTIONS = 2048
"""Of the Unix socket, which others than the daemon's user cannot fill. Each costs two descriptors
at most; clients keep a few open, streams one each."""
STRANGERS, SHARES = 8, 4
"""Of the places on TCP one in eight is for who has shown no token yet, and one account (see
`Caller.account`) has one in four at most."""
SHARE, AT_ONCE_S = 0.5, 0.5
"""Of our time, for all connections of one account on TCP together, and for all strangers."""
REQUEST_S, MESSAGE_S = 0.0005, 0.00005
"""What is counted for a request and for a message of a WebSocket, beside the reading of it."""
UNFINISHED_BYTES = 64 << 20
"""Of bodies and messages that are not answered or taken yet, of all connections of one account on
TCP together: they are in memory."""
FIRST_BYTES = 1024
"""Of each connection, which wait for nobody: it may show a token there."""
MAX_HEADERS = 100
MAX_HEAD = 64 * 1024
"""Of one request's line and headers; also of what may come around a body and is none of it."""
HEAD_S = 10.0
"""To send a head, from its first byte (or from the connection, which is made to be used)."""
BODY_S = 30.0
"""Between two pieces of a body, while we read."""
UNWANTED_S = 2.0
"""To finish sending a body that was answered before it was read."""
KEEP_ALIVE_S = 75
"""Between two requests."""
STALLED_S = 60.0
"""For a client to read what waits for it."""
FLUSH_S = 10.0
"""From the end of a connection to its abort, if the client does not read the rest."""
SECOND_LOOK_S = 0.001
"""After the time of a request is over: what came while we were busy is read in it."""
CHUNK_OVERHEAD = 16
"""A body in chunks of one byte is sixfold; more than this around it is an attack."""


ROOM = "room"
"""Where the listener puts the `ConnectionLimits`."""
OWNERS = "owners"
"""Where the listener on the port of the older API puts what says of a connection whether the
owner's own processes made it; the application finds it without that argument. It has said so
already, so the connection takes none of the strangers' places."""


class _Stage(Enum):
    IDLE = auto()
    HEAD = auto()
    BODY = auto()


class _Flow(FlowControl):
    def __init__(self, transport: asyncio.Transport, resumed: Callable[[], None]) -> None:
        super().__init__(transport)
        self._resumed = resumed

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._resumed()


class HeaderTooLarge(RequestError):
    code = "header_too_large"


class RequestTimeout(RequestError):
    code = "request_timeout"


class ConnectionLimits:
    """Who is connected: a place for each on the Unix socket, and shares of those on TCP, so that
    neither strangers nor one account keep others out."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._local: set[asyncio.BaseTransport] = set()
        self._strangers: dict[asyncio.BaseTransport, str] = {}
        """Their addresses; the oldest first."""
        self._known: dict[asyncio.BaseTransport, str] = {}
        self._counts: Counter[str] = Counter()
        self._paces: dict[str, Pace] = {}
        self._sizes: dict[asyncio.BaseTransport, int] = {}
        self._unfinished: Counter[str] = Counter()

    def enter(self, transport: asyncio.Transport) -> bool:
        """False: there is no place. Of strangers the oldest goes for a new one, of the address
        that has most of them."""
        if _is_unix(transport):
            self._local.add(transport)
            return len(self._local) <= MAX_CONNECTIONS
        while len(self._strangers) >= max(1, self._most // STRANGERS):
            [(worst, _)] = Counter(self._strangers.values()).most_common(1)
            oldest = next(one for one, where in self._strangers.items() if where == worst)
            self.leave(oldest)
            cast(asyncio.Transport, oldest).abort()
        peer = transport.get_extra_info("peername")
        self._strangers[transport] = str(peer[0]) if peer else ""
        return True

    def know(self, transport: asyncio.BaseTransport, account: str) -> None:
        """It has shown a token of this account. Raises `DaemonUnavailable`."""
        if self._known.get(transport) == account:
            return
        full = len(self._known) >= self._most and transport not in self._known
        if full or self._counts[account] >= max(1, self._most // SHARES):
            raise DaemonUnavailable("Too many connections.", hint="Close some.")
        self.leave(transport)
        self._known[transport] = account
        self._counts[account] += 1

    def leave(self, transport: asyncio.BaseTransport) -> None:
        """Idempotent."""
        self._local.discard(transport)
        self._strangers.pop(transport, None)
        account = self._known.pop(transport, None)
        if account is not None:
            self._unfinished[account] -= self._sizes.pop(transport, 0)
            self._counts[account] -= 1
            if not self._counts[account]:
                # Its pace stays: who leaves and comes again has no more time for that.
                del self._counts[account], self._unfinished[account]

    def weigh(self, transport: asyncio.BaseTransport, size: int) -> bool:
        """So much of what it sent is unfinished; whether its account may have that."""
        account = self._known.get(transport)
        if account is None:
            return True
        self._unfinished[account] += size - self._sizes.get(transport, 0)
        self._sizes[transport] = size
        return self._unfinished[account] <= UNFINISHED_BYTES

    def pace(self, transport: asyncio.BaseTransport) -> Pace | None:
        """Of its account; None on the Unix socket."""
        if transport in self._local:
            return None
        account = self._known.get(transport, "")
        pace = self._paces.get(account)
        if pace is None:
            pace = self._paces[account] = Pace(SHARE, AT_ONCE_S)
        return pace

    def spend(self, transport: asyncio.BaseTransport, seconds: float) -> None:
        pace = self.pace(transport)
        if pace is not None:
            pace.spend(seconds, time.monotonic())

    async def turn(self, transport: asyncio.BaseTransport, seconds: float) -> None:
        """Returns when its account has time for work of so many seconds."""
        pace = self.pace(transport)
        if pace is not None:
            now = time.monotonic()
            wait = pace.wait(now)
            pace.spend(seconds, now)
            if wait:
                await asyncio.sleep(wait)


def _is_unix(transport: asyncio.BaseTransport) -> bool:
    connection = transport.get_extra_info("socket")
    return connection is not None and connection.family == socket.AF_UNIX


class HttpConnection(HttpToolsProtocol):
    """The application finds in `scope["state"]`: `local` from the listener, `abort`, and on TCP
    `know`, to be called with the account of who has shown a token, `weigh`, with the size
    of a body that is kept in memory, and `turn`, before work that takes so long."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, dict(app_state), _loop)
        self._room: ConnectionLimits = self.app_state[ROOM]
        self._stage = _Stage.IDLE
        self._since = 0.0
        self._head_bytes = 0
        self._began_now = False
        self._around_body = 0
        self._body_bytes = 0
        self._refusal: CarrelError | None = None
        self._unwanted = False
        self._late = False
        self._timer: TimerHandle | None = None
        self._stall: TimerHandle | None = None
        self._flush: TimerHandle | None = None

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self._read_again)
        self._intake = Intake(
            transport,
            self._take,
            lambda: self._room.pace(transport),
            lambda: self.flow.read_paused,
            FIRST_BYTES,
        )
        self.app_state["abort"] = transport.abort
        if not may_connect(transport):
            transport.abort()
            return
        if OWNERS in self.app_state:
            connection = transport.get_extra_info("socket")
            self.app_state[OWNERS] = partial(self.app_state[OWNERS], connection)
        if not _is_unix(transport):
            self.app_state["know"] = partial(self._room.know, transport)
            self.app_state["weigh"] = partial(self._room.weigh, transport)
            self.app_state["turn"] = partial(self._room.turn, transport)
        try:
            self._enter(transport)
        except DaemonUnavailable as error:
            self._refuse(error, HTTPStatus.SERVICE_UNAVAILABLE)
            return
        self._since = self.loop.time()
        self._stage = _Stage.HEAD
        self._arm(HEAD_S)

    def _enter(self, transport: asyncio.Transport) -> None:
        """Raises `DaemonUnavailable`."""
        if OWNERS in self.app_state:
            self._room.know(transport, LOCAL.account)
        elif not self._room.enter(transport):
            raise DaemonUnavailable("Too many connections.", hint="Close some.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._intake.close()
        self._room.leave(self.transport)
        self._disarm()
        for timer in (self._stall, self._flush):
            if timer is not None:
                timer.cancel()
        # A timer that uvicorn would leave after an error holds the connection for its time.
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        self._disarm()
        self._intake.close()
        super().handle_websocket_upgrade()

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self._abort_later()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_later()

    # What comes

    def data_received(self, data: bytes) -> None:
        self._intake.came(data)

    def _take(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._unset_keepalive_if_required()
        self._began_now = False
        self._around_body += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._upgrade()
            return
        except httptools.HttpParserError:
            self._not_http()
            return
        self._look(len(data))

    def _upgrade(self) -> None:
        if self._should_upgrade():
            self.handle_websocket_upgrade()
        elif self.cycle is not None:
            # To what we do not speak: answered in HTTP, and then it ends.
            self.cycle.keep_alive = False

    def _not_http(self) -> None:
        if self._refusal is not None:
            self._refuse(self._refusal, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            error = MessageInvalid("This is no HTTP request.", hint="The daemon speaks HTTP/1.1.")
            self._refuse(error, HTTPStatus.BAD_REQUEST)

    def _look(self, received: int) -> None:
        """After every piece: is it too much, and how long may the next one take?"""
        if self._stage is _Stage.IDLE:
            self._disarm()
            return
        now = self.loop.time()
        if self._stage is _Stage.HEAD:
            self._head_bytes += 0 if self._began_now else received
            if self._head_bytes > MAX_HEAD:
                self._refuse(_too_much(), HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
                return
            self._arm(HEAD_S - (now - self._since))
            return
        self._since = now
        self._late = False
        if self._around_body > MAX_HEAD + CHUNK_OVERHEAD * self._body_bytes:
            self._refuse(_too_much(), HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        self._arm(BODY_S)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._stage = _Stage.HEAD
        self._since = self.loop.time()
        self._head_bytes = 0
        self._late = False
        self._began_now = True
        self._room.spend(self.transport, REQUEST_S)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value))
        if len(self.headers) > MAX_HEADERS:
            self._too_much()

    def _count(self, size: int) -> None:
        self._head_bytes += size if self._began_now else 0
        if self._head_bytes > MAX_HEAD:
            self._too_much()

    def _too_much(self) -> None:
        self._refusal = _too_much()
        raise self._refusal

    def on_headers_complete(self) -> None:
        if not self.url.startswith(b"/"):
            # It has a name of its own beside `Host`: which of the two counts is not to be asked.
            raise MessageInvalid("The target of a request must be a path.", hint="Begin it with /.")
        self._stage = _Stage.BODY
        self._around_body = self._body_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._around_body -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stage = _Stage.IDLE
        super().on_message_complete()
        if self._unwanted:
            self._unwanted = False
            self._rest()

    # What goes

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_later()
        elif self._stage is _Stage.BODY and not self.pipeline:
            self._unwanted = True
            self._unset_keepalive_if_required()
            self._arm(UNWANTED_S)

    def _rest(self) -> None:
        if not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    # Time

    def _arm(self, seconds: float) -> None:
        """One timer at a time; it looks again when it rings, so a later end needs no new one."""
        if self._timer is None or self._timer.when() > self.loop.time() + seconds:
            self._disarm()
            self._timer = self.loop.call_later(max(0.0, seconds), self._ring)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        if self._stage is _Stage.IDLE or self.transport.is_closing():
            return
        if self._unwanted:
            self.transport.close()
            self._abort_later()
            return
        now = self.loop.time()
        if self.flow.read_paused or self._intake.waits:
            # It is us who do not read.
            self._since = now
        left = (HEAD_S if self._stage is _Stage.HEAD else BODY_S) - (now - self._since)
        if left > SECOND_LOOK_S:
            self._late = False
            self._arm(left)
            return
        if not self._late:
            self._late = True
            self._arm(SECOND_LOOK_S)
            return
        error = RequestTimeout("The request took too long to come.", hint="Send it again.")
        self._refuse(error, HTTPStatus.REQUEST_TIMEOUT)

    def _read_again(self) -> None:
        """For the client to go on after we did not read."""
        self._since = self.loop.time()
        self._intake.go_on()

    def _abort_later(self) -> None:
        """A connection that is closed goes when its client has read the rest, or does not."""
        if self._flush is None:
            self._flush = self.loop.call_later(FLUSH_S, self.transport.abort)

    # Refusing

    def _busy(self) -> bool:
        # Typed as if it were always there.
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _refuse(self, error: CarrelError, status: HTTPStatus) -> None:
        """The last answer on this connection, where it cannot be taken for another one's."""
        self._disarm()
        self._refusal = error
        if self._busy():
            if self.cycle.response_started or self.pipeline or self._stage is not _Stage.BODY:
                self.transport.abort()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(last_answer(error, status))
        self.transport.close()
        self._abort_later()


def may_connect(transport: asyncio.BaseTransport) -> bool:
    """On a Unix socket: our own user, and root, as the kernel says. TCP needs a token later."""
    if not _is_unix(transport):
        return True
    credentials = transport.get_extra_info("socket").getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, 12
    )
    _pid, uid, _gid = struct.unpack("3i", credentials)
    return uid in (os.geteuid(), 0)


def _too_much() -> HeaderTooLarge:
    return HeaderTooLarge(
        "The head of the request is too large.",
        hint=f"Send at most {MAX_HEADERS} headers of {MAX_HEAD} bytes in all.",
    )


def not_owners() -> Forbidden:
    """Of who comes to the port of the older API."""
    return Forbidden(
        "This port is for processes of the daemon's user outside of spaces and containers.",
        hint="Elsewhere use the port of `listen`, with a token.",
    )


def last_answer(error: CarrelError, status: HTTPStatus) -> bytes:
    body = encode({**details_of(error), "status": int(status), "title": status.phrase})
    head = (
        f"HTTP/1.1 {int(status)} {status.phrase}\r\ncontent-type: {PROBLEM}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body


Make = Callable[[], asyncio.Protocol]


def connection_maker(config: Config, state: ServerState, app_state: dict[str, Any]) -> Make:
    """What a listener makes of every connection."""
    return partial(HttpConnection, config, state, app_state)
