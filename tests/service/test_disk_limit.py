"""A space far above its disk limit, where no quota keeps it below."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import tarfile

import pytest
import zstandard

from carrel.api.types.runs import DeleteQuery, RunBody, WriteQuery
from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import InsufficientDisk
from carrel.domain.limits import Limits
from carrel.domain.runtimes import ExitReason
from carrel.runtimes.limits import disk_watch
from carrel.service.family import Child
from tests.sampling import beyond
from tests.service.rig import RUN_S, family_of, make, run

pytestmark = pytest.mark.xdist_group("disk")


async def test_who_is_far_above_the_disk_limit_makes_room_first(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The space and its children: commands of the owner may still begin."""
    monkeypatch.setattr(disk_watch, "LOOK_S", 0.01)
    monkeypatch.setattr(disk_watch, "FAR_BYTES", 0)
    monkeypatch.setattr(disk_watch, "REST_S", 0.1)
    blue = Caller("tk_1", Scope(ScopeKind.LABEL, "team=blue"))
    limits = Limits(disk_bytes=8 << 20)
    space = await make(services, labels={"team": "blue"}, limits=limits)
    child = await family_of(services).spawn(space.space_id, Child())
    await run(services, space, "true")
    runs = services.operations.runs
    waiting = await runs.begin(LOCAL, space.space_id, RunBody(argv=("sleep", "60")))
    opened = await services.spaces.opened(LOCAL, space.space_id)
    with (opened.sandbox.spec.tree / "big").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 40_000_000)
    record = await services.runs.wait(waiting.run_id)
    assert record.exit is not None and record.exit.reason is ExitReason.DISK
    for one in (space, child):
        with pytest.raises(InsufficientDisk, match="far above"):
            await runs.begin(blue, one.space_id, RunBody(argv=("true",)))
    removed = await runs.begin(LOCAL, space.space_id, RunBody(argv=("rm", "big")))
    async with asyncio.timeout(RUN_S):
        await services.runs.wait(removed.run_id)
        while True:
            with contextlib.suppress(InsufficientDisk):
                await runs.begin(blue, space.space_id, RunBody(argv=("true",)))
                break


TOKENS = [Scope(ScopeKind.LABEL, "team=blue"), Scope(ScopeKind.SPACE)]


# Each way in, and with a stop in between.
WAYS = [("file", False), ("small files", True), ("archive", False), ("context", True)]
WAYS += beyond(*((way, not stopped) for way, stopped in WAYS))


@pytest.mark.parametrize(("way", "stopped"), WAYS)
async def test_what_comes_from_outside_is_held_to_the_limit(
    services: Services, way: str, stopped: bool
) -> None:
    """Nothing runs that could be ended for it. The owner writes, and others remove."""
    limits = Limits(disk_bytes=24 << 20)
    space = await make(services, labels={"team": "blue"}, limits=limits)
    for scope in TOKENS:
        value = scope.value or space.space_id
        token = Caller("tk_1", Scope(scope.kind, value))
        with pytest.raises(InsufficientDisk):
            for number in range(40):
                await put(services, token, space.space_id, way, f"x{number}")
                if stopped:
                    await services.spaces.stop(token, space.space_id, 0.0)
                    await services.spaces.start(token, space.space_id)
    opened = await services.spaces.opened(LOCAL, space.space_id)
    spec = opened.sandbox.spec
    taken = sum(one.stat().st_blocks for one in spec.folder.rglob("*") if one.is_file()) * 512
    # What is in the tree is seen twice where it is mounted.
    assert taken < 2 * (24 << 20) + (24 << 20), taken
    await put(services, LOCAL, space.space_id, way, "owners")
    if way != "context":
        gone = DeleteQuery(path="all", recursive=True)
        await services.operations.files.delete(LOCAL, space.space_id, gone)
        async with asyncio.timeout(RUN_S):
            while True:
                with contextlib.suppress(InsufficientDisk):
                    await put(services, token, space.space_id, "small files", "again")
                    break


async def put(services: Services, caller: Caller, space_id: str, way: str, name: str) -> None:
    """Some megabytes, by one of the ways into a space; below `all` in its tree."""
    if way == "context":
        await services.context.put(caller, space_id, name, os.urandom(8 << 20))
        return
    files = services.operations.files
    await services.files.use(LOCAL, space_id, lambda all: all.mkdir("all", parents=True))
    if way == "archive":
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            entry = tarfile.TarInfo(name)
            entry.size = 200 << 20
            tar.addfile(entry, io.BytesIO(b"x" * entry.size))
        shut = zstandard.ZstdCompressor().compress(packed.getvalue())
        assert len(shut) < 1 << 20
        await services.files.unpack(caller, space_id, io.BytesIO(shut), "all")
        return
    query = WriteQuery(path=f"all/{name}")
    if way == "small files":
        await files.write(caller, space_id, query, os.urandom(2 << 20))
        return
    await files.write(caller, space_id, query, (os.urandom(1 << 20) for _ in range(100)))
