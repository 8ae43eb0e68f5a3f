"""Hearing what one asked for, and nothing that one may not."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from carrel.domain.hub import Replay
from carrel.hub.client import Patterns
from carrel.hub.connection import Connection
from tests.hub.behaviours import shows
from tests.hub.rig import (
    NOTE,
    OTHER,
    SPACE,
    WAIT_S,
    HubRig,
    Peer,
    hear,
    note,
    numbers,
    open_rig,
)

# Hearing


@shows("subscribe.types")
async def test_one_hears_the_types_that_one_asked_for(rig: HubRig) -> None:
    speaker = await rig.join()
    hearer = await rig.join(types=("custom_a*", "*_z"), spaces=(SPACE,))
    for type in ("custom_a", "custom_ab", "custom_b", "custom_b_z", "buffer_custom_a"):
        await speaker.ask(type, {}, space=SPACE)
    heard = [one["type"] for one in await hear(hearer, 3)]
    assert heard == ["custom_a", "custom_ab", "custom_b_z"]
    await hearer.nothing_more()


def test_a_pattern_of_many_stars_takes_no_time() -> None:
    """Who tries all ways in which such a one could fit is not done before the sun is."""
    heard = Patterns(("*a" * 60 + "*b", "custom_a*a*a"))
    assert not heard.fit("custom_" + "a" * 80 + "c")
    assert heard.fit("custom_" + "a" * 80 + "b") and heard.fit("custom_aaa")
    assert not heard.fit("custom_aa")


async def test_patterns_are_read_while_their_client_waits(rig: HubRig) -> None:
    """And not in a task, whose time would be counted for nobody."""
    consumer = await rig.join(types=("custom_old",), spaces=(SPACE,), consumer="c")
    (client,) = (one for one in rig.hub._clients.values() if one.consumer)
    wanted = {"subscriptions": {"types": ["custom_n*w"], "spaces": [SPACE]}}
    envelope = {"type": "client_update", "id": "u", "payload": wanted}
    re.purge()
    Connection(rig.hub, client).received(json.dumps(envelope).encode())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("carrel.hub.client.re.compile", None)
        assert (await consumer.receive())["type"] == "response"
    assert client.types.fit("custom_new")


@shows("subscribe.spaces", "subscribe.all")
async def test_one_hears_the_spaces_that_one_asked_for(rig: HubRig) -> None:
    speaker = await rig.join()
    one, every, both = [
        await rig.join(types=("*",), spaces=spaces) for spaces in ((SPACE,), ("*",), (SPACE, "*"))
    ]
    for space in (OTHER, SPACE):
        await speaker.ask("custom_x", {}, space=space)
    assert [(await one.receive())["space"]] == [SPACE]
    for peer in (every, both):
        assert [m["space"] for m in await hear(peer, 2)] == [OTHER, SPACE]
    for peer in (one, every, both, speaker):
        await peer.nothing_more()


@shows("subscribe.order")
async def test_messages_come_in_order(rig: HubRig) -> None:
    hearers = [await rig.join(types=("buffer_*",), spaces=(SPACE,)) for _ in range(3)]
    speakers = [await rig.join() for _ in range(3)]

    async def speak(peer: Peer) -> None:
        for number in range(40):
            await peer.send(NOTE, {"number": number}, space=SPACE)
        await peer.nothing_more_but_answers(40)

    await asyncio.gather(*map(speak, speakers))
    for hearer in hearers:
        assert [one["seq"] for one in await hear(hearer, 120)] == list(range(1, 121))


# Who may


@shows("access.agent", "access.unknown")
async def test_an_agent_keeps_to_its_space(rig: HubRig) -> None:
    agent = await rig.agent(types=("*",), spaces=("*",))
    app = await rig.join()
    nobody = "sp_zzzzzzzzzzzz"
    answers = []
    for space in (OTHER, nobody):
        for type, payload in ((NOTE, {}), ("custom_x", {}), ("buffer_replay", {"space": space})):
            problem = await agent.refused(type, payload, space=space)
            answers.append((problem["code"], problem["message"].replace(space, "SPACE")))
        wanted = {"subscriptions": {"types": ["*"], "spaces": [space]}}
        problem = await agent.refused("client_update", wanted)
        answers.append((problem["code"], problem["message"].replace(space, "SPACE")))
    assert set(answers) == {("space_not_found", "There is no space 'SPACE'.")}
    await app.ask(NOTE, {"number": 1}, space=OTHER)
    await app.ask(NOTE, {"number": 2}, space=SPACE)
    assert (await agent.receive())["payload"] == {"number": 2}
    await agent.nothing_more()
    assert [one["space"] for one in (await agent.ask("client_list"))["clients"]] == [SPACE]


@shows("access.ide")
async def test_an_editor_speaks_to_the_spaces_it_is_connected_to(rig: HubRig) -> None:
    editor = await rig.join("ide", types=("*",), spaces=(SPACE,))
    await editor.ask("custom_x", {}, space=SPACE)
    assert (await editor.refused("custom_x", {}, space=OTHER))["code"] == "forbidden"


@shows("access.label")
async def test_a_label_is_a_border(tmp_path: Path) -> None:
    """Tokens come over HTTP only."""
    async with open_rig(tmp_path, "websocket") as rig:
        blue = await rig.join("app", "blue", types=("*",), spaces=("*",))
        local = await rig.join()
        assert (await blue.refused(NOTE, {}, space=OTHER))["code"] == "space_not_found"
        await local.ask(NOTE, {"number": 1}, space=OTHER)
        await local.ask(NOTE, {"number": 2}, space=SPACE)
        assert (await blue.receive())["space"] == SPACE
        told = await blue.ask("buffer_replay", {"since": 0})
        assert set(told["replay_from"]) == {SPACE}
        # It leaves the tenant's reach: nothing more is heard of it.
        rig.spaces.labels[SPACE] = {"team": "red"}
        await local.ask(NOTE, {"number": 3}, space=SPACE)
        assert (await blue.refused(NOTE, {}, space=SPACE))["code"] == "space_not_found"
        assert numbers([await blue.receive()]) == [2]
        await blue.nothing_more()


@shows("access.label")
async def test_a_replay_ends_where_the_reach_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is said later is not told to who has it replayed, however long that takes."""
    async with open_rig(tmp_path, "websocket") as rig:
        local, blue = await rig.join(), await rig.join("app", "blue", types=("*",))
        await note(local, 1)
        begun, go_on = asyncio.Event(), asyncio.Event()
        read = rig.hub.log.replay

        async def slow(query: Replay) -> tuple[Sequence[bytes], int]:
            begun.set()
            await go_on.wait()
            return await read(query)

        monkeypatch.setattr(rig.hub.log, "replay", slow)
        told = await blue.ask("buffer_replay", {"space": SPACE, "seq": 0})
        assert told["replay_to"] == {SPACE: 1}
        async with asyncio.timeout(WAIT_S):
            await begun.wait()
        rig.spaces.labels[SPACE] = {"team": "red"}
        await note(local, 2)
        go_on.set()
        assert numbers([await blue.receive()]) == [1]
        await blue.nothing_more()


@shows("access.people")
async def test_agents_do_not_answer_for_people(rig: HubRig) -> None:
    agent, person = await rig.agent(), await rig.join("cli")
    await agent.ask("buffer_user_question", {"question": "May I?"}, space=SPACE, id="q1")
    answer: dict[str, Any] = {"space": SPACE, "reply_to": "q1"}
    problem = await agent.refused("buffer_user_answer", {"answer": "yes"}, **answer)
    assert problem["code"] == "forbidden"
    problem = await agent.refused("agent_command", {"command": "x"}, space=SPACE)
    assert problem["code"] == "forbidden"
    await person.ask("buffer_user_answer", {"answer": "yes"}, **answer)
