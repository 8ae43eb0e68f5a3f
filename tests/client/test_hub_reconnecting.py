"""What becomes of a client when its connection breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Unpack

import pytest

from carrel import AsyncHub, HubMessage, errors
from carrel.client.hub_protocol import HubOptions
from carrel.client.problems import ConnectionLost
from tests.client.hub_serving import DESK, OTHER, STEP_S, FakeTime, Serving, serving

NOTE = "buffer_custom_note"


@pytest.fixture
async def here() -> AsyncIterator[Serving]:
    async with serving() as found:
        yield found


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@asynccontextmanager
async def writing(here: Serving) -> AsyncIterator[AsyncHub]:
    async with AsyncHub(socket=here.socket, types=()) as hub:
        yield hub


def client(here: Serving, time: FakeTime, **options: Unpack[HubOptions]) -> AsyncHub:
    wanted: HubOptions = {"types": [NOTE], **options}
    return AsyncHub(socket=here.socket, timing=time.timing, **wanted)


async def take(hub: AsyncHub, count: int) -> list[HubMessage]:
    async with asyncio.timeout(STEP_S):
        return [await anext(hub) for _ in range(count)]


async def restart(here: Serving, hub: AsyncHub) -> None:
    await here.close()
    await here.until(lambda: not hub.connected)
    await here.open()


async def come_back(here: Serving, time: FakeTime, hub: AsyncHub, seconds: float = 1.0) -> None:
    """When it is its time, and the hub is there."""
    await here.until(lambda: time.now + seconds in time.asleep)
    time.pass_by(seconds)
    await here.until(lambda: hub.connected)


async def test_a_passing_client_goes_on_after_what_it_heard(here: Serving, time: FakeTime) -> None:
    async with client(here, time) as hub:
        async with writing(here) as writer:
            await writer.publish_many([(NOTE, {"n": n}) for n in range(3)], space=DESK)
        assert [message.seq for message in await take(hub, 3)] == [1, 2, 3]
        await restart(here, hub)
        async with writing(here) as writer:
            await writer.publish_many([(NOTE, {"n": n}) for n in range(3, 6)], space=DESK)
            await come_back(here, time, hub)
            await writer.publish(NOTE, {"n": 6}, space=DESK)
        assert [message.payload["n"] for message in await take(hub, 4)] == [3, 4, 5, 6]


async def test_what_is_live_before_the_replay_does_not_overtake_it(
    here: Serving, time: FakeTime
) -> None:
    """New messages come at once on a new connection; the older ones have to be first."""
    async with client(here, time) as hub, writing(here) as writer:
        await writer.publish(NOTE, {"n": 0}, space=DESK)
        await take(hub, 1)
        for again in range(20):
            here.hub.cut_off(here.hub._clients._by_id[hub.client_id], "connection_lost")
            await here.until(lambda: not hub.connected)
            first = 10 * again + 1
            for n in range(first, first + 5):
                await writer.publish(NOTE, {"n": n}, space=DESK)
            later = [
                asyncio.create_task(writer.publish(NOTE, {"n": n}, space=DESK))
                for n in range(first + 5, first + 10)
            ]
            await come_back(here, time, hub)
            await asyncio.gather(*later)
            found = [message.payload["n"] for message in await take(hub, 10)]
            assert found == list(range(first, first + 10))


async def test_a_consumer_goes_on_without_repeats(here: Serving, time: FakeTime) -> None:
    """The hub repeats what was not acknowledged; what this client has heard it drops."""
    async with client(here, time, consumer="me") as hub:
        async with writing(here) as writer:
            await writer.publish_many([(NOTE, {"n": n}) for n in range(4)], space=DESK)
        heard = await take(hub, 4)
        await hub.acknowledge(heard[0])
        await restart(here, hub)
        async with writing(here) as writer:
            await writer.publish(NOTE, {"n": 4}, space=DESK)
        await come_back(here, time, hub)
        assert [message.seq for message in await take(hub, 1)] == [5]


async def test_an_acknowledgement_that_was_lost_is_made_again(
    here: Serving, time: FakeTime
) -> None:
    async with client(here, time, consumer="me", auto_ack=True) as hub:
        async with writing(here) as writer:
            await writer.publish_many([(NOTE, {"n": n}) for n in range(3)], space=DESK)
        await take(hub, 3)
        await here.close()
        await here.until(lambda: not hub.connected)
        here.log._cursors.clear()
        await here.open()
        await come_back(here, time, hub)
        await here.until(lambda: here.log._cursors.get("me") == {DESK: 2})


async def test_what_was_not_acknowledged_is_published_again(here: Serving, time: FakeTime) -> None:
    async with client(here, time, types=()) as hub:
        here.log.hold()
        publishing = [
            asyncio.create_task(hub.publish(NOTE, {"n": n}, space=DESK)) for n in range(3)
        ]
        await here.until(lambda: here.log.waiting == 3)
        here.hub.cut_off(here.hub._clients._by_id[hub.client_id], "connection_lost")
        await here.until(lambda: not hub.connected)
        publishing.append(asyncio.create_task(hub.publish(NOTE, {"n": 3}, space=DESK)))
        here.log.release()
        await come_back(here, time, hub)
        found = [one.seq for one in await asyncio.gather(*publishing)]
    messages = here.log._spaces[DESK].messages
    assert found == [4, 5, 6, 7] and len(messages) == 7
    bodies = [one.body for one in messages]
    ids = [body.split(b'"id":"')[1].split(b'"')[0] for body in bodies]
    assert ids[:3] == ids[3:6] and len(set(ids)) == 4


async def test_a_request_is_not_repeated(here: Serving, time: FakeTime) -> None:
    async with (
        client(here, time) as hub,
        AsyncHub(socket=here.socket, kind="ide", types=()) as ide,
    ):
        asking = asyncio.create_task(hub.request("ide_get_selection", space=DESK))
        await take(ide, 1)
        here.hub.cut_off(here.hub._clients._by_id[hub.client_id], "connection_lost")
        with pytest.raises(errors.DaemonUnavailable) as caught:
            await asking
        assert isinstance(caught.value, ConnectionLost) and caught.value.code == "connection_lost"
        # What was not sent yet waits for the next connection.
        later = asyncio.create_task(hub.request("custom_q", {}, space=DESK, to="ide"))
        await come_back(here, time, hub)
        (message,) = await take(ide, 1)
        await ide.respond(message, 7)
        assert await later == 7


async def test_it_waits_longer_and_longer(here: Serving, time: FakeTime) -> None:
    async with client(here, time) as hub:
        await here.close()
        for seconds in (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
            at = time.now + seconds
            await here.until(lambda at=at: at in time.asleep)  # type: ignore[misc]
            assert not hub.connected
            time.pass_by(seconds)
        await here.until(lambda: time.now + 30 in time.asleep)
        await here.open()
        await come_back(here, time, hub, 30.0)
        here.cut()
        await come_back(here, time, hub, 1.0)
        assert (await hub.publish(NOTE, {}, space=DESK)).seq == 1


def test_the_pause_varies() -> None:
    from carrel.client.aio_hub import Timing

    found = {Timing().jitter() for _ in range(10)}
    assert len(found) > 1 and all(0 <= one <= 1 for one in found)


async def test_silence_is_a_lost_connection(here: Serving, time: FakeTime) -> None:
    async with client(here, time) as hub:
        server = here.hub._clients._by_id[hub.client_id]
        first = hub.client_id
        for _ in range(11):
            await here.until(lambda: time.now + 3.75 in time.asleep)
            time.pass_by(3.75)
        await here.until(lambda: time.now + 3.75 in time.asleep)
        assert hub.connected and not server.closed
        time.pass_by(3.75)
        await here.until(lambda: not hub.connected)
        await come_back(here, time, hub)
        assert hub.client_id != first


async def test_a_word_from_the_hub_is_enough(here: Serving, time: FakeTime) -> None:
    async with client(here, time) as hub:
        server = here.hub._clients._by_id[hub.client_id]
        for _ in range(30):
            await here.until(lambda: time.now + 3.75 in time.asleep)
            time.pass_by(3.75)
            here.hub._send(server, "heartbeat", {})
            await here.until(lambda: hub._quiet_s == 0.0)
        assert hub.connected and hub.client_id == server.client_id


async def test_heartbeats_are_sent(here: Serving, time: FakeTime) -> None:
    async with client(here, time) as hub:
        server = here.hub._clients._by_id[hub.client_id]
        for _ in range(2):
            before = server.heard_at
            await here.until(lambda: time.now + 3.75 in time.asleep)
            time.pass_by(3.75)
            await here.until(lambda: time.now + 3.75 in time.asleep)
            assert server.heard_at == before
            time.pass_by(3.75)
            await here.until(lambda before=before: server.heard_at > before)  # type: ignore[misc]


async def test_another_with_the_same_name_takes_its_place(here: Serving, time: FakeTime) -> None:
    async with client(here, time, consumer="me") as first, client(here, time, consumer="me") as hub:
        with pytest.raises(errors.StateConflict, match="'me'"):
            await take(first, 1)
        with pytest.raises(errors.StateConflict):
            await first.publish(NOTE, {}, space=DESK)
        assert (await hub.publish(NOTE, {}, space=DESK)).seq == 1


async def test_a_refusal_at_first_is_raised(here: Serving, time: FakeTime) -> None:
    cases: list[tuple[HubOptions, type[Exception]]] = [
        ({"spaces": ["sp_nothing"]}, errors.SpaceNotFound),
        ({"kind": "agent"}, errors.Forbidden),
        ({"kind": "nothing"}, errors.MessageInvalid),
    ]
    for options, kind in cases:
        with pytest.raises(kind):
            async with client(here, time, **options):
                pass
    assert not time.slept


async def test_a_refusal_later_ends_it(here: Serving, time: FakeTime) -> None:
    async with client(here, time, spaces=[DESK]) as hub:
        waiting = asyncio.create_task(take(hub, 1))
        await here.close()
        await here.until(lambda: not hub.connected)
        publishing = asyncio.create_task(hub.publish(NOTE, {}, space=DESK))
        here.spaces.known.discard(DESK)
        await here.open()
        await here.until(lambda: time.now + 1.0 in time.asleep)
        time.pass_by(1.0)
        for task in (waiting, publishing):
            with pytest.raises(errors.SpaceNotFound):
                await task
        with pytest.raises(errors.SpaceNotFound):
            await hub.status()


async def test_a_space_that_went_meanwhile_is_forgotten(here: Serving, time: FakeTime) -> None:
    async with client(here, time) as hub:
        async with writing(here) as writer:
            await writer.publish(NOTE, {}, space=DESK)
        await take(hub, 1)
        here.spaces.known.discard(DESK)
        await restart(here, hub)
        await come_back(here, time, hub)
        async with writing(here) as writer:
            await writer.publish(NOTE, {}, space=OTHER)
        assert [message.space for message in await take(hub, 1)] == [OTHER]
        assert not hub._session.held


async def test_nobody_there(tmp_path: Path, time: FakeTime) -> None:
    with pytest.raises(errors.DaemonUnavailable):
        async with AsyncHub(socket=tmp_path / "hub.sock", timing=time.timing):
            pass
    with pytest.raises(errors.DaemonUnavailable, match="carrel up"):
        async with AsyncHub(data=tmp_path, timing=time.timing, autostart=False):
            pass


async def test_a_hub_without_room(here: Serving, time: FakeTime) -> None:
    from dataclasses import replace

    here.options = replace(here.options, most_clients=1)
    await here.close()
    await here.open()
    async with client(here, time) as hub:
        with pytest.raises(errors.TooManyClients):
            async with client(here, time):
                pass
        assert (await hub.status()).clients == 1


async def test_one_that_does_not_speak_the_protocol(tmp_path: Path, time: FakeTime) -> None:
    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    path = tmp_path / "socket"
    server = await asyncio.start_unix_server(serve, path)
    async with server:
        with pytest.raises(errors.DaemonUnavailable, match="cannot be read"):
            async with AsyncHub(socket=path, timing=time.timing):
                pass


async def test_closing_while_disconnected(here: Serving, time: FakeTime) -> None:
    async with client(here, time) as hub:
        await here.close()
        await here.until(lambda: time.now + 1.0 in time.asleep)
        publishing = asyncio.create_task(hub.publish(NOTE, {}, space=DESK))
        await asyncio.sleep(0)
    with pytest.raises(errors.DaemonUnavailable, match="closed"):
        await publishing
