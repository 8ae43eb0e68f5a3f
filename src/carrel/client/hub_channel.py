"""One connection to the hub for the async client: lines on a socket, or frames of a WebSocket."""

from __future__ import annotations

from typing import Protocol

import msgspec

from carrel.client import frames
from carrel.client.aio_link import AsyncLink, Wire
from carrel.client.hub_messages import HubMessage, decode, decode_lines
from carrel.client.hub_places import PATH, HubPlace
from carrel.client.link import READ_BYTES
from carrel.client.requests import Request
from carrel.client.wire import WireError

MAX_LINE = 16 << 20
"""More than any envelope of the hub."""

Heard = tuple[list[HubMessage], int]
"""Messages that came together, and how many bytes that were."""


class Channel(Protocol):
    async def receive(self) -> Heard | None:
        """None at the end. Raises OSError and `WireError`."""
        ...

    def write(self, envelopes: list[bytes]) -> None:
        """Never waits."""
        ...

    def abort(self) -> None: ...


async def open_channel(link: AsyncLink, where: HubPlace, *, start: bool) -> Channel:
    """Raises `DaemonUnavailable`, and the error with which a WebSocket is refused."""
    if where.lines:
        return Lines(await link.connect(start=start))
    return Frames(*await link.websocket(Request("GET", PATH), start=start))


class Lines:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._rest = b""

    async def receive(self) -> Heard | None:
        data = await self._wire.reader.read(READ_BYTES)
        if not data:
            return None
        end = data.rfind(b"\n") + 1
        if not end:
            self._rest += data
            if len(self._rest) > MAX_LINE:
                raise WireError("A line of the hub is too long.")
            return [], 0
        lines, self._rest = self._rest + data[:end], data[end:]
        try:
            return decode_lines(lines), len(lines)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WireError(f"A line of the hub cannot be read: {error}.") from None

    def write(self, envelopes: list[bytes]) -> None:
        self._wire.writer.write(b"\n".join(envelopes) + b"\n")

    def abort(self) -> None:
        self._wire.close()


class Frames:
    def __init__(self, wire: Wire, begun: bytes) -> None:
        self._wire = wire
        self._parser = frames.FrameParser()
        self._begun = begun

    async def receive(self) -> Heard | None:
        data = self._begun or await self._wire.reader.read(READ_BYTES)
        self._begun = b""
        if not data:
            return None
        found: list[HubMessage] = []
        for message in self._parser.receive(data):
            if message.kind == frames.TEXT:
                found.append(self._decoded(message.data))
            elif message.kind == frames.PING:
                self._wire.writer.write(frames.encode(frames.PONG, message.data))
            elif message.kind == frames.CLOSE:
                self._wire.writer.write(frames.encode_close())
                self._wire.writer.close()
        return found, len(data)

    @staticmethod
    def _decoded(data: bytes) -> HubMessage:
        try:
            return decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WireError(f"A message of the hub cannot be read: {error}.") from None

    def write(self, envelopes: list[bytes]) -> None:
        self._wire.writer.write(b"".join([frames.encode(frames.TEXT, one) for one in envelopes]))

    def abort(self) -> None:
        self._wire.close()
