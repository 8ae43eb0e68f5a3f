"""One connection to the hub for the async client: lines on a socket, or frames of a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol, cast
from weakref import WeakKeyDictionary

from carrel.client import websocket
from carrel.client.address import CONNECT_S, PATH, Address, HubAddress
from carrel.client.aio_link import AsyncConnection, AsyncLink, open_socket
from carrel.client.http import HttpRequest, ProtocolError
from carrel.client.hub_protocol import UNREADABLE, HubMessage, decode, decode_lines
from carrel.client.link import READ_BYTES

MAX_LINE = 16 << 20
"""More than any envelope of the hub."""

Heard = tuple[list[HubMessage], int]
"""Messages that came together, and how many bytes that were."""


class Channel(Protocol):
    async def receive(self) -> Heard | None:
        """None at the end. Raises OSError and `ProtocolError`."""
        ...

    def write(self, envelopes: list[bytes]) -> None:
        """Never waits."""
        ...

    def abort(self) -> None: ...


async def open_channel(link: AsyncLink, where: HubAddress, *, start: bool) -> Channel:
    """Raises `DaemonUnavailable`, and the error with which a WebSocket is refused."""
    if where.lines:
        return await link.dial(_open_lines, start=start)
    return FrameChannel(*await link.websocket(HttpRequest("GET", PATH), start=start))


async def _open_lines(place: Address) -> LineChannel:
    async with asyncio.timeout(CONNECT_S):
        sock = await open_socket(place)
        try:
            loop = asyncio.get_running_loop()
            return (await loop.create_unix_connection(LineChannel, sock=sock))[1]
        except BaseException:
            sock.close()
            raise


class EnvelopeReader:
    """What is wrong with one row of the log is not to be the end of whoever reads them all: it is
    passed over. Who has said nothing yet that can be read does not speak the protocol."""

    def __init__(self) -> None:
        self._speaks = False

    def lines(self, lines: bytes) -> list[HubMessage]:
        """Of whole lines. Raises `ProtocolError`."""
        try:
            found = decode_lines(lines)
        except UNREADABLE:
            return self.each(filter(None, lines.split(b"\n")))
        self._speaks = self._speaks or bool(found)
        return found

    def each(self, envelopes: Iterable[bytes]) -> list[HubMessage]:
        """Raises `ProtocolError`."""
        found = []
        for envelope in envelopes:
            try:
                found.append(decode(envelope))
                self._speaks = True
            except UNREADABLE as error:
                if not self._speaks:
                    raise ProtocolError(f"A message of the hub cannot be read: {error}.") from None
        return found


_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = WeakKeyDictionary()
"""What came is taken out before anything else is read, so one is enough for each loop. A new
one for every read would cost more than all the rest of it."""


class LineChannel(asyncio.BufferedProtocol):
    """Reads no more than what somebody has asked for: see `receive`."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._buffer = _buffers.get(loop) or _buffers.setdefault(
            loop, memoryview(bytearray(READ_BYTES))
        )
        self._create_future = loop.create_future
        self._reading = EnvelopeReader()
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._heard: Heard | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._ended = self._paused = False

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not say that they are asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, _size: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        data = bytes(self._buffer[:count])
        end = data.rfind(b"\n") + 1
        if not end:
            self._rest += data
            if len(self._rest) > MAX_LINE:
                self._fail(ProtocolError("A line of the hub is too long."))
            return
        lines, self._rest = self._rest + data[:end], data[end:]
        try:
            messages = self._reading.lines(lines)
        except ProtocolError as error:
            self._fail(error)
            return
        if self._heard is None:
            self._heard = (messages, len(lines))
        else:
            before, size = self._heard
            self._heard = (before + messages, size + len(lines))
            if not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._error = self._error or error
        self._ended = True
        self._wake()

    def _fail(self, error: ProtocolError) -> None:
        self._error = error
        self.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Channel

    async def receive(self) -> Heard | None:
        while self._heard is None:
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            self._waiter = self._create_future()
            await self._waiter
        heard, self._heard = self._heard, None
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return heard

    def write(self, envelopes: list[bytes]) -> None:
        if self._transport is not None and not self._ended:
            self._transport.write(b"\n".join(envelopes) + b"\n")

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class FrameChannel:
    def __init__(self, wire: AsyncConnection, begun: bytes) -> None:
        self._wire = wire
        self._parser = websocket.FrameParser()
        self._reading = EnvelopeReader()
        self._begun = begun

    async def receive(self) -> Heard | None:
        data = self._begun or await self._wire.reader.read(READ_BYTES)
        self._begun = b""
        if not data:
            return None
        found: list[HubMessage] = []
        for message in self._parser.receive(data):
            if message.kind == websocket.TEXT:
                found += self._reading.each((message.data,))
            elif message.kind == websocket.PING:
                self._wire.writer.write(websocket.encode(websocket.PONG, message.data))
            elif message.kind == websocket.CLOSE:
                self._wire.writer.write(websocket.encode_close())
                self._wire.writer.close()
        return found, len(data)

    def write(self, envelopes: list[bytes]) -> None:
        self._wire.writer.write(
            b"".join([websocket.encode(websocket.TEXT, one) for one in envelopes])
        )

    def abort(self) -> None:
        self._wire.close()
