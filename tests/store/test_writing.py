"""Writes: whole or not at all, together with others, and never in the event loop's way."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carrel.domain.errors import NameTaken, StoreBusy, StoreDamaged
from carrel.domain.events import EventQuery, EventType, NewEvent
from carrel.domain.spaces import SpaceQuery, SpaceState
from carrel.store import SqliteStore, open_store, worker
from tests.store import records
from tests.store.records import space_id

WAIT_S = 60.0
"""For what takes a moment, on a loaded machine."""


async def test_a_name_is_given_once(store: SqliteStore) -> None:
    await store.write(records.space(1, name="desk"))
    with pytest.raises(NameTaken, match="'desk'") as caught:
        await store.write(records.space(2), records.space(3, name="desk"), records.event())
    assert caught.value.code == "name_taken"
    assert caught.value.hint
    assert await store.space(space_id(2)) is None
    assert await store.events(EventQuery()) == []
    # One's own name is no other's, and that of a removed space is free.
    await store.write(records.space(1, SpaceState.RUNNING, name="desk"))
    await store.write(
        records.space(1, SpaceState.REMOVED, name="desk"), records.space(2, name="desk")
    )
    assert await store.find("desk") == [records.space(2, name="desk")]
    with pytest.raises(NameTaken):
        await store.write(records.space(1, name="desk"))


async def test_no_name_is_not_a_name(store: SqliteStore) -> None:
    await store.write(records.space(1, name=""), records.space(2, name=""))
    assert (await store.spaces(SpaceQuery())).total == 2


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(
    "bad",
    [
        replace(records.space(5), created_at=math.nan),
        replace(records.space(5), updated_at=math.inf),
        replace(records.space(5), name=None),  # type: ignore[arg-type]
        replace(records.space(5), labels={"a": object()}),  # type: ignore[dict-item]
        replace(records.token(5), digest="text"),  # type: ignore[arg-type]
        NewEvent(EventType.STEP_DONE, space_id(5), {"what": object()}),
        NewEvent("unheard.of", space_id(5)),  # type: ignore[arg-type]
    ],
    ids=["nan", "inf", "none", "label", "digest", "object", "type"],
)
async def test_what_could_not_be_read_again_is_refused(
    store: SqliteStore, bad: Any, alone: bool
) -> None:
    others = [] if alone else [store.write(records.space(n)) for n in range(10, 20)]
    results = await asyncio.gather(
        store.write(records.space(1), bad, records.space(2)), *others, return_exceptions=True
    )
    assert isinstance(results[0], ValueError | TypeError)
    assert results[1:] == [[]] * len(others)
    page = await store.spaces(SpaceQuery())
    assert page.total == len(page.spaces) == len(others)
    await store.write(records.space(1))


async def test_a_bad_write_among_others_fails_alone(store: SqliteStore) -> None:
    """They wait together, as nothing is awaited between them."""
    await store.write(records.space(0, name="taken"))
    writes = [
        store.write(
            records.space(number), records.space(1000 + number, name="taken"), records.event()
        )
        if number % 7 == 0
        else store.write(records.space(number), records.event(n=number))
        for number in range(1, 200)
    ]
    results = await asyncio.gather(*writes, return_exceptions=True)
    failed = {n for n, result in enumerate(results, start=1) if isinstance(result, NameTaken)}
    assert failed == set(range(7, 200, 7))
    stored = {int(one.created_at) for one in (await store.spaces(SpaceQuery(limit=999))).spaces}
    assert stored == set(range(200)) - failed
    events = await store.events(EventQuery())
    assert [event.data["n"] for event in events] == sorted(stored - {0})


async def test_ten_thousand_writes_at_once(store: SqliteStore) -> None:
    def group(number: int) -> asyncio.Future[Any]:
        return asyncio.ensure_future(
            store.write(records.space(number), records.event(n=number), records.step("tree"))
        )

    async with asyncio.timeout(WAIT_S):
        results = await asyncio.gather(*(group(number) for number in range(10_000)))
    assert [events[0].seq for events in results] == list(range(1, 10_001))
    assert (await store.spaces(SpaceQuery())).total == 10_000


async def test_a_runaway_is_refused(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MOST_WAITING", 5)
    writes = [store.write(records.space(number)) for number in range(5000)]
    results = await asyncio.gather(*writes, return_exceptions=True)
    refused = [result for result in results if isinstance(result, StoreBusy)]
    assert refused
    stored = (await store.spaces(SpaceQuery())).total
    assert stored == len(results) - len(refused)


async def test_a_cancelled_write_is_whole_or_not_there(store: SqliteStore) -> None:
    task = asyncio.ensure_future(store.write(records.space(1), records.event()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.write(records.space(2), records.event())
    assert [event.seq for event in await store.events(EventQuery())] == [1, 2]
    assert await store.space(space_id(1)) == records.space(1)


async def test_records_may_change_after_the_call(store: SqliteStore) -> None:
    labels, data = {"a": "1"}, {"n": 1}
    writing = asyncio.ensure_future(
        store.write(
            records.space(1, labels=labels), NewEvent(EventType.STEP_DONE, space_id(1), data, 1.0)
        )
    )
    await asyncio.sleep(0)
    labels["a"], data["n"] = "2", 2
    (event,) = await writing
    assert event.data == {"n": 1}
    assert (await store.spaces(SpaceQuery(labels={"a": "1"}))).total == 1


async def test_reads_do_not_wait_for_a_long_write(path: Path, store: SqliteStore) -> None:
    """A write that cannot get on, because somebody else holds the lock, stands for it."""
    await store.write(records.space(1))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(store.write(records.space(2)))
        async with asyncio.timeout(WAIT_S):
            for _ in range(20):
                assert await store.space(space_id(1)) is not None
                assert (await store.spaces(SpaceQuery())).total == 1
        assert not writing.done()
        other.execute("ROLLBACK")
    await writing
    assert (await store.spaces(SpaceQuery())).total == 2


async def test_the_loop_goes_on_while_a_write_waits(path: Path, store: SqliteStore) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(store.write(records.space(2)))
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not writing.done()
        other.execute("ROLLBACK")
    await writing


async def test_what_waits_at_the_close_is_still_done(path: Path) -> None:
    async with open_store(path) as store:
        writes = [asyncio.ensure_future(store.write(records.space(n))) for n in range(2000)]
        await asyncio.sleep(0)
    await asyncio.gather(*writes)
    with pytest.raises(StoreBusy, match="closed"):
        await store.write(records.space(1))
    with pytest.raises(StoreBusy, match="closed"):
        await store.count()
    async with open_store(path) as store:
        assert (await store.spaces(SpaceQuery())).total == 2000


async def test_a_proper_close_leaves_the_database_alone(path: Path) -> None:
    threads = set(threading.enumerate())
    async with open_store(path) as store:
        await store.write(*(records.space(number) for number in range(100)))
        assert (path.parent / "carrel.db-wal").stat().st_size > 0
    assert [file.name for file in path.parent.iterdir()] == ["carrel.db"]
    assert set(threading.enumerate()) == threads


async def test_another_event_loop_is_refused(store: SqliteStore) -> None:
    async def use() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await store.write(records.space(1))
        with pytest.raises(RuntimeError, match="another event loop"):
            await store.count()

    await asyncio.to_thread(asyncio.run, use())
    await store.write(records.space(1))
    assert (await store.count())[SpaceState.READY] == 1


async def test_opening_can_be_cancelled(path: Path) -> None:
    threads = set(threading.enumerate())
    async with open_store(path):
        pass
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        opening = asyncio.ensure_future(open_store(path).__aenter__())
        await asyncio.sleep(0)
        opening.cancel()
        other.execute("ROLLBACK")
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert set(threading.enumerate()) == threads


async def test_a_durable_store_waits_for_the_disk(path: Path) -> None:
    async with open_store(path, durable=True) as store:
        await store.write(records.space(1))
        assert await store._read(lambda db: db.execute("PRAGMA synchronous").fetchone()) == (2,)
    async with open_store(path) as store:
        assert await store._read(lambda db: db.execute("PRAGMA synchronous").fetchone()) == (1,)
        assert await store.space(space_id(1)) == records.space(1)


async def test_a_mistake_in_a_question_leaves_nobody_waiting(store: SqliteStore) -> None:
    def mistaken(_connection: sqlite3.Connection) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store._read(mistaken)
    assert await store.last_seq() == 0


async def test_a_database_taken_away_is_noticed(path: Path, store: SqliteStore) -> None:
    """What is written to a deleted file is gone with the process: it is not acknowledged."""
    await store.write(records.space(1))
    aside = path.with_name("aside")
    path.rename(aside)
    with pytest.raises(StoreDamaged, match="taken away"):
        await store.write(records.space(2))
    path.write_bytes(b"another")
    with pytest.raises(StoreDamaged, match="taken away"):
        await store.write(records.space(2))
    aside.rename(path)
    await store.write(records.space(2))
    assert (await store.spaces(SpaceQuery())).total == 2
