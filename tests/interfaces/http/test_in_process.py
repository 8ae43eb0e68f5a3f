"""The whole interface in this process, where its clocks can be turned."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin, Subprotocol

from carrel.config import Settings
from carrel.daemon import places
from carrel.daemon.main import open_api
from carrel.daemon.server import DaemonServer, bound
from carrel.domain.errors import AuthenticationFailed
from carrel.interfaces.http import access, requests, runs, socket_connections
from carrel.interfaces.http.files import BodyEnded, BodyTooSlow, PieceReader, Pieces
from carrel.interfaces.http.lifetime import REASON, Shutdown
from carrel.interfaces.http.responses import EventStream, Told, told
from carrel.launcher.client import Launcher
from tests.daemon.rig import good

SOON_S = 30.0
PAGE = "https://desk.example"


class Rig:
    def __init__(self, address: str, client: httpx.AsyncClient) -> None:
        self.address = address
        self.client = client

    async def token(self, scope: str) -> dict[str, Any]:
        made: dict[str, Any] = good(await self.client.post("/v1/tokens", json={"scope": scope}))
        return made


@pytest.fixture
async def rig(data: Path) -> AsyncIterator[Rig]:
    settings = Settings(
        data=data,
        request_agent="scripted",
        allowed_origins=(PAGE,),
        allowed_hosts=("desk.example",),
    )
    places.make_folder(data)
    try:
        async with (
            open_api(settings, lambda: None) as (api, closing, _),
            bound(data, "127.0.0.1:0") as found,
        ):
            server = DaemonServer(api, closing)
            await server.open(found.sockets)
            transport = httpx.AsyncHTTPTransport(uds=places.socket(data))
            async with httpx.AsyncClient(
                transport=transport, base_url="http://carrel", timeout=SOON_S
            ) as client:
                yield Rig(found.address, client)
                page = good(await client.get("/v1/spaces"))
                for space in page["spaces"]:
                    await client.delete(f"/v1/spaces/{space['id']}", params={"force": "true"})
            await server.close(grace_s=2.0)
    finally:
        await asyncio.to_thread(Launcher(data).shutdown, force=True)


async def test_a_revoked_token_ends_its_sessions(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the command."""
    monkeypatch.setattr(runs, "KEEP_ALIVE_S", 0.05)
    space = good(await rig.client.post("/v1/spaces", json={}))["id"]
    token = await rig.token(f"space:{space}")
    headers = {"Authorization": f"Bearer {token['secret']}"}
    url = f"ws://{rig.address}/v1/spaces/{space}/exec"
    async with connect(url, additional_headers=headers, proxy=None) as socket:
        await socket.send(json.dumps({"argv": ["sleep", "600"]}))
        run = json.loads(await socket.recv())["run"]["id"]
        good(await rig.client.delete(f"/v1/tokens/{token['id']}"))
        async with asyncio.timeout(SOON_S):
            problem = json.loads(await socket.recv())
            assert (problem["type"], problem["code"]) == ("problem", "authentication_failed")
            with pytest.raises(ConnectionClosed) as caught:
                await socket.recv()
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1008
    assert good(await rig.client.get(f"/v1/runs/{run}"))["state"] == "running"


def unread(ours: int, theirs: int) -> int | None:
    """Bytes that wait in the kernel on our side of a connection; None when it is not there."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, here, there, state, queues, *_ = line.split()
        if (here[-5:], there[-5:], state) == (f":{ours:04X}", f":{theirs:04X}", "01"):
            return int(queues.partition(":")[0], 16)
    return None


@pytest.mark.parametrize(("size", "state"), [(100_000_000, "running"), (9_000_000, "ended")])
async def test_who_does_not_read_is_waited_for_while_its_token_opens(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, size: int, state: str
) -> None:
    """Also where the command has ended. Then the connection goes, and takes nobody's place."""
    monkeypatch.setattr(runs, "KEEP_ALIVE_S", 0.05)
    monkeypatch.setattr(socket_connections, "RECHECK_S", 0.05)
    monkeypatch.setattr(socket_connections, "FLUSH_S", 0.2)
    space = good(await rig.client.post("/v1/spaces", json={}))["id"]
    token = await rig.token(f"space:{space}")
    headers = {"Authorization": f"Bearer {token['secret']}"}
    url = f"ws://{rig.address}/v1/spaces/{space}/exec"
    with socket.create_connection(("127.0.0.1", int(rig.address.rpartition(":")[2]))) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ends = int(rig.address.rpartition(":")[2]), raw.getsockname()[1]
        client = await connect(url, additional_headers=headers, proxy=None, max_queue=1, sock=raw)
        await client.send(json.dumps({"argv": ["head", "-c", str(size), "/dev/zero"]}))
        run = json.loads(await client.recv())["run"]["id"]
        async with asyncio.timeout(SOON_S):
            while good(await rig.client.get(f"/v1/runs/{run}"))["state"] != state:
                await asyncio.sleep(0.01)
            before: int | None = 0
            while not before or unread(*ends) != before:
                # Until nothing moves any more.
                before = unread(*ends)
                await asyncio.sleep(0.05)
            good(await rig.client.delete(f"/v1/tokens/{token['id']}"))
            while unread(*ends) is not None:
                await asyncio.sleep(0.01)
        client.transport.abort()


async def test_what_a_revoked_token_has_begun_over_plain_http(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets no answer of a command, writes nothing more, and reads nothing that comes later."""
    monkeypatch.setattr(access, "RECHECK_S", 0.05)
    space = good(await rig.client.post("/v1/spaces", json={}))["id"]
    url, token = f"/v1/spaces/{space}", await rig.token(f"space:{space}")
    fill = {"argv": ["sh", "-c", "head -c 60000000 /dev/urandom > fill"]}
    good(await rig.client.post(f"{url}/exec", json=fill))
    revoked, sent = asyncio.Event(), asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"begun" * (1 << 20)
        sent.set()
        await revoked.wait()
        await asyncio.sleep(10 * access.RECHECK_S)
        yield b"later"

    headers = {"Authorization": f"Bearer {token['secret']}"}
    async with (
        asyncio.timeout(SOON_S),
        httpx.AsyncClient(base_url=f"http://{rig.address}", headers=headers, timeout=SOON_S) as its,
        its.stream("GET", f"{url}/archive", params={"path": "."}) as reading,
    ):
        pieces = reading.aiter_raw()
        await anext(pieces)
        waits = asyncio.create_task(its.post(f"{url}/exec", json={"argv": ["sleep", "600"]}))
        writes = asyncio.create_task(
            its.put(f"{url}/files", params={"path": "theirs"}, content=body())
        )
        await sent.wait()
        good(await rig.client.delete(f"/v1/tokens/{token['id']}"))
        revoked.set()
        assert (await waits).status_code == 401
        with contextlib.suppress(httpx.TransportError):
            assert (await writes).status_code == 401
        with pytest.raises(httpx.RemoteProtocolError):
            async for _ in pieces:
                pass
    found = await rig.client.get(f"{url}/files", params={"path": "theirs"})
    assert found.status_code == 404


async def test_requests_of_a_token_that_is_revoked(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ends, and what was asked for goes on. A connection has room for so many."""
    monkeypatch.setattr(requests, "KEEP_ALIVE_S", 0.05)
    monkeypatch.setattr(requests, "MOST_FOLLOWED", 1)
    token = await rig.token("label:team=blue")
    headers = {"Authorization": f"Bearer {token['secret']}"}
    url = f"ws://{rig.address}/v1/requests"
    async with (
        connect(url, additional_headers=headers, proxy=None) as socket,
        asyncio.timeout(SOON_S),
    ):
        asked = {"type": "generate", "instructions": "sleep 600", "request_id": "mine"}
        await socket.send(json.dumps(asked))
        assert json.loads(await socket.recv())["type"] == "accepted"
        await socket.send(json.dumps({**asked, "request_id": "more"}))
        while (frame := json.loads(await socket.recv()))["type"] != "error":
            assert frame["request_id"] == "mine"
        assert (frame["code"], frame["request_id"]) == ("capacity", "more") and frame["retriable"]
        good(await rig.client.delete(f"/v1/tokens/{token['id']}"))
        while (frame := json.loads(await socket.recv()))["type"] != "error":
            assert frame["request_id"] == "mine"
        assert frame["code"] == "authentication_failed" and frame["to"] == ""
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
    found = good(await rig.client.get("/v1/requests", params={"live": "true"}))["requests"]
    assert [one["request_id"] for one in found] == ["mine"]
    good(await rig.client.delete(f"/v1/requests/{found[0]['key']}"))


async def test_a_first_frame_that_does_not_come(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "FIRST_FRAME_S", 0.05)
    headers = {"Authorization": f"Bearer {(await rig.token('admin'))['secret']}"}
    url = f"ws://{rig.address}/v1/spaces/any/exec"
    async with connect(url, additional_headers=headers, proxy=None) as socket:
        async with asyncio.timeout(SOON_S):
            assert json.loads(await socket.recv())["code"] == "message_invalid"


async def test_a_page_that_is_allowed(rig: Rig) -> None:
    secret = (await rig.token("admin"))["secret"]
    headers = {"Origin": PAGE, "Host": "desk.example", "Authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(base_url=f"http://{rig.address}") as client:
        response = await client.get("/v1/spaces", headers=headers)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == PAGE
        assert response.headers["vary"] == "Origin"
        asked = {"Origin": PAGE, "Access-Control-Request-Method": "PATCH"}
        preflight = await client.options("/v1/spaces", headers=asked)
        assert preflight.status_code == 204
        assert "PATCH" in preflight.headers["access-control-allow-methods"]
        other = {**headers, "Origin": "https://evil.example"}
        assert (await client.get("/v1/spaces", headers=other)).status_code == 403
        # The page may read why it was refused.
        refused = await client.get("/v1/spaces", headers={**headers, "Authorization": "Bearer no"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == PAGE


async def test_a_socket_of_a_page(rig: Rig) -> None:
    """It cannot set headers: its token comes among the protocols that it offers."""
    secret = (await rig.token("admin"))["secret"]
    url = f"ws://{rig.address}/v1/requests"
    offers = [Subprotocol("carrel"), Subprotocol(f"carrel.token.{secret}")]
    async with connect(url, origin=Origin(PAGE), subprotocols=offers, proxy=None) as socket:
        assert socket.subprotocol == "carrel"
        await socket.send('{"type": "cancel", "request_id": "none"}')
        async with asyncio.timeout(SOON_S):
            assert json.loads(await socket.recv())["code"] == "request_not_found"


async def test_sockets_of_pages_that_are_refused(rig: Rig) -> None:
    secret = (await rig.token("admin"))["secret"]
    url = f"ws://{rig.address}/v1/requests"
    for origin, protocols, status in (
        ("https://evil.example", ("carrel", f"carrel.token.{secret}"), 403),
        (PAGE, ("carrel", "carrel.token.wrong"), 401),
        (PAGE, ("carrel", "carrel.token."), 401),
        (PAGE, ("carrel",), 401),
        (PAGE, (secret,), 401),
    ):
        offers = [Subprotocol(one) for one in protocols]
        with pytest.raises(InvalidStatus) as refused:
            async with connect(url, origin=Origin(origin), subprotocols=offers, proxy=None):
                pass
        assert refused.value.response.status_code == status, protocols


class Listener:
    """The server's side of a stream, without a server."""

    def __init__(self, recheck: Any = None) -> None:
        self.scope = {"type": "http", "carrel.recheck": recheck}
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self.left = asyncio.Event()
        self.ended = False

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            self.pieces.put_nowait(message["body"])
            self.ended = not message["more_body"]

    async def next(self) -> bytes:
        async with asyncio.timeout(SOON_S):
            return await self.pieces.get()


async def _silent(closed: list[bool]) -> Told:
    try:
        yield told("first", {"a": 1}, 7)
        await asyncio.Event().wait()
    finally:
        closed.append(True)


@pytest.mark.parametrize("how", ["client", "daemon", "token"])
async def test_a_silent_stream_is_kept_alive_until_it_ends(how: str) -> None:
    closing, closed = Shutdown(), list[bool]()
    revoked = asyncio.Event()

    async def recheck() -> None:
        if revoked.is_set():
            raise AuthenticationFailed("No more.")

    listener = Listener(recheck)
    stream = EventStream(_silent(closed), closing, keep_alive_s=0.05)
    task = asyncio.create_task(stream(listener.scope, listener.receive, listener.send))
    assert await listener.next() == b'id: 7\nevent: first\ndata: {"a":1}\n\n'
    assert [await listener.next() for _ in range(2)] == [b": here\n\n"] * 2
    {"client": listener.left.set, "daemon": closing.begin, "token": revoked.set}[how]()
    async with asyncio.timeout(SOON_S):
        await task
    assert listener.ended and closed == [True]
    rest = [listener.pieces.get_nowait() for _ in range(listener.pieces.qsize())]
    assert (rest[-1] == f": {REASON}\n\n".encode()) == (how == "daemon")


async def _body(*pieces: bytes, then: Exception | None = None) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
    if then is not None:
        raise then


async def test_a_thread_reads_a_body() -> None:
    pieces = Pieces(b"first", _body(b"a", b"", b"bc", b""))
    assert await asyncio.to_thread(list, pieces) == [b"first", b"a", b"bc"]
    reader = PieceReader(Pieces(b"first", _body(b"second" * 1000)))
    data = await asyncio.to_thread(reader.read)
    assert data == b"first" + b"second" * 1000


async def test_a_body_that_ends_early() -> None:
    pieces = Pieces(b"first", _body(b"a", then=ClientDisconnect()))
    with pytest.raises(BodyEnded):
        await asyncio.to_thread(list, pieces)


async def test_a_body_that_trickles(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = Pieces(b"first", _body(b"a", b"b"))
    monkeypatch.setattr(pieces, "_begun", pieces._begun - 3600.0)
    with pytest.raises(BodyTooSlow):
        await asyncio.to_thread(list, pieces)


async def test_a_body_that_is_not_read_to_its_end() -> None:
    """What was asked for ahead is not waited for."""
    ended = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            yield b"a"
            await asyncio.Event().wait()
        finally:
            ended.set()

    pieces = Pieces(b"first", endless())
    assert await asyncio.to_thread(lambda: [next(pieces), next(pieces)]) == [b"first", b"a"]
    pieces.close()
    async with asyncio.timeout(60):
        await ended.wait()
