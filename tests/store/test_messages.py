"""The log of messages: in order, without gaps, and as it was given."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.domain.errors import StoreBusy
from carrel.domain.hub import (
    OWNED,
    Dropped,
    HubLog,
    Keep,
    Message,
    Placed,
    PlaceQuery,
    Replay,
    Span,
)
from carrel.store.database import DatabaseSettings, prepare
from carrel.store.message_writes import DROP_MOST, MOST_CONSUMERS
from carrel.store.messages import APPLICATION_ID, MESSAGES, SqliteLog, open_log
from carrel.store.migrations import Schema
from tests.store.messages_records import (
    AT,
    DESK,
    OTHER,
    bodies,
    everything,
    message,
    some,
)

NO_BOUND = Keep(0, 0, 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hub.db"


@pytest.fixture
async def log(path: Path) -> AsyncIterator[SqliteLog]:
    async with open_log(path) as opened:
        yield opened


async def test_an_empty_log(log: SqliteLog) -> None:
    kept: HubLog = log
    assert await kept.spans() == {}
    assert (await kept.first_place(), await kept.last_place()) == (0, 0)
    assert await kept.last_origin() == 0
    assert await kept.replay(Replay(DESK, 0)) == ((), 0)
    assert await kept.replay(Replay(DESK, 7)) == ((), 7)
    assert await kept.read(PlaceQuery()) == []
    assert await kept.since(DESK, 0.0) == 0
    assert await kept.cursors("somebody") == {}
    assert await kept.consumers(DESK) == {}
    assert await kept.compact(Keep(), AT) == ()
    assert list(await kept.append([])) == []
    await kept.forget(DESK)
    await kept.forget_consumer("somebody")


# -- appending


async def test_places_grow_over_all_spaces_and_numbers_within_one(log: SqliteLog) -> None:
    assert list(await log.append(some(1, 2))) == [1, 2]
    assert list(await log.append([message(1, OTHER), message(3), message(2, OTHER)])) == [3, 4, 5]
    spans = await log.spans()
    assert {space: (span.first, span.last) for space, span in spans.items()} == {
        DESK: (1, 3),
        OTHER: (1, 2),
    }
    assert spans[DESK].bytes == sum(map(len, bodies(some(1, 3))))
    assert (await log.first_place(), await log.last_place()) == (1, 5)


@pytest.mark.parametrize("bad", [0, 1, 2, 4, 5, -1])
async def test_a_number_that_is_not_the_next_is_refused(log: SqliteLog, bad: int) -> None:
    await log.append(some(1, 2))
    with pytest.raises(ValueError, match="cannot follow"):
        await log.append([message(1, OTHER), message(bad)])
    with pytest.raises(ValueError, match="cannot follow"):
        await log.append([message(3), message(bad if bad != 4 else 3)])
    assert list(await log.spans()) == [DESK]
    assert await everything(log) == bodies(some(1, 2))
    assert list(await log.append([message(3)])) == [3]


async def test_line_breaks_tell_messages_apart(log: SqliteLog) -> None:
    with pytest.raises(ValueError, match="line breaks"):
        await log.append([message(1)._replace(body=b"{\n}")])
    odd = message(1)._replace(body=b"\xff\x00\r{}\x85")
    await log.append([odd, message(2)._replace(body=b"")])
    assert await everything(log) == [odd.body, b""]
    assert [one.body for one in await log.read(PlaceQuery())] == [odd.body, b""]


@pytest.mark.parametrize("alone", [True, False])
async def test_what_cannot_be_kept_fails_alone(log: SqliteLog, alone: bool) -> None:
    bad = [message(1)._replace(at=float("nan")), message(1)._replace(type="\ud800")]
    others = [] if alone else [log.append([message(1, f"sp_{n}")]) for n in range(10)]
    for one in bad:
        calls = [log.append([message(1, OTHER), one]), *others]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results[0], ValueError)
        assert not any(isinstance(result, BaseException) for result in results[1:])
        others = []
    assert DESK not in await log.spans()
    assert OTHER not in await log.spans()
    await log.append([message(1)])


async def test_appends_that_wait_together(log: SqliteLog) -> None:
    """Nothing is awaited between them. A bad one fails alone, and what follows it too."""
    calls = [
        log.append(some(1, 3)),
        log.append([message(4), message(6)]),
        log.append([message(4)]),
        log.acknowledge("reader", DESK, 99),
        log.append([message(6)]),
        log.append(some(5, 5000)),
        log.append([message(1, OTHER)], sync=False),
    ]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(one, ValueError) for one in results] == [0, 1, 0, 0, 1, 0, 0]
    assert results[3] == 4
    assert await everything(log) == bodies(some(1, 5000))
    assert await log.last_place() == 5001


async def test_after_a_reopening_it_goes_on(path: Path) -> None:
    for round in range(3):
        async with open_log(path) as log:
            assert list(await log.append(some(10 * round + 1, 10 * round + 10))) == list(
                range(10 * round + 1, 10 * round + 11)
            )
            with pytest.raises(ValueError):
                await log.append([message(1)])
            assert await log.acknowledge("reader", DESK, 5 * round) == 5 * round
    async with open_log(path) as log:
        assert await everything(log) == bodies(some(1, 30))
    with pytest.raises(StoreBusy):
        await log.append([message(31)])
    with pytest.raises(StoreBusy):
        await log.replay(Replay(DESK, 0))


async def test_a_cancelled_append_is_whole_or_not_there(log: SqliteLog) -> None:
    for number in range(20):
        last = (await log.spans()).get(DESK, Span(1, 0)).last
        task = asyncio.create_task(log.append(some(last + 1, last + 10)))
        for _ in range(number % 3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        # Whatever was asked is done before what is asked after it.
        await log.acknowledge("reader", DESK, 0)
        span = (await log.spans())[DESK]
        assert span.last in (last, last + 10)
        assert await everything(log) == bodies(some(1, span.last))


# -- reading


async def test_pages(log: SqliteLog) -> None:
    messages = some(1, 100, size=100)
    await log.append(messages)
    kept = bodies(messages)
    assert await log.replay(Replay(DESK, 0, 10)) == (kept[:10], 10)
    assert await log.replay(Replay(DESK, 95, 10)) == (kept[95:], 100)
    assert await log.replay(Replay(DESK, 100, 10)) == ((), 100)
    # About so many bytes, at least one message.
    assert await log.replay(Replay(DESK, 10, 10, 1)) == (kept[10:11], 11)
    assert await log.replay(Replay(DESK, 10, 10, 500)) == (kept[10:15], 15)
    assert await log.replay(Replay(DESK, 10, 10, 501)) == (kept[10:16], 16)
    assert await log.replay(Replay(DESK, -3, 0, 0)) == (kept[:1], 1)
    assert await log.replay(Replay(DESK, 0, 1 << 70, 1 << 70)) == (kept, 100)
    assert await log.replay(Replay(DESK, 1 << 70)) == ((), 1 << 70)


async def test_replays_that_wait_together(log: SqliteLog) -> None:
    for number in range(5):
        await log.append(some(1, 50, f"sp_{number}"))
    queries = [Replay(f"sp_{n % 6}", n, 1 + n % 7) for n in range(100)]
    pages = await asyncio.gather(*(log.replay(query) for query in queries), log.last_place())
    assert pages[-1] == 250
    for query, page in zip(queries, pages[:-1], strict=True):
        assert page == await log.replay(query)


async def test_reading_over_all_spaces(log: SqliteLog) -> None:
    await log.append([message(1), message(1, OTHER, type="ö"), message(2), message(2, OTHER)])

    async def places(query: PlaceQuery) -> list[int]:
        return [one.place for one in await log.read(query)]

    assert await log.read(PlaceQuery(after=1, limit=1)) == [
        Placed(2, OTHER, 1, "ö", AT, message(1, OTHER).body)
    ]
    assert await places(PlaceQuery()) == [1, 2, 3, 4]
    assert await places(PlaceQuery(limit=0)) == []
    assert await places(PlaceQuery(space_ids=frozenset({OTHER, "sp_none"}))) == [2, 4]
    assert await places(PlaceQuery(space_ids=frozenset())) == []
    assert await places(PlaceQuery(1, frozenset({DESK, OTHER}), frozenset({"buffer_note"}))) == [
        3,
        4,
    ]
    assert await places(PlaceQuery(types=frozenset())) == []


async def test_a_page_over_all_spaces_has_a_bound_of_bytes(log: SqliteLog) -> None:
    """However large the messages are, and whoever asks for a thousand of them."""
    body = message(1).body + b" " * 1000
    await log.append([message(n)._replace(body=body) for n in range(1, 11)])

    async def places(query: PlaceQuery) -> list[int]:
        return [one.place for one in await log.read(query)]

    assert await places(PlaceQuery(max_bytes=len(body) + 1)) == [1, 2]
    assert await places(PlaceQuery(after=2, space_ids=frozenset({DESK}), max_bytes=1)) == [3]
    assert await places(PlaceQuery(after=8, max_bytes=3 * len(body))) == [9, 10]


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_times_come_back_as_they_were(times: list[float]) -> None:
    async def check(path: Path) -> None:
        async with open_log(path) as log:
            await log.append([message(n, at=at) for n, at in enumerate(times, start=1)])
            assert [one.at for one in await log.read(PlaceQuery())] == times

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder) / "hub.db"))


async def test_since(log: SqliteLog) -> None:
    await log.append([message(n, at=at) for n, at in enumerate([1.0, 3.0, 2.0, 4.0], start=1)])
    assert [await log.since(DESK, at) for at in (0.0, 1.0, 1.5, 2.5, 3.5, 4.0, 4.5)] == [
        *(0, 0, 1, 1, 3, 3, 4)
    ]


# -- consumers


async def test_cursors_move_forward_only(log: SqliteLog) -> None:
    await log.append(some(1, 10))
    assert await log.acknowledge("a", DESK, 4) == 4
    assert await log.acknowledge("a", DESK, 3) == 4
    assert await log.acknowledge("a", DESK, 99) == 10
    assert await log.acknowledge("b", DESK, -1) == 0
    assert await log.acknowledge("a", OTHER, 5) == 0
    assert await log.cursors("a") == {DESK: 10, OTHER: 0}
    assert await log.consumers(DESK) == {"a": 10, "b": 0}
    # One that nothing was ever said in has nothing, and begins at 1.
    assert (await log.spans())[OTHER] == Span(1, 0, 0)
    await log.append([message(1, OTHER)])
    await log.forget_consumer("a")
    assert await log.cursors("a") == {}
    assert await log.consumers(DESK) == {"b": 0}
    assert await log.acknowledge("a", DESK, 2) == 2


# -- compaction


@pytest.mark.parametrize("together", [True, False])
async def test_a_caller_has_a_bounded_number_of_cursors(path: Path, together: bool) -> None:
    """In a space. Who is furthest behind goes, and nobody else's; also after a reopening."""
    names = [f"tk_1{OWNED}{number}" for number in range(MOST_CONSUMERS + 30)]
    async with open_log(path) as log:
        await log.append([message(seq) for seq in range(1, len(names) + 1)])
        await log.append([message(1, OTHER)])
        for other in ("mine", f"tk_2{OWNED}0"):
            await log.acknowledge(other, DESK, 1)
        await log.acknowledge(names[0], OTHER, 1)
        calls = [log.acknowledge(name, DESK, seq) for seq, name in enumerate(names, 1)]
        if together:
            assert await asyncio.gather(*calls) == list(range(1, len(names) + 1))
        else:
            for call in calls:
                await call
        kept = {name: seq for seq, name in enumerate(names, 1) if seq > 30}
        kept |= {"mine": 1, f"tk_2{OWNED}0": 1}
        assert await log.consumers(DESK) == kept
        assert await log.cursors(names[0]) == {OTHER: 1}
        # One that comes again begins anew, and another goes.
        assert await log.acknowledge(names[0], DESK, 2) == 2
        assert set(await log.consumers(DESK)) == {*kept, names[0]} - {names[30]}
        before = await log.consumers(DESK)
    async with open_log(path) as log:
        assert await log.consumers(DESK) == before
        assert await log.acknowledge(names[1], DESK, 9) == 9
        assert set(await log.consumers(DESK)) == {*before, names[1]} - {names[0]}


async def test_bounds_on_messages_bytes_and_age(log: SqliteLog) -> None:
    await log.append([message(n, at=float(n), size=100) for n in range(1, 101)])
    await log.append(some(1, 3, OTHER))
    assert await log.compact(NO_BOUND, AT) == ()
    assert await log.compact(Keep(100, 10_000, 0.0), AT) == ()
    assert await log.compact(Keep(90, 0, 0.0), AT) == (Dropped(DESK, 1, 10),)
    assert await log.compact(Keep(0, 8000, 0.0), AT) == (Dropped(DESK, 11, 20),)
    assert await log.compact(Keep(0, 7950, 0.0), AT) == (Dropped(DESK, 21, 21),)
    assert await log.compact(Keep(0, 0, 69.0), 100.0, DESK) == (Dropped(DESK, 22, 30),)
    assert (await log.spans())[DESK] == Span(31, 100, 7000)
    assert await log.replay(Replay(DESK, 5, 2)) == (bodies(some(31, 32, size=100)), 32)
    assert await log.replay(Replay(DESK, 5, 9, 150)) == (bodies(some(31, 32, size=100)), 32)
    # The strictest bound counts, and the last message stays in any case.
    assert await log.compact(Keep(50, 4000, 9.0), 100.0, DESK) == (Dropped(DESK, 31, 90),)
    assert await log.compact(Keep(1, 1, 1.0), 1e9, DESK) == (Dropped(DESK, 91, 99),)
    assert await log.compact(Keep(1, 1, 1.0), 1e9, DESK) == ()
    assert (await log.spans())[DESK] == Span(100, 100, 100)
    assert (await log.spans())[OTHER].first == 1
    assert await log.first_place() == 100


async def test_who_missed_what_is_told(log: SqliteLog) -> None:
    for space_id in (DESK, OTHER):
        await log.append(some(1, 10, space_id))
    for consumer, seq in (("new", 0), ("slow", 4), ("just", 5), ("quick", 9)):
        await log.acknowledge(consumer, DESK, seq)
    assert await log.compact(Keep(messages=5), AT, DESK) == (
        Dropped(DESK, 1, 5, {"new": 0, "slow": 4}),
    )
    assert await log.consumers(DESK) == {"new": 0, "slow": 4, "just": 5, "quick": 9}
    assert await log.compact(Keep(messages=5), AT) == (Dropped(OTHER, 1, 5),)


async def test_much_is_dropped_in_small_steps(log: SqliteLog) -> None:
    """Appends come in between."""
    many = 3 * DROP_MOST + 10
    await log.append(some(1, many), sync=False)
    await log.append(some(1, 20, OTHER))
    await log.acknowledge("slow", DESK, DROP_MOST + 1)
    compaction = asyncio.create_task(log.compact(Keep(messages=10), AT))
    last = many
    while not compaction.done():
        last += 1
        await log.append([message(last)])
    desk, other = await compaction
    assert other == Dropped(OTHER, 1, 10)
    # It may have seen the first of those that came in between.
    assert many - 10 <= desk.last < last
    assert desk == Dropped(DESK, 1, desk.last, {"slow": DROP_MOST + 1})
    assert last > many
    assert await everything(log) == bodies(some(desk.last + 1, last))


async def test_compactions_at_once(log: SqliteLog) -> None:
    await log.append(some(1, 3000), sync=False)
    calls = (log.compact(Keep(messages=n), AT) for n in (2500, 10, 1000, 10))
    for result in await asyncio.gather(*calls):
        assert all(one.first <= one.last < 3000 for one in result)
    assert await everything(log) == bodies(some(2991, 3000))


async def test_room_is_given_back(path: Path) -> None:
    async with open_log(path) as log:
        for first in range(1, 10_000, 1000):
            await log.append(some(first, first + 999, size=2000), sync=False)
    large = path.stat().st_size
    async with open_log(path) as log:
        await log.compact(Keep(messages=10), AT)
    small = path.stat().st_size
    assert small < large / 3
    async with open_log(path) as log:
        assert await everything(log) == bodies(some(9991, 10_000, size=2000))
        await log.forget(DESK)
        assert await log.last_place() == 10_000


# -- forgetting


@pytest.mark.parametrize("many", [1, DROP_MOST, DROP_MOST + 1, 3 * DROP_MOST + 7])
async def test_a_forgotten_space_begins_anew(path: Path, many: int) -> None:
    async with open_log(path) as log:
        await log.append([message(1, OTHER, origin=3)])
        await log.append([one._replace(origin=4) for one in some(1, many)], sync=False)
        await log.acknowledge("a", DESK, 1)
        await log.acknowledge("a", OTHER, 1)
        await log.forget(DESK)
        assert list(await log.spans()) == [OTHER]
        assert await log.cursors("a") == {OTHER: 1}
        assert await everything(log) == []
        # Neither places nor origins go back, though the newest are gone.
        assert await log.last_place() == many + 1
        assert await log.last_origin() == 4
    async with open_log(path) as log:
        assert await log.last_origin() == 4
        with pytest.raises(ValueError):
            await log.append([message(many + 1)])
        assert list(await log.append([message(1)])) == [many + 2]
        assert await log.consumers(DESK) == {}


async def test_the_newest_origin(log: SqliteLog) -> None:
    await log.append([message(1, origin=7), message(2, origin=5), message(3)])
    assert await log.last_origin() == 7
    await log.compact(Keep(messages=1), AT)
    assert await log.last_origin() == 7


async def test_a_log_of_the_first_version_is_carried_over(path: Path) -> None:
    old = Schema(APPLICATION_ID, MESSAGES.migrations[:1], shrinks=True)
    connection = prepare(DatabaseSettings(path, schema=old))
    connection.execute("INSERT INTO heads (number, space_id) VALUES (1, ?)", (DESK,))
    for one in some(1, 3):
        row = (one.seq, 1, one.seq, 0, one.at, one.type, 0, one.body)
        connection.execute("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    connection.close()
    async with open_log(path) as log:
        assert await everything(log) == bodies(some(1, 3))
        together = b"\n".join(bodies(some(4, 6)))
        three = Message(DESK, 6, "buffer_note", AT, together, together=3)
        assert list(await log.append([three])) == [4, 5, 6]
        assert await everything(log) == bodies(some(1, 6))
