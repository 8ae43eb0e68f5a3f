"""Versions that are read while they are put away."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import tarfile
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import SpaceNotFound, WorkspaceGone
from carrel.domain.ids import new_id
from carrel.domain.requests import Generate, Keeping, Older, Policy, Request, Workspace
from carrel.service.requests.book import LiveRequest
from carrel.service.spaces import Spaces
from carrel.trees.differences import GitDiffs
from tests.requests.rig import ANSWER_S, heard, made

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def series() -> str:
    return new_id("se")


def version(series: str, number: int, older: Older = Older.ARCHIVE) -> Generate:
    keeping = Keeping(Policy.VERSIONED, series=series, newest=1, older=older)
    return Generate(f"write a.txt {number}", keeping=keeping)


async def second(services: Services, asked: Generate) -> None:
    """The one before it is put away from now on."""
    request = await services.requests.submit(LOCAL, asked)
    await heard(services, request.key)
    await services.requests.delivered(LOCAL, request.key)


@asynccontextmanager
async def removing(monkeypatch: pytest.MonkeyPatch, when: str) -> AsyncIterator[asyncio.Event]:
    """The removal of a space stands still before it begins, or when it is done."""
    reached, go = asyncio.Event(), asyncio.Event()
    real = Spaces.remove

    async def remove(self: Spaces, *words: Any, **named: Any) -> object:
        if when == "before":
            reached.set()
            await go.wait()
        removed = await real(self, *words, **named)
        reached.set()
        await go.wait()
        return removed

    monkeypatch.setattr(Spaces, "remove", remove)
    try:
        yield reached
    finally:
        go.set()


async def whole(pieces: Iterator[bytes]) -> bytes:
    return await asyncio.to_thread(b"".join, pieces)


async def settled(services: Services, first: Request) -> Workspace:
    async with asyncio.timeout(ANSWER_S):
        await services.requests.settled()
    return (await services.requests.get(LOCAL, first.key)).workspace


@pytest.mark.parametrize("when", ["before", "after"])
async def test_it_is_read_all_the_time(
    services: Services, monkeypatch: pytest.MonkeyPatch, series: str, when: str
) -> None:
    first, _ = await made(services, version(series, 1))
    requests = services.requests
    async with removing(monkeypatch, when) as reached, asyncio.timeout(ANSWER_S):
        await second(services, version(series, 2))
        await reached.wait()
        assert (await requests.get(LOCAL, first.key)).workspace is Workspace.THERE
        assert b"-1\n+2\n" in await whole(await requests.diff(LOCAL, series, 1, 2))
        assert b"+1\n" in await whole(await requests.diff(LOCAL, series, 0, 1))
        packed = await whole(await requests.archive(LOCAL, first.key, everything=True))
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            assert archive.extractfile("a.txt").read() == b"1\n"  # type: ignore[union-attr]
        if when == "after":
            for fetch in (
                requests.files(LOCAL, first.key),
                requests.open(LOCAL, first.key, "a.txt"),
            ):
                with pytest.raises(WorkspaceGone, match="is gone"):
                    await fetch
    assert await settled(services, first) is Workspace.ARCHIVED


async def test_one_that_is_dropped_has_gone(
    services: Services, monkeypatch: pytest.MonkeyPatch, series: str
) -> None:
    first, _ = await made(services, version(series, 1))
    async with removing(monkeypatch, "after") as reached, asyncio.timeout(ANSWER_S):
        await second(services, version(series, 2, Older.DROP))
        await reached.wait()
        with pytest.raises(WorkspaceGone, match="is gone"):
            await services.requests.diff(LOCAL, series, 1, 2)
    assert await settled(services, first) is Workspace.GONE


async def test_who_reads_it_finishes_first(
    services: Services, place: Path, monkeypatch: pytest.MonkeyPatch, series: str
) -> None:
    first, _ = await made(services, version(series, 1))
    reading, go = threading.Event(), threading.Event()
    real = GitDiffs.diff

    def diff(self: GitDiffs, *sides: Any) -> Generator[bytes, None, None]:
        reading.set()
        assert go.wait(ANSWER_S)
        yield from real(self, *sides)

    monkeypatch.setattr(GitDiffs, "diff", diff)
    async with asyncio.timeout(ANSWER_S):
        comparing = asyncio.create_task(services.requests.diff(LOCAL, series, 0, 1))
        try:
            await asyncio.to_thread(reading.wait, ANSWER_S)
            await second(services, version(series, 2))
            locks = services.spaces._locks._locks
            while not locks[first.space_id].wanted:
                await asyncio.sleep(0.01)
            assert (place / "spaces" / first.space_id).exists()
        finally:
            go.set()
        assert b"+1\n" in await whole(await comparing)
    assert await settled(services, first) is Workspace.ARCHIVED


async def test_the_newest_says_how_many_stay(services: Services, series: str) -> None:
    """What the oldest asked for counts no more, however often it is looked at."""
    first, _ = await made(services, version(series, 1, Older.DROP))
    keeping = Keeping(Policy.VERSIONED, series=series, newest=10)
    for number in (2, 3):
        await made(services, Generate(f"write a.txt {number}", keeping=keeping))
    await services.requests.delivered(LOCAL, first.key)
    await services.requests.settled()
    found = await services.requests.versions(LOCAL, series)
    assert [one.workspace for one in found] == [Workspace.THERE] * 3


async def test_a_daemon_that_ended_between_removal_and_record(
    services: Services, series: str
) -> None:
    """The archive says what has become of it."""
    archived, _ = await made(services, version(series, 1))
    await made(services, version(series, 2))
    lost, _ = await made(services, Generate("write a 1", keeping=Keeping(Policy.RETAIN)))
    await services.spaces.remove(LOCAL, lost.space_id, force=True)
    for before, after in ((archived, Workspace.ARCHIVED), (lost, Workspace.GONE)):
        there = dataclasses.replace(before, workspace=Workspace.THERE, archive_bytes=0)
        live = services.requests._book.get(before.key) or LiveRequest(there)
        await services.requests._keeper.see_to(live)
        found = await services.requests.get(LOCAL, before.key)
        assert found.workspace is after and (found.archive_bytes > 0) is (before is archived)


async def test_removed_while_it_is_archived(
    services: Services, place: Path, monkeypatch: pytest.MonkeyPatch, series: str
) -> None:
    """It is gone when that is answered, and does not come back."""
    first, _ = await made(services, version(series, 1))
    archive = services.requests._keeper.archive_of(first.key)
    async with removing(monkeypatch, "before") as reached, asyncio.timeout(ANSWER_S):
        await second(services, version(series, 2))
        await reached.wait()
        assert archive.is_relative_to(place) and archive.exists()
        deleting = asyncio.create_task(services.requests.remove(LOCAL, first.key))
        await asyncio.sleep(0)
    async with asyncio.timeout(ANSWER_S):
        assert (await deleting).workspace is Workspace.GONE
    assert await settled(services, first) is Workspace.GONE
    assert list(archive.parent.glob(f"{first.key}*")) == []
    with pytest.raises(WorkspaceGone):
        await services.requests.archive(LOCAL, first.key, everything=True)


async def test_what_a_killed_daemon_left_of_archives_goes(services: Services, series: str) -> None:
    kept, _ = await made(services, version(series, 1))
    await made(services, version(series, 2))
    archive = services.requests._keeper.archive_of(kept.key)
    left = [archive.with_suffix(".new"), archive.with_name(f"{new_id('rq')}.tar.gz")]
    for path in left:
        path.write_bytes(b"half")
    await services.requests._keeper.sweep()
    assert archive.exists() and not any(path.exists() for path in left)


@pytest.mark.parametrize("whose", ["request", "space"])
async def test_a_download_that_loses_its_tree_is_not_taken_for_all(
    services: Services, whose: str
) -> None:
    keeping = Keeping(Policy.RETAIN)
    script = "run for i in 1 2 3; do head -c 3000000 /dev/urandom > $i; done"
    request, _ = await made(services, Generate(script, keeping=keeping))
    if whose == "request":
        pieces = await services.requests.archive(LOCAL, request.key, everything=True)
    else:
        _, pieces = await services.files.archive(LOCAL, request.space_id, ".")
    assert await asyncio.to_thread(next, pieces)
    await services.spaces.remove(LOCAL, request.space_id, force=True)
    with pytest.raises((WorkspaceGone, SpaceNotFound)):
        await whole(pieces)
    await services.requests.remove(LOCAL, request.key)
