"""Who gets in, how many at once, and on which ports."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from carrel.domain.errors import PortUnavailable
from carrel.domain.ports import Forward
from carrel.ports import forwarder as module
from carrel.ports.forwarder import LoopbackForwarder
from carrel.ports.pump import CarriedPair, ConnectionPump, OnOver
from tests.load.patience import SLOWER

WAIT_S = 30.0 * SLOWER
Connected = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """A server in the place of the space's."""

    def __init__(self) -> None:
        self.open = 0
        self.most = 0
        self.admitted = True

    async def __aenter__(self) -> Echo:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=2048)
        self._address = self._server.sockets[0].getsockname()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            while piece := await reader.read(1000):
                writer.write(piece)
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            writer.close()

    async def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        await asyncio.get_running_loop().sock_connect(connection, self._address)
        return connection

    def admission(self) -> Callable[[socket.socket], Awaitable[bool]]:
        async def admits(_came: socket.socket) -> bool:
            return self.admitted

        return admits


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    async with Echo() as found:
        yield found


@pytest.fixture
async def forwarder(echo: Echo) -> AsyncIterator[LoopbackForwarder]:
    found = LoopbackForwarder(echo.admission)
    yield found
    found.close()


async def _call(port: int, host: str = "127.0.0.1") -> Connected:
    return await asyncio.open_connection(host, port)


async def _says(connected: Connected, word: bytes) -> bytes:
    async with asyncio.timeout(WAIT_S):
        connected[1].write(word)
        return await connected[0].read(100)


async def test_both_families_lead_there(forwarder: LoopbackForwarder, echo: Echo) -> None:
    made = forwarder.open(Forward("sp_a", 3000, 0), "a", echo.connect)
    for host in ("127.0.0.1", "::1"):
        connected = await _call(made.local, host)
        assert await _says(connected, b"word") == b"word"
        connected[1].close()


async def test_strangers_are_reset(forwarder: LoopbackForwarder, echo: Echo) -> None:
    echo.admitted = False
    made = forwarder.open(Forward("sp_a", 3000, 0), "a", echo.connect)
    with pytest.raises(ConnectionResetError):
        await _says(await _call(made.local), b"word")
    assert echo.most == 0


async def test_a_port_that_is_taken_is_told(forwarder: LoopbackForwarder, echo: Echo) -> None:
    """`localhost` may be either family: half a port is none."""
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.create_server((host, 0), family=family) as other:
            taken = Forward("sp_a", 1, other.getsockname()[1])
            with pytest.raises(PortUnavailable, match="is taken"):
                forwarder.open(taken, "a", echo.connect)


def test_ports_of_the_system_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: object) -> OSError:
        return OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(module, "_bound", refused)
    with pytest.raises(PortUnavailable, match="below 1024"):
        module.listen(80)


async def test_a_thousand_at_once(forwarder: LoopbackForwarder, echo: Echo) -> None:
    made = forwarder.open(Forward("sp_a", 3000, 0), "a", echo.connect)
    calls = await asyncio.gather(*(_call(made.local) for _ in range(1000)))
    said = await asyncio.gather(*(_says(one, b"%d" % at) for at, one in enumerate(calls)))
    assert said == [b"%d" % at for at in range(1000)]
    assert echo.most == 1000
    for _, writer in calls:
        writer.close()


async def test_what_is_too_much_waits_for_its_turn(
    forwarder: LoopbackForwarder, echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_OPEN", 3)
    monkeypatch.setattr(module, "MOST_OF_ACCOUNT", 4)
    made = [forwarder.open(Forward("sp_a", port, 0), "account", echo.connect) for port in (1, 2)]
    other = forwarder.open(Forward("sp_b", 1, 0), "other", echo.connect)

    async def once(port: int) -> bytes:
        connected = await _call(port)
        try:
            return await _says(connected, b"word")
        finally:
            connected[1].close()

    held = [await _call(made[0].local) for _ in range(3)]
    held.append(await _call(made[1].local))
    assert [await _says(one, b"held") for one in held] == [b"held"] * 4
    waiting = [asyncio.create_task(once(one.local)) for one in made for _ in range(10)]
    assert await once(other.local) == b"word"
    assert not any(one.done() for one in waiting)
    for one in held:
        one[1].close()
    assert await asyncio.gather(*waiting) == [b"word"] * 20
    assert echo.most <= 5


async def test_an_end_ends_all_and_leaves_nothing(forwarder: LoopbackForwarder, echo: Echo) -> None:
    made = forwarder.open(Forward("sp_a", 3000, 0), "a", echo.connect)
    connected = await _call(made.local)
    assert await _says(connected, b"word") == b"word"
    assert forwarder.connections(made) == 1
    forwarder.end(made)
    forwarder.end(made)
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(ConnectionResetError):
            await connected[0].read(1)
    with pytest.raises(ConnectionRefusedError):
        await _call(made.local)
    again = forwarder.open(made, "a", echo.connect)
    assert again.local == made.local
    assert await _says(await _call(made.local), b"word") == b"word"


async def test_a_connection_that_is_over_at_once(
    forwarder: LoopbackForwarder, echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pump may be done with it before the forwarder has heard what it is called."""
    carry = ConnectionPump.carry

    def carried(
        pump: ConnectionPump, one: socket.socket, other: socket.socket, over: OnOver
    ) -> CarriedPair:
        ended = threading.Event()

        def heard(*pair: CarriedPair) -> None:
            over(*pair)
            ended.set()

        pair = carry(pump, one, other, heard)
        pump.cut(pair)
        assert ended.wait(WAIT_S)
        return pair

    made = forwarder.open(Forward("sp_a", 3000, 0), "a", echo.connect)
    with monkeypatch.context() as patch:
        patch.setattr(ConnectionPump, "carry", carried)
        with pytest.raises(ConnectionResetError):
            await _says(await _call(made.local), b"word")
    connected = await _call(made.local)
    assert await _says(connected, b"word") == b"word"
    connected[1].close()
