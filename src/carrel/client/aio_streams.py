"""The async side of what is said over a WebSocket: as `streaming`, on one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Self

from carrel.client.aio_link import AsyncConnection, AsyncLink
from carrel.client.exchange import ExchangeOutput, Lost, RetryDelay, RunExchange, SocketExchange
from carrel.client.http import ProtocolError
from carrel.client.problems import broken
from carrel.client.request_frames import RequestExchange, RequestFrame
from carrel.client.streams import DEAD_S, HIGH_WATER, QUIET_S
from carrel.domain.errors import DaemonError, DaemonUnavailable


class AsyncSocketStream:
    """One task reads (`async for`); others may write meanwhile."""

    def __init__(self, link: AsyncLink, exchange: SocketExchange) -> None:
        self.exchange = exchange
        self._link = link
        self._wire: AsyncConnection | None = None
        self._connected = asyncio.Event()
        self._heard = asyncio.Event()
        self._backoff: RetryDelay | None = None
        self._may_start = True
        self._left = False

    async def open(self) -> Self:
        """Raises what stands in the way: the space's errors, `DaemonUnavailable`."""
        try:
            await self._connect()
        except (OSError, ProtocolError) as error:
            self.close()
            raise broken(error, self._link.timeout_s) from error
        return self

    def close(self) -> None:
        """Leaves; what was asked for goes on. Whoever was waited for says so."""
        self._left = True
        if self._wire is not None and not self.exchange.ended:
            self.exchange.leave()
            self._wire.writer.write(bytes(self.exchange.out))
        self._drop()
        # Whoever waits to write need not wait any longer.
        self._connected.set()
        self._heard.set()

    def _drop(self) -> None:
        self._connected.clear()
        wire, self._wire = self._wire, None
        if wire is not None and self.exchange.ended:
            wire.leave()
        elif wire is not None:
            wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def more(self) -> None:
        """Waits until something came, or the connection is there again."""
        try:
            await self._receive()
        except (OSError, ProtocolError) as error:
            self._lost(error)
            await self._reconnect()

    async def _ready(self) -> None:
        await self._connected.wait()
        if self._left and not self.exchange.ended:
            raise self.exchange.gone()

    async def _flush(self, *, wait: bool = False) -> None:
        """A connection that breaks here is noticed by who reads."""
        if self._wire is None or not self.exchange.out:
            return
        self._wire.writer.write(bytes(self.exchange.out))
        self.exchange.out.clear()
        if wait:
            try:
                await self._wire.writer.drain()
            except ConnectionError:
                return

    # What comes

    async def _receive(self) -> None:
        wire = self._wire
        assert wire is not None
        data = await self._hear(wire)
        if self._left:
            return
        self.exchange.receive(data)
        self._backoff = None
        self._heard.set()
        await self._flush()
        if self.exchange.ended:
            self.close()

    async def _hear(self, wire: AsyncConnection) -> bytes:
        """Asks in between whether somebody is still there."""
        for _ in range(round(DEAD_S / QUIET_S)):
            try:
                return await wire.receive(QUIET_S)
            except TimeoutError:
                self.exchange.ping()
                await self._flush()
        raise Lost("Nothing came for too long.")

    # Connecting

    async def _connect(self) -> None:
        request = self.exchange.connecting()
        self._wire, rest = await self._link.websocket(request, start=self._may_start)
        self._may_start = True
        self.exchange.connected(rest)
        self._connected.set()
        await self._flush()
        if self.exchange.ended:
            self.close()

    def _lost(self, error: Exception) -> None:
        self._drop()
        self.exchange.lost(error)
        if self._backoff is None:
            self._may_start = not (isinstance(error, Lost) and error.going)
            self._backoff = RetryDelay(time.monotonic())

    async def _reconnect(self) -> None:
        assert self._backoff is not None
        while True:
            try:
                await self._connect()
                return
            except (DaemonError, OSError, ProtocolError) as error:
                self._drop()
                self.exchange.lost(error)
                if not self._backoff.failed(time.monotonic()):
                    self.close()
                    raise self.exchange.gone() from error
            await asyncio.sleep(self._backoff.pause_s)


class AsyncRunStream(AsyncSocketStream):
    """Of a command."""

    exchange: RunExchange

    def __init__(self, link: AsyncLink, exchange: RunExchange) -> None:
        super().__init__(link, exchange)

    async def __aiter__(self) -> AsyncIterator[ExchangeOutput]:
        """All output to the end of the command."""
        while True:
            for output in self.exchange.take():
                yield output
            if self.exchange.ended or self._left:
                return
            await self.more()

    # What goes

    async def input(self, data: bytes) -> None:
        """Waits while the command does not take what it was given."""
        await self._ready()
        while self.exchange.unconfirmed > HIGH_WATER and not (self.exchange.ended or self._left):
            self._heard.clear()
            await self._heard.wait()
        await self._ready()
        self.exchange.input(data)
        await self._flush(wait=True)

    async def close_input(self) -> None:
        await self._ready()
        self.exchange.close_input()
        await self._flush()

    async def resize(self, rows: int, cols: int) -> None:
        await self._ready()
        self.exchange.resize(rows, cols)
        await self._flush()

    async def signal(self, name: str) -> None:
        await self._ready()
        self.exchange.signal(name)
        await self._flush()


class AsyncRequestFrames(AsyncSocketStream):
    """Of a request."""

    exchange: RequestExchange

    def __init__(self, link: AsyncLink, exchange: RequestExchange) -> None:
        super().__init__(link, exchange)

    async def __aiter__(self) -> AsyncIterator[RequestFrame]:
        """To the outcome, which is the last."""
        while True:
            for frame in iter(self.exchange.next, None):
                yield frame
            if self.exchange.ended or self._left:
                return
            await self.more()


async def run_through(
    link: AsyncLink,
    exchange: RunExchange,
    pieces: Iterator[bytes] | None,
    heard: Callable[[ExchangeOutput], None],
) -> None:
    """As `streaming.run_through`."""
    async with await AsyncRunStream(link, exchange).open() as stream:
        feeding = asyncio.create_task(_feed(stream, pieces))
        try:
            async for output in stream:
                heard(output)
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)


async def _feed(stream: AsyncRunStream, pieces: Iterator[bytes] | None) -> None:
    if pieces is None:
        return
    try:
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            await stream.input(piece)
        await stream.close_input()
    except DaemonUnavailable:
        # Whoever reads the output hears of it too, and tells.
        return
