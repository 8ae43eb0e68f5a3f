"""Consumers that miss nothing, and replays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from carrel.domain.hub import Replay
from carrel.hub import log
from carrel.interfaces.http.hub_socket import FrameConnection
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


@shows("consume.owner")
async def test_the_same_name_of_another_is_another_consumer(rig: HubRig) -> None:
    """Neither who is in a space nor who has a token takes it over, or acknowledges for it."""
    await note(await rig.join(), 1)
    mine = await consumer(rig, SPACE)
    assert numbers(await hear(mine, 1)) == [1]
    # Tokens come over HTTP only.
    others = [("inside", "agent"), ("blue", "app")][: 1 if rig.transport == "unix" else 2]
    for who, kind in others:
        taken = ("c", "local\x1fc", "\x1fc")
        other = await rig.join(kind, who, types=("buffer_*",), spaces=(SPACE,), consumer=taken[0])
        assert numbers(await hear(other, 1)) == [1]
        listed = (await other.ask("client_list"))["clients"]
        assert "c" in [one["consumer"] for one in listed]
        await other.ask("buffer_acknowledge", {"space": SPACE, "seq": 1})
        for name in taken[1:]:
            peer = await rig.connect(who)
            wanted = {"kind": kind, "consumer": name}
            assert (await peer.refused("client_register", wanted))["code"] == "message_invalid"
        again = await rig.join(kind, who, types=("buffer_*",), spaces=(SPACE,), consumer="c")
        await again.nothing_more()
    await mine.nothing_more()
    mine = await consumer(rig, SPACE)
    assert numbers(await hear(mine, 1)) == [1], "its own place is where it was"


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


@shows("replay.seq", "consume.new")
async def test_who_comes_while_much_is_told_misses_nothing(
    rig: HubRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "TELL_S", 0.0)
    speaker = await rig.join()
    hearers = [await rig.join(types=("buffer_*",), spaces=(SPACE,)) for _ in range(10)]
    said = 0
    for turn in range(5):
        for _ in range(3):
            kept = range(said, said + 20)
            messages = [{"type": f"{NOTE}_{n}", "payload": {"number": n}} for n in kept]
            await speaker.send("buffer_publish", {"messages": messages}, space=SPACE)
            said += 20
        await hearers[turn].ask("buffer_replay", {"space": SPACE, "seq": said - 60})
        late = await consumer(rig, SPACE, name=f"c{turn}")
        assert numbers(await hear(late, said)) == list(range(said))
        await late.nothing_more()
        await late.close()
    for turn, peer in enumerate(hearers):
        heard: list[int] = []
        while not heard or heard[-1] != said - 1:
            heard += numbers([await peer.receive()])
        again = heard[heard.index(60 * turn) :] if turn < 5 else heard
        first = again.index(60 * turn, 1) if again.count(60 * turn) > 1 else 0
        assert again[first:] == list(range(60 * turn if turn < 5 else 0, said))
        await peer.nothing_more()


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


async def test_nothing_is_sent_to_who_leaves_during_a_replay(
    rig: HubRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would count for ever among those who have something to write, who share turns."""
    await note(await rig.join(), 1)
    replay = rig.hub.log.replay
    asked, gone, read = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(query: Replay) -> tuple[Sequence[bytes], int]:
        asked.set()
        await gone.wait()
        found = await replay(query)
        read.set()
        return found

    monkeypatch.setattr(rig.hub.log, "replay", slow)
    rig.hub.on_gone.append(lambda _client: gone.set())
    peer = await rig.join(types=("*",), spaces=(SPACE,))
    await peer.send("buffer_replay", {"space": SPACE, "seq": 0})
    async with asyncio.timeout(WAIT_S):
        await asked.wait()
        await peer.close()
        await read.wait()
    assert FrameConnection.busy == 0


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
