"""What a daemon left half made or half removed: the next one answers first, and clears it meanwhile
in the share of its account."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.app import service
from carrel.cleanup.trash import Trash
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind, working_for
from carrel.domain.errors import SpaceNotFound, TreeUnavailable
from carrel.domain.events import EventQuery, EventType
from carrel.domain.runs import RunRecord, RunState
from carrel.domain.runtimes import Command
from carrel.domain.spaces import Space, SpaceState
from carrel.service import reconciler, removal
from carrel.service.open_spaces import OpenSpace
from carrel.service.reviews import COUNTED, ROUGH
from carrel.service.runs import Runs
from carrel.trees.removal import remove_tree
from tests.faults.rig import (
    assert_sound,
    assert_works,
    ending,
    everything,
    interrupt,
    remove_all,
    serving,
)
from tests.service.rig import RUN_S, make, request, run

BLUE = Caller("tk_blue", Scope(ScopeKind.LABEL, "team=blue"))
WORK = "echo work > work.txt"
SETTLING = frozenset({EventType.RECONCILED})


class LargeTrees:
    """Of spaces: to remove one takes until it is `small`."""

    def __init__(self) -> None:
        self.small = threading.Event()
        self.removed_for: list[str] = []

    def remove(self, folder: Path) -> None:
        self.removed_for.append(working_for.get())
        assert self.small.wait(RUN_S)
        remove_tree(folder)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Iterator[LargeTrees]:
    trees = LargeTrees()
    monkeypatch.setattr(service, "remove_tree", trees.remove)
    try:
        yield trees
    finally:
        trees.small.set()


async def test_the_next_daemon_answers_first(data: Path, large: LargeTrees) -> None:
    """Whoever calls the space itself waits until it is gone; nobody else waits."""
    async with ending(data):
        async with serving(data) as services:
            kept = await make(services)
            going = await services.spaces.create(BLUE, request(labels={"team": "blue"}))
            await interrupt(services, going)
        async with asyncio.timeout(RUN_S), serving(data) as services:
            shown = await services.spaces.get(LOCAL, going.space_id)
            assert shown.state is SpaceState.REMOVING
            calls = [
                asyncio.create_task(run(services, going, "true")),
                asyncio.create_task(services.spaces.remove(LOCAL, going.space_id, force=True)),
            ]
            await assert_works(services, kept, "echo here", "here\n")
            # The regular look passes it by.
            assert await services.reconciler.settle(wait=False) == []
            assert await services.reconciler.check() == []
            assert not any(call.done() for call in calls)
            large.small.set()
            for call in calls:
                with pytest.raises(SpaceNotFound):
                    await call
            await services.reconciler.cleared()
            assert large.removed_for == [BLUE.account]
            assert [one.space_id for one in await everything(services)] == [kept.space_id]
            await remove_all(services, data)


async def test_an_end_while_it_is_cleared(data: Path, large: LargeTrees) -> None:
    """The daemon does not wait for the rest, and the one after it goes on."""
    async with ending(data):
        async with serving(data) as services:
            space = await make(services)
            await run(services, space, WORK)
            await interrupt(services, space)
        async with asyncio.timeout(RUN_S), serving(data):
            while not large.removed_for:
                await asyncio.sleep(0.01)
        large.small.set()
        async with asyncio.timeout(RUN_S), serving(data) as services:
            await services.reconciler.cleared()
            back = await services.spaces.undelete(LOCAL, space.space_id)
            await assert_works(services, back, "cat work.txt", "work\n")
            await remove_all(services, data)


async def test_a_removal_after_one_that_failed(data: Path) -> None:
    """What that one had kept is older than the work since."""
    async with ending(data):
        async with serving(data) as services:
            space = await make(services)
            await services.spaces.stop(LOCAL, space.space_id, 0.2)
            failing = services.journal.operation(space.space_id, removal.OPERATION)
            for state, step in (("REMOVING", removal.KEEP), ("FAILED", removal.TREE)):
                records = services.journal.moved(space.space_id, SpaceState[state])
                await failing.begin(step, *records)
            await failing.fail(TreeUnavailable("The machine refused to unmount the tree."))
            await services.spaces.start(LOCAL, space.space_id)
            await run(services, space, WORK)
            await interrupt(services, space)
        async with asyncio.timeout(RUN_S), serving(data) as services:
            await services.reconciler.cleared()
            back = await services.spaces.undelete(LOCAL, space.space_id)
            await assert_works(services, back, "cat work.txt", "work\n")
            await remove_all(services, data)


async def test_a_creation_that_is_asked_for_again(data: Path, large: LargeTrees) -> None:
    """By the same key: what is left of the first one goes before."""
    async with ending(data):
        async with serving(data) as services:
            first = await services.spaces.create(LOCAL, request(name="once"), key="k")
            half = services.journal.amend(first.space_id, state=SpaceState.CREATING)
            await services.journal.write(half)
        async with asyncio.timeout(RUN_S), serving(data) as services:
            asking = asyncio.create_task(
                services.spaces.create(LOCAL, request(name="once"), key="k")
            )
            while not large.removed_for:
                await asyncio.sleep(0.01)
            assert not asking.done()
            large.small.set()
            second = await asking
            assert second.space_id != first.space_id and second.state is SpaceState.READY
            await assert_sound(services, data, second)
            await remove_all(services, data)


async def test_a_tree_that_ends_whoever_keeps_it_goes(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not tried in every daemon that starts."""
    tried, over = [], threading.Event()
    monkeypatch.setattr(reconciler, "MOST_TRIES", 1)

    def keep(self: Trash, space: Space, *_: object) -> None:
        tried.append(space.space_id)
        assert over.wait(RUN_S)

    monkeypatch.setattr(Trash, "keep", keep)
    async with ending(data):
        async with serving(data) as services:
            space = await make(services)
            await run(services, space, WORK)
            await interrupt(services, space)
        try:
            async with asyncio.timeout(RUN_S), serving(data):
                while not tried:
                    await asyncio.sleep(0.01)
            async with asyncio.timeout(RUN_S), serving(data) as services:
                await services.reconciler.cleared()
                assert tried == [space.space_id]
                gone = await services.spaces.get(LOCAL, space.space_id)
                assert gone.state is SpaceState.REMOVED
                await remove_all(services, data)
        finally:
            over.set()


HOSTILE = """
git init -q; echo '*' > .git/info/exclude; git commit -q --allow-empty -m one
printf '%s\\n' '*.log' '[z-a]' > .gitignore; echo work > work.txt; echo lines > a.log
"""


async def test_a_removal_that_is_gone_on_with_reads_neither_rules_nor_commits(data: Path) -> None:
    """Strangers wrote them: what they hide is kept with the rest."""
    async with ending(data):
        async with serving(data) as services:
            spaces = [await make(services) for _ in range(2)]
            for space in spaces:
                record, said = await run(services, space, HOSTILE)
                assert record.exit is not None and record.exit.code == 0, said
            for query, read in ((COUNTED, (1, 1)), (ROUGH, (0, 0))):
                found = await services.spaces.review(LOCAL, spaces[1].space_id, query)
                assert (found.ignored, len(found.commits)) == read
            removal = await services.spaces.remove(LOCAL, spaces[0].space_id, force=True)
            assert removal.kept is not None and removal.kept.changes == 2
            await interrupt(services, spaces[1])
        async with asyncio.timeout(RUN_S), serving(data) as services:
            await services.reconciler.cleared()
            kept = {one.space.space_id: one.changes for one in await services.spaces.trashed(LOCAL)}
            assert kept == {spaces[0].space_id: 2, spaces[1].space_id: 3}
            await remove_all(services, data)


async def test_what_goes_wrong_with_one_space_keeps_no_other_from_starting(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what nobody foresaw. It is told, and tried again at the next look."""
    async with ending(data):
        async with serving(data) as services:
            spaces = [await make(services) for _ in range(3)]
            runs = [
                await services.runs.start(space.space_id, Command(("sleep", "600")))
                for space in spaces
            ]
        take_up = Runs.take_up

        async def fails(self: Runs, record: RunRecord, opened: OpenSpace) -> None:
            if record.space_id == spaces[1].space_id:
                raise ValueError("Nobody foresaw this.")
            await take_up(self, record, opened)

        with monkeypatch.context() as patch:
            patch.setattr(Runs, "take_up", fails)
            async with asyncio.timeout(RUN_S), serving(data) as services:
                taken = [services.runs.live(one.run_id) is not None for one in runs]
                assert taken == [True, False, True]
                told = await services.store.events(EventQuery(types=SETTLING))
                assert "Nobody foresaw this." in str([event.data for event in told])
        async with asyncio.timeout(RUN_S), serving(data) as services:
            for one in runs:
                assert services.runs.live(one.run_id) is not None
                await services.spaces.stop(LOCAL, one.space_id, 0.0)
                assert (await services.runs.get(one.run_id)).state is RunState.ENDED
            await remove_all(services, data)
