"""The log of events: dense, in order, bounded, and heard of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from carrel.domain.errors import MessageInvalid, NameTaken
from carrel.domain.events import Event, EventQuery, EventType, NewEvent
from carrel.domain.runs import RunState
from carrel.store import SqliteStore, open_store
from carrel.store.writes import PRUNE_EVERY
from tests.store import records
from tests.store.records import space_id


async def test_events_get_their_places_in_order(store: SqliteStore) -> None:
    first = await store.write(records.event(a=1), records.space(1), records.event(a=2))
    second = await store.write(NewEvent(EventType.RECONCILED, data={"actions": []}, at=3.0))
    assert [event.seq for event in (*first, *second)] == [1, 2, 3]
    assert second[0] == Event(3, EventType.RECONCILED, "", {"actions": []}, 3.0)
    assert await store.events(EventQuery()) == [*first, *second]
    assert await store.event_span() == (1, 3)
    assert await store.last_seq() == 3


async def test_an_empty_log_has_no_end(store: SqliteStore) -> None:
    assert await store.event_span() == (0, 0)
    assert await store.last_seq() == 0
    assert await store.events(EventQuery()) == []


async def test_a_failed_write_leaves_no_gap(store: SqliteStore) -> None:
    await store.write(records.space(1, name="taken"), records.event())
    for _ in range(3):
        with pytest.raises(NameTaken):
            await store.write(records.event(), records.space(2, name="taken"))
    results = await asyncio.gather(
        *(
            store.write(records.event(n=n), records.space(2, name="taken" if n % 2 else "free"))
            for n in range(20)
        ),
        return_exceptions=True,
    )
    assert sum(isinstance(result, NameTaken) for result in results) == 10
    events = await store.events(EventQuery())
    assert [event.seq for event in events] == list(range(1, 12))
    assert [event.data.get("n") for event in events[1:]] == list(range(0, 20, 2))


async def test_events_are_filtered(store: SqliteStore) -> None:
    for number in range(1, 10):
        await store.write(
            NewEvent(EventType.RUN_STARTED, space_id(number % 3), {"n": number}, 1.0),
            NewEvent(EventType.RUN_ENDED, space_id(number % 3), {"n": number}, 1.0),
        )

    async def ask(query: EventQuery) -> list[int]:
        return [event.seq for event in await store.events(query)]

    ended = frozenset({"run.ended"})
    assert await ask(EventQuery(after=15)) == [16, 17, 18]
    assert await ask(EventQuery(limit=2)) == [1, 2]
    assert await ask(EventQuery(space_ids=frozenset({space_id(0)}))) == [5, 6, 11, 12, 17, 18]
    both = frozenset({space_id(0), space_id(1), space_id(9)})
    assert await ask(EventQuery(after=10, space_ids=both)) == [11, 12, 13, 14, 17, 18]
    assert await ask(EventQuery(types=ended, limit=3)) == [2, 4, 6]
    assert await ask(EventQuery(space_ids=both, types=ended, after=12)) == [14, 18]
    assert await ask(EventQuery(space_ids=frozenset())) == []
    assert await ask(EventQuery(types=frozenset())) == []
    assert await ask(EventQuery(types=frozenset({"run.%"}))) == []
    with pytest.raises(MessageInvalid):
        await ask(EventQuery(limit=-1))


async def test_what_is_heard_is_what_is_read(store: SqliteStore) -> None:
    """What JSON has no words of its own for is heard as it is read later."""
    heard: list[Event] = []
    store.on_events(heard.extend)
    argv = ("a", "b")
    mapping = {"argv": argv, "state": RunState.ENDED, "none": None, "f": 0.1}
    (event,) = await store.write(NewEvent(EventType.RUN_STARTED, space_id(1), mapping))
    assert event.data == {"argv": ["a", "b"], "state": "ended", "none": None, "f": 0.1}
    assert heard == [event] == await store.events(EventQuery())


async def test_an_event_without_a_time_gets_the_present_one(store: SqliteStore) -> None:
    before = time.time()
    (event,) = await store.write(NewEvent(EventType.RECONCILED))
    assert before <= event.at <= time.time()


async def test_listeners_hear_all_in_order_before_the_writers_go_on(store: SqliteStore) -> None:
    heard: list[int] = []
    store.on_events(lambda events: heard.extend(event.seq for event in events))

    async def write(number: int) -> None:
        events = await store.write(records.event(n=number), records.event(n=number))
        assert {event.seq for event in events} <= set(heard)

    await asyncio.gather(*(write(number) for number in range(300)))
    assert heard == list(range(1, 601))


async def test_a_listener_that_fails_hurts_nobody(store: SqliteStore) -> None:
    heard: list[int] = []
    complaints: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: complaints.append(context["exception"]))
    problem = RuntimeError("deaf")

    def fail(_events: Sequence[Event]) -> None:
        raise problem

    store.on_events(fail)
    store.on_events(lambda events: heard.extend(event.seq for event in events))
    await store.write(records.event())
    await store.write(records.space(1))
    assert heard == [1]
    assert complaints == [problem]


async def test_the_oldest_events_go(path: Path) -> None:
    async with open_store(path, keep_events=1000) as store:
        for number in range(400):
            await store.write(*(records.event(n=number) for _ in range(10)))
        first, last = await store.event_span()
        assert last == 4000
        assert 2000 < first <= 3001
        assert first > 3001 - PRUNE_EVERY - 10
        # Whoever asks for older ones can tell.
        (oldest,) = await store.events(EventQuery(after=5, limit=1))
        assert oldest.seq == first
    async with open_store(path, keep_events=1) as store:
        for _ in range(5):
            (event,) = await store.write(records.event())
        assert event.seq == 4005
        first, last = await store.event_span()
        assert 4000 < first <= last == 4005
    async with open_store(path, keep_events=0) as store:
        (event,) = await store.write(records.event())
        assert event.seq == 4006
