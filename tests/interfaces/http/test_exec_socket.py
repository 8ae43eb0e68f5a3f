"""Commands over WebSocket: both ways, attached again without a gap, and bad clients."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.daemon.rig import Daemon, good
from tests.daemon.sessions import FRAME_S, Session


@contextlib.contextmanager
def exec_session(daemon: Daemon, space: str, **command: Any) -> Iterator[Session]:
    with daemon.websocket(f"/v1/spaces/{space}/exec") as connection:
        session = Session(connection)
        session.send(command)
        yield session


def test_output_and_exit(daemon: Daemon, space: dict[str, Any]) -> None:
    script = "echo out; echo err >&2; exit 4"
    with exec_session(daemon, space["id"], argv=["sh", "-c", script]) as session:
        started = session.until("started")
        assert started["run"]["id"].startswith("ru_") and started["run"]["state"] == "running"
        ended = session.until("exit")
        assert ended["run"]["id"] == started["run"]["id"]
        assert ended["run"]["exit"]["code"] == 4 and ended["run"]["state"] == "ended"
        assert session.out == {1: b"out\n", 2: b"err\n"}
        assert session.closed()[0] == 1000


def test_input_and_its_end(daemon: Daemon, space: dict[str, Any]) -> None:
    with exec_session(daemon, space["id"], argv=["cat"], stdin=True) as session:
        session.until("started")
        session.send(b"one ")
        session.until_output(b"one ")
        session.send(b"two\xff")
        session.send({"type": "eof"})
        session.until("exit")
        assert session.out[1] == b"one two\xff"


def test_much_input_that_is_read_late(daemon: Daemon, space: dict[str, Any]) -> None:
    """The client waits while the command does not read; the daemon keeps little."""
    argv = ["sh", "-c", "sleep 0.3; sha256sum | cut -c1-64; "]
    piece = bytes(range(256)) * 2048
    expected = hashlib.sha256(piece * 16).hexdigest()
    with exec_session(daemon, space["id"], argv=argv, stdin=True) as session:
        session.until("started")
        for _ in range(16):
            session.send(piece)
        session.send({"type": "eof"})
        session.until("exit")
        assert session.out[1].strip().decode() == expected


def test_a_signal_passes_input_that_waits(daemon: Daemon, space: dict[str, Any]) -> None:
    with exec_session(daemon, space["id"], argv=["sleep", "60"], stdin=True) as session:
        session.until("started")
        session.send(b"x" * 100_000)
        session.send({"type": "signal", "signal": "INT"})
        assert session.until("exit")["run"]["exit"]["signal"] == 2


def test_a_terminal(daemon: Daemon, space: dict[str, Any]) -> None:
    script = "stty size; read a; stty size; read b; echo $a$b; cat"
    command = {"argv": ["sh", "-c", script], "terminal": True, "rows": 30, "cols": 90}
    with exec_session(daemon, space["id"], **command) as session:
        assert session.until("started")["run"]["terminal"] is True
        session.until_output(b"30 90\r\n")
        session.send({"type": "resize", "rows": 41, "cols": 101})
        session.send(b"x\r")
        session.until_output(b"41 101\r\n")
        session.send(b"y\r")
        session.until_output(b"xy\r\n")
        session.send({"type": "eof"})
        assert session.until("exit")["run"]["exit"]["code"] == 0
        assert session.out[2] == b""


def test_attached_again_without_a_gap(daemon: Daemon, space: dict[str, Any]) -> None:
    script = "i=0; while read x; do i=$((i+1)); echo line $i; echo e$i >&2; done"
    with exec_session(daemon, space["id"], argv=["sh", "-c", script], stdin=True) as first:
        first.until("started")
        first.send(b"a\n")
        first.until_output(b"line 1\n")
        run = first.run["id"]
    path = f"/v1/runs/{run}/attach?stdout={len(first.out[1])}&stderr={len(first.out[2])}"
    with daemon.websocket(path) as connection:
        again = Session(connection)
        again.out = dict(first.out)
        assert again.until("started")["run"]["id"] == run
        again.send(b"b\n")
        again.until_output(b"line 2\n")
        again.send({"type": "eof"})
        assert again.until("exit")["run"]["exit"]["code"] == 0
        assert again.out == {1: b"line 1\nline 2\n", 2: b"e1\ne2\n"} and again.dropped == 0
    with daemon.websocket(f"/v1/runs/{run}/attach") as connection:
        late = Session(connection)
        late.until("started")
        late.until("exit")
        assert late.out == again.out


def test_two_clients_see_the_same(daemon: Daemon, space: dict[str, Any]) -> None:
    with exec_session(daemon, space["id"], argv=["cat"], stdin=True) as first:
        run = first.until("started")["run"]["id"]
        with daemon.websocket(f"/v1/runs/{run}/attach") as connection:
            second = Session(connection)
            second.until("started")
            first.send(b"from one\n")
            second.send(b"from two\n")
            for session in (first, second):
                session.until_output(b"from one\n")
                session.until_output(b"from two\n")
            second.send({"type": "eof"})
            for session in (first, second):
                session.until("exit")
            assert first.out == second.out


def test_a_client_that_vanishes_leaves_the_command(
    daemon: Daemon, client: httpx.Client, space: dict[str, Any]
) -> None:
    argv = ["sh", "-c", "echo on; read x; echo $x > kept"]
    with exec_session(daemon, space["id"], argv=argv, stdin=True) as session:
        run = session.until("started")["run"]["id"]
        session.connection.socket.close()
    assert good(client.get(f"/v1/runs/{run}"))["state"] == "running"
    with daemon.websocket(f"/v1/runs/{run}/attach") as connection:
        again = Session(connection)
        again.until("started")
        again.send(b"word\n")
        again.until("exit")
    assert client.get(f"/v1/spaces/{space['id']}/files?path=kept").content == b"word\n"


def test_output_of_a_flood_is_whole(daemon: Daemon, space: dict[str, Any]) -> None:
    argv = ["sh", "-c", "head -c 5000000 /dev/zero; echo end >&2"]
    with exec_session(daemon, space["id"], argv=argv) as session:
        session.until("started")
        session.until("exit")
        assert session.out[1] == bytes(5_000_000) and session.dropped == 0


def test_over_tcp_with_a_token(daemon: Daemon, space: dict[str, Any]) -> None:
    path = f"/v1/spaces/{space['id']}/exec"
    with daemon.tcp_websocket(path, daemon.token(f"space:{space['id']}")) as connection:
        session = Session(connection)
        session.send({"argv": ["echo", "hi"]})
        session.until("started")
        session.until("exit")
        assert session.out[1] == b"hi\n"
    with pytest.raises(InvalidStatus) as caught:
        daemon.tcp_websocket(path, "crl_wrong")
    response = caught.value.response
    assert response.status_code == 401 and json.loads(response.body)["code"] == (
        "authentication_failed"
    )


FIRST = [
    (b"binary", "message_invalid"),
    ("no json", "message_invalid"),
    ("[" * 100_000, "message_invalid"),
    ("[]", "message_invalid"),
    ({"argv": []}, "message_invalid"),
    ({"argv": ["true"], "rows": 0}, "message_invalid"),
    ({"argv": ["true"], "stdin": "text"}, "message_invalid"),
    ({"type": "eof"}, "message_invalid"),
    ({"argv": ["no-such-program"]}, "command_not_found"),
    ({"argv": ["true"], "cwd": "none"}, "command_invalid"),
]


@pytest.mark.parametrize(("frame", "code"), FIRST)
def test_a_bad_first_frame(daemon: Daemon, space: dict[str, Any], frame: object, code: str) -> None:
    with daemon.websocket(f"/v1/spaces/{space['id']}/exec") as connection:
        session = Session(connection)
        connection.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))
        problem = session.until("problem")
        assert problem["code"] == code and problem["detail"] and problem["status"] == 422
        assert session.closed() == (1008, code)


LATER = ["no json", {"type": "dance"}, {"type": "resize", "rows": 0, "cols": 1}, {"type": "signal"}]


@pytest.mark.parametrize("frame", LATER)
def test_a_bad_later_frame_ends_the_session_not_the_command(
    daemon: Daemon, client: httpx.Client, space: dict[str, Any], frame: object
) -> None:
    with exec_session(daemon, space["id"], argv=["sleep", "60"]) as session:
        run = session.until("started")["run"]["id"]
        session.connection.send(frame if isinstance(frame, str) else json.dumps(frame))
        assert session.until("problem")["code"] == "message_invalid"
        assert session.closed()[0] == 1008
    assert good(client.get(f"/v1/runs/{run}"))["state"] == "running"
    good(client.post(f"/v1/runs/{run}/signal", json={"signal": "KILL"}))


def test_input_for_a_command_without(daemon: Daemon, space: dict[str, Any]) -> None:
    with exec_session(daemon, space["id"], argv=["sleep", "60"]) as session:
        run = session.until("started")["run"]["id"]
        session.send(b"hello")
        assert session.until("problem")["code"] == "message_invalid"
    with daemon.websocket(f"/v1/runs/{run}/attach") as connection:
        other = Session(connection)
        other.until("started")
        other.send({"type": "signal", "signal": "KILL"})
        other.until("exit")


def test_what_is_not_there(daemon: Daemon) -> None:
    with exec_session(daemon, "none", argv=["true"]) as session:
        assert session.until("problem")["code"] == "space_not_found"
        assert session.closed() == (1008, "space_not_found")
    with daemon.websocket("/v1/runs/ru_none/attach") as connection:
        assert Session(connection).until("problem")["code"] == "run_not_found"
    with pytest.raises(InvalidStatus) as caught:
        daemon.websocket("/v1/runs/ru_none/attach?stdout=x")
    assert caught.value.response.status_code == 422
    with pytest.raises(InvalidStatus) as caught:
        daemon.websocket("/v1/nowhere")
    assert caught.value.response.status_code == 404
    assert json.loads(caught.value.response.body)["code"] == "route_not_found"


def test_a_message_that_is_too_large(daemon: Daemon, space: dict[str, Any]) -> None:
    with exec_session(daemon, space["id"], argv=["cat"], stdin=True) as session:
        session.until("started")
        with pytest.raises(ConnectionClosed) as caught:
            session.send(b"x" * (5 << 20))
            while True:
                session.connection.recv(FRAME_S)
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1009
