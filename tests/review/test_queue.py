"""Spaces in line for a branch: each lands on the result of the one before, or is returned."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import (
    Forbidden,
    LandingRefused,
    QueueEntryNotFound,
    SpaceNotFound,
    StateConflict,
)
from carrel.domain.events import EventQuery
from carrel.domain.landing import LandingCheck, LandRequest
from carrel.domain.queue import QueueEntry, QueueState
from carrel.domain.spaces import Space, SpaceQuery
from carrel.review.project import ProjectRepository
from tests.review.conftest import Repository, work
from tests.service.rig import RUN_S, make

LANDED, RETURNED, CANCELLED = QueueState.LANDED, QueueState.RETURNED, QueueState.CANCELLED


def check(command: str) -> LandingCheck:
    return LandingCheck(command, 60.0)


async def enqueue(services: Services, spaces: Sequence[Space], **asked: Any) -> list[QueueEntry]:
    words = [space.space_id for space in spaces]
    return list(await services.queue.add(LOCAL, words, LandRequest(**asked)))


async def ended(services: Services, most_s: float = RUN_S) -> dict[str, QueueEntry]:
    """By the names of their spaces, when nothing waits any more."""
    async with asyncio.timeout(most_s):
        while True:
            found = await services.queue.list(LOCAL, 100)
            if all(one.ended for one in found):
                return {one.name: one for one in reversed(found)}
            await asyncio.sleep(0.01)


async def desks(services: Services, repository: Repository, *scripts: str) -> list[Space]:
    found = []
    for number, script in enumerate(scripts):
        space = await make(services, repository.path, name=f"desk{number}")
        await work(services, space, script)
        found.append(space)
    return found


async def test_each_on_the_result_of_the_one_before(
    services: Services, repository: Repository
) -> None:
    spaces = await desks(
        services,
        repository,
        "echo 0 > f0",
        "sed -i 's/line 3$/one/' a.txt; touch f1",
        "sed -i 's/line 3$/two/' a.txt",
        "touch wrong",
        "echo 4 > f4",
    )
    made = await enqueue(services, spaces, check=check("ls; cat f0; ! test -e wrong"))
    assert [one.state for one in made] == [QueueState.WAITING] * 5
    with pytest.raises(LandingRefused, match="already"):
        await enqueue(services, spaces[4:])
    done = await ended(services)
    states = [done[f"desk{number}"].state for number in range(5)]
    assert states == [LANDED, LANDED, RETURNED, RETURNED, LANDED]
    assert done["desk2"].code == "landing_conflict" and "a.txt" in done["desk2"].reason
    assert done["desk3"].code == "check_failed" and "wrong\n0\n" in done["desk3"].output
    assert [done[f"desk{number}"].landing_id != "" for number in range(5)] == [
        *(True, True, False, False, True),
    ]
    subjects = repository.git("log", "--reverse", "--format=%s", "main..carrel/queue")
    assert subjects.split("\n") == [f"Land the work of desk{number}" for number in (0, 1, 4)]
    page = await services.spaces.list(LOCAL, SpaceQuery(limit=100))
    assert len(page.spaces) == 5, "no check has left a space"
    events = await services.store.events(EventQuery(limit=10_000))
    told = [(one.type, one.data.get("passed")) for one in events if one.type.startswith("landing.")]
    assert told == [
        *([("landing.queued", None)] * 5),
        *([("landing.checked", True), ("landing.landed", None)] * 2),
        ("landing.returned", None),
        *(("landing.checked", False), ("landing.returned", None)),
        *(("landing.checked", True), ("landing.landed", None)),
    ]
    # What was returned can be mended, and comes again.
    await work(services, spaces[3], "rm wrong; touch right")
    await enqueue(services, [spaces[3]], check=check("test -e f4"))
    assert (await ended(services))["desk3"].state is LANDED


async def test_lines_of_their_own(services: Services, repository: Repository) -> None:
    """Another branch does not wait; what is cancelled does not land, and its check ends."""
    slow, next_one, other = await desks(services, repository, "touch a", "touch b", "touch c")
    first, second = await enqueue(services, [slow, next_one], check=check("sleep 1000"))
    [third] = await enqueue(services, [other], branch="topic", check=check("true"))
    async with asyncio.timeout(RUN_S):
        while [one.state for one in await services.queue.list(LOCAL, 1)] != [QueueState.LANDING]:
            await asyncio.sleep(0.01)
        while repository.git("branch", "--list", "topic") == "":
            await asyncio.sleep(0.01)
    assert (await services.queue.cancel(LOCAL, second.entry_id)).state is CANCELLED
    assert (await services.queue.cancel(LOCAL, first.entry_id)).state is CANCELLED
    done = await ended(services)
    assert {one.entry_id for one in done.values() if one.state is LANDED} == {third.entry_id}
    with pytest.raises(QueueEntryNotFound):
        await services.queue.cancel(LOCAL, first.entry_id)
    assert repository.git("branch", "--list", "carrel/*") == ""
    async with asyncio.timeout(RUN_S):
        while len((await services.spaces.list(LOCAL, SpaceQuery(limit=100))).spaces) > 3:
            await asyncio.sleep(0.01)


async def test_what_is_not_taken(services: Services, repository: Repository, tmp_path: Any) -> None:
    """All of a call or nothing of it."""
    space, held, goes = await desks(services, repository, "touch a", "touch b", "touch c")
    (tmp_path / "plain").mkdir()
    plain = await make(services, tmp_path / "plain", name="plain")
    with pytest.raises(LandingRefused, match="no git"):
        await enqueue(services, [space, plain])
    with pytest.raises(SpaceNotFound):
        await services.queue.add(LOCAL, [space.space_id, "nobody"], LandRequest())
    guest = Caller("guest", Scope(ScopeKind.SPACE, space.space_id))
    with pytest.raises(Forbidden):
        await services.queue.add(guest, [space.space_id], LandRequest())
    with pytest.raises(Forbidden):
        await services.queue.list(guest, 10)
    assert not await services.queue.list(LOCAL, 10)
    # One that goes meanwhile is returned.
    [first, _] = await enqueue(services, [held, goes], check=check("sleep 1000"))
    await services.spaces.remove(LOCAL, goes.space_id, force=True)
    await services.queue.cancel(LOCAL, first.entry_id)
    done = await ended(services)
    assert done["desk2"].code == "space_not_found" and done["desk1"].state is CANCELLED


async def test_who_moves_the_branch_meanwhile(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.git("branch", "topic")
    [space] = await desks(services, repository, "touch a")
    moves = ProjectRepository.move
    moved: list[str] = []

    def late(project: ProjectRepository, *told: str) -> None:
        if len(moved) < most:
            tree = repository.git("rev-parse", "topic^{tree}")
            moved.append(repository.git("commit-tree", tree, "-p", "topic", "-m", "moved"))
            repository.git("update-ref", "refs/heads/topic", moved[-1])
        moves(project, *told)

    monkeypatch.setattr(ProjectRepository, "move", late)
    most = 3
    await enqueue(services, [space], branch="topic")
    assert (await ended(services))["desk0"].state is LANDED and len(moved) == 3
    assert repository.git("rev-parse", "topic^") == moved[-1]
    await services.landings.undo(LOCAL, "")
    most = 100
    await enqueue(services, [space], branch="topic")
    done = (await ended(services))["desk0"]
    assert done.state is RETURNED and "moved" in done.reason


async def test_while_it_lands_it_cannot_be_cancelled(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was cancelled right before it was to land does not land."""
    spaces = await desks(services, repository, "touch a", "touch b")
    write = services.store.write
    tried: list[QueueEntry] = []

    async def slow(*records: Any) -> Any:
        entry = next((one for one in records if isinstance(one, QueueEntry)), None)
        if entry is not None and entry.landing_id and not entry.ended:
            with pytest.raises(StateConflict, match="just now"):
                await services.queue.cancel(LOCAL, entry.entry_id)
            tried.append(entry)
        return await write(*records)

    monkeypatch.setattr(services.store, "write", slow)
    await enqueue(services, spaces[:1])
    assert (await ended(services))["desk0"].state is LANDED and tried
    monkeypatch.undo()
    finish = services.landings._finish

    async def late(*told: Any) -> Any:
        await services.queue.cancel(LOCAL, made.entry_id)
        return await finish(*told)

    monkeypatch.setattr(services.landings, "_finish", late)
    [made] = await enqueue(services, spaces[1:])
    assert (await ended(services))["desk1"].state is CANCELLED
    assert repository.git("rev-list", "--count", "main..carrel/queue") == "1"


async def test_what_was_cancelled_before_its_turn_began(
    services: Services, repository: Repository
) -> None:
    """The worker had chosen it already: it neither lands nor is in line again."""
    spaces = await desks(services, repository, "touch a", "touch b")
    first, second = await enqueue(services, spaces, check=check("sleep 1000"))
    await services.queue.cancel(LOCAL, second.entry_id)
    await services.queue._land(dataclasses.replace(second, request=LandRequest("x")))
    await services.queue.cancel(LOCAL, first.entry_id)
    assert {one.state for one in (await ended(services)).values()} == {CANCELLED}
    assert repository.git("branch", "--list", "x") == ""
