"""A command's streams over several connections: nothing missing, nothing twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from carrel.client import websocket
from carrel.client.exchange import STDERR, STDOUT, Lost, RetryDelay, RunExchange
from carrel.domain.errors import CommandNotFound, DaemonUnavailable

RUN = {"id": "ru_x", "state": "running", "terminal": False}
ENDED = {**RUN, "state": "ended", "exit": {"reason": "exited", "code": 0, "signal": None}}


def served(kind: int, data: bytes) -> bytes:
    return Frame(Opcode(kind), data).serialize(mask=False)


def told(message: dict[str, Any]) -> bytes:
    return served(websocket.TEXT, json.dumps(message).encode())


def output(stream: int, offset: int, data: bytes) -> bytes:
    return served(websocket.BINARY, bytes((stream,)) + offset.to_bytes(8, "big") + data)


STARTED = told({"type": "started", "run": RUN})
EXIT = told({"type": "exit", "run": ENDED})


def sent(exchange: RunExchange) -> list[tuple[int, bytes]]:
    """What waits to go out, read as a server would."""
    found, data = [], bytes(exchange.out)
    exchange.out.clear()
    while data:
        size, start = data[1] & 0x7F, 2
        if size == 126:
            size, start = int.from_bytes(data[2:4], "big"), 4
        elif size == 127:
            size, start = int.from_bytes(data[2:10], "big"), 10
        mask = data[start : start + 4]
        body = data[start + 4 : start + 4 + size]
        found.append((data[0] & 0x0F, websocket.masked(body, mask)))
        data = data[start + 4 + size :]
    return found


def started(command: dict[str, Any] | None = None) -> RunExchange:
    exchange = RunExchange.starting("sp", command or {"argv": ["x"]})
    exchange.connecting()
    exchange.connected(STARTED)
    exchange.out.clear()
    return exchange


def test_the_command_is_the_first_frame() -> None:
    exchange = RunExchange.starting("my space", {"argv": ["a\udcff"]})
    assert exchange.connecting().where == "/v1/spaces/my%20space/exec"
    exchange.connected(b"")
    [(kind, data)] = sent(exchange)
    assert kind == websocket.TEXT
    first = json.loads(data)
    assert len(first.pop("reader")) == 16 and first == {"argv": ["a\udcff"]}


@settings(deadline=None)
@given(
    streams=st.lists(st.sampled_from([STDOUT, STDERR]), min_size=1, max_size=20),
    lost_at=st.lists(st.integers(0, 25), max_size=4),
    overlap=st.integers(0, 7),
)
def test_nothing_is_missing_or_twice_however_often_the_connection_is_lost(
    streams: list[int], lost_at: list[int], overlap: int
) -> None:
    """The server begins again at (or somewhat before) the offsets that it is told."""
    whole = {STDOUT: b"", STDERR: b""}
    pieces = []
    for number, stream in enumerate(streams):
        data = f"[{number}]".encode()
        pieces.append((stream, len(whole[stream]), data))
        whole[stream] += data
    exchange = RunExchange.starting("sp", {"argv": ["x"]})
    exchange.connecting()
    exchange.connected(STARTED)
    reader = json.loads(sent(exchange)[0][1])["reader"]
    exchange.out.clear()
    got = {STDOUT: b"", STDERR: b""}
    for at, (stream, offset, data) in enumerate(pieces):
        if at in lost_at:
            exchange.lost(Lost("gone"))
            where = exchange.connecting().where
            reached = {one: len(got[one]) for one in got}
            wanted = f"/v1/runs/ru_x/attach?stdout={reached[STDOUT]}&stderr={reached[STDERR]}"
            assert where == f"{wanted}&reader={reader}"
            exchange.connected(STARTED)
            for one, size in reached.items():
                begin = max(0, size - overlap)
                exchange.receive(output(one, begin, whole[one][begin:size]))
        exchange.receive(output(stream, offset, data))
        for piece in exchange.take():
            assert not piece.dropped
            got[piece.stream] += piece.data
    exchange.receive(EXIT)
    assert got == whole and exchange.ended
    assert exchange.run["exit"]["code"] == 0


def test_what_was_not_kept_is_told() -> None:
    exchange = started()
    exchange.receive(output(STDOUT, 0, b"ab") + output(STDOUT, 10, b"cd") + output(STDERR, 5, b""))
    found = [(piece.stream, piece.data, piece.dropped) for piece in exchange.take()]
    assert found == [(STDOUT, b"ab", 0), (STDOUT, b"cd", 8), (STDERR, b"", 5)]
    assert exchange.offsets == {STDOUT: 12, STDERR: 5}


def test_a_command_that_cannot_start_is_an_error() -> None:
    exchange = started()
    problem = {"type": "problem", "code": "command_not_found", "detail": "No x.", "status": 422}
    with pytest.raises(CommandNotFound, match=r"No x\."):
        exchange.receive(told(problem))


def test_before_it_runs_it_is_not_sent_twice() -> None:
    exchange = RunExchange.starting("sp", {"argv": ["x"]})
    exchange.connecting()
    exchange.connected(b"")
    with pytest.raises(DaemonUnavailable, match="whether the command runs"):
        exchange.lost(Lost("gone"))


@pytest.mark.parametrize(("code", "going"), [(1012, True), (1001, True), (1013, False)])
def test_why_a_connection_ends_is_known(code: int, going: bool) -> None:
    exchange = started()
    with pytest.raises(Lost) as caught:
        exchange.receive(served(websocket.CLOSE, code.to_bytes(2, "big")))
    assert caught.value.going is going


def test_the_end_after_the_exit_is_no_loss() -> None:
    exchange = started()
    exchange.receive(EXIT + served(websocket.CLOSE, (1000).to_bytes(2, "big")))
    assert exchange.ended


def test_a_ping_is_answered() -> None:
    exchange = started()
    exchange.receive(served(websocket.PING, b"there?"))
    assert sent(exchange) == [(websocket.PONG, b"there?")]


class TestInput:
    def test_it_goes_out_in_order(self) -> None:
        exchange = started()
        exchange.input(b"x" * 200)
        exchange.input(b"")
        exchange.signal("INT")
        exchange.resize(24, 80)
        exchange.close_input()
        kinds = sent(exchange)
        assert kinds[0] == (websocket.BINARY, b"x" * 200)
        assert [json.loads(data) for kind, data in kinds if kind == websocket.TEXT] == [
            {"type": "signal", "signal": "INT"},
            {"type": "resize", "rows": 24, "cols": 80},
            {"type": "eof"},
        ]

    def test_when_it_may_be_lost_that_is_an_error(self) -> None:
        exchange = started()
        exchange.input(b"half of it")
        exchange.lost(Lost("gone"))
        exchange.connecting()
        with pytest.raises(DaemonUnavailable, match="part of it may be missing"):
            exchange.connected(STARTED)

    def test_but_not_when_the_command_has_ended_anyway(self) -> None:
        exchange = started()
        exchange.input(b"more than it wanted")
        exchange.lost(Lost("gone"))
        exchange.connecting()
        exchange.connected(told({"type": "started", "run": ENDED}) + EXIT)
        assert exchange.ended

    def test_and_not_when_it_has_arrived(self) -> None:
        exchange = started()
        exchange.input(b"all")
        exchange.close_input()
        exchange.receive(told({"type": "input", "bytes": 3}))
        assert not exchange.unconfirmed
        exchange.lost(Lost("gone"))
        exchange.connecting()
        exchange.connected(STARTED)
        [(_, data)] = sent(exchange)
        assert json.loads(data) == {"type": "eof"}

    @pytest.mark.parametrize("had", [3, 4, 9])
    def test_what_is_missing_is_sent_again(self, had: int) -> None:
        exchange = started()
        exchange.input(b"half ")
        exchange.input(b"of it")
        exchange.receive(told({"type": "input", "bytes": 3}))
        exchange.lost(Lost("gone"))
        exchange.connecting()
        exchange.connected(b"")
        exchange.input(b" all")
        exchange.close_input()
        assert sent(exchange) == []
        exchange.receive(told({"type": "started", "run": RUN, "input": had}))
        [(kind, data), (_, end)] = sent(exchange)
        assert (kind, data) == (websocket.BINARY, b"half of it all"[had:])
        assert json.loads(end) == {"type": "eof"}
        exchange.receive(told({"type": "input", "bytes": 14}))
        assert not exchange.unconfirmed

    @pytest.mark.parametrize("had", [None, 2, 11])
    def test_what_cannot_be_is_an_error(self, had: int | None) -> None:
        """Less than it had, or more than we gave: somebody else writes too."""
        exchange = started()
        exchange.input(b"half of it")
        exchange.receive(told({"type": "input", "bytes": 3}))
        exchange.lost(Lost("gone"))
        exchange.connecting()
        with pytest.raises(DaemonUnavailable, match="part of it may be missing"):
            exchange.connected(told({"type": "started", "run": RUN, "input": had}))

    def test_of_a_run_that_had_some_before(self) -> None:
        exchange = RunExchange.attaching("ru_x")
        exchange.connecting()
        exchange.connected(b"")
        exchange.input(b"early ")
        exchange.receive(told({"type": "started", "run": RUN, "input": 100}))
        exchange.input(b"bird")
        assert [data for _, data in sent(exchange)] == [b"early ", b"bird"]
        exchange.receive(told({"type": "input", "bytes": 108}))
        assert exchange.unconfirmed == 2
        exchange.lost(Lost("gone"))
        exchange.connecting()
        exchange.connected(told({"type": "started", "run": RUN, "input": 109}))
        assert sent(exchange) == [(websocket.BINARY, b"d")]

    @pytest.mark.parametrize("first", [True, False])
    def test_nobody_waits_for_what_nobody_counts(self, first: bool) -> None:
        exchange = RunExchange.attaching("ru_x")
        exchange.connecting()
        exchange.connected(told({"type": "started", "run": RUN, "input": None if first else 0}))
        exchange.input(b"some")
        if not first:
            exchange.receive(told({"type": "input", "bytes": None}))
        exchange.input(b" more")
        assert not exchange.unconfirmed
        assert [data for _, data in sent(exchange)] == [b"some", b" more"]
        exchange.lost(Lost("gone"))
        exchange.connecting()
        with pytest.raises(DaemonUnavailable, match="part of it may be missing"):
            exchange.connected(told({"type": "started", "run": RUN, "input": 9}))

    def test_and_not_from_a_terminal(self) -> None:
        """Somebody sees what happens; the size is told again, an end is not."""
        exchange = started({"argv": ["x"], "terminal": True})
        exchange.receive(told({"type": "started", "run": {**RUN, "terminal": True}}))
        exchange.resize(10, 20)
        exchange.input(b"typed")
        exchange.close_input()
        exchange.lost(Lost("gone"))
        exchange.connecting()
        exchange.connected(told({"type": "started", "run": {**RUN, "terminal": True}}))
        [(_, data)] = sent(exchange)
        assert json.loads(data) == {"type": "resize", "rows": 10, "cols": 20}


def test_patience_grows_and_ends() -> None:
    patience = RetryDelay(100.0)
    pauses = []
    now = 100.0
    while patience.failed(now):
        pauses.append(patience.next_at - now)
        now = patience.next_at
    assert pauses[0] == pytest.approx(RetryDelay.FIRST_S)
    assert max(pauses) == pytest.approx(RetryDelay.LONGEST_S)
    assert pauses == sorted(pauses)
    assert now - 100.0 == pytest.approx(RetryDelay.TOTAL_S, abs=RetryDelay.LONGEST_S)
