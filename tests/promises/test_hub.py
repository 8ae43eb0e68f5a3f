"""docs/hub.md, by lines of JSON on its Unix socket."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import carrel
from carrel.client.spaces import Space
from tests.daemon.rig import ANSWER_S, Daemon

Message = dict[str, Any]


class Line:
    """A client of the hub that knows only what the page says."""

    def __init__(self, daemon: Daemon) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(ANSWER_S)
        self._socket.connect(str(daemon.data / "daemon" / "hub.sock"))
        self._lines = self._socket.makefile("r")
        self._numbers = itertools.count(1)
        self.heard: list[Message] = []

    def say(self, type: str, payload: Message | None = None, **fields: Any) -> None:
        self.put({"type": type, "payload": payload or {}, **fields})

    def put(self, message: Message) -> None:
        # A file for both directions forgets what it has read ahead.
        self._socket.sendall(f"{json.dumps(message)}\n".encode())

    def next(self) -> Message:
        while True:
            line = self._lines.readline()
            if not line:
                raise EOFError
            found: Message = json.loads(line)
            if found["type"] != "heartbeat":
                return found

    def ask(self, type: str, payload: Message | None = None, **fields: Any) -> Message:
        """What answers it; what comes before that is kept in `heard`."""
        id = f"q{next(self._numbers)}"
        self.say(type, payload, id=id, **fields)
        while (found := self.next()).get("reply_to") != id:
            self.heard.append(found)
        return found

    def data(self, type: str, payload: Message | None = None, **fields: Any) -> Message:
        answer = self.ask(type, payload, **fields)
        assert answer["type"] == "response" and answer["payload"]["status"] == "success", answer
        return dict(answer["payload"]["data"] or {})

    def code(self, type: str, payload: Message | None = None, **fields: Any) -> str:
        answer = self.ask(type, payload, **fields)
        assert answer["type"] == "error" and answer["payload"]["message"], answer
        return str(answer["payload"]["code"])

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._lines.close()
        self._socket.close()


@contextlib.contextmanager
def line(daemon: Daemon, kind: str = "app", **registering: Any) -> Iterator[Line]:
    with contextlib.closing(Line(daemon)) as found:
        told = found.data("client_register", {"kind": kind, "name": "promise", **registering})
        assert told["client_id"] and told["heartbeat_s"] > 0 and told["sync"] == "disk"
        yield found


@pytest.fixture
def space(client: carrel.Client) -> Iterator[Space]:
    with client.space(None) as found:
        yield found


def everything(space: Space, *types: str) -> Message:
    return {"subscriptions": {"types": list(types) or ["*"], "spaces": [space.id]}}


def test_what_is_kept_is_numbered_without_gaps(daemon: Daemon, space: Space) -> None:
    with line(daemon) as one:
        first = one.data("buffer_custom_a", {"n": 1}, space=space.id)
        assert first["sync"] == "disk"
        many = [{"type": "buffer_custom_a", "payload": {"n": n}} for n in (2, 3)]
        told = one.data("buffer_publish", {"messages": many}, space=space.id)
        assert (told["first"], told["last"]) == (first["seq"] + 1, first["seq"] + 2)
        # All or none.
        bad = [*many, {"type": "live_one", "payload": {}}]
        assert one.code("buffer_publish", {"messages": bad}, space=space.id) == "message_invalid"
        after = one.data("buffer_custom_a", {"n": 4}, space=space.id)
        assert after["seq"] == told["last"] + 1
        assert one.data("custom_live", {}, space=space.id) == {"delivered": 0}


def test_a_consumer_gets_what_it_has_not_acknowledged(daemon: Daemon, space: Space) -> None:
    named = {**everything(space, "buffer_custom_*"), "consumer": "promise"}
    with line(daemon) as other:
        with line(daemon, **named) as one:
            for n in range(3):
                other.data("buffer_custom_n", {"n": n}, space=space.id)
            heard = [one.next() for _ in range(3)]
            assert [found["payload"]["n"] for found in heard] == [0, 1, 2]
            assert heard[0]["ts"] > 1_700_000_000 and heard[0]["sender"]["kind"] == "app"
            one.data("buffer_acknowledge", {"space": space.id, "seq": heard[0]["seq"]})
        with line(daemon, **named) as again:
            sent = [again.next() for _ in range(2)]
            assert [found["seq"] for found in sent] == [one["seq"] for one in heard[1:]]
            # The same consumer again takes its place.
            with line(daemon, **named), pytest.raises(EOFError):
                while again.next()["type"] != "never":
                    pass


def test_what_was_kept_is_replayed(daemon: Daemon, space: Space) -> None:
    with line(daemon) as one:
        seq = one.data("buffer_custom_b", {"n": 1}, space=space.id)["seq"]
        one.data("buffer_custom_b", {"n": 2}, space=space.id)
        with line(daemon, "cli", **everything(space, "buffer_custom_b")) as late:
            told = late.data("buffer_replay", {"space": space.id, "seq": seq})
            assert told["replay_to"][space.id] >= seq + 1
            found = (late.heard or [late.next()])[0]
            assert found["payload"] == {"n": 2} and found["seq"] == seq + 1


def test_a_request_goes_to_one_client_and_has_one_answer(daemon: Daemon, space: Space) -> None:
    asked: Message = {"space": space.id, "to": "ide", "deadline_ms": 30_000}
    with line(daemon) as app:
        assert app.code("custom_ask", {}, **asked) == "no_receiver"
        with line(daemon, "ide", **everything(space, "nothing")) as ide:
            app.say("custom_ask", {"n": 1}, id="mine", **asked)
            got = ide.next()
            assert got["type"] == "custom_ask" and got["payload"] == {"n": 1}
            answer = {"status": "success", "data": {"n": 2}}
            ide.say("response", answer, reply_to=got["id"])
            heard = app.next()
            assert heard["reply_to"] == "mine" and heard["payload"]["data"] == {"n": 2}
            assert app.code("custom_ask", {}, **{**asked, "deadline_ms": 1}) == "timeout"


def test_questions_for_a_person(daemon: Daemon, space: Space, client: carrel.Client) -> None:
    with line(daemon) as one:
        question = {"question": "Which?", "choices": ["left", "right"]}
        one.say("buffer_user_question", question, space=space.id, id="promise-1")
        while one.next().get("reply_to") != "promise-1":
            pass
        with daemon.local() as http:
            waiting = http.get("/v1/inbox").json()
            assert "promise-1" in json.dumps(waiting)
            answered = http.post("/v1/inbox/promise-1/answer", json={"answer": "left"})
            assert answered.is_success, answered.text
            assert "promise-1" not in http.get("/v1/inbox").text


@pytest.mark.parametrize(
    ("code", "type", "payload", "fields"),
    [
        ("space_not_found", "buffer_custom_a", {}, {"space": "sp_nobody"}),
        (
            "forbidden",
            "buffer_custom_a",
            {},
            {"sender": {"client_id": "cl_x", "kind": "app"}},
        ),
        ("message_invalid", "buffer_taskspace_progress", {"mesage": "x"}, {}),
        ("message_invalid", "buffer_taskspace_progress", {"message": "x", "category": "y"}, {}),
        ("forbidden", "client_register", {"kind": "agent"}, {}),
        ("message_invalid", "no_such_type", {}, {}),
    ],
)
def test_what_is_refused(
    daemon: Daemon, space: Space, code: str, type: str, payload: Message, fields: Message
) -> None:
    with line(daemon) as one:
        assert one.code(type, payload, **{"space": space.id, **fields}) == code


def test_what_is_too_large_ends_the_connection(daemon: Daemon, space: Space) -> None:
    with line(daemon) as one:
        with contextlib.suppress(BrokenPipeError):
            one.say("buffer_custom_a", {"x": "x" * (1 << 20)}, space=space.id)
        assert one.next()["payload"]["code"] == "too_large"
    with line(daemon) as one:
        deep: Message = {}
        for _ in range(70):
            deep = {"x": deep}
        assert one.code("buffer_custom_a", deep, space=space.id) == "message_invalid"


def test_what_carrel_answers(daemon: Daemon, space: Space) -> None:
    with line(daemon) as one:
        told = one.data("system_space_state", {"space": space.id})
        assert told["space"]["state"] == "ready" and told["space"]["children"] == []
        assert space.id in json.dumps(one.data("system_list_spaces"))
        named = one.data("system_update_space", {"space": space.id, "description": "d"})
        assert named["space"]["description"] == "d"
        waited = one.data("system_wait_for_space", {"space": space.id, "states": ["ready"]})
        assert waited["reached"]
        assert "promise" in json.dumps(one.data("client_list"))
        assert one.data("system_status")


def test_who_comes_and_goes(daemon: Daemon, space: Space) -> None:
    wanted = {"types": ["client_disconnected"], "spaces": ["*"]}
    with line(daemon, subscriptions=wanted) as one:
        with line(daemon, "cli") as other:
            id = other.data("client_update", {"capabilities": []}) is not None
            other.say("client_disconnect", {})
        while (found := one.next())["payload"]["reason"] != "client_shutdown":
            pass
        assert id and found["payload"]["kind"] == "cli" and found["payload"]["client_id"]


def test_the_log_of_a_space_has_everything(daemon: Daemon, space: Space) -> None:
    with line(daemon, **everything(space, "run.*")) as one:
        assert space.run(["true"]).code == 0
        types = [one.next()["type"] for _ in range(2)]
        assert types == ["run.started", "run.ended"]
