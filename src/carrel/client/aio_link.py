"""The async client's connections: as `link`, on asyncio's streams."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from carrel.client.address import CONNECT_S, Address, check_peer, connect_unix
from carrel.client.http import (
    TIMEOUT_S,
    HttpAnswer,
    HttpRequest,
    ProtocolError,
    operation,
)
from carrel.client.link import MAX_IDLE, READ_BYTES, AnswerStream, Link, is_quiet
from carrel.client.models import decode
from carrel.client.problems import broken, unreachable
from carrel.client.websocket import check_upgrade, new_key, upgrade_headers

Kind = TypeVar("Kind")
P = ParamSpec("P")
T = TypeVar("T")


class AsyncConnection:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @property
    def usable(self) -> bool:
        """The loop may not have got to it yet that the other side closed an idle one."""
        if self.reader.at_eof() or self.writer.is_closing():
            return False
        return is_quiet(self.writer.get_extra_info("socket").fileno())

    async def receive(self, timeout_s: float) -> bytes:
        async with asyncio.timeout(timeout_s):
            return await self.reader.read(READ_BYTES)

    async def send(self, data: bytes, timeout_s: float) -> None:
        self.writer.write(data)
        async with asyncio.timeout(timeout_s):
            await self.writer.drain()

    def leave(self) -> None:
        """When what was written has gone out."""
        self.writer.close()

    def close(self) -> None:
        """At once: what nobody read until now, nobody will."""
        self.writer.transport.abort()


class AsyncLink:
    """To one daemon, for one event loop. `start` blocks, and is called in a thread."""

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
        self._idle: list[AsyncConnection] = []

    async def close(self) -> None:
        while self._idle:
            wire = self._idle.pop()
            wire.close()
            try:
                await wire.writer.wait_closed()
            except OSError:
                # It was broken before, and nothing waits on it.
                continue

    async def ask(self, request: HttpRequest) -> HttpAnswer:
        """The whole answer, whatever it is. `DaemonUnavailable`."""
        async with await self.open(request) as stream:
            return HttpAnswer(stream.head, await stream.read())

    async def json(self, request: HttpRequest) -> Any:
        """The answer's content. Raises the error that the answer is, if it is one."""
        return (await self.ask(request)).json()

    async def call(
        self, kind: type[T], name: str, *named: str, member: str = "", **options: Any
    ) -> T:
        """Does an operation of the contract, and reads its answer (or that `member` of it) as
        `kind`."""
        content = await self.json(operation(name, *named, **options))
        return decode(content[member] if member else content, kind)

    async def blocking(
        self, work: Callable[Concatenate[Link, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Disks and compression block, so such work is done in a thread, with a link of its
        own."""
        link = Link(self.place, timeout_s=self.timeout_s, start=self.start)
        try:
            return await asyncio.to_thread(work, link, *args, **kwargs)
        finally:
            link.close()

    async def open(self, request: HttpRequest, *, start: bool = True) -> AsyncStreamedAnswer:
        """An answer whose body is read as it comes. `DaemonUnavailable`."""
        timeout_s = self.timeout_s if request.timeout_s is None else request.timeout_s
        tries = 2 if request.again and isinstance(request.body, bytes) else 1
        while True:
            tries -= 1
            wire = await self._take(start)
            try:
                return await self._send(wire, request, timeout_s)
            except (OSError, ProtocolError) as error:
                wire.close()
                if tries and not isinstance(error, TimeoutError):
                    continue
                raise broken(error, timeout_s) from error
            except BaseException:
                wire.close()
                raise

    async def _send(
        self, wire: AsyncConnection, request: HttpRequest, timeout_s: float
    ) -> AsyncStreamedAnswer:
        """The answer is read while the body is sent: one who refuses a large one says so, and
        does not listen to all of it."""
        stream = AsyncStreamedAnswer(wire, timeout_s, self._give_back)
        sending = asyncio.create_task(self._send_body(wire, request, timeout_s))
        reading = asyncio.create_task(stream.read_head())
        try:
            await asyncio.wait({sending, reading}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and not isinstance(sending.exception(), ConnectionError):
                sending.result()
            await reading
            stream.parser.reusable = stream.parser.reusable and sending.done()
        finally:
            for task in (sending, reading):
                task.cancel()
            await asyncio.gather(sending, reading, return_exceptions=True)
        return stream

    async def _send_body(
        self, wire: AsyncConnection, request: HttpRequest, timeout_s: float
    ) -> None:
        await wire.send(request.beginning(self.place), timeout_s)
        for piece in request.pieces():
            await wire.send(piece, timeout_s)

    async def websocket(
        self, request: HttpRequest, *, start: bool = True
    ) -> tuple[AsyncConnection, bytes]:
        """As `Link.websocket`."""
        key = new_key()
        request.headers = [*request.headers, *upgrade_headers(key)]
        wire = await self.connect(start=start)
        try:
            stream = await self._send(wire, request, self.timeout_s)
            if stream.head.status != 101:
                HttpAnswer(stream.head, await stream.read()).check()
            check_upgrade(stream.head, key)
        except BaseException:
            wire.close()
            raise
        return wire, stream.parser.rest

    # Connections

    async def _take(self, start: bool) -> AsyncConnection:
        while self._idle:
            wire = self._idle.pop()
            if wire.usable:
                return wire
            wire.close()
        return await self.connect(start=start)

    def _give_back(self, wire: AsyncConnection) -> None:
        if len(self._idle) < MAX_IDLE:
            self._idle.append(wire)
        else:
            wire.close()

    async def connect(self, *, start: bool = True) -> AsyncConnection:
        return await self.dial(_connect, start=start)

    async def dial(self, connect: Callable[[Address], Awaitable[Kind]], *, start: bool) -> Kind:
        """A connection as `connect` makes it. `DaemonUnavailable`."""
        try:
            return await connect(self.place)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if self.start is None or not start:
                raise unreachable(self.place, error) from error
        except OSError as error:
            raise unreachable(self.place, error) from error
        await asyncio.to_thread(self.start)
        try:
            return await connect(self.place)
        except OSError as error:
            raise unreachable(self.place, error) from error


class AsyncStreamedAnswer(AnswerStream):
    """Read on an event loop."""

    async def read_head(self) -> None:
        while self.parser.head is None:
            self._waiting += self.parser.receive(await self._connection.receive(self._timeout_s))

    async def __aiter__(self) -> AsyncIterator[bytes]:
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
                piece = await self._connection.receive(self._timeout_s)
                self._waiting += self.parser.receive(piece)
            except (OSError, ProtocolError) as error:
                self.close()
                raise broken(error, self._timeout_s) from error

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self])

    async def __aenter__(self) -> AsyncStreamedAnswer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


async def _connect(place: Address) -> AsyncConnection:
    async with asyncio.timeout(CONNECT_S):
        if not place.socket:
            tls = True if place.tls else None
            return AsyncConnection(*await asyncio.open_connection(place.host, place.port, ssl=tls))
        sock = await open_socket(place)
        try:
            return AsyncConnection(*await asyncio.open_unix_connection(sock=sock))
        except BaseException:
            sock.close()
            raise


async def open_socket(place: Address) -> socket.socket:
    """Connected, at the place's path. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        try:
            connect_unix(sock.connect, place.socket)
        except BlockingIOError:
            # Too many wait to be let in, and that cannot be waited for on the loop.
            sock.settimeout(CONNECT_S)
            await asyncio.to_thread(connect_unix, sock.connect, place.socket)
            sock.setblocking(False)
        check_peer(sock, place)
    except BaseException:
        sock.close()
        raise
    return sock


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """For what blocks: disks, compression."""
    return await asyncio.to_thread(work, *args, **kwargs)


async def shielded(work: Awaitable[T]) -> T:
    """Done to its end, also when who waits for it is cancelled."""
    return await asyncio.shield(work)
