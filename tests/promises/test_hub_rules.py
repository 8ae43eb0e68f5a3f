"""docs/hub.md, more of it: envelopes, who hears what, what is kept, and who is told of questions,
by lines of JSON and by WebSocket."""

from __future__ import annotations

import contextlib
import http.server
import json
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.daemon.requesting import daemon_with
from tests.daemon.rig import ANSWER_S, LOOK_S, Daemon, good
from tests.promises.test_hub import Line, Message

pytestmark = pytest.mark.xdist_group("hub rules")

NOTICE = "kind id space seq at text choices priority suggested_actions"
KEPT_BYTES = 60_000


class Told(http.server.BaseHTTPRequestHandler):
    """Hears what a person is told."""

    heard: queue.Queue[Message]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.heard.put(json.loads(body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    Told.heard = queue.Queue()
    with http.server.HTTPServer(("127.0.0.1", 0), Told) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = f"http://127.0.0.1:{server.server_port}/told"
        settings = {"webhook": where, "desktop": False, "hub_sync": "process"}
        with daemon_with({**settings, "hub_bytes": KEPT_BYTES}) as found:
            yield found
        server.shutdown()


@pytest.fixture
def space(owner: httpx.Client) -> Iterator[str]:
    found = str(good(owner.post("/v1/spaces", json={"agent": "scripted"}))["id"])
    yield found
    owner.delete(f"/v1/spaces/{found}", params={"force": "true"})


@contextlib.contextmanager
def line(daemon: Daemon, kind: str = "app", *types: str, **more: Any) -> Iterator[Line]:
    """Hears these types of all spaces."""
    asked = {"kind": kind, "name": "promise", **more}
    if types:
        asked["subscriptions"] = {"types": list(types), "spaces": ["*"]}
    with contextlib.closing(Line(daemon)) as found:
        told = found.data("client_register", asked)
        assert told["sync"] == "process" and told["space"] == ""
        assert {"client_id", "heartbeat_s", "replay_from", "replay_to"} <= {*told}
        found.id = told["client_id"]  # type: ignore[attr-defined]
        yield found


# Envelopes


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "x" * 129},
        {"payload": []},
        {"deadline_ms": 3_600_001, "to": "ide"},
        {"unknown": 1},
        {"space": 7},
    ],
    ids=str,
)
def test_an_envelope_that_is_none(daemon: Daemon, space: str, wrong: Message) -> None:
    with line(daemon) as one:
        asked = {"type": "buffer_custom_x", "id": "mine", "space": space, "payload": {}, **wrong}
        one.put(asked)
        told = one.next()
        assert told["type"] == "error" and told["payload"]["code"] == "message_invalid"
        # The connection goes on.
        assert one.data("buffer_custom_x", {}, space=space)["seq"]


def test_an_answer_is_for_what_has_an_id(daemon: Daemon, space: str) -> None:
    with line(daemon) as one:
        one.say("buffer_custom_x", {}, space=space)
        one.say("buffer_taskspace_progress", {"mesage": "x"}, space=space)
        told = one.next()
        assert told["type"] == "error" and told["payload"]["code"] == "message_invalid"
        refused = one.ask("buffer_taskspace_progress", {"mesage": "x"}, space=space)
        assert refused["payload"]["original_id"] == refused["reply_to"]
        assert one.code("client_register", {"kind": "app"}) == "forbidden"


def test_who_is_not_registered_says_nothing(daemon: Daemon, space: str) -> None:
    with contextlib.closing(Line(daemon)) as one:
        answer = one.ask("buffer_custom_x", {}, space=space)
        assert answer["type"] == "error"
        assert one.data("client_register", {"kind": "cli"})["client_id"]


# Who hears what


def test_types_are_patterns(daemon: Daemon, space: str) -> None:
    with (
        line(daemon, "app", "custom_*_end", "space.state") as some,
        line(daemon, "cli", "*") as every,
        line(daemon) as one,
    ):
        assert one.data("custom_a_end", {"n": 1}, space=space) == {"delivered": 2}
        assert one.data("custom_a_other", {"n": 2}, space=space) == {"delivered": 1}
        first = some.next()
        assert (first["type"], first["payload"], first["space"]) == (
            *("custom_a_end", {"n": 1}),
            space,
        )
        assert first["sender"]["kind"] == "app" and first["sender"]["owner"]
        assert first["ts"] > 1_700_000_000 and "seq" not in first
        assert [every.next()["payload"]["n"] for _ in range(2)] == [1, 2]
        # What is said of a registration is changed.
        some.data("client_update", {"subscriptions": {"types": ["custom_b"], "spaces": [space]}})
        assert one.data("custom_a_end", {}, space=space) == {"delivered": 1}


def test_a_request_goes_to_who_answers_it(daemon: Daemon, space: str) -> None:
    """The newest of that kind, or the one that is named; its answer counts once."""
    with (
        line(daemon, "ide", "x", capabilities=["custom_b"]) as older,
        line(daemon, "ide", "x", capabilities=["custom_a"]) as newer,
        line(daemon) as app,
    ):
        app.say("custom_b", {"n": 1}, id="mine", space=space, to="ide")
        asked = older.next()
        assert asked["payload"] == {"n": 1} and asked["id"] != "mine"
        answer = {"status": "success", "data": {"n": 2}}
        for _ in range(2):
            older.say("response", answer, reply_to=asked["id"])
        assert app.next()["payload"]["data"] == {"n": 2}
        until = time.monotonic() + ANSWER_S
        while not app.data("system_status")["late_answers"]:
            assert time.monotonic() < until
            time.sleep(LOOK_S)
        app.say("custom_a", {"n": 3}, id="named", space=space, to=newer.id)  # type: ignore[attr-defined]
        assert newer.next()["payload"] == {"n": 3}
        newer.close()
        gone = app.next()
        assert gone["reply_to"] == "named" and gone["payload"]["code"] == "no_receiver"
        assert app.code("custom_a", {}, space=space, to="ide", deadline_ms=100) == "no_receiver"


def test_an_editor_speaks_to_its_spaces(daemon: Daemon, owner: httpx.Client, space: str) -> None:
    other = good(owner.post("/v1/spaces", json={}))["id"]
    subscribed = {"types": ["x"], "spaces": [space]}
    with contextlib.closing(Line(daemon)) as ide:
        ide.data("client_register", {"kind": "ide", "subscriptions": subscribed})
        assert ide.data("buffer_custom_x", {}, space=space)["seq"]
        assert ide.code("buffer_custom_x", {}, space=other) in ("forbidden", "space_not_found")


def test_a_token_hears_of_its_own(daemon: Daemon, owner: httpx.Client, space: str) -> None:
    """By WebSocket, with the same messages."""
    mine = good(owner.post("/v1/spaces", json={"labels": {"team": "blue"}}))["id"]
    secret = daemon.token("label:team=blue")
    with daemon.tcp_websocket("/v1/hub", secret) as socket, line(daemon) as app:

        def ask(type: str, payload: Message, **more: Any) -> Message:
            socket.send(json.dumps({"type": type, "id": type, "payload": payload, **more}))
            while True:
                found: Message = json.loads(socket.recv(ANSWER_S))
                if found.get("reply_to") == type:
                    return found

        wanted = {"types": ["buffer_*"], "spaces": ["*"]}
        told = ask("client_register", {"kind": "app", "subscriptions": wanted})
        assert told["payload"]["status"] == "success"
        refused = ask("buffer_custom_x", {}, space=space)
        assert refused["payload"]["code"] == "space_not_found"
        app.data("buffer_custom_x", {"n": 1}, space=space)
        app.data("buffer_custom_x", {"n": 2}, space=mine)
        heard: Message = json.loads(socket.recv(ANSWER_S))
        assert (heard["space"], heard["payload"]) == (mine, {"n": 2})
        listed = ask("system_list_spaces", {})["payload"]["data"]["spaces"]
        assert [one["id"] for one in listed] == [mine]


# What is kept


def test_a_new_consumer_gets_all_and_another_one_is_another(
    daemon: Daemon, owner: httpx.Client, space: str
) -> None:
    with line(daemon) as one:
        for n in range(3):
            one.data("buffer_custom_n", {"n": n}, space=space)
        before = time.time()
        one.data("buffer_custom_n", {"n": 3}, space=space)
    for name in ("first", "second"):
        with line(daemon, "app", "buffer_custom_n", consumer=name) as consumer:
            found = [consumer.next() for _ in range(4)]
            assert [one["payload"]["n"] for one in found] == [0, 1, 2, 3]
            told = consumer.data("buffer_acknowledge", {"space": space, "seq": found[1]["seq"]})
            assert told["seq"] == found[1]["seq"]
            # It never goes back.
            back = {"space": space, "seq": found[0]["seq"]}
            assert consumer.data("buffer_acknowledge", back)["seq"] == found[1]["seq"]
    with line(daemon, "app", "buffer_custom_n") as late:
        told = late.data("buffer_replay", {"space": space, "since": before})
        assert {*told} == {"replay_from", "replay_to"}
        heard = late.heard or [late.next()]
        assert heard[0]["payload"] == {"n": 3}
        assert late.code("buffer_acknowledge", {"space": space, "seq": 1}) == "message_invalid"


@pytest.mark.parametrize("count", [0, 1001])
def test_so_many_at_once(daemon: Daemon, space: str, count: int) -> None:
    many = [{"type": "buffer_custom_x", "payload": {}}] * count
    with line(daemon) as one:
        assert one.code("buffer_publish", {"messages": many}, space=space) == "message_invalid"
        several = [{"type": "buffer_custom_x", "payload": {}}] * 1000
        told = one.data("buffer_publish", {"messages": several}, space=space)
        assert told["last"] - told["first"] == 999 and told["sync"] == "process"


def test_what_is_dropped_is_told(daemon: Daemon, owner: httpx.Client, space: str) -> None:
    """As soon as a space has sent more than is kept; its newest stays."""
    with line(daemon, "app", "buffer_*", consumer="behind") as one:
        first = one.data("buffer_custom_x", {"n": -1}, space=space)["seq"]
        one.data("buffer_acknowledge", {"space": space, "seq": first})
        for n in range(30):
            one.data("buffer_custom_x", {"n": n, "x": "x" * 5000}, space=space)
    with line(daemon, "app", "buffer_dropped", "buffer_custom_x", consumer="behind") as again:
        numbers: list[int] = []
        dropped: Message | None = None
        while not numbers or numbers[-1] != 29 or dropped is None:
            found = again.next()
            if found.get("space") != space:
                continue
            if found["type"] == "buffer_dropped":
                dropped = found["payload"]
            elif found["type"] == "buffer_custom_x":
                numbers.append(found["payload"]["n"])
    assert dropped["last"] >= dropped["first"] and "behind" in json.dumps(dropped["consumers"])
    assert numbers[-1] == 29 and len(numbers) < 30


# A person


def test_a_webhook_is_told_what_waits(daemon: Daemon, owner: httpx.Client, space: str) -> None:
    """Questions and signals; an answer goes to who asked."""
    with line(daemon, "app", "buffer_user_answer") as one:
        question = {"question": "Which one?", "choices": ["left", "right"]}
        one.say("buffer_user_question", question, space=space, id="own-q1")
        signal = {"message": "look", "priority": "high", "suggested_actions": ["open it"]}
        one.say("buffer_taskspace_signal_user", signal, space=space, id="own-s1")
        told: dict[str, Message] = {}
        while len(told) < 2:
            found = Told.heard.get(timeout=ANSWER_S)
            if found["space"] == space:
                told[found["kind"]] = found
        assert {*NOTICE.split()} <= {*told["question"]} and told["question"]["id"] == "own-q1"
        assert told["question"]["choices"] == ["left", "right"]
        assert (told["signal"]["text"], told["signal"]["priority"]) == ("look", "high")
        assert told["signal"]["suggested_actions"] == ["open it"]
        path = "/v1/inbox/own-q1/answer"
        good(owner.post(path, json={"answer": "left"}))
        while (found := one.next())["type"] != "buffer_user_answer":
            pass
        assert found["payload"] == {"answer": "left"} and found["reply_to"] == "own-q1"
        seen = found["seq"]
        one.data("buffer_user_seen", {"seq": seen}, space=space)
        items = good(owner.get("/v1/inbox"))["items"]
        assert not [item for item in items if item["space"] == space]


def test_what_is_said_to_its_agent(daemon: Daemon, owner: httpx.Client, space: str) -> None:
    """As a turn, where Carrel drives the agent; and an interrupt ends it."""
    with line(daemon, "app", "agent.*") as one:
        one.data("agent_command", {"command": "sleep 600", "inject": "turn"}, space=space)
        while one.next()["type"] != "agent.state":
            pass
        one.data("agent_interrupt", {"reason": "enough"}, space=space)
        while (found := one.next())["type"] != "agent.complete":
            pass
        result = found["payload"]["payload"]["result"]
        assert result["error"]["code"] == "interrupted"
