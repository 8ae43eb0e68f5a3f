"""The hub over WebSocket: one envelope a text frame, the same as on its Unix sockets."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from uvicorn.protocols.utils import ClientDisconnected

from carrel.domain.errors import AuthenticationFailed, MessageInvalid, TooManyClients
from carrel.hub.access import Identity
from carrel.hub.connection import Connection
from carrel.hub.envelopes import encode, problem
from carrel.interfaces.http.access import still_allowed
from carrel.interfaces.http.connections import MESSAGE_S
from carrel.interfaces.http.lifetime import Shutdown
from carrel.interfaces.http.responses import KEEP_ALIVE_S
from carrel.interfaces.http.services import ApiContext, caller, serving

NORMAL, POLICY, RESTART, LATER = 1000, 1008, 1012, 1013
HIGH_WATER = 1 << 18
"""Bytes that wait for the client before a replay pauses."""
AT_ONCE = 256
"""Frames that all connections together send until others have their turn at the event loop."""
_CODES = {"client_shutdown": NORMAL, "daemon_shutdown": RESTART}


async def hub_socket(websocket: WebSocket) -> None:
    here: ApiContext = serving(websocket)
    await websocket.accept()
    frames = FrameConnection(websocket)
    try:
        connection = here.services.hub.connect(Identity(caller(websocket)), frames)
    except TooManyClients as error:
        frames.send([encode({"type": "error", "payload": problem(error, "")})])
        frames.close(error.code)
        await frames.write()
        return
    await frames.attend(connection, here.closing)


class FrameConnection:
    """Implements `Sink`."""

    busy = 0
    """How many of all have something to write."""

    def __init__(self, websocket: WebSocket) -> None:
        self._socket = websocket
        self._out: deque[bytes] = deque()
        self._bytes = 0
        self._something = asyncio.Event()
        self._little = asyncio.Event()
        self._little.set()
        self._reason = ""
        self._abandoned = asyncio.Event()
        self._is_busy = False

    async def attend(self, connection: Connection, closing: Shutdown) -> None:
        """Until one side has had enough."""
        tasks = [
            asyncio.create_task(self._read(connection)),
            asyncio.create_task(self.write()),
            asyncio.create_task(self._watch_access(connection)),
            asyncio.create_task(self._abandoned.wait()),
            asyncio.create_task(self._ending(connection, closing)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            connection.closed()
            self._let_go()
        await self._end()

    async def _read(self, connection: Connection) -> None:
        """Returns when the client has gone, or sent what is no envelope."""
        turn = self._socket.scope["state"].get("turn")
        settled = asyncio.Event()
        connection.when_settled(settled.set)
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            if text is None:
                error = MessageInvalid("An envelope is a text frame.", hint="Send it as text.")
                connection.refused(error)
                await self.write()
                return
            begun = time.thread_time()
            connection.received(text.encode())
            spent = time.thread_time() - begun
            if turn is not None and spent > MESSAGE_S:
                # What was counted when it came is for small ones.
                await turn(spent)
            while connection.is_behind:
                settled.clear()
                await settled.wait()

    async def write(self) -> None:
        """Returns when the last frame before a close has gone out."""
        try:
            with contextlib.suppress(WebSocketDisconnect, ClientDisconnected, RuntimeError):
                while True:
                    await self._write_waiting()
                    if self._reason:
                        return
                    self._something.clear()
                    await self._something.wait()
        finally:
            self._set_busy(False)

    async def _write_waiting(self) -> None:
        """To a client that is quick, sending never waits; and there may be hundreds who hear the
        same."""
        sent = 0
        while self._out:
            envelope = self._out.popleft()
            await self._socket.send_text(envelope.decode())
            self._bytes -= len(envelope)
            if self._bytes < HIGH_WATER:
                self._little.set()
            sent += 1
            if sent * FrameConnection.busy >= AT_ONCE:
                sent = 0
                await asyncio.sleep(0)
        self._set_busy(False)

    def _set_busy(self, busy: bool) -> None:
        FrameConnection.busy += busy - self._is_busy
        self._is_busy = busy

    async def _watch_access(self, connection: Connection) -> None:
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            try:
                await still_allowed(self._socket.scope)
            except AuthenticationFailed as error:
                connection.refused(error)
                await self.write()
                return

    async def _ending(self, connection: Connection, closing: Shutdown) -> None:
        await closing.wait()
        connection.ending()
        await self.write()

    async def _end(self) -> None:
        if self._socket.application_state is not WebSocketState.CONNECTED:
            return
        code = _CODES.get(self._reason, POLICY)
        with contextlib.suppress(WebSocketDisconnect, ClientDisconnected, RuntimeError):
            await self._socket.close(code, self._reason[:100])

    def _let_go(self) -> None:
        self._out.clear()
        self._bytes = 0
        # Something may have been said after the last was written.
        self._set_busy(False)
        self._little.set()

    # Sink

    def send(self, envelopes: Sequence[bytes]) -> None:
        if self._reason:
            return
        self._set_busy(True)
        self._out.extend(envelopes)
        self._bytes += sum(map(len, envelopes))
        if self._bytes >= HIGH_WATER:
            self._little.clear()
        self._something.set()

    def waiting(self) -> int:
        return self._bytes

    async def drained(self) -> None:
        await self._little.wait()

    def close(self, reason: str) -> None:
        if self._reason:
            return
        self._reason = reason
        self._something.set()
        if reason == "slow_reader":
            # It would never take what is still to be sent.
            self._abandoned.set()
