"""Every kind of record comes back as it was given, and goes when it is to be forgotten."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carrel.domain.errors import MessageInvalid, StoreDamaged
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.requests import (
    Generate,
    Keeping,
    Policy,
    Request,
    RequestDetails,
    RequestQuery,
    RequestState,
    Result,
)
from carrel.domain.runs import RunState
from carrel.domain.spaces import SpaceQuery, SpaceState
from carrel.domain.store import Forget, Record, Store
from carrel.store import SqliteStore, open_store
from tests.store import records
from tests.store.records import space_id


def test_it_is_a_store(store: SqliteStore) -> None:
    def contract(_store: Store) -> set[str]:
        return {name for name in vars(Store) if not name.startswith("_")}

    assert contract(store) <= set(dir(store))


async def test_a_space_comes_back_as_it_was(store: SqliteStore) -> None:
    given = records.full_space(1)
    await store.write(given)
    assert await store.space(given.space_id) == given
    assert await store.space(space_id(2)) is None
    changed = replace(given, state=SpaceState.READY, problem=None, labels={})
    await store.write(changed)
    assert await store.space(given.space_id) == changed


async def test_all_is_there_after_reopening(path: Path) -> None:
    kept: tuple[Record, ...] = (
        records.full_space(1),
        records.run(1, RunState.ENDED),
        records.step("tree"),
        records.claim("k"),
        records.token(1),
        records.trashed(9),
    )
    async with open_store(path) as store:
        (event,) = await store.write(*kept, records.event(of=1, done=5))
    async with open_store(path) as store:
        found = (
            await store.space(space_id(1)),
            await store.run(records.run(1).run_id),
            *await store.steps(space_id(1)),
            await store.claim("local", "k"),
            *await store.tokens(),
            *await store.trash(),
        )
        assert found == kept
        (again,) = await store.write(records.event(of=2))
        assert again.seq == event.seq + 1


async def test_texts_that_are_not_utf8_come_back(store: SqliteStore) -> None:
    """Names of files need not be, and Python then has lone surrogates in them."""
    odd = os.fsdecode(b"/home/\xff\xfe")
    given = replace(
        records.space(1, name="nul\0name", labels={odd: "a\0b"}),
        project=Project(ProjectKind.FOLDER, odd),
    )
    claim = replace(records.claim("k"), caller=odd, key=odd)
    await store.write(given, claim)
    assert await store.space(given.space_id) == given
    assert await store.find("nul\0name") == [given]
    assert await store.find(odd) == []
    page = await store.spaces(SpaceQuery(labels={odd: "a\0b"}))
    assert page.spaces == (given,)
    assert await store.claim(odd, odd) == claim


async def test_runs_are_listed_newest_first(store: SqliteStore) -> None:
    ended = [records.run(number, RunState.ENDED, of=1) for number in range(1, 4)]
    failed = records.run(4, RunState.FAILED, of=1)
    live = [records.run(5, RunState.STARTING, of=1), records.run(6, of=2)]
    await store.write(*ended, *live, failed)
    assert await store.runs(space_id(1)) == [live[0], failed, *ended[::-1]]
    assert await store.runs() == [live[1], live[0], failed, *ended[::-1]]
    assert await store.runs(limit=2) == live[::-1]
    assert await store.runs(live=True) == live[::-1]
    assert await store.runs(space_id(2), live=True) == [live[1]]
    assert await store.runs(space_id(3)) == []
    assert await store.runs(limit=0) == []
    with pytest.raises(MessageInvalid):
        await store.runs(limit=-1)
    await store.write(replace(live[1], state=RunState.ENDED))
    assert await store.runs(live=True) == [live[0]]


async def test_of_each_step_the_last_time_is_kept(store: SqliteStore) -> None:
    first, second = records.step("tree", begun_at=10.0), records.step("walls", begun_at=11.0)
    await store.write(first, second)
    done = replace(first, ended_at=12.0)
    await store.write(done)
    assert await store.steps(space_id(1)) == [done, second]
    # The clock was put back meanwhile: the order is still that of the work.
    again = replace(first, begun_at=3.0, problem="no room")
    await store.write(again, records.step("tree", operation="remove", begun_at=2.0))
    found = await store.steps(space_id(1))
    assert [(one.operation, one.name) for one in found] == [
        ("create", "walls"),
        ("create", "tree"),
        ("remove", "tree"),
    ]
    assert found[1] == again


async def test_claims_are_per_caller(store: SqliteStore) -> None:
    mine, other = records.claim("k", of=1), records.claim("k", of=2, caller="tk_1")
    await store.write(mine, other)
    assert await store.claim("local", "k") == mine
    assert await store.claim("tk_1", "k") == other
    assert await store.claim("tk_2", "k") is None


async def test_tokens_are_found_by_their_digest(store: SqliteStore) -> None:
    tokens = [records.token(number) for number in (3, 1, 2)]
    await store.write(*tokens)
    assert await store.tokens() == sorted(tokens, key=lambda one: one.created_at)
    assert await store.tokens(tokens[0].digest) == [tokens[0]]
    assert await store.tokens(b"another") == []
    revoked = replace(tokens[0], revoked_at=8.0)
    await store.write(revoked)
    assert await store.tokens(tokens[0].digest) == [revoked]


async def test_trash_is_listed_oldest_first(store: SqliteStore) -> None:
    old, new = records.trashed(2, trashed_at=1.0), records.trashed(1, trashed_at=2.0)
    await store.write(new, old)
    assert await store.trash() == [old, new]


async def test_what_is_to_be_forgotten_goes(store: SqliteStore) -> None:
    for number in (1, 2):
        await store.write(
            records.space(number),
            records.run(number, of=number),
            records.step("tree", of=number),
            records.claim(f"k{number}", of=number),
            records.trashed(number),
        )
    one = space_id(1)
    await store.write(Forget(trash_of=one))
    assert [kept.space.space_id for kept in await store.trash()] == [space_id(2)]
    assert len(await store.runs(one)) == len(await store.steps(one)) == 1
    await store.write(Forget(steps_of=one, claims_of=one, runs_of=one))
    assert await store.runs(one) == []
    assert await store.steps(one) == []
    assert await store.claim("local", "k1") is None
    assert await store.claim("local", "k2") is not None
    assert len(await store.runs(space_id(2))) == len(await store.steps(space_id(2))) == 1
    assert await store.space(one) == records.space(1)
    assert await store.write(Forget()) == ()
    assert await store.write() == ()


async def test_old_records_of_removed_spaces_are_pruned(store: SqliteStore) -> None:
    for number in range(1, 701):
        await store.write(
            records.space(number, SpaceState.REMOVED, removed_at=float(number)),
            records.run(number, RunState.ENDED, of=number),
            records.step("tree", of=number),
            records.claim(f"k{number}", of=number),
        )
    in_trash = records.trashed(3)
    await store.write(in_trash, records.space(800))
    assert await store.prune(removed_before=601.0) == 599
    assert await store.prune(removed_before=601.0) == 0
    assert await store.space(space_id(600)) is None
    assert await store.run(records.run(600).run_id) is None
    assert await store.steps(space_id(600)) == []
    assert await store.claim("local", "k600") is None
    assert await store.space(space_id(3)) is not None
    assert await store.space(space_id(601)) is not None
    counted = await store.count()
    assert counted[SpaceState.REMOVED] == 101
    assert counted[SpaceState.READY] == 1
    await store.write(Forget(trash_of=space_id(3)))
    assert await store.prune(removed_before=601.0) == 1


async def test_documents_of_other_versions_are_read(path: Path) -> None:
    """Fields that came later get their default; those that are not known are passed over."""
    async with open_store(path) as store:
        await store.write(records.full_space(1))
    with closing(sqlite3.connect(path)) as other, other:
        (document,) = other.execute("SELECT document FROM spaces").fetchone()
        fields = json.loads(document)
        for name in ("restored_from", "problem", "retention", "enforced"):
            del fields[name]
        fields["colour"] = {"of": ["another", "version"]}
        other.execute("UPDATE spaces SET document = ?", (json.dumps(fields),))
    async with open_store(path) as store:
        found = await store.space(space_id(1))
    plain = records.space(1)
    assert found == replace(
        records.full_space(1),
        restored_from="",
        problem=None,
        retention=plain.retention,
        enforced=(),
    )


async def test_a_document_that_is_none_is_damage(path: Path) -> None:
    async with open_store(path) as store:
        await store.write(records.space(1), records.space(2))
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE spaces SET document = '{' WHERE space_id = ?", (space_id(1),))
    async with open_store(path) as store:
        with pytest.raises(StoreDamaged, match="record of a Space cannot be read"):
            await store.space(space_id(1))
        assert await store.space(space_id(2)) == records.space(2)


def test_nobody_else_can_read_the_files(path: Path, store: SqliteStore) -> None:
    assert store is not None
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == {"carrel.db": 0o600, "carrel.db-wal": 0o600, "carrel.db-shm": 0o600}


def ended(key: str, caller: str, delivered: bool = True) -> tuple[Request, RequestDetails]:
    at = 1.0 if delivered else None
    asked, done = Generate("short"), RequestState.DONE
    request = Request(key, key, caller, asked, "", done, 1.0, 1.0, delivered_at=at)
    return request, RequestDetails(key, caller, "long " * 1000, Result(True))


async def test_details_of_requests_are_kept_up_to_a_budget(store: SqliteStore) -> None:
    """For each caller by itself, the newest first; what nobody has had yet stays."""
    keys = ["rq_a", "rq_b", "rq_c", "rq_other", "rq_waits"]
    for key in keys:
        request, details = ended(key, "blue" if key != "rq_other" else "red", key != "rq_waits")
        await store.write(request, details)
        await store.write(request)

    async def kept() -> list[str]:
        return [key for key in keys if await store.request_details(key) is not None]

    await store.write(Forget(details_of="blue", details_bytes=12_000))
    assert await kept() == keys[1:]
    await store.write(Forget(details_of="blue", details_bytes=0))
    assert await kept() == ["rq_other", "rq_waits"]
    await store.write(Forget(requests=("rq_other",)))
    assert await kept() == ["rq_waits"]
    waiting: dict[str, Any] = {"details_of": "blue", "details_delivered": False}
    await store.write(Forget(details_bytes=12_000, **waiting))
    assert await kept() == ["rq_waits"]
    found = await store.request_details("rq_waits")
    assert found == ended("rq_waits", "blue")[1]
    await store.write(Forget(details_bytes=100, **waiting))
    assert await kept() == []


async def test_the_last_version_of_a_series(store: SqliteStore) -> None:
    for key, caller, series, version in [
        ("rq_1", "blue", "s", 3),
        ("rq_2", "blue", "s", 11),
        ("rq_3", "red", "s", 20),
        ("rq_4", "blue", "t", 30),
    ]:
        asked = Generate("x", keeping=Keeping(Policy.VERSIONED, series=series))
        request = replace(ended(key, caller)[0], asked=asked, version=version)
        await store.write(request)
    assert await store.last_version("blue", "s") == 11
    assert await store.last_version("green", "s") == 0


async def test_each_caller_has_its_own_last_requests(store: SqliteStore) -> None:
    """So nobody's go for what others ask."""
    for number in range(4):
        for caller in ("blue", "red")[: 1 + (number == 0)]:
            request = ended(f"rq_{caller}{number}", caller)[0]
            await store.write(replace(request, created_at=float(number)))
    await store.write(Forget(bare_requests_but=2))
    left = {one.key for one in await store.requests(RequestQuery())}
    assert left == {"rq_red0", "rq_blue2", "rq_blue3"}
