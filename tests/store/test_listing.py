"""Lists of spaces: filters, pages, words, and what they cost."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from carrel.domain.errors import MessageInvalid
from carrel.domain.events import EventQuery
from carrel.domain.runs import RunState
from carrel.domain.spaces import Space, SpacePage, SpaceQuery, SpaceState
from carrel.domain.store import Forget
from carrel.domain.turns import TurnState
from carrel.store import SqliteStore, open_store, reads, sqlite
from tests.store import records
from tests.store.records import space_id

REMOVED = frozenset({SpaceState.REMOVED})
ALL = frozenset(SpaceState)


def numbers(page: SpacePage) -> list[int]:
    return [int(space.created_at) for space in page.spaces]


async def every_page(store: SqliteStore, query: SpaceQuery) -> AsyncIterator[SpacePage]:
    while True:
        page = await store.spaces(query)
        yield page
        if not page.next:
            return
        query = replace(query, after=page.next)


async def test_newest_first_and_removed_only_on_request(store: SqliteStore) -> None:
    for number in range(1, 7):
        state = SpaceState.REMOVED if number % 3 == 0 else SpaceState.READY
        await store.write(records.space(number, state))
    await store.write(records.space(7, SpaceState.STOPPED))
    page = await store.spaces(SpaceQuery())
    assert (numbers(page), page.next, page.total) == ([7, 5, 4, 2, 1], "", 5)
    assert numbers(await store.spaces(SpaceQuery(states=REMOVED))) == [6, 3]
    mixed = SpaceQuery(states=frozenset({SpaceState.REMOVED, SpaceState.STOPPED}))
    page = await store.spaces(mixed)
    assert (numbers(page), page.total) == ([7, 6, 3], 3)
    page = await store.spaces(SpaceQuery(states=ALL))
    assert (numbers(page), page.total) == ([7, 6, 5, 4, 3, 2, 1], 7)


async def test_filters_hold_together(store: SqliteStore) -> None:
    blue, old = {"team": "blue"}, {"team": "blue", "age": "old"}
    await store.write(
        records.space(1, labels=blue),
        records.space(2, labels=old),
        records.space(3, SpaceState.STOPPED, labels=old),
        records.space(4, SpaceState.REMOVED, labels=old, name="gone"),
        records.space(5, labels={"team": "red"}),
    )

    async def ask(**fields: object) -> tuple[list[int], int]:
        page = await store.spaces(replace(SpaceQuery(), **fields))  # type: ignore[arg-type]
        return numbers(page), page.total

    assert await ask(labels=blue) == ([3, 2, 1], 3)
    assert await ask(labels=old) == ([3, 2], 2)
    assert await ask(labels=old, states=ALL) == ([4, 3, 2], 3)
    assert await ask(labels=old, states=frozenset({SpaceState.READY})) == ([2], 1)
    assert await ask(labels=old, name="desk-3") == ([3], 1)
    assert await ask(labels=blue, space_ids=frozenset({space_id(1), space_id(5)})) == ([1], 1)
    assert await ask(name="desk-5") == ([5], 1)
    assert await ask(name="desk") == ([], 0)
    assert await ask(name="gone") == ([], 0)
    assert await ask(name="gone", states=ALL) == ([4], 1)
    assert await ask(space_ids=frozenset({space_id(4), space_id(5)})) == ([5], 1)
    assert await ask(space_ids=frozenset({space_id(4), space_id(5)}), states=ALL) == ([5, 4], 2)
    assert await ask(space_ids=frozenset()) == ([], 0)
    assert await ask(labels={"team": "bl%"}) == ([], 0)
    assert await ask(limit=0) == ([], 4)


async def test_labels_follow_their_space(store: SqliteStore) -> None:
    await store.write(records.space(1, labels={"a": "1", "b": "2"}))
    await store.write(records.space(1, labels={"a": "1", "c": "3"}))
    assert (await store.spaces(SpaceQuery(labels={"b": "2"}))).total == 0
    assert (await store.spaces(SpaceQuery(labels={"a": "1", "c": "3"}))).total == 1
    await store.write(records.space(1, labels={"a": "1"}, created_at=70.0))
    assert numbers(await store.spaces(SpaceQuery(labels={"a": "1"}))) == [70]
    await store.write(records.space(1, SpaceState.REMOVED, labels={"a": "1"}, removed_at=1.0))
    assert (await store.spaces(SpaceQuery(labels={"a": "1"}))).total == 0
    assert (await store.spaces(SpaceQuery(labels={"a": "1"}, states=REMOVED))).total == 1
    assert await store.prune(2.0) == 1
    assert (await store.spaces(SpaceQuery(labels={"a": "1"}, states=ALL))).total == 0


@pytest.mark.parametrize("labels", [{}, {"team": "blue"}])
async def test_pages_hold_while_spaces_come_and_go(
    store: SqliteStore, labels: dict[str, str]
) -> None:
    # Several were made at the same moment.
    made = [
        records.space(number, labels=labels, created_at=float(number // 4)) for number in range(100)
    ]
    await store.write(*made)
    seen: list[Space] = []
    query = SpaceQuery(limit=7, labels=labels)
    async for page in every_page(store, query):
        seen += page.spaces
        # A newer one comes, and one of those that were not shown yet is removed.
        number = 1000 + len(seen)
        await store.write(records.space(number, labels=labels))
        if len(seen) == 7:
            gone = replace(made[50], state=SpaceState.REMOVED, removed_at=9.0)
            await store.write(gone)
    expected = sorted(
        (one for one in made if one != made[50]),
        key=lambda one: (one.created_at, one.space_id),
        reverse=True,
    )
    assert seen == expected


async def test_the_last_page_is_known_to_be_the_last(store: SqliteStore) -> None:
    await store.write(*(records.space(number) for number in range(6)))
    pages = [page async for page in every_page(store, SpaceQuery(limit=3))]
    assert [numbers(page) for page in pages] == [[5, 4, 3], [2, 1, 0]]
    assert [page.total for page in pages] == [6, 6]


@pytest.mark.parametrize(
    "cursor", ["x", "5", "é", "bmFuIHNwXw", "aW5mIHNwXw", "MS41", "MS41IA", "////", "' OR 1"]
)
async def test_a_cursor_that_is_none_is_refused(store: SqliteStore, cursor: str) -> None:
    with pytest.raises(MessageInvalid) as caught:
        await store.spaces(SpaceQuery(after=cursor))
    assert caught.value.hint


async def test_limits_are_any_number_from_0(store: SqliteStore) -> None:
    await store.write(records.space(1), records.event())
    assert (await store.spaces(SpaceQuery(limit=2**64))).total == 1
    assert len(await store.runs(limit=2**64)) == 0
    assert len(await store.events(EventQuery(limit=2**64))) == 1
    assert await store.events(EventQuery(after=2**64)) == []
    with pytest.raises(MessageInvalid):
        await store.spaces(SpaceQuery(limit=-1))


async def test_find_prefers_ids_then_names_then_beginnings(store: SqliteStore) -> None:
    first, second = records.space(1), records.space(2, name="sp_")
    third = records.space(3, name=first.space_id)
    gone = records.space(4, SpaceState.REMOVED, name="gone")
    await store.write(first, second, third, gone)
    assert await store.find(first.space_id) == [first]
    assert await store.find("sp_") == [second]
    assert await store.find("desk-1") == [first]
    assert await store.find("sp_a") == [first, second, third]
    assert await store.find(second.space_id[:-1] + "c") == [second]
    assert await store.find("desk") == []
    assert await store.find("") == []
    assert await store.find("gone") == []
    assert await store.find(gone.space_id) == [gone]
    assert await store.find(gone.space_id[:-1] + "e"[:0]) == [first, second, third]


@pytest.mark.parametrize("word", ["%", "_", "sp%", "s_", "sp_aaaaaaaaaaa_", "desk-_", "*", "[a-z]"])
async def test_wildcards_in_words_are_inert(store: SqliteStore, word: str) -> None:
    await store.write(records.space(1), records.space(2))
    assert await store.find(word) == []
    assert (await store.spaces(SpaceQuery(name=word))).total == 0


async def test_find_gives_a_few(store: SqliteStore) -> None:
    await store.write(*(records.space(number) for number in range(50)))
    assert len(await store.find("sp_")) == reads.FEW


async def test_find_looks_among_those_that_are_seen(store: SqliteStore) -> None:
    """However many others come before them."""
    others = (records.space(number, name="desk", realm=f"n={number}") for number in range(30))
    own = records.space(40, name="desk", realm="other", labels={"team": "blue"})
    await store.write(*others, own)
    for among in (
        SpaceQuery(labels={"team": "blue"}),
        SpaceQuery(space_ids=frozenset({own.space_id})),
    ):
        assert await store.find("sp_", "", among) == [own]
        assert await store.find("desk", "", among) == [own]
        assert await store.find("desk", "n=3", among) == [own]
    assert await store.find("desk", "n=3") == [records.space(3, name="desk", realm="n=3")]
    assert len(await store.find("desk")) == reads.FEW


async def test_states_are_counted(store: SqliteStore) -> None:
    assert await store.count() == dict.fromkeys(SpaceState, 0)
    await store.write(records.space(1), records.space(2), records.space(3, SpaceState.FAILED))
    await store.write(records.space(1, SpaceState.RUNNING), records.space(2))
    counted = await store.count()
    assert {state: count for state, count in counted.items() if count} == {
        SpaceState.READY: 1,
        SpaceState.RUNNING: 1,
        SpaceState.FAILED: 1,
    }


def _instructions(path: Path, question: Callable[[sqlite3.Connection], object]) -> int:
    """How many of its instructions SQLite needs for an answer: the same on every machine."""
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1

    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.set_progress_handler(tick, 1)
        question(connection)
    return count


QUESTIONS: dict[str, Callable[[sqlite3.Connection], object]] = {
    "list": lambda db: sqlite.page(db, SpaceQuery()),
    "list by state": lambda db: sqlite.page(db, SpaceQuery(frozenset({SpaceState.READY}))),
    "list by label": lambda db: sqlite.page(db, SpaceQuery(labels={"team": "blue"})),
    "list by two labels": lambda db: sqlite.page(db, SpaceQuery(labels={"team": "blue", "n": "1"})),
    "list by name": lambda db: sqlite.page(db, SpaceQuery(name="desk-100005")),
    "list by id": lambda db: sqlite.page(db, SpaceQuery(space_ids=frozenset({space_id(5)}))),
    "list removed": lambda db: sqlite.page(db, SpaceQuery(states=REMOVED)),
    "list all": lambda db: sqlite.page(db, SpaceQuery(states=ALL)),
    "find by name": lambda db: reads.find(db, "desk-100005"),
    "find by prefix": lambda db: reads.find(db, "sp_"),
    "find nothing": lambda db: reads.find(db, "sp_77"),
    "count": reads.count,
    "live runs": lambda db: reads.runs(db, "", True, 100),
    "runs": lambda db: reads.runs(db, "", False, 10),
    "runs of one": lambda db: reads.runs(db, space_id(100_005), False, 10),
}


async def test_removed_spaces_and_ended_runs_cost_nothing(tmp_path: Path) -> None:
    """With thousands of them, an answer takes as long as with a hundred."""
    paths = {60: tmp_path / "few.db", 6000: tmp_path / "many.db"}
    for removed, path in paths.items():
        async with open_store(path) as store:
            labels = {"team": "blue", "n": "1"}
            for first in range(0, removed, 60):
                await store.write(
                    *(
                        records.space(number, SpaceState.REMOVED, labels=labels)
                        for number in range(first, first + 60)
                    ),
                    *(records.run(n, RunState.ENDED, of=n) for n in range(first, first + 60)),
                )
            await store.write(
                *(records.space(100_000 + number, labels=labels) for number in range(20)),
                *(records.run(100_000 + n, of=100_000 + n) for n in range(20)),
            )
    costs = {
        name: [_instructions(path, question) for path in paths.values()]
        for name, question in QUESTIONS.items()
    }
    assert {name: cost for name, cost in costs.items() if cost[1] > 1.2 * cost[0]} == {}


async def test_a_list_has_as_much_as_fits(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest, and one in any case; a page says that there is more."""
    monkeypatch.setattr(reads, "LIST_BYTES", 100_000)
    for number in range(1, 5):
        space = records.space(number)
        await store.write(replace(space, description="x" * 40_000))
        run = replace(records.run(number, RunState.ENDED), argv=("x" * 40_000,))
        await store.write(run, records.turn(number, prompt="y" * 40_000))
    found = [numbers(one) async for one in every_page(store, SpaceQuery())]
    assert found == [[4, 3], [2, 1]]
    runs = await store.runs(records.space_id(1))
    assert [one.pid for one in runs] == [4, 3]
    turns = await store.turns(records.space_id(1))
    assert [int(one.created_at) for one in turns] == [4, 3]
    monkeypatch.setattr(reads, "LIST_BYTES", 1)
    assert len(await store.turns(records.space_id(1))) == 1
    assert [len(one.spaces) async for one in every_page(store, SpaceQuery())] == [1] * 4
    # What was used counts to the first turn.
    used = await store.usages(records.space_id(1))
    assert [one.usage.input_tokens for one in used] == [1, 2, 3, 4]
    assert {(one.prompt, one.result) for one in used} == {("", None)}


async def test_turns_that_have_ended_are_so_many(store: SqliteStore) -> None:
    for number in range(1, 7):
        await store.write(records.turn(number, prompt="y" * 1000))
    await store.write(replace(records.turn(1, of=2), run_id="ru_other"))
    waits = replace(records.turn(9), state=TurnState.QUEUED, created_at=0.0)
    await store.write(waits, Forget(turns_of=records.space_id(1), turns_but=4, turns_bytes=1 << 20))
    found = await store.turns(records.space_id(1))
    assert [int(one.created_at) for one in found] == [6, 5, 4, 3, 0]
    await store.write(Forget(turns_of=records.space_id(1), turns_but=4, turns_bytes=3500))
    found = await store.turns(records.space_id(1))
    assert [int(one.created_at) for one in found] == [6, 5, 0]
    # The newest stays, however long it is.
    await store.write(Forget(turns_of=records.space_id(1), turns_but=4, turns_bytes=1))
    assert len(await store.turns(records.space_id(1))) == 2
    assert len(await store.turns(records.space_id(2))) == 1
