"""Connections: kept, made again, and given up, by both clients."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel.client.address import Address
from carrel.client.aio_link import AsyncLink
from carrel.client.http import HttpAnswer, HttpRequest, asking, telling
from carrel.client.link import Link
from carrel.client.problems import ConnectionBroken
from carrel.domain.errors import (
    CarrelError,
    DaemonUnavailable,
    PathDenied,
    SpaceNotFound,
    UnexportedChanges,
)
from tests.client.peer import STEP_S, Guest, peer

LONG_PATH = 150
"""More than fits into the address of a Unix socket."""


class Sync:
    """Both clients behind one face, so that one test tries both."""

    def __init__(self, place: Address, **options: Any) -> None:
        self._link = Link(place, **options)

    def ask(self, request: HttpRequest) -> HttpAnswer:
        return self._link.ask(request)

    def close(self) -> None:
        self._link.close()


class Async:
    def __init__(self, place: Address, **options: Any) -> None:
        self._closed = False
        self._runner = asyncio.Runner()
        self._link = self._runner.run(self._make(place, options))

    @staticmethod
    async def _make(place: Address, options: dict[str, Any]) -> AsyncLink:
        return AsyncLink(place, **options)

    def ask(self, request: HttpRequest) -> HttpAnswer:
        return self._runner.run(self._link.ask(request))

    def close(self) -> None:
        """Twice is no error."""
        if not self._closed:
            self._closed = True
            self._runner.run(self._link.close())
            self._runner.close()


Make = Callable[..., Sync | Async]


@pytest.fixture(params=[Sync, Async])
def link(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Sync | Async] = []

    def make(place: Address, **options: Any) -> Sync | Async:
        made.append(request.param(place, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def one_answer(guest: Guest) -> None:
    guest.request()
    guest.answer()


def vanish(guest: Guest) -> None:
    guest.request()


def test_a_connection_is_used_again(link: Make) -> None:
    def act(guest: Guest) -> None:
        for number in range(3):
            guest.request()
            guest.answer(b'{"n": %d}' % number)

    with peer(act) as server:
        own = link(server.place)
        found = [own.ask(asking("/v1/info")).json()["n"] for _ in range(3)]
    assert found == [0, 1, 2]
    assert server.guests[0].heads[0].startswith(b"GET /v1/info HTTP/1.1\r\nHost: carrel\r\n")


def test_one_that_was_closed_meanwhile_is_not(link: Make) -> None:
    """Also for what must not be sent twice: it was noticed before anything was sent."""
    with peer(one_answer, one_answer) as server:
        own = link(server.place)
        own.ask(asking("/"))
        assert server.guests[0].gone.wait(STEP_S)
        own.ask(telling("POST", "/", {}))


def test_one_that_is_to_be_closed_is_not(link: Make) -> None:
    def act(guest: Guest) -> None:
        guest.request()
        guest.answer(headers="Connection: close\r\n")
        assert guest.receive_all() == b""

    with peer(act, one_answer) as server:
        own = link(server.place)
        own.ask(asking("/"))
        own.ask(asking("/"))


def test_a_question_is_asked_again_when_the_connection_breaks(link: Make) -> None:
    with peer(vanish, one_answer) as server:
        assert link(server.place).ask(asking("/")).json() == {}


def test_a_change_is_not(link: Make) -> None:
    with peer(vanish) as server, pytest.raises(ConnectionBroken, match="closed") as caught:
        link(server.place).ask(telling("POST", "/", {}))
    assert caught.value.code == "daemon_unavailable"


def test_an_answer_that_breaks_off_is_an_error(link: Make) -> None:
    def act(guest: Guest) -> None:
        guest.request()
        guest.socket.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

    with peer(act) as server, pytest.raises(ConnectionBroken):
        link(server.place).ask(telling("POST", "/", {}))


def test_nobody_is_waited_for_for_ever(link: Make) -> None:
    def act(guest: Guest) -> None:
        guest.request()
        guest.receive_all()

    with peer(act) as server, pytest.raises(DaemonUnavailable, match=r"within 0\.2 seconds"):
        link(server.place, timeout_s=0.2).ask(asking("/"))


def test_what_is_no_http_is_told(link: Make) -> None:
    def act(guest: Guest) -> None:
        guest.request()
        guest.socket.sendall(b"220 mail.example ESMTP\r\n\r\n")
        guest.receive_all()

    with peer(act) as server, pytest.raises(DaemonUnavailable, match="cannot be read"):
        link(server.place).ask(telling("POST", "/", {}))


def test_a_body_is_sent_in_chunks(link: Make) -> None:
    def act(guest: Guest) -> None:
        data = guest.request()
        while not data.endswith(b"0\r\n\r\n"):
            data += guest.socket.recv(65536)
        guest.answer(data.partition(b"\r\n\r\n")[2])

    with peer(act) as server:
        body = iter([b"one", b"", b"four"])
        answer = link(server.place).ask(HttpRequest("PUT", "/", body=body))
    assert answer.body == b"3\r\none\r\n4\r\nfour\r\n0\r\n\r\n"


REFUSAL = b'{"code": "path_denied", "detail": "No."}'


def large() -> Iterator[bytes]:
    for _ in range(500):
        yield bytes(65536)


@pytest.mark.parametrize("body", [large, lambda: b"".join(large())], ids=["pieces", "whole"])
def test_a_refusal_before_the_end_of_a_body_is_heard(link: Make, body: Callable[[], Any]) -> None:
    def act(guest: Guest) -> None:
        guest.request()
        guest.answer(REFUSAL, 403, "Connection: close\r\n")
        guest.receive_all()

    with peer(act) as server, pytest.raises(PathDenied, match=r"No\."):
        own = link(server.place)
        try:
            own.ask(HttpRequest("PUT", "/", body=body())).json()
        finally:
            own.close()


def test_also_from_one_who_hangs_up_at_once() -> None:
    """Only by the sync client: asyncio drops what it has not read when it cannot write."""

    def act(guest: Guest) -> None:
        guest.request()
        guest.answer(REFUSAL, 403, "Connection: close\r\n")
        guest.socket.recv(65536)

    with peer(act) as server, pytest.raises(PathDenied, match=r"No\."):
        Sync(server.place).ask(HttpRequest("PUT", "/", body=large())).json()


def test_problems_become_the_errors_they_are(link: Make) -> None:
    def act(guest: Guest) -> None:
        guest.request()
        guest.answer(b'{"code": "space_not_found", "detail": "No x.", "hint": "Look."}', 404)
        guest.request()
        guest.answer(b'{"code": "unexported_changes", "detail": "Lost.", "changes": 3}', 409)
        guest.request()
        guest.answer(b'{"code": "of_tomorrow", "detail": "New."}', 400)
        guest.request()
        guest.answer(b"<html>", 502)

    with peer(act) as server:
        own = link(server.place)
        with pytest.raises(SpaceNotFound, match=r"No x\. Look\."):
            own.ask(asking("/")).json()
        with pytest.raises(UnexportedChanges) as changes:
            own.ask(asking("/")).json()
        assert changes.value.details == {"changes": 3}
        with pytest.raises(CarrelError, match="New") as unknown:
            own.ask(asking("/")).json()
        assert unknown.value.code == "of_tomorrow"
        with pytest.raises(CarrelError, match="502"):
            own.ask(asking("/")).json()


def test_a_daemon_is_started_when_nobody_listens(link: Make) -> None:
    """Also where a socket was left by one that was killed."""
    for left in (False, True):
        with tempfile.TemporaryDirectory(prefix="carrel-") as folder:
            path = Path(folder, "socket")
            if left:
                with socket.socket(socket.AF_UNIX) as dead:
                    dead.bind(str(path))
            started: list[Any] = []

            def start(path: Path = path, started: list[Any] = started) -> None:
                path.unlink(missing_ok=True)
                listener = socket.socket(socket.AF_UNIX)
                listener.bind(str(path))
                listener.listen()
                started.append(listener)

            own = link(Address(socket=str(path)), start=start, timeout_s=0.1)
            with pytest.raises(ConnectionBroken, match="within"):
                own.ask(asking("/"))
            assert len(started) == 1
            started[0].close()


def test_without_a_daemon_it_is_said_how_to_start_one(link: Make) -> None:
    with pytest.raises(DaemonUnavailable) as caught:
        link(Address(socket="/nonexistent/socket", data="/nonexistent")).ask(asking("/"))
    assert "/nonexistent" in caught.value.message and "carrel up" in caught.value.hint
    with pytest.raises(DaemonUnavailable, match=r"127\.0\.0\.1:1"):
        link(Address(host="127.0.0.1", port=1)).ask(asking("/"))


def test_a_socket_with_a_long_path_is_reached(link: Make) -> None:
    with tempfile.TemporaryDirectory(prefix="carrel-") as folder:
        deep = Path(folder, "x" * LONG_PATH)
        deep.mkdir()
        with peer(one_answer) as server:
            server.path.rename(deep / "socket")
            own = link(Address(socket=str(deep / "socket")))
            assert own.ask(asking("/")).json() == {}
        assert not os.listdir(deep) or os.listdir(deep) == ["socket"]


def test_a_token_goes_over_tcp_only(link: Make) -> None:
    with peer(one_answer) as server:
        place = server.place
        place.token = "secret"
        link(place).ask(asking("/"))
    assert b"secret" not in server.guests[0].heads[0]
    assert (
        HttpRequest("GET", "/").head(Address(host="h", port=1, token="secret")).count(b"secret")
        == 1
    )
