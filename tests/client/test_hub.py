"""`Hub`: the same without an event loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel import Hub, errors
from carrel.client.hub_protocol import Delivered, Published, Replayed
from tests.client.hub_serving import DESK, OTHER, STEP_S, Served, serving_in_thread

NOTE = "buffer_custom_note"


@pytest.fixture
def served() -> Iterator[Served]:
    with serving_in_thread() as found:
        yield found


def test_saying_and_hearing(served: Served) -> None:
    with (
        Hub(socket=served.here.socket, timeout_s=STEP_S) as one,
        Hub(socket=served.here.socket, types=[NOTE, "custom_*"], timeout_s=STEP_S) as two,
    ):
        assert one.connected and one.client_id != two.client_id and one.space == ""
        first = one.publish(NOTE, {"n": 0}, space=DESK)
        assert first == Published(1, "disk", first.id)
        found = one.publish_many(((NOTE, {"n": n}) for n in range(1, 10)), space=DESK)
        assert [published.seq for published in found] == list(range(2, 11))
        assert one.send("custom_x", {}, space=OTHER) == Delivered(2)
        heard = [next(two) for _ in range(11)]
        assert [message.payload.get("n") for message in heard] == [*range(10), None]
        assert two.replay(DESK, seq=8) == Replayed({DESK: 8}, {DESK: 10})
        assert [next(two).seq for _ in range(2)] == [9, 10]
        two.subscribe(types=["custom_y"])
        assert one.send("custom_x", {}, space=OTHER) == Delivered(1)
        assert len(one.clients()) == 2 and two.status().clients == 2


def test_errors(served: Served, tmp_path: Path) -> None:
    with Hub(socket=served.here.socket) as hub:
        with pytest.raises(errors.SpaceNotFound):
            hub.publish(NOTE, {}, space="sp_nothing")
        with pytest.raises(errors.NoReceiver):
            hub.request("agent_interrupt", space=DESK)
    with pytest.raises(errors.DaemonUnavailable, match="not open"):
        hub.status()
    with pytest.raises(errors.SpaceNotFound), Hub(socket=served.here.socket, spaces=["sp_x"]):
        pass
    with pytest.raises(errors.DaemonUnavailable), Hub(socket=tmp_path / "nothing"):
        pass
    assert "carrel-hub" not in {thread.name for thread in threading.enumerate()}


def test_a_call_has_its_time(served: Served) -> None:
    with Hub(socket=served.here.socket, types=(), timeout_s=0.01) as hub:
        served.here.log.hold()
        with pytest.raises(errors.DaemonUnavailable, match="did not answer"):
            hub.publish(NOTE, {}, space=DESK)
        served.here.log.release()


def test_requests_between_threads(served: Served) -> None:
    with (
        Hub(socket=served.here.socket, timeout_s=STEP_S) as app,
        Hub(socket=served.here.socket, kind="ide", types=(), timeout_s=STEP_S) as ide,
    ):

        def answer() -> None:
            for message in ide:
                if message.payload["operation"] == "fail":
                    ide.fail(message, "timeout", "Too slow.")
                    return
                ide.respond(message, message.payload["operation"])

        answering = threading.Thread(target=answer)
        answering.start()
        for word in ("a", "b"):
            assert app.request("ide_operation", {"operation": word}, space=DESK) == word
        with pytest.raises(errors.DeadlinePassed, match="slow"):
            app.request("ide_operation", {"operation": "fail"}, space=DESK)
        answering.join(STEP_S)


def test_a_consumer_acknowledges_what_it_has_done(served: Served) -> None:
    with Hub(socket=served.here.socket, types=()) as writer:
        writer.publish_many([(NOTE, {"n": n}) for n in range(5)], space=DESK)
    with Hub(socket=served.here.socket, consumer="me", auto_ack=True) as hub:
        assert [next(hub).seq for _ in range(3)] == [1, 2, 3]
    with Hub(socket=served.here.socket, consumer="me") as hub:
        heard = [next(hub) for _ in range(3)]
        assert [message.seq for message in heard] == [3, 4, 5]
        assert hub.acknowledge(heard[1]) == 4


def test_iteration_ends_when_it_is_closed(served: Served) -> None:
    with Hub(socket=served.here.socket, types=[NOTE]) as hub:
        hub.publish(NOTE, {}, space=DESK)
        ended = threading.Event()

        def listen() -> None:
            assert [message.seq for message in hub] == [1]
            ended.set()

        listening = threading.Thread(target=listen)
        listening.start()
        served.run(served.here.until(lambda: served.here.hub.keeper.count == 1))
    listening.join(STEP_S)
    assert ended.is_set() and list(hub) == []


def test_inside_a_space(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARREL_HUB", str(served.here.inside))
    with Hub() as agent:
        assert agent.space == DESK
        assert agent.publish("buffer_taskspace_progress", {"message": "x"}).seq == 1
