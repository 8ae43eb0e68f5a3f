"""How much time and room one client gets, with a real server and a small application."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import unix_connect
from websockets.exceptions import ConnectionClosed

from carrel.daemon.server import DaemonServer
from carrel.interfaces.http import connections, socket_connections
from carrel.interfaces.http.lifetime import Shutdown
from tests.idle_time import IdleTimeLoop

pytestmark = pytest.mark.idle_time
SOON_S = 20.0
"""Nothing here takes as long, on any machine."""
HEAD = b"POST / HTTP/1.1\r\nHost: carrel\r\n"


class App:
    """Answers with the size of the body; by its path it is slow, deaf, or never stops."""

    def __init__(self) -> None:
        self.seen = 0
        self.sent = 0
        self.held = asyncio.Event()
        self.gone = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen += 1
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
            return
        if scope["path"] == "/flood":
            await self._flood(receive, send)
            return
        size = 0
        if scope["path"] == "/later":
            self.held.set()
            await self.go.wait()
        if scope["path"] != "/deaf":
            size = await self._size(receive)
        await _answer(send, str(size).encode())

    async def _size(self, receive: Receive) -> int:
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone.set()
                return size
            size += len(message["body"])
            if not message["more_body"]:
                return size

    async def _flood(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        leaving = asyncio.ensure_future(self._size(receive))
        while not self.gone.is_set():
            await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
            self.sent += 65536
            await asyncio.sleep(0)
            if leaving.done() and not self.gone.is_set():
                leaving = asyncio.ensure_future(self._size(receive))
        leaving.cancel()

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        try:
            if scope["path"] == "/pipe":
                scope["state"]["be_patient"]()
            if scope["path"] in ("/flood", "/pipe"):
                while True:
                    await send({"type": "websocket.send", "bytes": bytes(65536)})
                    self.sent += 65536
                    await asyncio.sleep(0)
            if scope["path"] == "/deaf":
                await self.go.wait()
            while (message := await receive())["type"] == "websocket.receive":
                await send({"type": "websocket.send", "bytes": message["bytes"]})
        finally:
            self.gone.set()


async def _answer(send: Send, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        async with asyncio.timeout(SOON_S):
            status = int((await self.reader.readline()).split()[1])
            length = 0
            while (line := await self.reader.readline()) != b"\r\n":
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            return status, await self.reader.readexactly(length)

    async def problem(self, status: int, code: str) -> None:
        found, body = await self.answer()
        assert (found, json.loads(body)["code"]) == (status, code), body
        assert json.loads(body)["status"] == status
        await self.ended()

    async def ended(self) -> None:
        async with asyncio.timeout(SOON_S):
            with contextlib.suppress(ConnectionResetError):
                while await self.reader.read(65536):
                    pass


class Rig:
    def __init__(self, app: App, server: DaemonServer, path: str) -> None:
        self.app = app
        self.server = server
        self.path = path

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        reader, writer = await asyncio.open_unix_connection(self.path)
        try:
            yield Client(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def holds(self) -> None:
        """A request is under way."""
        async with asyncio.timeout(SOON_S):
            await self.app.held.wait()

    async def works(self) -> None:
        """Whatever was done to it, others are served."""
        async with self.client() as other:
            other.send(HEAD + b"Content-Length: 3\r\n\r\nabc")
            assert await other.answer() == (200, b"3")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    app = App()
    server = DaemonServer(app, Shutdown())
    path = str(tmp_path / "s")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    await server.open((listener,))
    try:
        yield Rig(app, server, path)
    finally:
        app.go.set()
        await server.close(grace_s=2.0)


Patch = Callable[[str, float], None]


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> Patch:
    """Shorter times than people get."""

    def set_time(name: str, value: float) -> None:
        monkeypatch.setattr(connections, name, value)
        if hasattr(socket_connections, name):
            monkeypatch.setattr(socket_connections, name, value)

    return set_time


async def test_requests_follow_one_another(rig: Rig) -> None:
    async with rig.client() as client:
        for _ in range(3):
            client.send(HEAD + b"Content-Length: 5\r\n\r\nhello")
            assert await client.answer() == (200, b"5")
        client.send((HEAD + b"Content-Length: 2\r\n\r\nhi") * 3)
        assert [await client.answer() for _ in range(3)] == [(200, b"2")] * 3
        client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        client.send(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        assert await client.answer() == (200, b"5")


async def test_a_head_byte_by_byte(rig: Rig, patch: Patch) -> None:
    """Slowloris: each byte is in time, all of them together are not."""
    patch("HEAD_S", 0.5)
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as slow:
        slow.setblocking(False)
        await loop.sock_connect(slow, rig.path)
        reading = asyncio.ensure_future(loop.sock_recv(slow, 65536))
        async with asyncio.timeout(SOON_S):
            for byte in HEAD * 100:
                with contextlib.suppress(OSError):
                    await loop.sock_sendall(slow, bytes((byte,)))
                # The pace is the attack.
                if (await asyncio.wait({reading}, timeout=0.02))[0]:
                    break
        assert reading.result().startswith(b"HTTP/1.1 408 ")
    assert rig.app.seen == 0
    await rig.works()


async def test_a_connection_without_a_word(rig: Rig, patch: Patch) -> None:
    patch("HEAD_S", 0.2)
    async with rig.client() as client:
        await client.problem(408, "request_timeout")


async def test_a_second_head_has_its_own_time(rig: Rig, patch: Patch) -> None:
    async with rig.client() as client:
        client.send(HEAD + b"Content-Length: 0\r\n\r\n")
        assert await client.answer() == (200, b"0")
        patch("HEAD_S", 0.2)
        client.send(b"GET /")
        await client.problem(408, "request_timeout")


async def test_a_body_that_stops(rig: Rig, patch: Patch) -> None:
    patch("BODY_S", 0.2)
    async with rig.client() as client:
        client.send(HEAD + b"Content-Length: 10\r\n\r\nhalf")
        await client.problem(408, "request_timeout")
        async with asyncio.timeout(SOON_S):
            await rig.app.gone.wait()
    await rig.works()


async def test_a_slow_application_is_not_the_clients_fault(rig: Rig, patch: Patch) -> None:
    patch("BODY_S", 0.1)
    size = 1 << 20
    async with rig.client() as client:
        client.send(b"POST /later HTTP/1.1\r\nHost: carrel\r\n")
        client.send(b"Content-Length: %d\r\n\r\n" % size + bytes(size))
        asyncio.get_running_loop().call_later(0.5, rig.app.go.set)
        assert await client.answer() == (200, str(size).encode())


async def test_time_in_which_nobody_read_is_not_the_clients(rig: Rig, patch: Patch) -> None:
    patch("BODY_S", 0.3)
    size = 1 << 16
    async with rig.client() as client:
        client.send(b"POST /later HTTP/1.1\r\nHost: carrel\r\n")
        client.send(b"Content-Length: %d\r\n\r\n" % (2 * size) + bytes(size + 1))
        await asyncio.sleep(0.29)
        rig.app.go.set()
        await asyncio.sleep(0.29)
        client.send(bytes(size - 1))
        assert await client.answer() == (200, str(2 * size).encode())


async def test_what_came_while_all_were_busy_is_in_time(rig: Rig, patch: Patch) -> None:
    patch("BODY_S", 0.3)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, IdleTimeLoop)
    async with rig.client() as client:
        client.send(HEAD + b"Content-Length: 10\r\n\r\nhalf")
        loop.call_later(0.1, loop.work, 1.0)
        loop.call_later(0.2, client.send, b"of it.")
        assert await client.answer() == (200, b"10")


async def test_a_body_that_nobody_wants(rig: Rig, patch: Patch) -> None:
    """Answered at once; what comes then is read for a moment, not for ever."""
    patch("UNWANTED_S", 0.3)
    async with rig.client() as client:
        client.send(b"POST /deaf HTTP/1.1\r\nHost: carrel\r\nContent-Length: 9999999\r\n\r\n")
        assert await client.answer() == (200, b"0")
        client.send(bytes(100_000))
        await client.ended()
    async with rig.client() as client:
        client.send(b"POST /deaf HTTP/1.1\r\nHost: carrel\r\nContent-Length: 10\r\n\r\n12345")
        assert await client.answer() == (200, b"0")
        client.send(b"67890" + HEAD + b"Content-Length: 1\r\n\r\nx")
        assert await client.answer() == (200, b"1")


async def test_idle_connections_go(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.server._config, "timeout_keep_alive", 0.2)
    async with rig.client() as client:
        client.send(HEAD + b"Content-Length: 0\r\n\r\n")
        assert await client.answer() == (200, b"0")
        await client.ended()


HUGE = [
    b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n",
    HEAD + b"X: " + b"y" * 100_000,
    HEAD + b"".join(b"X-%d: y\r\n" % number for number in range(200)) + b"\r\n",
    HEAD + b"".join(b"X-%d: %s\r\n" % (number, b"y" * 2000) for number in range(60)) + b"\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"e" * 300_000 + b"\r\nx\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nT: " + b"t" * 300_000 + b"\r\n\r\n",
]


@pytest.mark.parametrize("number", range(len(HUGE)))
async def test_too_much_around_a_request(rig: Rig, number: int) -> None:
    async with rig.client() as client:
        for start in range(0, len(HUGE[number]), 8192):
            client.send(HUGE[number][start : start + 8192])
            await asyncio.sleep(0)
        try:
            status, body = await client.answer()
        except (IndexError, ConnectionError):
            return  # The client sent on after the refusal, and lost it.
        assert (status, json.loads(body)["code"]) == (431, "header_too_large")
        await client.ended()
    await rig.works()


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        HEAD + b"Content-Length: x\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_what_is_no_http(rig: Rig, nonsense: bytes) -> None:
    async with rig.client() as client:
        client.send(nonsense)
        await client.problem(400, "message_invalid")
    await rig.works()


async def test_nonsense_behind_a_request_is_not_its_answer(rig: Rig) -> None:
    async with rig.client() as client:
        client.send(b"POST /later HTTP/1.1\r\nHost: carrel\r\nContent-Length: 0\r\n\r\n")
        await rig.holds()
        client.send(b"\x00\x00\x00\r\n\r\n")
        async with asyncio.timeout(SOON_S):
            with contextlib.suppress(ConnectionResetError):
                assert await client.reader.read() == b""


async def test_a_client_that_does_not_read(rig: Rig, patch: Patch) -> None:
    """The writer waits, keeps little, and gives up."""
    patch("STALLED_S", 0.5)
    async with rig.client() as client:
        client.send(b"GET /flood HTTP/1.1\r\nHost: carrel\r\n\r\n")
        async with asyncio.timeout(SOON_S):
            await rig.app.gone.wait()
        assert rig.app.sent < 8 << 20
    await rig.works()


async def test_a_socket_client_that_does_not_read(rig: Rig, patch: Patch) -> None:
    patch("STALLED_S", 0.5)
    async with unix_connect(
        rig.path, "ws://carrel/flood", max_queue=1, ping_interval=None
    ) as client:
        async with asyncio.timeout(SOON_S):
            await rig.app.gone.wait()
        # Whoever reads on now still learns why.
        with pytest.raises(ConnectionClosed) as caught:
            async with asyncio.timeout(SOON_S):
                while True:
                    await client.recv()
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1013
        assert "attach again" in caught.value.rcvd.reason
    assert rig.app.sent < 8 << 20


async def test_who_reads_a_command_is_waited_for(rig: Rig) -> None:
    """An hour, in which it answers no ping either; the writer waits, and keeps little."""
    async with unix_connect(
        rig.path, "ws://carrel/pipe", max_queue=1, ping_interval=None
    ) as client:
        await asyncio.sleep(3600)
        assert not rig.app.gone.is_set() and rig.app.sent < 8 << 20
        sent = rig.app.sent
        async with asyncio.timeout(SOON_S):
            while rig.app.sent < 2 * sent:
                await client.recv()


async def test_a_socket_client_that_is_gone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers no ping, and says no goodbye."""
    monkeypatch.setattr(rig.server._config, "ws_ping_interval", 0.1)
    monkeypatch.setattr(rig.server._config, "ws_ping_timeout", 0.2)
    async with rig.client() as client:
        client.send(
            b"GET /echo HTTP/1.1\r\nHost: carrel\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        assert (await client.answer())[0] == 101
        async with asyncio.timeout(SOON_S):
            await rig.app.gone.wait()
        await client.ended()


async def test_input_that_waits_is_no_silence(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """An application that does not take what a client sends does not lose the client."""
    monkeypatch.setattr(rig.server._config, "ws_ping_interval", 0.1)
    monkeypatch.setattr(rig.server._config, "ws_ping_timeout", 0.1)
    async with unix_connect(rig.path, "ws://carrel/deaf", ping_interval=None) as client:
        for _ in range(3):
            await client.send(b"x" * 1000)
        asyncio.get_running_loop().call_later(0.6, rig.app.go.set)
        async with asyncio.timeout(SOON_S):
            assert [await client.recv() for _ in range(3)] == [b"x" * 1000] * 3


async def test_there_are_only_so_many(rig: Rig, patch: Patch) -> None:
    patch("MAX_CONNECTIONS", 2)
    async with rig.client() as first, rig.client() as second:
        for client in (first, second):
            client.send(HEAD + b"Content-Length: 0\r\n\r\n")
            assert (await client.answer())[0] == 200
        async with rig.client() as third:
            await third.problem(503, "daemon_unavailable")
        first.send(HEAD + b"Content-Length: 0\r\n\r\n")
        assert (await first.answer())[0] == 200


async def test_the_end_lets_requests_finish(rig: Rig) -> None:
    async with rig.client() as busy, rig.client() as idle:
        idle.send(HEAD + b"Content-Length: 0\r\n\r\n")
        assert (await idle.answer())[0] == 200
        busy.send(b"POST /later HTTP/1.1\r\nHost: carrel\r\nContent-Length: 0\r\n\r\n")
        await rig.holds()
        closing = asyncio.create_task(rig.server.close(grace_s=SOON_S))
        await idle.ended()
        with pytest.raises(OSError):
            async with rig.client() as late:
                late.send(HEAD + b"\r\n")
                assert await late.reader.read() != b""
                raise OSError("answered nothing")
        rig.app.go.set()
        assert (await busy.answer())[0] == 200
        await busy.ended()
        async with asyncio.timeout(SOON_S):
            await closing


async def test_the_end_is_bounded(rig: Rig) -> None:
    async with rig.client() as busy:
        busy.send(b"POST /later HTTP/1.1\r\nHost: carrel\r\nContent-Length: 0\r\n\r\n")
        await rig.holds()
        async with asyncio.timeout(SOON_S):
            await rig.server.close(grace_s=0.2)
        await busy.ended()
