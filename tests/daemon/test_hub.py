"""The hub of a real daemon, from outside and from inside real sandboxes."""

from __future__ import annotations

import json

from tests.daemon.hub_rig import line_to, make, progress, speak
from tests.daemon.rig import ANSWER_S, Daemon, good


def test_a_space_speaks_of_itself_and_of_nobody_else(daemon: Daemon) -> None:
    space, other = make(daemon), make(daemon)
    with line_to(daemon) as line:
        own, foreign = speak(daemon, space, progress(space, "mine"), progress(other, "theirs"))
        assert own["data"]["sync"] == "disk"
        assert foreign["code"] == "space_not_found"
        heard = line.receive()
        while heard["type"] != "buffer_taskspace_progress":
            heard = line.receive()
    assert heard["payload"]["message"] == "mine"
    assert heard["sender"]["kind"] == "agent" and heard["sender"]["space"] == space
    assert heard["seq"] == own["data"]["seq"]


def test_the_log_has_everything_of_a_space_without_a_gap(daemon: Daemon) -> None:
    space = make(daemon)
    speak(daemon, space, progress(space, "one"))
    with daemon.local() as client:
        good(client.post(f"/v1/spaces/{space}/stop"))
        headers = {"Accept": "application/json"}
        params: dict[str, str | int] = {"space": space, "limit": 1000}
        told = good(client.get("/v1/events", params=params, headers=headers))["events"]
        good(client.delete(f"/v1/spaces/{space}", params={"force": "true"}))
    with line_to(daemon) as line:
        line.send("buffer_replay", {"space": space, "seq": 0}, id="x")
        answer = line.receive()
        last = answer["payload"]["data"]["replay_to"][space]
        found = [line.receive() for _ in range(last)]
    assert [one["seq"] for one in found] == list(range(1, last + 1))
    kept = [(one["type"], one["payload"]) for one in found]
    assert kept[: len(told)] == [(one["type"], one["data"]) for one in told]
    types = [one for one, _ in kept]
    assert {"space.state", "step.begun", "run.ended", "buffer_taskspace_progress"} <= set(types)
    states = [payload["to"] for type, payload in kept if type == "space.state"]
    assert (states[0], states[-1]) == ("creating", "removed")


def test_a_restart_keeps_numbers_cursors_and_sockets(daemon: Daemon) -> None:
    space = make(daemon)
    speak(daemon, space, progress(space, "before"))
    with line_to(daemon, consumer="me") as line:
        heard = line.receive()
        while heard["payload"].get("message") != "before":
            heard = line.receive()
        line.send("buffer_acknowledge", {"space": space, "seq": heard["seq"]}, id="a")
        while line.receive().get("reply_to") != "a":
            pass
    daemon.stop()
    daemon.start()
    (answer,) = speak(daemon, space, progress(space, "after"))
    assert answer["data"]["seq"] > heard["seq"]
    with line_to(daemon, consumer="me") as line:
        seen = [line.receive()]
        while seen[-1]["payload"].get("message") != "after":
            seen.append(line.receive())
        assert [one["seq"] for one in seen] == list(range(heard["seq"] + 1, seen[-1]["seq"] + 1))


def test_the_socket_goes_with_its_space(daemon: Daemon) -> None:
    space = make(daemon)
    folder = daemon.data / "spaces" / space / "hub"
    assert sorted(path.name for path in folder.iterdir()) == ["carrel", "hub.sock", "mcp.sock"]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.glob("*.sock"))
    with daemon.local() as client:
        good(client.delete(f"/v1/spaces/{space}", params={"force": "true"}))
    assert not folder.exists()


def test_a_token_sees_what_it_may_over_websocket(daemon: Daemon) -> None:
    blue, red = make(daemon, labels={"team": "blue"}), make(daemon, labels={"team": "red"})
    secret = daemon.token("label:team=blue")
    with daemon.tcp_websocket("/v1/hub", secret) as hub:
        wanted = {"kind": "app", "subscriptions": {"types": ["*"], "spaces": ["*"]}}
        hub.send(json.dumps({"type": "client_register", "id": "r", "payload": wanted}))
        assert json.loads(hub.recv(ANSWER_S))["payload"]["status"] == "success"
        for space, code in ((red, "space_not_found"), (blue, None)):
            hub.send(json.dumps(progress(space, "hello")))
            answer = json.loads(hub.recv(ANSWER_S))
            while answer.get("reply_to") != "hello":
                answer = json.loads(hub.recv(ANSWER_S))
            assert answer["payload"].get("code") == code
