"""One suite for both transports: what `behaviours.py` requires, shown."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from carrel.domain.hub import Sync
from carrel.hub.hub import Options
from carrel.hub.rates import Rate
from tests.hub.behaviours import REQUIRED, covered, shows
from tests.hub.rig import OTHER, SPACE, TRANSPORTS, Ended, HubRig, Peer, open_rig

PROGRESS = "buffer_taskspace_progress"
NOTE = "buffer_custom_note"


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def rig(tmp_path: Path, transport: str) -> AsyncIterator[HubRig]:
    async with open_rig(tmp_path, transport) as opened:
        yield opened


def options(**changes: Any) -> Options:
    return Options(sync=Sync.PROCESS, **changes)


async def note(peer: Peer, number: int, space: str = SPACE) -> int:
    return int((await peer.ask(NOTE, {"number": number}, space=space))["seq"])


def numbers(envelopes: list[dict[str, Any]]) -> list[int]:
    return [one["payload"]["number"] for one in envelopes]


async def hear(peer: Peer, count: int) -> list[dict[str, Any]]:
    return [await peer.receive() for _ in range(count)]


def test_every_required_behaviour_is_shown() -> None:
    assert set(covered) == set(REQUIRED)


# Registering


@shows("register.first")
async def test_nothing_is_taken_before_registration(rig: HubRig) -> None:
    peer = await rig.connect()
    for type in (NOTE, "system_status", "client_list", "buffer_replay", "heartbeat", "response"):
        assert (await peer.refused(type, {}, space=SPACE))["code"] == "forbidden"
    assert (await peer.ask("client_register", {"kind": "app"}))["client_id"]


@shows("register.answer")
async def test_a_registration_is_answered(rig: HubRig) -> None:
    told = await (await rig.connect()).ask("client_register", {"kind": "cli", "name": "me"})
    assert told["client_id"].startswith("cl_")
    assert (told["heartbeat_s"], told["sync"], told["space"]) == (15.0, "process", "")
    told = await (await rig.connect("inside")).ask("client_register", {"kind": "agent"})
    assert told["space"] == SPACE


@shows("register.once")
async def test_a_client_registers_once(rig: HubRig) -> None:
    peer = await rig.join()
    assert (await peer.refused("client_register", {"kind": "app"}))["code"] == "forbidden"


@shows("register.kinds")
async def test_an_agent_is_bound_to_a_space(rig: HubRig) -> None:
    outside = await rig.connect()
    assert (await outside.refused("client_register", {"kind": "agent"}))["code"] == "forbidden"
    await outside.ask("client_register", {"kind": "ide"})
    inside = await rig.connect("inside")
    if rig.transport == "unix":
        for kind in ("app", "ide", "cli"):
            problem = await inside.refused("client_register", {"kind": kind})
            assert problem["code"] == "forbidden"
    await inside.ask("client_register", {"kind": "agent"})


@shows("register.never_system")
async def test_no_client_is_the_system(rig: HubRig) -> None:
    peer = await rig.connect()
    for kind in ("system", "root", "", None, 1):
        problem = await peer.refused("client_register", {"kind": kind})
        assert problem["code"] == "message_invalid"


@shows("register.in_time")
async def test_who_does_not_register_is_cut_off(tmp_path: Path, transport: str) -> None:
    async with open_rig(tmp_path, transport, options(register_s=0.2)) as rig:
        silent = await rig.connect()
        other = await rig.join()
        *_, error, last = await silent.ended()
        assert error["payload"]["code"] == "message_invalid"
        assert last["payload"]["reason"] == "not_registered"
        await other.ask("system_status")


@shows("register.most")
async def test_there_are_so_many_clients_and_no_more(tmp_path: Path, transport: str) -> None:
    async with open_rig(tmp_path, transport, options(most_clients=2)) as rig:
        first, _second = await rig.join(), await rig.join()
        third = await rig.connect()
        (error,) = await third.ended()
        assert error["payload"]["code"] == "insufficient_resources"
        await first.ask("client_disconnect")
        await first.ended()
        await rig.join()


@shows("update.subscriptions")
async def test_subscriptions_can_be_changed(rig: HubRig) -> None:
    speaker, hearer = await rig.join(), await rig.join(types=("custom_*",), spaces=(SPACE,))
    await speaker.ask("custom_one", {}, space=SPACE)
    wanted = {"subscriptions": {"types": ["custom_two"], "spaces": [OTHER]}}
    await hearer.ask("client_update", wanted)
    for space in (SPACE, OTHER):
        for type in ("custom_one", "custom_two"):
            await speaker.ask(type, {}, space=space)
    found = await hear(hearer, 2)
    seen = [(one["type"], one["space"]) for one in found]
    assert seen == [("custom_one", SPACE), ("custom_two", OTHER)]
    await hearer.nothing_more()


# Publishing


@shows("publish.acknowledged")
async def test_a_kept_message_is_acknowledged(rig: HubRig) -> None:
    agent = await rig.agent()
    told = await agent.ask(PROGRESS, {"message": "half way", "percent": 50}, space=SPACE)
    assert told == {"seq": 1, "sync": "process"}
    assert rig.hub.keeper.last(SPACE) == 1


@shows("publish.dense")
async def test_numbers_are_dense_for_each_space(rig: HubRig) -> None:
    peers = [await rig.join() for _ in range(4)]

    async def speak(peer: Peer, space: str) -> list[int]:
        return [await note(peer, number, space) for number in range(25)]

    spaces = (SPACE, SPACE, SPACE, OTHER)
    seen = await asyncio.gather(*map(speak, peers, spaces))
    assert all(one == sorted(one) for one in seen)
    assert sorted(number for one in seen[:3] for number in one) == list(range(1, 76))
    assert seen[3] == list(range(1, 26))


@shows("publish.silent")
async def test_what_has_no_id_is_answered_only_when_it_is_wrong(rig: HubRig) -> None:
    peer = await rig.join(types=("*",), spaces=(SPACE,))
    await peer.send(NOTE, {"number": 1}, space=SPACE, id="")
    heard = await peer.receive()
    assert (heard["seq"], heard["id"][:3]) == (1, "ms_")
    await peer.send(NOTE, {"number": 1}, space="sp_nothing", id="")
    problem = await peer.receive()
    assert (problem["type"], problem["payload"]["code"]) == ("error", "space_not_found")


@shows("publish.live")
async def test_a_live_message_is_not_kept(rig: HubRig) -> None:
    speaker, hearer = await rig.join(), await rig.join(types=("*",), spaces=(SPACE,))
    assert await speaker.ask("custom_hint", {"a": [1]}, space=SPACE) == {"delivered": 1}
    heard = await hearer.receive()
    assert (heard["type"], heard["payload"]) == ("custom_hint", {"a": [1]})
    assert "seq" not in heard
    assert await speaker.ask("custom_hint", {}, space=OTHER) == {"delivered": 0}
    late = await rig.join(types=("*",), spaces=(SPACE,))
    await late.ask("buffer_replay", {"space": SPACE, "seq": 0})
    await late.nothing_more()


@shows("publish.sender")
async def test_the_sender_is_who_it_is(rig: HubRig) -> None:
    agent, hearer = await rig.agent(), await rig.join(types=("*",), spaces=("*",))
    told = await agent.ask("client_list")
    own = {"client_id": told["clients"][0]["client_id"], "kind": "agent", "space": SPACE}
    for forged in (
        {"client_id": "system", "kind": "system"},
        {**own, "kind": "app"},
        {**own, "space": OTHER},
        {},
    ):
        problem = await agent.refused(NOTE, {"number": 1}, space=SPACE, sender=forged)
        assert problem["code"] == "forbidden"
    await agent.ask(NOTE, {"number": 2}, space=SPACE, sender=own)
    heard = await hearer.receive()
    assert (heard["sender"], heard["payload"]) == (own, {"number": 2})
    assert abs(heard["ts"] - time.time()) < 3600


@shows("publish.checked")
@pytest.mark.parametrize(
    ("type", "payload"),
    [
        (PROGRESS, {}),
        (PROGRESS, {"message": ""}),
        (PROGRESS, {"message": 5}),
        (PROGRESS, {"message": "m", "category": "loud"}),
        (PROGRESS, {"message": "m", "percent": 101}),
        (PROGRESS, {"message": "m", "odd": 1}),
        ("buffer_taskspace_signal_user", {"message": "m", "priority": "now"}),
        ("buffer_user_answer", {"answer": "yes"}),
        (NOTE, []),
        (NOTE, "text"),
        ("agent_command", {"command": "c", "inject": "brain"}),
    ],
)
async def test_payloads_are_checked(rig: HubRig, type: str, payload: Any) -> None:
    peer = await rig.join()
    assert (await peer.refused(type, payload, space=SPACE))["code"] == "message_invalid"
    assert rig.hub.keeper.last(SPACE) == 0


@shows("publish.unknown")
async def test_unknown_types_are_refused(rig: HubRig) -> None:
    peer = await rig.join()
    for type in (
        "odd",
        "buffer_odd",
        "space.state",
        "buffer_dropped",
        "error",
        "custom",
        "x" * 200,
    ):
        assert (await peer.refused(type, {}, space=SPACE))["code"] == "message_invalid"
    await peer.ask("custom_any", {}, space=SPACE)
    await peer.ask("buffer_custom_any", {}, space=SPACE)


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


# Consumers


async def consumer(rig: HubRig, *spaces: str, name: str = "c") -> Peer:
    return await rig.join(types=("buffer_*",), spaces=spaces or ("*",), consumer=name)


@shows("consume.new", "consume.again", "consume.cursor", "consume.forward")
async def test_a_consumer_misses_nothing(tmp_path: Path, transport: str) -> None:
    async with open_rig(tmp_path, transport) as rig:
        speaker = await rig.join()
        for number in range(5):
            await note(speaker, number)
        peer = await consumer(rig)
        assert numbers(await hear(peer, 5)) == [0, 1, 2, 3, 4]
        await peer.close()
        peer = await consumer(rig)
        assert numbers(await hear(peer, 5)) == [0, 1, 2, 3, 4]
        assert await peer.ask("buffer_acknowledge", {"space": SPACE, "seq": 3}) == {"seq": 3}
        assert await peer.ask("buffer_acknowledge", {"space": SPACE, "seq": 1}) == {"seq": 3}
        await note(speaker, 5)
        assert numbers(await hear(peer, 1)) == [5]
    async with open_rig(tmp_path, transport) as rig:
        peer = await consumer(rig)
        assert numbers(await hear(peer, 3)) == [3, 4, 5]
        await note(await rig.join(), 6)
        heard = await peer.receive()
        assert (heard["seq"], heard["payload"]["number"]) == (7, 6)
        await peer.nothing_more()


@shows("consume.added")
async def test_a_space_that_is_added_is_caught_up_with(rig: HubRig) -> None:
    speaker = await rig.join()
    await note(speaker, 1, OTHER)
    peer = await consumer(rig, SPACE)
    await peer.nothing_more()
    wanted = {"subscriptions": {"types": ["buffer_*"], "spaces": [SPACE, OTHER]}}
    told = await peer.ask("client_update", wanted)
    assert (told["replay_from"], told["replay_to"]) == ({OTHER: 0}, {OTHER: 1})
    assert (await peer.receive())["space"] == OTHER


@shows("consume.replaced")
async def test_a_consumer_takes_its_own_place(rig: HubRig) -> None:
    first = await consumer(rig)
    second = await consumer(rig)
    (last,) = await first.ended()
    assert last["payload"]["reason"] == "replaced"
    await note(await rig.join(), 1)
    assert numbers(await hear(second, 1)) == [1]


@shows("consume.only")
async def test_only_a_consumer_acknowledges(rig: HubRig) -> None:
    peer = await rig.join(types=("*",), spaces=(SPACE,))
    problem = await peer.refused("buffer_acknowledge", {"space": SPACE, "seq": 1})
    assert problem["code"] == "message_invalid"


# Replaying


@shows("replay.seq")
async def test_a_replay_goes_on_live_without_a_gap(rig: HubRig) -> None:
    speaker, hearer = await rig.join(), await rig.join(types=("buffer_*",), spaces=(SPACE,))
    await hearer.ask("client_update", {"subscriptions": {"types": ["buffer_*"], "spaces": []}})
    ids = [await speaker.send(NOTE, {"number": n}, space=SPACE) for n in range(3000)]
    await speaker.answer(ids[1500])
    wanted = {"types": ["buffer_*"], "spaces": [SPACE]}
    await hearer.ask("client_update", {"subscriptions": wanted})
    await hearer.ask("buffer_replay", {"space": SPACE, "seq": 10})
    await speaker.answer(ids[-1])
    seen: list[int] = []
    while 11 not in seen or seen[-1] != 3000:
        found = await hearer.receive()
        seen.append(found["seq"])
    replayed = seen[seen.index(11) :]
    assert replayed == list(range(11, 3001))
    await hearer.nothing_more()


@shows("replay.seq")
async def test_who_does_not_wait_for_its_welcome_gets_one_replay(rig: HubRig) -> None:
    speaker = await rig.join()
    for number in range(3):
        await note(speaker, number)
    hearer = await rig.connect()
    wanted = {"kind": "app", "subscriptions": {"types": ["*"], "spaces": [SPACE]}}
    await hearer.send("client_register", wanted)
    await hearer.ask("buffer_replay", {"space": SPACE, "seq": 0})
    heard = [await hearer.receive() for _ in range(4)]
    assert [one.get("seq") for one in heard] == [None, 1, 2, 3]
    await hearer.nothing_more()


@shows("replay.since", "replay.all")
async def test_a_replay_from_a_time(rig: HubRig) -> None:
    speaker = await rig.join()
    await note(speaker, 1)
    await note(speaker, 2, OTHER)
    middle = time.time()
    while time.time() == middle:
        await asyncio.sleep(0)
    await note(speaker, 3)
    await note(speaker, 4, OTHER)
    hearer = await rig.join(types=("*",), spaces=("*",))
    told = await hearer.ask("buffer_replay", {"since": middle + 1e-9})
    assert told["replay_to"] == {SPACE: 2, OTHER: 2}
    assert sorted(numbers(await hear(hearer, 2))) == [3, 4]
    await hearer.nothing_more()
    await hearer.ask("buffer_replay", {"space": SPACE})
    assert numbers(await hear(hearer, 2)) == [1, 3]
    problem = await hearer.refused("buffer_replay", {"seq": 3})
    assert problem["code"] == "message_invalid"


# Requests


@shows("request.answered", "request.kinds")
async def test_a_request_gets_one_answer(rig: HubRig) -> None:
    agent, app = await rig.agent(), await rig.join()
    number = await app.send("agent_command", {"command": "go"}, space=SPACE, deadline_ms=20_000)
    asked = await agent.receive()
    assert (asked["type"], asked["payload"]["command"]) == ("agent_command", "go")
    assert (asked["deadline_ms"], asked["sender"]["kind"]) == (20_000, "app")
    reply = {"status": "success", "data": {"done": True}}
    assert await agent.ask("response", reply, reply_to=asked["id"]) == {"dropped": False}
    answer = await app.answer(number)
    assert (answer["payload"], answer["sender"]["kind"]) == (reply, "agent")
    again = await agent.ask("response", reply, reply_to=asked["id"])
    assert again == {"dropped": True}
    await app.nothing_more()


@shows("request.deadline", "request.late")
async def test_a_request_that_nobody_answers(rig: HubRig) -> None:
    agent, app = await rig.agent(), await rig.join()
    problem = await app.refused("agent_interrupt", {}, space=SPACE, deadline_ms=1)
    assert problem["code"] == "timeout"
    asked = await agent.receive()
    late = await agent.ask("response", {"status": "success"}, reply_to=asked["id"])
    assert late == {"dropped": True}
    await app.nothing_more()
    assert (await app.ask("system_status"))["late_answers"] == 1
    # Not the one that was asked.
    number = await app.send("agent_interrupt", {}, space=SPACE)
    asked = await agent.receive()
    stranger = await rig.join()
    foreign = await stranger.ask("response", {"status": "success"}, reply_to=asked["id"])
    assert foreign == {"dropped": True}
    await agent.ask("response", {"status": "pending"}, reply_to=asked["id"])
    assert (await app.answer(number))["payload"] == {"status": "pending"}


@shows("request.nobody")
async def test_nobody_is_there_to_answer(rig: HubRig) -> None:
    app = await rig.join()
    for type in ("agent_interrupt", "ide_get_selection"):
        problem = await app.refused(type, {}, space=SPACE)
        assert problem["code"] == "no_receiver"
    wrong: list[dict[str, Any]] = [{"deadline_ms": -1}, {"deadline_ms": 10**9}, {"id": ""}]
    for bad in wrong:
        await rig.agent()
        number = await app.send("agent_interrupt", {}, space=SPACE, **bad)
        found = await app.receive() if not number else await app.answer(number)
        assert found["payload"]["code"] == "message_invalid"


@shows("request.capability")
async def test_a_script_in_a_space_is_not_asked(rig: HubRig) -> None:
    agent, app = await rig.agent(), await rig.join()
    await rig.join("agent", "inside")
    number = await app.send("agent_interrupt", {}, space=SPACE)
    asked = await agent.receive()
    await agent.ask("response", {"status": "success"}, reply_to=asked["id"])
    assert (await app.answer(number))["payload"]["status"] == "success"


@shows("request.gone")
async def test_whoever_was_asked_goes(rig: HubRig) -> None:
    agent, app = await rig.agent(), await rig.join()
    number = await app.send("agent_interrupt", {}, space=SPACE)
    await agent.receive()
    await agent.close()
    assert (await app.answer(number))["payload"]["code"] == "no_receiver"


@shows("request.capability")
async def test_a_request_goes_to_who_can_answer_it(rig: HubRig) -> None:
    able = await rig.join("ide", spaces=(SPACE,), capabilities=["ide_operation"])
    unable = await rig.join("ide", spaces=(SPACE,), capabilities=["ide_get_selection"])
    elsewhere = await rig.join("ide", spaces=(OTHER,))
    agent = await rig.agent()
    number = await agent.send("ide_operation", {"operation": "open"}, space=SPACE)
    asked = await able.receive()
    await able.ask("response", {"status": "success", "data": 1}, reply_to=asked["id"])
    assert (await agent.answer(number))["payload"]["data"] == 1
    named = await rig.join("app", spaces=(SPACE,), name="mine")
    told = await agent.ask("client_list", {"space": SPACE})
    (client_id,) = [one["client_id"] for one in told["clients"] if one["name"] == "mine"]
    await agent.send("custom_hello", {}, space=SPACE, to=client_id)
    assert (await named.receive())["type"] == "custom_hello"
    for peer in (unable, elsewhere):
        await peer.nothing_more()


# Heartbeats, leaving


@shows("heartbeat.ours")
async def test_the_hub_is_heard_from(tmp_path: Path, transport: str) -> None:
    async with open_rig(tmp_path, transport, options(heartbeat_s=0.1)) as rig:
        peer = await rig.join()
        async with asyncio.timeout(30):
            while json.loads(await peer.wire.receive())["type"] != "heartbeat":
                pass


@shows("heartbeat.theirs", "leave.told")
async def test_a_silent_client_is_cut_off(tmp_path: Path, transport: str) -> None:
    async with open_rig(tmp_path, transport, options(heartbeat_s=0.3)) as rig:
        watcher = await rig.join(types=("client_disconnected",), spaces=("*",))
        silent = await rig.agent()
        told: list[dict[str, Any]] = []

        async def watch() -> None:
            while not told:
                await watcher.send("heartbeat", id="")
                found = json.loads(await watcher.wire.receive())
                if found["type"] == "client_disconnected":
                    told.append(found)

        async with asyncio.timeout(30):
            await watch()
        (last,) = [one for one in await silent.ended() if one["type"] == "client_disconnected"]
        assert last["payload"]["reason"] == "connection_lost"
        assert told[0]["payload"]["kind"] == "agent" and told[0]["space"] == SPACE
        assert told[0]["payload"]["reason"] == "connection_lost"


@shows("leave.said")
async def test_a_client_says_that_it_leaves(rig: HubRig) -> None:
    watcher = await rig.join(types=("client_disconnected",), spaces=("*",))
    agent = await rig.agent()
    await agent.ask("client_disconnect", {"reason": "done"})
    assert (await agent.ended())[-1]["payload"]["reason"] == "client_shutdown"
    assert (await watcher.receive())["payload"]["reason"] == "client_shutdown"


@shows("leave.daemon")
async def test_the_hub_ends(rig: HubRig) -> None:
    peer = await rig.join()
    await rig.hub.close()
    (last,) = await peer.ended()
    assert last["payload"]["reason"] == "daemon_shutdown"


# Limits


@shows("limit.rate")
async def test_who_is_too_fast_is_told(tmp_path: Path, transport: str) -> None:
    async with open_rig(tmp_path, transport, options(rate=Rate(1.0, 10))) as rig:
        peer = await rig.join()
        ids = [await peer.send(NOTE, {"number": n}, space=SPACE) for n in range(20)]
        answers = [await peer.answer(one) for one in ids]
        good = [one for one in answers if one["type"] == "response"]
        bad = [one["payload"] for one in answers if one["type"] == "error"]
        assert len(good) == 9 and {one["code"] for one in bad} == {"rate_limited"}
        assert all(0 < one["retry_after_ms"] <= 1001 for one in bad)


@shows("limit.flood")
async def test_a_flood_is_cut_off(tmp_path: Path, transport: str) -> None:
    async with open_rig(tmp_path, transport, options(rate=Rate(1.0, 10))) as rig:
        flood, other = await rig.join(), await rig.join()

        async def pour() -> None:
            try:
                while True:
                    await flood.send("custom_x", {}, space=SPACE)
            except Exception:
                return

        pouring = asyncio.create_task(pour())
        assert (await flood.ended())[-1]["payload"]["reason"] == "flood"
        pouring.cancel()
        await asyncio.gather(pouring, return_exceptions=True)
        await other.ask("system_status")


@shows("limit.size")
async def test_what_is_too_large_is_refused(rig: HubRig) -> None:
    peer, other = await rig.join(), await rig.join()
    await note(peer, 1)
    large = json.dumps({"type": NOTE, "payload": {"a": "x" * (10 << 20)}}).encode()
    sending = asyncio.create_task(peer.wire.send(large))
    told = await peer.ended()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    if rig.transport == "unix":
        assert [one["payload"].get("code") for one in told] == ["too_large", None]
    await note(other, 2)


@shows("limit.slow")
async def test_who_does_not_read_is_cut_off(tmp_path: Path, transport: str) -> None:
    async with open_rig(tmp_path, transport, options(most_waiting=1 << 20)) as rig:
        slow = await rig.join(types=("*",), spaces=(SPACE,))
        good, speaker = await rig.join(types=("*",), spaces=(SPACE,)), await rig.join()
        payload = {"text": "x" * 60_000}
        async with asyncio.timeout(60):
            while (await speaker.ask("system_status"))["cut_off"].get("slow_reader") is None:
                await speaker.ask("buffer_space_message", payload, space=SPACE)
                assert (await good.receive())["payload"] == payload
        with pytest.raises(Ended):
            while True:
                await slow.wire.receive()


@shows("garbage.json")
async def test_garbage_is_refused(rig: HubRig) -> None:
    peer = await rig.join()
    garbage = (
        b"{",
        b"[]",
        b"1",
        b"null",
        b'"x"',
        b"{}",
        b'{"type":1}',
        b'{"type":""}',
        b"\xff\xfe",
    )
    if rig.transport == "websocket":
        # Line breaks between its parts do no harm.
        await peer.wire.send(
            b'{"type":"buffer_custom_x","id":"n",\n"space":"%s",\n"payload":{\n}}' % SPACE.encode()
        )
        assert (await peer.answer("n"))["payload"]["data"]["seq"] == 1
    deep = b'{"type":"custom_x","payload":' + b"[" * 5000 + b"]" * 5000 + b"}"
    many = b'{"type":"custom_x","odd":1}'
    for line in (*garbage, deep, many):
        if rig.transport == "websocket" and b"\xff" in line:
            continue
        await peer.wire.send(line)
        problem = await peer.receive()
        assert (problem["type"], problem["payload"]["code"]) == ("error", "message_invalid"), line
    await note(peer, 1)


# Looking


@shows("look.clients", "look.status")
async def test_one_sees_who_is_there(rig: HubRig) -> None:
    app, agent = await rig.join(name="watcher"), await rig.agent(name="worker")
    found = (await app.ask("client_list"))["clients"]
    assert [(one["kind"], one["name"]) for one in found] == [
        ("app", "watcher"),
        ("agent", "worker"),
    ]
    here = (await app.ask("client_list", {"space": SPACE}))["clients"]
    assert [one["name"] for one in here] == ["worker"]
    status = await agent.ask("system_status")
    assert (status["clients"], status["requests"], status["sync"]) == (2, 0, "process")
