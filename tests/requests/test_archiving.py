"""Versions that are read while they are put away."""

from __future__ import annotations

import asyncio
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
from carrel.domain.errors import WorkspaceGone
from carrel.domain.ids import new_id
from carrel.domain.requests import Generate, Keeping, Older, Policy, Request, Workspace
from carrel.service.spaces import Spaces
from carrel.trees.differing import GitDiffs
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
