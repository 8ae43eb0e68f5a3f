"""One connection: who may make it, and how much time and room its client gets.

A subclass of uvicorn's protocol, because most of this has to be known before there is a
request: who connects, how slowly a head comes, how much of it there is.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from asyncio import TimerHandle
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from carrel.domain.errors import CarrelError, DaemonUnavailable, MessageInvalid, RequestError
from carrel.interfaces.http.encoding import encode
from carrel.interfaces.http.problems import PROBLEM, details_of

MAX_CONNECTIONS = 2048
"""Each costs two descriptors at most; clients keep a few open, streams one each."""
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
            self._resumed()
        super().resume_reading()


class HeaderTooLarge(RequestError):
    code = "header_too_large"


class RequestTimeout(RequestError):
    code = "request_timeout"


class Connection(HttpToolsProtocol):
    """The application finds in `scope["state"]`: `local` from the listener, and `abort`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, dict(app_state), _loop)
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
        self.app_state["abort"] = transport.abort
        if not may_connect(transport):
            transport.abort()
            return
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(
                DaemonUnavailable("Too many connections.", hint="Close some."),
                HTTPStatus.SERVICE_UNAVAILABLE,
            )
            return
        self._since = self.loop.time()
        self._stage = _Stage.HEAD
        self._arm(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        for timer in (self._stall, self._flush):
            if timer is not None:
                timer.cancel()
        # A timer that uvicorn would leave after an error holds the connection for its time.
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        self._disarm()
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
        if self.flow.read_paused:
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
        self.transport.write(_last_answer(error, status))
        self.transport.close()
        self._abort_later()


def may_connect(transport: asyncio.BaseTransport) -> bool:
    """On a Unix socket: our own user, and root, as the kernel says. TCP needs a token later."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family != socket.AF_UNIX:
        return True
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _pid, uid, _gid = struct.unpack("3i", credentials)
    return uid in (os.geteuid(), 0)


def _too_much() -> HeaderTooLarge:
    return HeaderTooLarge(
        "The head of the request is too large.",
        hint=f"Send at most {MAX_HEADERS} headers of {MAX_HEAD} bytes in all.",
    )


def _last_answer(error: CarrelError, status: HTTPStatus) -> bytes:
    body = encode({**details_of(error), "status": int(status), "title": status.phrase})
    head = (
        f"HTTP/1.1 {int(status)} {status.phrase}\r\ncontent-type: {PROBLEM}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body


Make = Callable[[], asyncio.Protocol]


def connection_maker(config: Config, state: ServerState, app_state: dict[str, Any]) -> Make:
    """What a listener makes of every connection."""
    return partial(Connection, config, state, app_state)
