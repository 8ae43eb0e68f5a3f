"""Speaking: what is kept, what is live, what is refused."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from carrel.domain.hub import Message
from carrel.hub.client import MOST_UNSETTLED
from carrel.hub.rates import Rate
from carrel.interfaces.hub import sockets
from tests.hub.behaviours import shows
from tests.hub.rig import (
    NOTE,
    OTHER,
    SPACE,
    WAIT_S,
    Ended,
    HubRig,
    Peer,
    note,
    open_rig,
    options,
)

PROGRESS = "buffer_taskspace_progress"


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


@shows("publish.many")
async def test_many_messages_are_kept_one_after_the_other(rig: HubRig) -> None:
    agent, other = await rig.agent(), await rig.join()
    hearer = await rig.join(types=("buffer_*",), spaces=(SPACE,))
    messages: list[dict[str, Any]] = [
        {"type": NOTE, "payload": {"number": 1}},
        {"type": PROGRESS, "payload": {"message": "half way"}, "id": "mine"},
        {"type": NOTE},
    ]
    await note(other, 0)
    told = await agent.ask("buffer_publish", {"messages": messages}, space=SPACE, id="b1")
    assert told == {"first": 2, "last": 4, "sync": "process"}
    assert await note(other, 5) == 5
    heard = [await hearer.receive() for _ in range(5)]
    assert [(one["seq"], one["id"], one["type"]) for one in heard[1:4]] == [
        (2, "b1.0", NOTE),
        (3, "mine", PROGRESS),
        (4, "b1.2", NOTE),
    ]
    assert heard[1]["payload"] == {"number": 1} and heard[3]["payload"] == {}
    assert {one["sender"]["kind"] for one in heard[1:4]} == {"agent"}


@shows("publish.many")
@pytest.mark.parametrize(
    ("bad", "code", "named"),
    [
        ({"type": PROGRESS, "payload": {"message": ""}}, "message_invalid", "Message 1"),
        ({"type": "custom_live", "payload": {}}, "message_invalid", "Message 1"),
        ({"type": "agent_command", "payload": {"command": "c"}}, "message_invalid", "Message 1"),
        ({"type": "buffer_odd", "payload": {}}, "message_invalid", "Message 1"),
        ({"type": "buffer_publish", "payload": {"messages": []}}, "message_invalid", "Message 1"),
        ({"type": NOTE, "payload": 5}, "message_invalid", "Message 1"),
        ({"type": NOTE, "payload": {}, "space": OTHER}, "message_invalid", "space"),
        ({"type": NOTE, "payload": {}, "sender": {}}, "message_invalid", "sender"),
        ({"type": NOTE, "payload": {}, "id": "x" * 129}, "message_invalid", ""),
        ({"type": "buffer_user_answer", "payload": {"answer": "a"}}, "forbidden", ""),
    ],
)
async def test_of_many_messages_all_are_kept_or_none(
    rig: HubRig, bad: dict[str, Any], code: str, named: str
) -> None:
    agent = await rig.agent()
    messages = [{"type": NOTE, "payload": {}}, bad]
    problem = await agent.refused("buffer_publish", {"messages": messages}, space=SPACE)
    assert problem["code"] == code and named in problem["message"]
    assert rig.hub.keeper.last(SPACE) == 0


@shows("publish.many")
async def test_many_are_not_too_many_and_of_one_space_that_may_be_seen(rig: HubRig) -> None:
    agent = await rig.agent()
    one = {"type": NOTE, "payload": {}}
    for count in (0, 1001):
        problem = await agent.refused("buffer_publish", {"messages": [one] * count}, space=SPACE)
        assert problem["code"] == "message_invalid"
    for space in (OTHER, "sp_nothing", ""):
        problem = await agent.refused("buffer_publish", {"messages": [one]}, space=space)
        assert problem["code"] == "space_not_found"
    told = await agent.ask("buffer_publish", {"messages": [one] * 1000}, space=SPACE)
    assert (told["first"], told["last"]) == (1, 1000)


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


@shows("limit.rate")
async def test_many_messages_count_as_many(tmp_path: Path, transport: str) -> None:
    async with open_rig(tmp_path, transport, options(rate=Rate(0.001, 10))) as rig:
        peer = await rig.join()
        some = [{"type": NOTE, "payload": {}}] * 5
        assert (await peer.ask("buffer_publish", {"messages": some}, space=SPACE))["last"] == 5
        problem = await peer.refused("buffer_publish", {"messages": some}, space=SPACE)
        assert problem["code"] == "rate_limited" and rig.hub.keeper.last(SPACE) == 5


async def test_what_waits_for_the_disk_waits_outside(
    rig: HubRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much somebody has to say: memory is everybody's."""
    free, append = asyncio.Event(), rig.hub.log.append

    async def slow(messages: Sequence[Message], *, sync: bool = True) -> Sequence[int]:
        await free.wait()
        return await append(messages, sync=sync)

    monkeypatch.setattr(rig.hub.log, "append", slow)
    peer, other = await rig.join("agent", "inside"), await rig.join()

    async def speak() -> list[str]:
        return [await peer.send(NOTE, {"text": "x" * 900_000}, space=SPACE) for _ in range(12)]

    speaking = asyncio.create_task(speak())
    clients = rig.hub._clients.values()
    async with asyncio.timeout(WAIT_S):
        while not any(one.is_behind for one in clients):
            await other.ask("system_status")
        for _ in range(20):
            await other.ask("system_status")
        assert max(one.unsettled for one in clients) < 3 * MOST_UNSETTLED
        free.set()
        answers = [await peer.answer(number) for number in await speaking]
    assert [one["type"] for one in answers] == ["response"] * 12


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


@shows("limit.slow")
async def test_many_who_do_not_read_are_cut_off_together(tmp_path: Path, transport: str) -> None:
    """Each leaves less unread than it may; together it is more than one account may."""
    bounds = options(most_waiting=8 << 20, most_of_account=2 << 20)
    async with open_rig(tmp_path, transport, bounds) as rig:
        for _ in range(6):
            (await rig.join("agent", "inside", types=("*",), spaces=(SPACE,))).wire.stop_reading()
        good, speaker = await rig.join(types=(NOTE,), spaces=(SPACE,)), await rig.join()
        payload = {"text": "x" * 60_000}
        async with asyncio.timeout(60):
            while (await speaker.ask("system_status"))["cut_off"].get("slow_reader", 0) < 3:
                await speaker.ask(NOTE, payload, space=SPACE)
                assert (await good.receive())["payload"] == payload
                clients = (await speaker.ask("client_list", {"space": SPACE}))["clients"]
                assert sum(one["waiting"] for one in clients) < 3 << 20


async def test_who_stops_reading_is_cut_off_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "STALLED_S", 0.2)
    async with open_rig(tmp_path, "unix", options(heartbeat_s=600.0)) as rig:
        (await rig.join(types=("*",), spaces=(SPACE,))).wire.stop_reading()
        speaker = await rig.join()
        for _ in range(4):
            await speaker.ask(NOTE, {"text": "x" * 500_000}, space=SPACE)
        async with asyncio.timeout(WAIT_S):
            while (await speaker.ask("system_status"))["cut_off"].get("slow_reader") is None:
                await asyncio.sleep(0.01)


async def test_who_was_cut_off_and_does_not_read_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no client any more, so nobody counts what waits for it."""
    monkeypatch.setattr(sockets, "FLUSH_S", 0.2)
    async with open_rig(tmp_path, "unix", options()) as rig:
        silent = await rig.join(types=("*",), spaces=(SPACE,))
        silent.wire.stop_reading()
        speaker = await rig.join()
        before = connections()
        for _ in range(4):
            await speaker.ask(NOTE, {"text": "x" * 500_000}, space=SPACE)
        await silent.send("client_disconnect")
        async with asyncio.timeout(WAIT_S):
            while connections() == before:
                await asyncio.sleep(0.01)


def connections() -> int:
    """That are open at the hub's side."""
    found = psutil.Process().net_connections("unix")
    return sum(str(one.laddr).endswith("/hub.sock") for one in found)


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
