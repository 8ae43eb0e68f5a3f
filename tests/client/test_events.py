"""Events as they happen, over lost connections too."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from carrel import AsyncClient, Client, errors
from carrel.client import models
from carrel.client.events import GAP, EventLog, watch_events
from carrel.client.link import Link
from tests.client.killing import kill
from tests.client.peer import Guest, peer
from tests.daemon.rig import Daemon

AT = "2026-01-02T03:04:05.678Z"


def event(seq: int) -> bytes:
    data = f'{{"seq": {seq}, "type": "progress", "space": "sp", "at": "{AT}", "data": {{}}}}'
    return f"id: {seq}\nevent: progress\ndata: {data}\n\n".encode()


def stream(*seqs: int, end: bytes = b"") -> bytes:
    body = b": listening\n\n" + b"".join(event(seq) for seq in seqs) + end
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + body


def test_a_lost_connection_is_made_again_where_it_was() -> None:
    """Also when an event is cut in two, and when only a number came."""

    def first(guest: Guest) -> None:
        guest.request()
        guest.socket.sendall(stream(4, 5, end=event(6)[:-5]))

    def second(guest: Guest) -> None:
        assert b"Last-Event-ID: 5\r\n" in guest.request()
        guest.socket.sendall(stream(6, end=b"id: 9\n\n"))

    def third(guest: Guest) -> None:
        assert b"Last-Event-ID: 9\r\n" in guest.request()
        guest.socket.sendall(stream(10))
        guest.receive_all()

    with peer(first, second, third) as server:
        link = Link(server.place)
        with contextlib.closing(watch_events(link, None, ["sp x"], ["progress"])) as events:
            assert [next(events).seq for _ in range(4)] == [4, 5, 6, 10]
    head = server.guests[0].heads[0]
    assert head.startswith(b"GET /v1/events?space=sp%20x&type=progress HTTP/1.1")
    assert b"Last-Event-ID" not in head


def test_one_who_never_was_there_is_not_waited_for() -> None:
    events = Client(socket="/nonexistent/socket").events()
    with pytest.raises(errors.DaemonUnavailable):
        next(events)


def test_a_refusal_is_no_lost_connection() -> None:
    def act(guest: Guest) -> None:
        guest.request()
        guest.answer(b'{"code": "space_not_found", "detail": "No."}', 404)

    with (
        peer(act) as server,
        Client(socket=server.path) as client,
        pytest.raises(errors.SpaceNotFound),
    ):
        next(client.events(spaces=["x"]))


def test_what_is_no_longer_kept_is_told() -> None:
    watch = EventLog(3, [], [])
    watch.request()
    [found] = watch.receive(b'event: gap\ndata: {"after": 3, "first": 50}\n\n')
    assert (found.type, found.seq, found.data["first"]) == (GAP, 49, 50)


def test_what_happens_is_told_in_order(client: Client) -> None:
    with client.space() as space:
        space.run(["true"])
        found: list[models.Event] = []
        with contextlib.closing(client.events(after=0, spaces=[space.id])) as events:
            for one in events:
                found.append(one)
                if one.type == "run.ended":
                    break
    kinds = [one.type for one in found]
    assert kinds.index("run.started") < kinds.index("run.ended")
    assert [one.seq for one in found] == sorted({one.seq for one in found})
    assert {one.space for one in found} == {space.id}


def test_nothing_is_missed_while_the_daemon_is_killed(own_daemon: Daemon) -> None:
    with Client(data=own_daemon.data) as client, client.space() as space:
        events = client.events(after=0, types=["run.started"])
        started = [space.start_run(["true"]).id]
        found = [str(next(events).data["run_id"])]
        for _ in range(2):
            kill(own_daemon)
            # By another connection: those who watch start no daemon.
            thread = threading.Thread(target=lambda: started.append(space.start_run(["true"]).id))
            thread.start()
            found.append(str(next(events).data["run_id"]))
            thread.join(60)
        assert found == started


async def test_the_async_client_watches_too(own_daemon: Daemon) -> None:
    async with AsyncClient(data=own_daemon.data) as client, client.space() as space:
        events = client.events(after=0, spaces=[space.id], types=["run.ended"])
        runs = [(await space.start_run(["true"])).id]
        found = [str((await anext(events)).data["run_id"])]
        await asyncio.to_thread(kill, own_daemon)
        waiting = asyncio.ensure_future(anext(events))
        runs.append((await space.start_run(["true"])).id)
        found.append(str((await asyncio.wait_for(waiting, 60)).data["run_id"]))
        await events.aclose()
        assert found == runs
        with pytest.raises(errors.SpaceNotFound):
            await anext(client.events(spaces=["nobody"]))
