"""The daemon is killed at the writes of a request: what was promised is kept, and nothing of
what was not is left."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from carrel.app.service import Services, open_service
from carrel.config import Settings
from carrel.domain.access import LOCAL
from carrel.domain.requests import Request, RequestQuery, RequestState, Workspace
from carrel.domain.store import Forget
from tests.etc import share_etc
from tests.forking import forked
from tests.launchers import forked_launchers, nursery
from tests.load.clearing import end_everything
from tests.requests.killing import play
from tests.requests.rig import heard, paths
from tests.sampling import every
from tests.service.rig import leftovers

CHILD_S = 90.0
MOST_WRITES = 100
CASES = (
    ("ephemeral", "before", 0),
    ("ephemeral", "after", 7),
    ("retained", "before", 3),
    ("cancelled", "before", 10),
    ("versioned", "before", 5),
)
"""With the write at which a sample begins. Most writes are the same in all of them: together they
have about every third."""


def act(told: Path, data: Path, scenario: str, moment: str, number: int) -> list[dict[str, Any]]:
    args = (nursery(), str(told), str(data), scenario, moment, number)
    process = forked.Process(target=play, args=args)
    process.start()
    process.join(CHILD_S)
    assert process.exitcode in (0, -9)
    return [json.loads(line) for line in told.read_text().splitlines()]


@pytest.mark.parametrize(("scenario", "moment", "first"), CASES)
async def test_killed_at_its_writes(
    scenario: str, moment: str, first: int, data: Path, tmp_path: Path
) -> None:
    share_etc(data)
    points = every(14, range(1, MOST_WRITES), first)
    try:
        for number in points:
            told = tmp_path / "told"
            said = await asyncio.to_thread(act, told, data, scenario, moment, number)
            with forked_launchers():
                async with open_service(Settings(data=data, request_agent="scripted")) as services:
                    await check(
                        services, {key: value for one in said for key, value in one.items()}
                    )
                    await clear(services, data)
            if any("writes" in one for one in said):
                assert number > points[0]
                return
        raise AssertionError("a request never ends")
    finally:
        await asyncio.to_thread(end_everything, data)


async def check(services: Services, told: dict[str, Any]) -> None:
    for name in ("promised", "version"):
        if name in told and "removed" not in told:
            await check_promise(services, await services.requests.get(LOCAL, told[name]))
    if "kept" in told and "removed" not in told:
        await services.requests.settled()
        request = await services.requests.get(LOCAL, told["kept"])
        if request.workspace is Workspace.THERE:
            files = await services.requests.files(LOCAL, request.key)
            assert [file.path for file in files.files] == ["made.txt"]
    if "version" in told:
        await check_versions(services)
    if "cancelled" in told:
        request = await services.requests.get(LOCAL, told["cancelled"])
        assert request.state is RequestState.CANCELLED


async def check_promise(services: Services, request: Request) -> None:
    """It was written down: it is done, by whichever daemon, and once."""
    frames = await heard(services, request.key)
    assert paths(frames) == ["made.txt"]
    assert frames[-1].data["complete"] is True
    numbers = [frame.seq for frame in frames if frame.seq]
    assert numbers == sorted(numbers)
    await services.requests.delivered(LOCAL, request.key)


async def check_versions(services: Services) -> None:
    """The newest is there, and the one before it in an archive, whole."""
    await services.requests.settled()
    newest, *older = await services.requests.versions(LOCAL, "api")
    assert newest.workspace is Workspace.THERE
    assert [one.workspace for one in older] == [Workspace.ARCHIVED] * len(older)
    for one in older:
        pieces = await services.requests.diff(LOCAL, "api", 0, one.version)
        assert b"+1\n" in await asyncio.to_thread(b"".join, pieces)


async def clear(services: Services, data: Path) -> None:
    """Everything can be removed, and then nothing is left."""
    for request in await services.requests.list(LOCAL, RequestQuery(limit=1000)):
        await services.requests.remove(LOCAL, request.key)
    await services.requests.settled()
    await services.reconciler.cleared()
    await services.reconciler.sweep()
    assert services.journal.all() == []
    assert await services.spaces.trashed(LOCAL) == []
    assert leftovers(data) == []
    found = await services.requests.list(LOCAL, RequestQuery(limit=1000))
    assert all(one.workspace in (Workspace.GONE, Workspace.NONE) for one in found)
    await services.store.write(Forget(requests=tuple(one.key for one in found)))
