"""The protocol without a socket."""

from __future__ import annotations

import json
from typing import Any

import pytest

from carrel.client import hub_protocol
from carrel.client.address import find_hub
from carrel.client.hub_protocol import (
    WINDOW,
    Envelope,
    HubMessage,
    HubOptions,
    HubSession,
    HubSubscriptions,
    MessageInbox,
    decode,
    decode_lines,
    encode,
    registration,
)
from carrel.client.problems import ConnectionLost, error_in
from carrel.domain import errors

SPACE = "sp_aaaaaaaaaaaa"


class Answers:
    """What became of calls."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def __call__(self, data: Any, error: errors.CarrelError | None) -> None:
        self.found.append(error or data)


def session(options: HubOptions | None = None) -> HubSession:
    return HubSession(registration(options or {}, inside=False))


def connected(one: HubSession, **welcome: Any) -> HubSession:
    number = json.loads(one.begin())["id"]
    data = {"client_id": "cl_1", "heartbeat_s": 15.0, "replay_from": {}, **welcome}
    hear(one, answer(number, data))
    assert one.registered
    return one


def answer(number: str, data: Any) -> HubMessage:
    return HubMessage("response", reply_to=number, payload={"status": "success", "data": data})


def refusal(number: str, code: str) -> HubMessage:
    payload = {"code": code, "message": "No.", "retry_after_ms": 250}
    return HubMessage("error", reply_to=number, payload=payload)


def kept(seq: int, space: str = SPACE) -> HubMessage:
    return HubMessage("buffer_custom_x", space=space, seq=seq)


def hear(one: HubSession, *messages: HubMessage) -> None:
    one.receive(list(messages), 100 * len(messages))


def heard(one: HubSession) -> list[int]:
    found = []
    while (message := one.inbox.take()) is not None:
        found.append(message.seq)
    return found


def sent(one: HubSession) -> list[dict[str, Any]]:
    return [json.loads(line) for line in one.take()]


def test_the_first_line_says_who_it_is() -> None:
    one = session({"kind": "ide", "name": "x", "types": ["a*"], "capabilities": ["custom_q"]})
    first = json.loads(one.begin())
    assert first["type"] == "client_register" and first["id"]
    assert first["payload"] == {
        "kind": "ide",
        "name": "x",
        "subscriptions": {"types": ["a*"], "spaces": ["*"]},
        "capabilities": ["custom_q"],
        "consumer": "",
    }
    assert HubSession(registration({"kind": "app"}, inside=True)).wanted.kind == "agent"


def test_nothing_goes_out_before_the_hub_knows_it() -> None:
    one, answers = session(), Answers()
    one.begin()
    one.call(Envelope("custom_x"), answers)
    assert one.take() == []
    connected(one)
    assert [line["type"] for line in sent(one)] == ["custom_x"]


def test_repeats_are_dropped_and_gaps_are_none() -> None:
    """Of a space one may hear some types only."""
    one = connected(session())
    hear(one, kept(3), kept(3), kept(7), kept(1), kept(1, "sp_other"))
    assert heard(one) == [3, 7, 1]


def test_after_a_lost_connection_the_rest_is_replayed() -> None:
    one = connected(session())
    hear(one, kept(3))
    one.lost()
    one.begin()
    hear(one, kept(9))
    connected(one)
    (replay,) = sent(one)
    assert replay["payload"] == {"space": SPACE, "seq": 3}
    hear(one, kept(10), answer(replay["id"], {"replay_from": {SPACE: 3}}), kept(4), kept(5))
    assert heard(one) == [3, 4, 5]


def test_a_consumer_is_replayed_by_the_hub() -> None:
    one = connected(session({"consumer": "me"}))
    hear(one, kept(1), kept(2))
    one.acknowledged(kept(2))
    assert sent(one)[0]["payload"] == {"space": SPACE, "seq": 2}
    one.lost()
    connected(one, replay_from={SPACE: 1})
    # The hub did not hear that two is done.
    assert [line["type"] for line in sent(one)] == ["buffer_acknowledge"]
    hear(one, kept(2), kept(3))
    assert heard(one) == [1, 2, 3]
    one.lost()
    connected(one, replay_from={SPACE: 2})
    assert sent(one) == []


def test_what_is_repeated_and_what_is_not() -> None:
    one, again, once, unsent = connected(session()), Answers(), Answers(), Answers()
    one.call(Envelope("buffer_custom_x"), again, again=True)
    one.call(Envelope("custom_x"), once)
    first = sent(one)
    one.call(Envelope("custom_y"), unsent)
    one.lost()
    assert not again.found and not unsent.found
    assert isinstance(once.found[0], ConnectionLost)
    second = sent(connected(one))
    assert second[0] == first[0] and second[1]["type"] == "custom_y"
    hear(one, answer(first[0]["id"], {"seq": 1}))
    assert again.found == [{"seq": 1}]


def test_an_answer_counts_once() -> None:
    one, answers = connected(session()), Answers()
    number = one.call(Envelope("custom_x"), answers)
    one.take()
    hear(one, answer(number, 1), answer(number, 2), refusal(number, "timeout"))
    assert answers.found == [1] and not one.awaits


def test_no_more_than_a_window_is_on_its_way() -> None:
    one, answers = connected(session()), Answers()
    numbers = [
        one.call(Envelope("buffer_custom_x"), answers, again=True) for _ in range(WINDOW + 9)
    ]
    assert len(one.take()) == WINDOW and one.take() == []
    hear(one, *(answer(number, {}) for number in numbers[:5]))
    assert len(one.take()) == 5
    one.abandon(numbers[6])
    one.abandon(numbers[-1])
    assert [line["id"] for line in sent(one)] == [numbers[WINDOW + 5]]


def test_large_ones_fill_the_window_too() -> None:
    one = connected(session())
    for _ in range(20):
        one.call(Envelope("buffer_custom_x", payload={"x": "x" * 1_000_000}), Answers())
    assert len(one.take()) == 9


def test_what_is_too_much_is_sent_again_later_in_order() -> None:
    one, answers, single = connected(session()), Answers(), Answers()
    numbers = [one.call(Envelope("buffer_custom_x"), answers, again=True) for _ in range(4)]
    numbers.append(one.call(Envelope("custom_x"), single))
    one.take()
    later = one.call(Envelope("buffer_custom_x"), answers, again=True)
    hear(one, *(refusal(number, "rate_limited") for number in numbers[1:]))
    assert one.slow_down and one.take() == [] and isinstance(single.found[0], errors.RateLimited)
    assert one.pause_s == 0.25
    one.go_on()
    assert one.pause_s == 0.0
    assert [line["id"] for line in sent(one)] == [*numbers[1:4], later]


def test_too_much_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    one = connected(session())
    hear(one, kept(1))
    monkeypatch.setattr(hub_protocol, "MOST", 0)
    hear(one, kept(2), HubMessage("custom_live"))
    monkeypatch.setattr(hub_protocol, "MOST", 1000)
    hear(one, kept(3))
    assert heard(one) == [1] and one.missed == 1
    one.refill()
    one.refill()
    (replay,) = sent(one)
    assert replay["payload"] == {"space": SPACE, "seq": 1}
    # An earlier replay still goes on: it is asked for again.
    hear(one, refusal(replay["id"], "forbidden"), kept(4))
    one.refill()
    (replay,) = sent(one)
    hear(one, answer(replay["id"], {"replay_from": {SPACE: 1}}), kept(2), kept(3), kept(4))
    assert heard(one) == [2, 3, 4]


def test_a_replay_that_cannot_be_ends_the_connection() -> None:
    one = connected(session())
    hear(one, kept(1))
    one.lost()
    (replay,) = sent(connected(one))
    hear(one, refusal(replay["id"], "internal"))
    assert one.ending is not None


def test_what_is_said_of_others_is_heard() -> None:
    one = connected(session())
    hear(one, HubMessage("client_disconnected", payload={"client_id": "cl_2", "kind": "app"}))
    assert one.ending is None and one.inbox
    hear(one, HubMessage("heartbeat"), refusal("", "internal"))
    hear(one, HubMessage("client_disconnected", payload={"client_id": "cl_1", "reason": "flood"}))
    assert isinstance(one.ending, ConnectionLost) and "flood" in one.ending.message


def test_only_what_is_subscribed_is_replayed() -> None:
    one = connected(session())
    hear(one, kept(1), kept(1, "sp_other"))
    one.subscribed(HubSubscriptions(("*",), ("sp_other",)))
    one.lost()
    (replay,) = sent(connected(one))
    assert replay["payload"]["space"] == "sp_other"


def test_the_end() -> None:
    one, answers = connected(session()), Answers()
    one.call(Envelope("buffer_custom_x"), answers, again=True)
    one.end(errors.Forbidden("No."))
    assert isinstance(answers.found[0], errors.Forbidden) and not one.awaits


def test_the_inbox_counts_what_is_in_it() -> None:
    inbox = MessageInbox()
    inbox.put([kept(1), kept(2)], 10)
    inbox.put([], 5)
    inbox.put([kept(3)], 7)
    assert inbox.size == 17 and inbox
    assert [inbox.take(), inbox.size] == [kept(1), 7]
    assert inbox.take_all() == [kept(2)] and inbox.take_all() == [kept(3)]
    assert inbox.take() is None and inbox.take_all() == [] and not inbox and inbox.size == 0


def test_envelopes() -> None:
    assert encode(Envelope("x", payload={"a": 1})) == b'{"type":"x","payload":{"a":1}}'
    line = b'{"type":"t","id":"1","ts":2.5,"sender":{"client_id":"c","kind":"app"},"new":1,"seq":7}'
    message = decode(line)
    assert (message.seq, message.sender.kind, message.payload) == (7, "app", {})
    assert decode_lines(line + b"\n" + line + b"\n") == [message, message]
    with pytest.raises(errors.MessageInvalid):
        encode(Envelope("x", payload={1.5: {1, 2}, "x": object()}))


def test_errors_are_read_whatever_they_are() -> None:
    assert isinstance(error_in({"code": "forbidden", "message": "No."}), errors.Forbidden)
    assert error_in({"code": "rate_limited", "retry_after_ms": 5}).details == {"retry_after_ms": 5}
    odds: list[object] = [None, "text", 7, {}]
    for odd in odds:
        assert error_in(odd).message


def test_where_the_hub_is() -> None:
    env = {"CARREL_DATA": "/data"}
    found = find_hub(env)
    assert (found.place.socket, found.place.data) == ("/data/daemon/hub.sock", "/data")
    assert found.lines and not found.inside
    inside = find_hub({**env, "CARREL_HUB": "/run/hub.sock", "CARREL_URL": "http://h:1"})
    assert (inside.place.socket, inside.place.data, inside.inside) == ("/run/hub.sock", "", True)
    said = find_hub({"CARREL_HUB": "/run/hub.sock"}, data="/other")
    assert said.place.socket == "/other/daemon/hub.sock" and not said.inside
    far = find_hub({"CARREL_URL": "http://h:1", "CARREL_TOKEN": "t"})
    assert (far.lines, far.place.authority, far.place.token) == (False, "h:1", "t")
    assert not find_hub(env, url="unix:///x/daemon/socket").lines
    with pytest.raises(errors.MessageInvalid):
        find_hub(env, url="nothing")
