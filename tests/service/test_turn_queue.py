"""Turns that wait until the agent of their space is free."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import CommandNotFound
from carrel.domain.runtimes import Command
from carrel.domain.turns import TurnRequest
from carrel.service.turn_queue import MOST_QUEUED
from tests.daemon.rig import ANSWER_S, Daemon, bad, fresh_daemon, good
from tests.service.rig import make


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with fresh_daemon() as found:
        yield found


def begin(client: httpx.Client, space: str, prompt: str, **more: Any) -> httpx.Response:
    return client.post(f"/v1/spaces/{space}/turns", json={"prompt": prompt, **more})


def queue(client: httpx.Client, space: str, prompt: str) -> dict[str, Any]:
    found = good(begin(client, space, prompt, queue=True))
    assert found["state"] == "queued"
    return dict(found)


def end(client: httpx.Client, turn: str) -> dict[str, Any]:
    until = time.monotonic() + ANSWER_S
    while True:
        found = good(client.get(f"/v1/turns/{turn}", params={"wait_s": 20}))
        if found["state"] not in ("queued", "running"):
            return dict(found)
        assert time.monotonic() < until


def test_it_waits_its_turn_over_a_restart(daemon: Daemon) -> None:
    client = daemon.local()
    space = good(client.post("/v1/spaces", json={"agent": "scripted"}))["id"]
    first = good(begin(client, space, "sleep 600"))["id"]
    assert "--queue" in bad(begin(client, space, "now"), 409, "state_conflict")["hint"]
    second, third, gone = (queue(client, space, text)["id"] for text in ("two", "three", "four"))
    good(client.post(f"/v1/turns/{gone}/interrupt"))
    assert end(client, gone)["result"]["error"]["code"] == "interrupted"
    daemon.stop()
    daemon.start()
    client = daemon.local()
    listed = good(client.get(f"/v1/spaces/{space}/turns"))["turns"]
    assert [one["state"] for one in listed] == ["error", "queued", "queued", "running"]
    good(client.post(f"/v1/turns/{first}/interrupt"))
    # Each goes on with the conversation before it.
    texts = [end(client, turn)["result"]["final_output"] for turn in (second, third)]
    assert texts == ["turn 2: two", "turn 3: three"]
    # Where nothing runs it begins at once.
    last = good(begin(client, space, "five", queue=True))
    assert last["state"] == "running"
    assert end(client, last["id"])["result"]["final_output"] == "turn 4: five"


def test_what_cannot_wait_is_refused(daemon: Daemon) -> None:
    client = daemon.local()
    space = good(client.post("/v1/spaces", json={"agent": "scripted"}))["id"]
    good(begin(client, space, "sleep 600"))
    for more in ({"env": {"KEY": "sk-planted-key-1"}}, {"trust": True}):
        bad(begin(client, space, "x", queue=True, **more), 422, "message_invalid")
    for _ in range(MOST_QUEUED):
        queue(client, space, "x")
    refused = bad(begin(client, space, "x", queue=True), 409, "state_conflict")
    assert "--queued" in refused["hint"]
    good(client.delete(f"/v1/spaces/{space}", params={"force": True}))


def test_what_a_token_left_does_not_begin_after_it_was_revoked(daemon: Daemon) -> None:
    """Over a restart, too; and what others wait for begins."""
    client = daemon.local()
    space = good(client.post("/v1/spaces", json={"agent": "scripted"}))["id"]
    first = good(begin(client, space, "sleep 600"))["id"]
    token = good(client.post("/v1/tokens", json={"scope": f"space:{space}"}))
    with daemon.tcp(token["secret"]) as theirs:
        left = queue(theirs, space, "theirs")["id"]
    own = queue(client, space, "own")["id"]
    good(client.delete(f"/v1/tokens/{token['id']}"))
    daemon.stop()
    daemon.start()
    client = daemon.local()
    good(client.post(f"/v1/turns/{first}/interrupt"))
    assert end(client, own)["result"]["final_output"] == "turn 2: own"
    assert end(client, left)["result"]["error"]["code"] == "forbidden"


async def test_those_that_never_ran_are_not_kept_for_ever(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither turns that were taken out, nor commands that are not there."""
    monkeypatch.setattr("carrel.service.turns.KEEP_TURNS", 5)
    monkeypatch.setattr("carrel.service.turns.PRUNE_EVERY", 3)
    monkeypatch.setattr("carrel.service.runs.PRUNE_EVERY", 3)
    keeping = dataclasses.replace(services.runs._keeping, runs=5)
    monkeypatch.setattr(services.runs, "_keeping", keeping)
    space = (await make(services, agent="scripted")).space_id
    first = await services.turns.start(LOCAL, space, TurnRequest("", "sleep 600"))
    for number in range(10):
        waits = TurnRequest("", str(number), queue=True)
        turn = await services.turns.start(LOCAL, space, waits)
        await services.turns.interrupt(LOCAL, turn.run_id)
        with pytest.raises(CommandNotFound):
            await services.runs.start(space, Command(("./no",)))
    turns = await services.turns.list(LOCAL, space)
    assert first.run_id in [one.run_id for one in turns] and 5 < len(turns) <= 9
    assert turns[0].prompt == "9"
    store = services.store
    assert 5 <= len(await store.runs(space)) <= 8
    await services.turns.interrupt(LOCAL, first.run_id)
    await services.turns.wait(LOCAL, first.run_id)
