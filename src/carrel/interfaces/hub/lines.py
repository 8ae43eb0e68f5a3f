"""One client on a Unix socket. Lines in, lines out, and nobody waits for anybody."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from carrel.domain.errors import CarrelError, TooLarge
from carrel.hub.access import Identity
from carrel.hub.connection import Connection
from carrel.hub.envelopes import MAX_ENVELOPE, encode, problem
from carrel.hub.hub import Hub

HIGH_WATER = 1 << 18
"""Bytes that wait for the client before a replay pauses."""


class LineConnection(asyncio.Protocol):
    """Implements `Sink`."""

    def __init__(self, hub: Hub, identity: Identity) -> None:
        self._hub = hub
        self._identity = identity
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None
        self._rest = b""
        self._writable = asyncio.Event()
        self._writable.set()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not say that they are asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(HIGH_WATER)
        try:
            self._connection = self._hub.connect(self._identity, self)
        except CarrelError as error:
            told = {"type": "error", "payload": problem(error, "")}
            transport.write(encode(told) + b"\n")
            transport.close()

    def data_received(self, data: bytes) -> None:
        if self._connection is None:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_ENVELOPE:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            if len(line) > MAX_ENVELOPE:
                self._refuse()
                return
            if line and not line.isspace():
                self._connection.received(line)

    def _refuse(self) -> None:
        assert self._connection is not None
        self._connection.refused(
            TooLarge(
                f"A line is at most {MAX_ENVELOPE} bytes long.",
                hint="Put what is large into a file of the space, and name it.",
            )
        )
        self._connection = None

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def eof_received(self) -> bool:
        """Half a connection is none: who does not send heartbeats any more is gone."""
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._writable.set()
        if self._connection is not None:
            self._connection.closed()

    # Sink

    def send(self, envelopes: Sequence[bytes]) -> None:
        if self._transport is not None and envelopes:
            self._transport.write(b"\n".join(envelopes) + b"\n")

    def waiting(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    async def drained(self) -> None:
        await self._writable.wait()

    def close(self, reason: str) -> None:
        if self._transport is None:
            return
        if reason == "slow_reader":
            # It would never take what is still to be sent.
            self._transport.abort()
        else:
            self._transport.close()
