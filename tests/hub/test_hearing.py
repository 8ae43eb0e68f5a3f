"""Hearing what one asked for, and nothing that one may not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from carrel.domain.errors import MessageInvalid
from carrel.domain.hub import ANSWER, QUESTION, Replay
from carrel.hub import clients
from carrel.hub.client import Patterns
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


def test_patterns_take_no_time() -> None:
    """All that are subscribed are asked for each new type, while everybody waits."""
    heard = Patterns(("*a*a*a*b", "custom_a*a*a", "custom_x", "custom_y*"))
    assert not heard.fit("custom_" + "a" * 80 + "c")
    assert heard.fit("custom_" + "a" * 80 + "b") and heard.fit("custom_aaa")
    assert not heard.fit("custom_aa")
    assert heard.fit("custom_x") and not heard.fit("custom_xx")
    assert heard.fit("custom_y") and heard.fit("custom_yy") and not heard.fit("x_custom_y")
    assert Patterns(("a*a",)).fit("aa") and not Patterns(("a*a",)).fit("a")
    assert Patterns(("*a*b*",)).fit("xaxbx") and not Patterns(("*a*b*",)).fit("xbxax")
    assert Patterns(("*",)).fit("anything") and not Patterns(()).fit("anything")
    Patterns(f"custom_{number}*" for number in range(100))
    for wrong in (["*a*a*a*a*b"], [f"*_{number}" for number in range(5)], ["a**********b"]):
        with pytest.raises(MessageInvalid, match="before their end"):
            Patterns(wrong)


async def test_all_clients_of_one_have_so_many_costly_patterns(
    rig: HubRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "INNER_OF_ACCOUNT", 5)
    costly = tuple(f"*_{number}" for number in range(4))
    first = await rig.join("agent", "inside", types=costly)
    second = await rig.join("agent", "inside", types=("*_5", "custom_*"))
    wanted = {"subscriptions": {"types": ["*_5", "*_6"]}}
    problem = await second.refused("client_update", wanted)
    assert problem["code"] == "message_invalid" and "already" in problem["message"]
    others = [await rig.join("agent", "other", types=costly)]
    others += [await rig.join(types=costly) for _ in range(2)]
    await first.ask("client_update", {"subscriptions": {"types": ["custom_*"]}})
    await second.ask("client_update", wanted)


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


@pytest.mark.parametrize("spaces", [("*",), (SPACE,)])
@shows("access.label")
async def test_a_label_is_a_border(tmp_path: Path, spaces: tuple[str, ...]) -> None:
    """Tokens come over HTTP only."""
    async with open_rig(tmp_path, "websocket") as rig:
        blue = await rig.join("app", "blue", types=("*",), spaces=spaces)
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


async def test_who_may_not_agree_answers_nothing_that_carrel_asks(tmp_path: Path) -> None:
    """Neither of this daemon nor of the one before."""
    answers: list[dict[str, Any]] = [{"space": SPACE, "reply_to": id} for id in ("q1", "q2")]
    for number in ("q1", "q2"):
        async with open_rig(tmp_path, "websocket") as rig:
            await asyncio.wait(rig.hub._regular[-1:], timeout=WAIT_S)
            await rig.hub.ask(SPACE, {"question": "May it?"}, QUESTION, number)
            blue = await rig.join(who="blue")
            for answer in answers[: 1 if number == "q1" else 2]:
                problem = await blue.refused(ANSWER, {"answer": "yes"}, **answer)
                assert problem["code"] == "forbidden"
    async with open_rig(tmp_path, "websocket") as rig:
        await asyncio.wait(rig.hub._regular[-1:], timeout=WAIT_S)
        blue, owner = await rig.join(who="blue"), await rig.join()
        for answer in answers:
            await owner.ask(ANSWER, {"answer": "yes"}, **answer)
            await blue.ask(ANSWER, {"answer": "no"}, **answer)
