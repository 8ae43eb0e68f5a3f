"""What moves a command's streams, against a server that does what a test says."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import threading
from typing import Any

import pytest
from websockets.frames import Frame, Opcode

from carrel.client.aio_link import AsyncLink
from carrel.client.aio_spaces import AsyncSpace
from carrel.client.aio_streams import AsyncRunStream
from carrel.client.exchange import STDERR, STDOUT, RunExchange
from carrel.client.link import Link
from carrel.client.models import SpaceInfo
from carrel.client.spaces import Space
from carrel.client.streams import RunStream
from carrel.domain.errors import DaemonUnavailable, SpaceNotFound
from tests.client.peer import STEP_S, Act, Guest, peer
from tests.client.test_models import AT, RUN, ended

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def frame(kind: int, data: bytes) -> bytes:
    return Frame(Opcode(kind), data).serialize(mask=False)


def text(kind: str, run: dict[str, Any]) -> bytes:
    return frame(1, json.dumps({"type": kind, "run": run}).encode())


def data(stream: int, offset: int, content: bytes) -> bytes:
    return frame(2, bytes((stream,)) + offset.to_bytes(8, "big") + content)


RUNNING = {**RUN, "state": "running", "exit": None}
STARTED = text("started", RUNNING)
EXIT = text("exit", ended("exited", 5))


def agree(guest: Guest) -> bytes:
    """The answer to a handshake, not sent yet."""
    head = guest.request()
    key = re.search(rb"Sec-WebSocket-Key: (\S+)", head)
    assert key is not None
    accept = base64.b64encode(hashlib.sha1(key[1] + GUID).digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )


def all_at_once(guest: Guest) -> None:
    pieces = data(STDOUT, 0, b"out") + data(STDERR, 0, b"err")
    guest.socket.sendall(agree(guest) + STARTED + pieces + EXIT + frame(8, b"\x03\xe8"))


def in_two_connections() -> list[Act]:
    """The second repeats a part, as nobody knows how much of it arrived."""

    def first(guest: Guest) -> None:
        guest.socket.sendall(agree(guest) + STARTED + data(STDOUT, 0, b"ab"))

    def second(guest: Guest) -> None:
        answer = agree(guest)
        assert guest.heads[0].startswith(b"GET /v1/runs/ru_x/attach?stdout=2&stderr=0&reader=")
        guest.socket.sendall(answer + STARTED + data(STDOUT, 1, b"bc") + EXIT)

    return [first, second]


def info() -> SpaceInfo:
    from carrel.client.models import decode

    content = {
        "id": "sp_x",
        "name": "x",
        "state": "ready",
        "project": {"kind": "empty"},
        "base": "",
        "runtime": "auto",
        "confined": True,
        "uncovered": [],
        "driver": "auto",
        "path": "",
        "network": "none",
        "tier": "",
        "limits": {},
        "enforced": [],
        "labels": {},
        "env": {},
        "retention": {},
        "created_at": AT,
        "updated_at": AT,
        "active_at": AT,
    }
    return decode(content, SpaceInfo)


def test_all_of_it_may_come_with_the_connection() -> None:
    with peer(all_at_once) as server:
        result = Space(Link(server.place), info()).run(["x"])
    assert (result.stdout, result.stderr, result.code) == ("out", "err", 5)
    with peer(all_at_once) as server:
        exchange = RunExchange.attaching("ru_x")
        with RunStream(Link(server.place), exchange).open() as stream:
            assert sorted(piece.data for piece in stream) == [b"err", b"out"]


async def test_so_it_may_for_the_async_client() -> None:
    with peer(all_at_once) as server:
        result = await AsyncSpace(AsyncLink(server.place), info()).run(["x"])
    assert (result.stdout, result.stderr, result.code) == ("out", "err", 5)


def test_what_came_with_a_connection_is_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although nothing more comes, with the first and with the next."""
    monkeypatch.setattr("carrel.client.streams.QUIET_S", 5.0)
    asked: list[bool] = []

    def first(guest: Guest) -> None:
        guest.socket.sendall(agree(guest) + STARTED + data(STDOUT, 0, b"a"))
        go_on.wait(STEP_S)

    def second(guest: Guest) -> None:
        guest.socket.sendall(agree(guest) + STARTED + data(STDOUT, 1, b"b"))
        guest.receive_all()

    go_on = threading.Event()
    with peer(first, second) as server:
        exchange = RunExchange.attaching("ru_x")
        monkeypatch.setattr(exchange, "ping", lambda: asked.append(True))
        with RunStream(Link(server.place), exchange).open() as stream:
            stream.wait()
            assert [piece.data for piece in exchange.take()] == [b"a"]
            go_on.set()
            assert next(iter(stream)).data == b"b"
    assert not asked, "it waited for more"


def test_a_lost_connection_is_made_again() -> None:
    with peer(*in_two_connections()) as server:
        result = Space(Link(server.place), info()).run(["x"])
    assert (result.stdout, result.code, result.truncated) == ("abc", 5, False)


async def test_so_it_is_by_the_async_client() -> None:
    with peer(*in_two_connections()) as server:
        result = await AsyncSpace(AsyncLink(server.place), info()).run(["x"])
    assert (result.stdout, result.code, result.truncated) == ("abc", 5, False)


def test_what_came_before_a_loss_is_heard() -> None:
    """Though the loss is noticed by who sends: the daemon said that the command runs, and died."""
    asked, gone = threading.Event(), threading.Event()

    class Input(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            asked.set()
            assert gone.wait(STEP_S)
            return super().read(size)

    def first(guest: Guest) -> None:
        guest.socket.sendall(agree(guest))
        assert asked.wait(STEP_S)
        guest.socket.sendall(STARTED)
        guest.socket.close()
        gone.set()

    def second(guest: Guest) -> None:
        nothing_yet = frame(1, json.dumps({"type": "started", "run": RUNNING, "input": 0}).encode())
        guest.socket.sendall(agree(guest) + nothing_yet + EXIT)

    with peer(first, second) as server:
        assert Space(Link(server.place), info()).run(["x"], stdin=Input(b"x")).code == 5


def refuse(guest: Guest) -> None:
    guest.request()
    guest.answer(b'{"code": "space_not_found", "detail": "No."}', 404)


def hang_up(guest: Guest) -> None:
    guest.socket.sendall(agree(guest))


@pytest.mark.parametrize(("act", "error"), [(refuse, SpaceNotFound), (hang_up, DaemonUnavailable)])
async def test_a_refusal_and_a_loss_before_it_runs_are_errors(
    act: Act, error: type[Exception]
) -> None:
    """A command is never sent twice."""
    with peer(act) as server, pytest.raises(error):
        Space(Link(server.place), info()).run(["x"])
    with peer(act) as server, pytest.raises(error):
        await AsyncSpace(AsyncLink(server.place), info()).run(["x"])


async def test_one_who_says_nothing_is_asked_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("streams", "aio_streams"):
        monkeypatch.setattr(f"carrel.client.{module}.QUIET_S", 0.2)
        monkeypatch.setattr(f"carrel.client.{module}.DEAD_S", 2.0)

    def silent(guest: Guest) -> None:
        guest.socket.sendall(agree(guest) + STARTED)
        assert guest.receive_all().count(b"\x89\x85") >= 1, "no ping came"

    def second(guest: Guest) -> None:
        guest.socket.sendall(agree(guest) + STARTED + EXIT)

    with peer(silent, second) as server:
        assert Space(Link(server.place), info()).run(["x"]).code == 5
    with peer(silent, second) as server:
        exchange = RunExchange.attaching("ru_x")
        async with await AsyncRunStream(AsyncLink(server.place), exchange).open() as stream:
            assert [piece async for piece in stream] == []
    assert exchange.ended
