"""What uses the disk: shown, bounded by default, and given back when nobody needs it."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.config import Settings
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.limits import LimitKind, Limits
from carrel.domain.projects import BaseRequest
from carrel.linux.reserve import Reserve
from carrel.runtimes.limits import disk
from tests.instances.rig import serving
from tests.service.rig import make, request, run


async def bases(services: Services) -> set[str]:
    return {base.base_id for base in await asyncio.to_thread(services.app.bases.list)}


async def dropped(services: Services, *, dry_run: bool = False) -> set[str]:
    report = await services.collector.run(LOCAL, dry_run=dry_run, all_bases=True)
    return {action.target for action in report.actions if action.verb == "remove base"}


async def test_bases_that_nothing_uses_go(services: Services, project: Path, data: Path) -> None:
    """Not those of spaces, nor of what is in the trash, nor what those stand on."""
    unused = await make(services)
    await services.spaces.remove(LOCAL, unused.space_id)
    lower = await make(services, project)
    await services.spaces.remove(LOCAL, lower.space_id)
    (project / "more").write_text("more\n")
    upper = await make(services, project)
    assert upper.base_id != lower.base_id
    await run(services, upper, "echo x > new")
    there = await bases(services)
    assert await dropped(services, dry_run=True) == {unused.base_id}
    assert await bases(services) == there
    assert await dropped(services) == {unused.base_id}
    await services.spaces.remove(LOCAL, upper.space_id, force=True)
    assert await dropped(services) == set()
    again = await services.spaces.undelete(LOCAL, upper.space_id)
    assert (await run(services, again, "cat new more"))[1] == "x\nmore\n"
    await run(services, again, "rm new")
    await services.spaces.remove(LOCAL, again.space_id)
    assert upper.base_id in await dropped(services)
    assert await bases(services) == set()
    assert list((data / "bases" / ".staging").iterdir()) == []
    whole = await make(services, project)
    assert (await run(services, whole, "cat more"))[1] == "more\n"


async def test_a_space_is_made_while_its_base_goes(
    services: Services, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await make(services, project)
    await services.spaces.remove(LOCAL, first.space_id)
    begun, go_on = threading.Event(), threading.Event()
    remove = services.app.bases.remove

    def slow(base_id: str) -> None:
        begun.set()
        assert go_on.wait(60)
        remove(base_id)

    monkeypatch.setattr(services.app.bases, "remove", slow)
    cleaning = asyncio.create_task(dropped(services))
    assert await asyncio.to_thread(begun.wait, 60)
    making = asyncio.create_task(make(services, project))
    built = services.app.bases.build
    while not services.journal.all():
        await asyncio.sleep(0.01)
    # It has found the base that goes, and waits for another.
    await asyncio.to_thread(built, _wanted(services))
    assert not making.done()
    go_on.set()
    assert await cleaning == {first.base_id}
    space = await making
    assert (await run(services, space, "cat greet.py"))[1] == "print('hello')\n"


def _wanted(services: Services) -> BaseRequest:
    (space,) = services.journal.all()
    return BaseRequest(project=space.project)


async def test_old_bases_go_by_themselves(services: Services, project: Path) -> None:
    space = await make(services, project)
    await services.spaces.remove(LOCAL, space.space_id)
    assert await services.collector.tidy() == []
    now = services.journal.clock()
    services.journal.clock = lambda: now + services.settings.bases_s + 60
    assert [action.target for action in await services.collector.tidy()] == [space.base_id]


async def test_a_space_without_a_disk_limit_gets_one(services: Services, project: Path) -> None:
    free = Reserve(services.settings.data / "reserve").free().bytes
    space = await make(services, project)
    assert 0.4 * free < space.default_disk_bytes < 0.6 * free + (1 << 20)
    assert LimitKind.DISK in {one.kind for one in space.enforced}
    assert services.open_spaces.spec(space).limits.disk_bytes == space.default_disk_bytes
    asked = await make(services, project, limits=Limits(disk_bytes=1 << 30))
    assert asked.default_disk_bytes == 0
    assert services.open_spaces.spec(asked).limits.disk_bytes == 1 << 30


def test_the_default_is_a_share_a_size_or_none() -> None:
    def of(text: str) -> int:
        return Settings(data=Path("/x"), space_disk=text).disk_for(1 << 40)

    assert (of("50%"), of("10G"), of("none")) == (1 << 39, 10 << 30, 0)
    assert Settings(data=Path("/x")).disk_for(1 << 20) == 64 << 20


async def test_what_uses_the_disk(services: Services, project: Path) -> None:
    used = await make(services, project, name="used")
    gone = await make(services)
    await services.spaces.remove(LOCAL, gone.space_id)
    await run(services, used, "head -c 3000000 /dev/urandom > big; echo x > ~/y")
    report = await services.operations.cleanup.disk_use(LOCAL)
    disk = os.statvfs(services.settings.data)
    assert report.total_bytes == disk.f_blocks * disk.f_frsize
    assert 0 < report.free_bytes <= report.total_bytes
    by_kind = {part.kind: part for part in report.parts}
    notes = {part.name: part.note for part in report.parts if part.kind == "base"}
    assert notes[used.base_id].endswith(": 1 space")
    assert notes[gone.base_id].endswith(": unused")
    space = by_kind["space"]
    assert space.name == "used" and (space.bytes or 0) >= 3_000_000
    assert {"tree", "home", "runs"} <= space.of.keys()
    assert {"records", "messages", "reserve"} <= by_kind.keys()
    assert (by_kind["records"].bytes or 0) > 0


async def test_what_is_too_deep_to_measure_is_said(
    services: Services, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "MAX_DEPTH", 8)
    space = await make(services, project, name="deep")
    await run(services, space, "mkdir -p ~/" + "d/" * 9)
    report = await services.operations.cleanup.disk_use(LOCAL)
    (part,) = [one for one in report.parts if one.name == "deep"]
    assert part.bytes is None and part.note == "home too deep to measure"
    assert "tree" in part.of and "home" not in part.of


async def test_the_trash_is_within_its_budget_after_each_removal(data: Path) -> None:
    """Who removes one space after the other takes no more of the disk, and the owner's stays."""
    blue = Caller("tk_blue", Scope(ScopeKind.LABEL, "team=blue"))
    async with serving(data, trash_bytes=150_000) as services:
        own = await make(services)
        await run(services, own, "echo kept > kept")
        await services.spaces.remove(LOCAL, own.space_id, force=True)
        for _ in range(3):
            theirs = await services.spaces.create(blue, request())
            await run(services, theirs, "head -c 100000 /dev/urandom > big")
            await services.spaces.remove(blue, theirs.space_id, force=True)
        left = await services.spaces.trashed(LOCAL)
        assert [one.space.space_id for one in left] == [own.space_id, theirs.space_id]
        assert sorted(path.name for path in (data / "trash").iterdir()) == sorted(
            one.space.space_id for one in left
        )
