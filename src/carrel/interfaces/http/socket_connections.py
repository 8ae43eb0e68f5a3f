"""A connection that became a WebSocket, with bounds for clients that do not read or answer."""

from __future__ import annotations

import asyncio
import secrets
from asyncio import TimerHandle
from typing import Any

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame
from websockets.http11 import Request

from carrel.domain.errors import CarrelError
from carrel.hub.rates import Intake
from carrel.interfaces.http.access import LOCAL_STATE, RECHECK_S, still_allowed
from carrel.interfaces.http.body_limits import ITEM_S, MAX_JSON, items_of, most_bytes
from carrel.interfaces.http.connections import (
    FLUSH_S,
    MESSAGE_S,
    ROOM,
    STALLED_S,
    UNWANTED_S,
    ConnectionLimits,
)

NORMAL, WITHOUT_CODE, TOO_LARGE, TRY_AGAIN_LATER = 1000, 1005, 1009, 1013
MAX_FRAGMENTS = 4096
"""Of one message."""
PING_S = 20.0
"""A client that is gone without a word is noticed after two of these."""


class SocketConnection(WebSocketsSansIOProtocol):
    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._room: ConnectionLimits = app_state[ROOM]
        self._stall: TimerHandle | None = None
        self._flush: TimerHandle | None = None
        self._failed = False
        self._patient = False
        self._leaving: asyncio.Task[None] | None = None
        self._untaken = 0
        """Bytes that came and that the application does not have."""
        self._asked: dict[bytes, asyncio.Future[bool]] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._intake = Intake(
            transport,
            self._take,
            lambda: self._room.pace(transport),
            lambda: self.read_paused,
        )

    def data_received(self, data: bytes) -> None:
        self._intake.came(data)

    def _take(self, data: bytes) -> None:
        if self._failed:
            return
        self._untaken += len(data)
        super().data_received(data)
        if not self._room.weigh(self.transport, self._untaken):
            self._fail(TRY_AGAIN_LATER, "too much at once")

    def _fail(self, code: int, reason: str) -> None:
        if not (self._failed or self.close_sent):
            self.frames = []
            self.conn.fail(code, reason)
            self.handle_parser_exception()

    def send_receive_event_to_app(self) -> None:
        text = self.frames if self.curr_msg_data_type == "text" else []
        self._room.spend(self.transport, MESSAGE_S + ITEM_S * sum(map(items_of, text)))
        # Only the first message of a command has its arguments.
        self.conn.max_message_size = MAX_JSON
        super().send_receive_event_to_app()

    def handle_ping(self) -> None:
        self._room.spend(self.transport, MESSAGE_S)
        super().handle_ping()

    def handle_cont(self, event: Frame) -> None:
        """Empty ones do not count for the size of a message, and take room nevertheless."""
        if len(self.frames) < MAX_FRAGMENTS:
            super().handle_cont(event)
        else:
            self._fail(TOO_LARGE, "too many fragments")

    async def receive(self) -> ASGIReceiveEvent:
        message = await self.queue.get()
        if self.queue.empty() and not self.frames:
            self._untaken = 0
            self._room.weigh(self.transport, 0)
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._intake.go_on()
        return message

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        # The first message of a command has its arguments.
        self.conn.max_message_size = most_bytes(event.path.partition("?")[0])
        if not self.close_sent:
            self.scope["state"]["send_until_read"] = self.send_until_read
            self.scope["state"]["be_patient"] = self.be_patient

    def be_patient(self, patient: bool = True) -> None:
        """From now on a client that does not read is waited for: what it is sent waits for it
        elsewhere. Not any more: it is given a moment for the reason."""
        self._patient = patient
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if not patient and not self.writable.is_set():
            self._stall = self.loop.call_later(FLUSH_S, self._stalled)

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if message["type"] == "websocket.close" and self.close_timer is not None:
            # The parent's would wait for ever for a client that does not read.
            self.close_timer.cancel()
            self.close_timer = self.loop.call_later(self.close_timeout, self._leave)

    def _leave(self) -> None:
        """The client has not said goodbye, and may not have read all."""
        if not self._patient:
            self._give_up()
            return
        self.transport.close()
        if "carrel.recheck" in self.scope and self._leaving is None:
            self._leaving = self.loop.create_task(self._wait_while_allowed())

    async def _wait_while_allowed(self) -> None:
        try:
            while True:
                await still_allowed(self.scope)
                await asyncio.sleep(RECHECK_S)
        except CarrelError:
            self.transport.abort()

    async def send_until_read(self, text: str) -> bool:
        """Whether the client has read it: it answers a ping that comes after it, or says goodbye
        of its own accord. False when it was lost. Raises `ClientDisconnected`."""
        await self.writable.wait()
        if self.disconnected or self.close_sent or self.transport.is_closing():
            raise ClientDisconnected
        name = secrets.token_bytes(8)
        heard: asyncio.Future[bool] = self.loop.create_future()
        self._asked[name] = heard
        try:
            self.conn.send_text(text.encode())
            self.conn.send_ping(name)
            # Both at once: who leaves when it has read the one would break the connection under
            # the other, and its goodbye would not be heard.
            self.transport.write(b"".join(self.conn.data_to_send()))
            return await heard
        finally:
            self._asked.pop(name, None)

    def handle_pong(self, event: Frame) -> None:
        name = bytes(event.data)
        if name not in self._asked:
            super().handle_pong(event)
            return
        # One answer may stand for several questions: those before it are answered too.
        for earlier, heard in list(self._asked.items()):
            if not heard.done():
                heard.set_result(True)
            if earlier == name:
                return

    def handle_close(self, event: Frame) -> None:
        # Any other end is one before it was read, or too large: a page that is left may be there
        # again in a moment, and ask.
        closed = self.conn.close_rcvd
        self._heard(closed is not None and closed.code in (NORMAL, WITHOUT_CODE))
        super().handle_close(event)

    def _heard(self, whether: bool) -> None:
        for heard in self._asked.values():
            if not heard.done():
                heard.set_result(whether)

    def handle_parser_exception(self) -> None:
        """As the parent does it, but what the client still sends is read for a moment: were
        it refused at once, the reason would be lost with it."""
        self._failed = True
        assert self.conn.close_sent is not None
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        if self.read_paused:
            self.read_paused = False
            self._intake.go_on()
        self.close_timer = self.loop.call_later(UNWANTED_S, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._intake.close()
        self._room.leave(self.transport)
        for timer in (self._stall, self._flush, self._leaving):
            if timer is not None:
                timer.cancel()
        self._heard(False)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall is None and not self._patient:
            self._stall = self.loop.call_later(STALLED_S, self._stalled)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _stalled(self) -> None:
        """The reason is behind all that the client does not read: it learns it if it reads
        on soon."""
        if not (self.close_sent or self.transport.is_closing()):
            self.conn.fail(TRY_AGAIN_LATER, "too slow: attach again with the offsets reached")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        # The application is not kept waiting for what will not be read.
        self.queue.put_nowait({"type": "websocket.disconnect", "code": TRY_AGAIN_LATER})
        self.disconnected = True
        self.writable.set()
        self._heard(False)
        self._give_up()

    @property
    def _cannot_answer(self) -> bool:
        """The answer would wait behind input that the command does not take, or the client
        behind output that somebody does not take from it. One on this machine needs none: that
        it is gone is known at once."""
        local = self.scope["state"].get(LOCAL_STATE, False)
        return self.read_paused or (self._patient and (local or not self.writable.is_set()))

    def send_keepalive_ping(self) -> None:
        if self._cannot_answer:
            self.ping_timer = None
            self.schedule_ping()
        else:
            super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        if self._cannot_answer:
            self.pong_timer = None
            self.pending_ping_payload = None
            self.schedule_ping()
            return
        super().keepalive_timeout()
        self._give_up()

    def shutdown(self) -> None:
        super().shutdown()
        self._give_up()

    def _give_up(self) -> None:
        self.transport.close()
        if self._flush is None:
            self._flush = self.loop.call_later(FLUSH_S, self.transport.abort)
