"""The verbs of the hub, against a real hub in this process."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest

from carrel import Hub
from carrel.hub import hub as hub_room
from carrel.hub.envelopes import Said
from tests.cli.program import TIMEOUT_S, Program
from tests.cli.test_starting import HEAVY, OURS, modules_of
from tests.client.hub_serving import DESK, OTHER, Served, serving_in_thread

NOTE = "buffer_custom_note"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving_in_thread() as found:
        yield found


@pytest.fixture(autouse=True)
def _empty(served: Served) -> None:
    """Each test finds nothing kept."""

    async def forget() -> None:
        for space in (DESK, OTHER):
            await served.here.log.forget(space)
            served.here.hub.keeper.forget(space)

    served.run(forget())


@pytest.fixture
def carrel(served: Served, tmp_path: Path) -> Program:
    """Outside of spaces."""
    program = Program(served.here.data, tmp_path)
    program.env["CARREL_NO_START"] = "1"
    return program


@pytest.fixture
def inside(served: Served, tmp_path: Path) -> Program:
    """As a script in the space finds it: there is no daemon, but the hub's socket."""
    program = Program(Path("/nonexistent"), tmp_path)
    program.env["CARREL_HUB"] = str(served.here.inside)
    return program


@pytest.fixture
def hub(served: Served) -> Iterator[Hub]:
    with Hub(socket=served.here.socket, types=["buffer_*", "custom_*"], timeout_s=TIMEOUT_S) as it:
        yield it


def bodies(served: Served, space: str = DESK) -> list[dict[str, Any]]:
    return [json.loads(one.body) for one in served.here.log._of(space).messages]


def test_sending(carrel: Program, hub: Hub, served: Served) -> None:
    said = carrel.good("hub", "send", "--space", DESK, NOTE, '{"n": 1}')
    assert said == "Kept as number 1.\n"
    assert carrel.json("hub", "send", "--space", DESK, NOTE) == {"seq": 2, "sync": "disk"}
    assert carrel.good("hub", "send", "--space", DESK, "custom_x", '{"ü": "€"}') == "Heard by 1.\n"
    said = carrel.good("hub", "send", "--space", DESK, NOTE, "-", stdin=b'{"from": "a pipe"}')
    assert said == "Kept as number 3.\n"
    answer = ["hub", "send", "--space", DESK, "--reply-to", "q1", "buffer_user_answer"]
    carrel.good(*answer, '{"answer": "yes"}')
    assert [one["payload"] for one in bodies(served)] == [
        {"n": 1},
        {},
        {"from": "a pipe"},
        {"answer": "yes"},
    ]
    assert bodies(served)[3]["reply_to"] == "q1"
    heard = [next(hub) for _ in range(5)]
    assert heard[2].payload == {"ü": "€"} and heard[0].sender.kind == "cli"


def test_mistakes(carrel: Program) -> None:
    assert "--space SPACE" in carrel.bad(2, "hub", "send", NOTE, "{}")
    assert "not a JSON object" in carrel.bad(2, "hub", "send", "--space", DESK, NOTE, "[1]")
    assert "not a JSON object" in carrel.bad(2, "hub", "send", "--space", DESK, NOTE, "{")
    assert "no type" in carrel.bad(2, "hub", "send", "--space", DESK, "nothing", "{}")
    unknown = "sp_cccccccccccc"
    assert unknown in carrel.bad(3, "hub", "send", "--space", unknown, NOTE, "{}")
    assert "together" in carrel.bad(2, "hub", "follow", "--from", "1", "--consumer", "me")
    assert "--space" in carrel.bad(2, "hub", "follow", "--from", "1")
    assert "nothing" in carrel.bad(2, "hub", "nothing")
    done = carrel("hub", "send", "--space", unknown, NOTE, "{}", "--json")
    assert json.loads(done.err)["code"] == "space_not_found"


def test_nobody_there(tmp_path: Path) -> None:
    program = Program(tmp_path, tmp_path)
    program.env["CARREL_NO_START"] = "1"
    for words in (
        ("send", "--space", DESK, NOTE),
        ("request", "--space", DESK, "agent_interrupt"),
        ("follow",),
        ("dump", "--space", DESK),
        ("clients",),
    ):
        assert "carrel up" in program.bad(6, "hub", *words)
    program.env["CARREL_HUB"] = str(tmp_path / "hub.sock")
    program.bad(6, "log", "hello")


def test_asking(carrel: Program, served: Served) -> None:
    words = ["hub", "request", "--space", DESK, "ide_operation", '{"operation": "open"}']
    assert "No ide" in carrel.bad(3, *words)
    with Hub(socket=served.here.socket, kind="ide", types=(), timeout_s=TIMEOUT_S) as editor:
        process = carrel.start(*words, stdout=subprocess.PIPE)
        request = next(editor)
        assert request.payload == {"operation": "open"} and request.is_request
        assert editor.respond(request, {"line": 7})
        assert json.loads(process.communicate(timeout=TIMEOUT_S)[0]) == {"line": 7}

        process = carrel.start(*words, "--to", editor.client_id, stderr=subprocess.PIPE)
        assert editor.fail(next(editor), "path_not_found", "No such file.")
        assert b"No such file." in process.communicate(timeout=TIMEOUT_S)[1]
        assert process.returncode == 3

        assert "in time" in carrel.bad(1, *words, "--deadline", "1ms")


def lines_of(stream: IO[bytes] | None, count: int) -> list[str]:
    assert stream is not None
    return [stream.readline().decode().rstrip("\n") for _ in range(count)]


def test_following(carrel: Program, hub: Hub, served: Served) -> None:
    hub.publish(NOTE, {"n": 1, "words": "a b"}, space=DESK)
    hub.publish(NOTE, {"n": 2}, space=DESK)
    words = ["hub", "follow", "--space", DESK, "--type", "buffer_*", "--from", "1"]
    process = carrel.start(*words, "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    (first,) = lines_of(process.stdout, 1)
    hub.publish(NOTE, {}, space=OTHER)
    hub.send("custom_x", {}, space=DESK)
    hub.publish(NOTE, {"n": 3}, space=DESK)
    (second,) = lines_of(process.stdout, 1)
    assert [json.loads(one)["seq"] for one in (first, second)] == [2, 3]
    assert json.loads(first) == bodies(served)[1]
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=TIMEOUT_S) == (b"", b"")
    assert process.returncode == 130

    process = carrel.start(*words[:-1], "0", stdout=subprocess.PIPE)
    (line,) = lines_of(process.stdout, 1)
    assert f' {DESK} app {NOTE} n=1 words="a b"' in line and line.startswith("1 20")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT_S)


def test_a_consumer_goes_on_where_it_was(carrel: Program, hub: Hub, served: Served) -> None:
    words = ["hub", "follow", "--consumer", "watcher", "--type", NOTE, "--json"]
    for n in (1, 2):
        hub.publish(NOTE, {"n": n}, space=DESK)
    process = carrel.start(*words, stdout=subprocess.PIPE)
    assert [json.loads(one)["seq"] for one in lines_of(process.stdout, 2)] == [1, 2]

    async def acknowledged() -> None:
        await served.here.until(lambda: served.here.log._cursors.get("watcher") == {DESK: 2})

    served.run(acknowledged())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT_S)
    hub.publish(NOTE, {"n": 3}, space=DESK)
    process = carrel.start(*words, stdout=subprocess.PIPE)
    assert [json.loads(one)["seq"] for one in lines_of(process.stdout, 1)] == [3]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT_S)


def test_dumping(carrel: Program, hub: Hub, served: Served) -> None:
    assert carrel.good("hub", "dump", "--space", DESK) == ""
    hub.publish_many([(NOTE, {"n": n}) for n in range(2500)], space=DESK)
    hub.publish(NOTE, {"n": "another"}, space=OTHER)
    found = [json.loads(line) for line in carrel.good("hub", "dump", "--space", DESK).splitlines()]
    assert found == bodies(served) and len(found) == 2500


def test_dumping_what_cannot_be_read(carrel: Program, served: Served) -> None:
    """It is told as such, also as the last one; and what comes after it is shown."""
    deep = b'{"space":"%b","seq":99,"n":' % DESK.encode() + b"[" * 100_000 + b"]" * 100_000 + b"}"
    bad = [msgspec.Raw(body) for body in (deep, b'{"n":' + b"9" * 5000 + b"}", b'{"no": JSON}')]
    said = [Said(NOTE, body, reply_to='"space":"x","seq":7') for body in bad]
    readable = Said(NOTE, msgspec.Raw(b'{"n": 1}'), "last")
    served.run(served.here.hub.record(DESK, [said[0], readable, *said[1:]]))
    found = [json.loads(line) for line in carrel.good("hub", "dump", "--space", DESK).splitlines()]
    assert [one["seq"] for one in found] == [1, 2, 3, 4]
    unreadable = "event.unreadable"
    assert [one["type"] for one in found] == [unreadable, NOTE, unreadable, unreadable]
    assert found[0]["bytes"] > 200_000 and found[1]["payload"] == {"n": 1}


def test_who_is_there(carrel: Program, hub: Hub, served: Served) -> None:
    with Hub(socket=served.here.socket, kind="ide", name="an editor", spaces=[OTHER]) as editor:
        found = {one["client_id"]: one for one in carrel.json("hub", "clients")["clients"]}
        assert {hub.client_id, editor.client_id} < set(found)
        assert found[editor.client_id]["name"] == "an editor"
        shown = carrel.good("hub", "clients", "--space", OTHER)
        assert "an editor" in shown and shown.startswith("CLIENT")
        assert "an editor" not in carrel.good("hub", "clients", "--space", DESK)


def test_scripts_in_a_space(inside: Program, served: Served) -> None:
    assert inside.good("log", "half way", "--category", "milestone", "--percent", "50") == ""
    assert inside.json("log", "that is all") == {"seq": 2, "sync": "disk"}
    assert inside.good("notify", "Look", "--priority", "high", "--action", "a", "--action=b") == ""
    assert inside.good("hub", "send", NOTE, "{}") == "Kept as number 4.\n"
    found = bodies(served)
    assert found[0]["payload"] == {"message": "half way", "category": "milestone", "percent": 50.0}
    assert found[1]["payload"] == {"message": "that is all"}
    assert found[2]["type"] == "buffer_taskspace_signal_user"
    assert found[2]["payload"]["suggested_actions"] == ["a", "b"]
    assert {(one["space"], one["sender"]["kind"]) for one in found} == {(DESK, "agent")}
    assert len(inside.good("hub", "dump").splitlines()) == 4
    assert "sp_bbb" in inside.bad(3, "hub", "send", "--space", OTHER, NOTE, "{}")
    inside.bad(2, "log", "x", "--percent", "300")
    inside.bad(2, "log", "x", "--category", "rumour")


def test_outside_a_space_they_say_what_they_are_for(carrel: Program) -> None:
    assert "hub send" in carrel.bad(2, "log", "hello")
    assert "inside a space" in carrel.bad(2, "notify", "hello")


@pytest.mark.parametrize("words", [["log", "hi"], ["notify", "hi"], ["hub", "send", NOTE, "{}"]])
def test_scripts_import_almost_nothing(inside: Program, words: list[str]) -> None:
    loaded = modules_of(words, inside.env)
    assert loaded.isdisjoint(HEAVY - OURS)
    assert not {name for name in loaded if name.startswith(("carrel.domain", "carrel.daemon"))}


def test_a_line_outlives_a_long_wait(
    carrel: Program, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for an answer sends heartbeats."""
    # However slow this machine is, nobody is cut off.
    monkeypatch.setattr(hub_room, "MISSED", 100_000)

    async def restart(**changes: float) -> None:
        await served.here.close()
        served.here.options = replace(served.here.options, **changes)  # type: ignore[arg-type]
        await served.here.open()

    served.run(restart(heartbeat_s=0.05))
    try:
        with Hub(socket=served.here.socket, kind="ide", types=(), timeout_s=TIMEOUT_S) as editor:
            words = ["hub", "request", "--space", DESK, "ide_get_selection"]
            process = carrel.start(*words, stdout=subprocess.PIPE)
            request = next(editor)
            served.run(asyncio.wait_for(_beats(served, 8), TIMEOUT_S))
            assert editor.respond(request, "late")
            assert json.loads(process.communicate(timeout=TIMEOUT_S)[0]) == "late"
    finally:
        served.run(restart(heartbeat_s=15.0))


async def _beats(served: Served, count: int) -> None:
    """Until the asking client was heard that often."""
    (client,) = [one for one in served.here.hub._clients.values() if one.kind == "cli"]
    for _ in range(count):
        before = client.heard_at
        await served.here.until(lambda before=before: client.heard_at > before)  # type: ignore[misc]
    assert not client.closed
