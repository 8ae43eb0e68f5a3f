"""Checkpoints of a space: files and conversation are put back together, and forked."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.checkpoints import START, Checkpoint, CheckpointKind, StateSummary
from carrel.domain.errors import (
    CheckpointNotFound,
    Forbidden,
    InsufficientDisk,
    LandingRefused,
    NotUndoable,
    PathNotFound,
    SpaceNotFound,
    StateConflict,
    TooLarge,
    TreeUnavailable,
)
from carrel.domain.events import EventQuery, EventType
from carrel.domain.spaces import Space
from carrel.domain.trees import ReviewQuery
from carrel.domain.turns import Turn, TurnRequest
from carrel.service.checkpoints import MOST_OF_AGENTS, Checkpoints, ForkRequest
from carrel.service.takes import TakeRequest
from carrel.service.turn_setup import TurnSetup
from carrel.trees.states import SpaceStates
from tests.faults.rig import ending, serving
from tests.review.conftest import Repository, land
from tests.service.rig import RUN_S, make, opened, run


async def turn(services: Services, space: Space, prompt: str, *, goes_on: bool = True) -> Turn:
    """One that goes on with the conversation, as `carrel send --queue` does."""
    request = TurnRequest("", prompt, queue=goes_on)
    begun = await services.turns.start(LOCAL, space.space_id, request)
    done = await services.turns.wait(LOCAL, begun.run_id, RUN_S)
    assert done.result is not None and done.result.success, done
    await taken(services, space, done.run_id)
    return done


async def taken(services: Services, space: Space, run_id: str) -> Checkpoint:
    """The checkpoint after that turn."""
    async with asyncio.timeout(RUN_S):
        while True:
            for one in await checkpoints(services, space):
                if one.turn == run_id:
                    return one
            await asyncio.sleep(0.01)


async def checkpoints(services: Services, space: Space) -> list[Checkpoint]:
    return list(await services.checkpoints.list(LOCAL, space.space_id))


async def said(services: Services, space: Space, script: str) -> str:
    record, text = await run(services, space, f"exec 2> /dev/null; {script}")
    assert record.exit is not None and record.exit.code == 0, text
    return text


async def rewind(services: Services, space: Space, to: str = "") -> Checkpoint:
    return await services.checkpoints.rewind(LOCAL, space.space_id, to)


async def fork(services: Services, space: Space, **asked: object) -> Space:
    request = dataclasses.replace(ForkRequest(), **asked)  # type: ignore[arg-type]
    return (await services.checkpoints.fork(LOCAL, space.space_id, request)).spaces[0]


SHOW = "cat notes.txt made.log 2> /dev/null; cat a.txt | wc -l; git status --porcelain --ignored"


async def test_one_after_each_turn_and_back(services: Services, repository: Repository) -> None:
    space = await make(services, repository.path, name="desk", agent="scripted")
    began = await said(services, space, SHOW)
    first = await turn(services, space, "run echo one > notes.txt; echo noise > made.log")
    one = await said(services, space, SHOW)
    second = await turn(services, space, "run echo two >> notes.txt; rm a.txt; git add -A")
    two = await said(services, space, SHOW)
    listed = await checkpoints(services, space)
    assert [one.turn for one in listed] == [second.run_id, first.run_id]
    assert all(one.kind is CheckpointKind.TURN and one.with_agent for one in listed)
    assert {"notes.txt", "made.log"} <= set(listed[1].named)
    # What the shell wrote since, and nobody took.
    await said(services, space, "echo lost > notes.txt; mkdir new; echo x > new/x")
    before = await rewind(services, space)
    assert await said(services, space, SHOW) == two
    await rewind(services, space, listed[1].checkpoint_id)
    assert await said(services, space, SHOW) == one
    # The conversation is the one after the first turn.
    again = await turn(services, space, "again")
    assert again.result and again.result.final_output.startswith("turn 2")
    await rewind(services, space, START)
    assert await said(services, space, SHOW) == began
    fresh = await turn(services, space, "hello")
    assert fresh.result and fresh.result.final_output.startswith("turn 1")
    # A rewind can be taken back, also the first of several.
    await services.checkpoints.undo(before.checkpoint_id)
    assert "lost" in await said(services, space, "cat notes.txt new/x")
    third = await turn(services, space, "more")
    assert third.result and third.result.final_output.startswith("turn 3")
    with pytest.raises(NotUndoable):
        await services.checkpoints.undo(before.checkpoint_id)


async def test_forks_go_on_from_it(services: Services, repository: Repository) -> None:
    space = await make(services, repository.path, name="desk", agent="scripted")
    await turn(services, space, "run echo one > notes.txt")
    await said(services, space, "echo by hand > more.txt")
    request = ForkRequest(count=3)
    made = await services.checkpoints.fork(LOCAL, "desk", request)
    assert [one.name for one in made.spaces] == ["desk-2", "desk-3", "desk-4"]
    assert made.conversation
    for number, one in enumerate(made.spaces):
        assert await said(services, one, "cat notes.txt more.txt") == "one\nby hand\n"
        await said(services, one, f"echo {number} > own.txt")
        spoken = await turn(services, one, "on")
        assert spoken.result and spoken.result.final_output.startswith("turn 2")
    assert await said(services, space, "ls own.txt || :") == ""
    listed = await services.spaces.review(LOCAL, made.spaces[0].space_id, ReviewQuery(most=100))
    assert {one.path for one in listed.listed} == {"notes.txt", "more.txt", "own.txt"}
    # It is a space of its own: the first may go, and it can land and be forked itself.
    await services.spaces.remove(LOCAL, space.space_id, force=True)
    again = await fork(services, made.spaces[1], name="third")
    assert await said(services, again, "cat notes.txt more.txt own.txt") == "one\nby hand\n1\n"
    await services.spaces.stop(LOCAL, again.space_id, 0.2)
    await services.spaces.start(LOCAL, again.space_id)
    assert await said(services, again, "cat own.txt") == "1\n"


async def test_from_a_checkpoint(services: Services, repository: Repository) -> None:
    space = await make(services, repository.path, agent="scripted")
    await turn(services, space, "run echo one > notes.txt")
    first = (await checkpoints(services, space))[0]
    await turn(services, space, "run echo two > notes.txt; rm old.txt")
    made = await fork(services, space, checkpoint=first.checkpoint_id, name="earlier")
    assert await said(services, made, "cat notes.txt old.txt") == "one\nold\n"
    began = await fork(services, space, checkpoint=START, name="begin")
    assert await said(services, began, "ls notes.txt || echo none; cat old.txt") == "none\nold\n"


async def test_what_cannot_be(services: Services, repository: Repository) -> None:
    space = await make(services, repository.path, name="desk", agent="scripted")
    with pytest.raises(CheckpointNotFound):
        await rewind(services, space, "ck_nothing")
    token = Caller("t", Scope(ScopeKind.SPACE, space.space_id))
    with pytest.raises(Forbidden):
        await services.checkpoints.fork(token, space.space_id, ForkRequest())
    begun = await services.turns.start(LOCAL, space.space_id, TurnRequest("", "sleep 600"))
    with pytest.raises(StateConflict):
        await rewind(services, space)
    # Files can be kept while it works; the conversation is in the middle of something.
    kept = await services.checkpoints.take(LOCAL, space.space_id, "while it works")
    assert not kept.with_agent and kept.message == "while it works"
    await services.turns.interrupt(LOCAL, begun.run_id)
    await services.turns.wait(LOCAL, begun.run_id, RUN_S)


async def test_a_failed_rewind_leaves_all_as_it_was(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await make(services, repository.path, agent="scripted")
    await turn(services, space, "run echo one > notes.txt")
    await said(services, space, "echo two > notes.txt; echo x > x.txt")
    real = SpaceStates.put_back
    left = [1]

    def put_back(self: SpaceStates, name: str, **_more: bool) -> bool:
        done = real(self, name)
        if left.pop() if left else 0:
            raise InsufficientDisk("There is no room.")
        return done

    monkeypatch.setattr(SpaceStates, "put_back", put_back)
    with pytest.raises(InsufficientDisk):
        await rewind(services, space)
    assert await said(services, space, "cat notes.txt x.txt") == "two\nx\n"
    assert await services.checkpoints.rewinds() == []


async def test_a_daemon_that_died_finishes_a_rewind(
    data: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of its steps."""
    async with ending(data):
        async with serving(data) as services:
            space = await make(services, repository.path, name="desk", agent="scripted")
            await turn(services, space, "run echo one > notes.txt")
            await said(services, space, "echo two > notes.txt; rm old.txt")
        kept = ""
        for step in ("_restored", "_go_to"):
            async with serving(data) as services:
                kept = kept or (await checkpoints(services, space))[0].checkpoint_id
                owner: type = SpaceStates if step == "_restored" else Checkpoints
                with monkeypatch.context() as patch:
                    patch.setattr(owner, step, _dies)
                    with pytest.raises(_Died):
                        await rewind(services, space, kept)
            async with serving(data) as services:
                assert await said(services, space, "cat notes.txt old.txt") == "one\nold\n"
                rewinds = await services.checkpoints.rewinds()
                await services.checkpoints.undo(rewinds[0].checkpoint_id)
                assert await said(services, space, "cat notes.txt; ls old.txt || :") == "two\n"


class _Died(BaseException):
    """As nothing that anybody catches."""


def _dies(*_args: object, **_more: object) -> None:
    raise _Died


async def test_a_budget(data: Path, repository: Repository) -> None:
    settings = {"checkpoints": 3, "checkpoint_bytes": 1 << 20}
    async with opened(data, **settings) as services:
        space = await make(services, repository.path, agent="scripted")
        kept = []
        for number in range(6):
            await said(services, space, f"head -c 300000 /dev/urandom > f{number}")
            if number:
                await said(services, space, f"rm f{number - 1}")
            kept.append(await services.checkpoints.take(LOCAL, space.space_id, str(number)))
        listed = await checkpoints(services, space)
        assert 1 <= len(listed) <= 3 and listed[0] == kept[-1]
        await said(services, space, "head -c 3000000 /dev/urandom > large")
        with pytest.raises(TooLarge):
            await services.checkpoints.take(LOCAL, space.space_id, "")
        # What comes by itself never fails a turn, and says why it is missing.
        begun = await services.turns.start(LOCAL, space.space_id, TurnRequest("", "say x"))
        done = await services.turns.wait(LOCAL, begun.run_id, RUN_S)
        assert done.result is not None and done.result.success
        wanted = EventQuery(types=frozenset({EventType.CHECKPOINT}), limit=500)
        async with asyncio.timeout(RUN_S):
            while not any("problem" in one.data for one in await services.store.events(wanted)):
                await asyncio.sleep(0.01)
        await said(services, space, "rm large")
        await rewind(services, space)
        assert await said(services, space, "ls f5") == "f5\n"


async def test_what_is_kept_is_not_counted_each_time(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That costs with every file that is kept, so the last would cost more than the first."""
    counted: list[int] = []
    real = SpaceStates.bytes_kept

    def count(states: SpaceStates) -> int:
        counted.append(real(states))
        return counted[-1]

    monkeypatch.setattr(SpaceStates, "bytes_kept", count)
    space = await make(services, repository.path, name="desk")
    for number in range(5):
        await run(services, space, f"echo {number} > a.txt")
        await services.checkpoints.take(LOCAL, "desk", "")
    assert len(counted) == 1


async def test_only_the_newest_turns_are_read(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await make(services, repository.path, name="desk", agent="scripted")
    last = await turn(services, space, "write idea.txt first", goes_on=False)
    older = (
        dataclasses.replace(last, run_id=f"ru_{number}", created_at=number, continuation=None)
        for number in range(40)
    )
    await services.store.write(*older)
    read: list[int] = []
    real = services.store.turns

    async def turns(space_id: str, *, limit: int = 100) -> Sequence[Turn]:
        found = await real(space_id, limit=limit)
        read.append(len(found))
        return found

    monkeypatch.setattr(services.checkpoints._store, "turns", turns)
    found = await services.checkpoints.take(LOCAL, "desk", "")
    assert found.turn == last.run_id and found.continuation == last.continuation is not None
    assert sum(read) < 40


async def test_the_work_is_named_before_git(services: Services, repository: Repository) -> None:
    space = await make(services, repository.path, name="desk")
    await run(services, space, "echo 1 > z.txt; git add z.txt; git commit -qm z")
    found = await services.checkpoints.take(LOCAL, "desk", "")
    assert found.named[0] == "z.txt" and found.named[1].startswith(".git/")


async def test_what_is_gone_to_is_not_thinned_first(data: Path, repository: Repository) -> None:
    """Neither by the checkpoint before a rewind, nor by the one before that is taken back."""
    async with opened(data, checkpoints=2) as services:
        space = await make(services, repository.path)
        kept = []
        for number in range(2):
            await said(services, space, f"echo {number} > n")
            kept.append(await services.checkpoints.take(LOCAL, space.space_id, ""))
        await said(services, space, "echo 2 > n")
        before = await rewind(services, space, kept[0].checkpoint_id)
        assert await said(services, space, "cat n") == "0\n"
        assert len(await checkpoints(services, space)) == 2
        await said(services, space, "echo 3 > n")
        await services.checkpoints.take(LOCAL, space.space_id, "")
        await services.checkpoints.undo(before.checkpoint_id)
        assert await said(services, space, "cat n") == "2\n"


async def test_a_rewind_that_failed_is_not_done_later(
    data: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is other work by then. What there was can be had."""
    async with ending(data):
        async with serving(data) as services:
            space = await make(services, repository.path, name="desk")
            await said(services, space, "echo one > notes.txt")
            kept = await services.checkpoints.take(LOCAL, space.space_id, "")
            await said(services, space, "echo two > notes.txt")
            with monkeypatch.context() as patch:
                patch.setattr(SpaceStates, "put_back", _no_room)
                with pytest.raises(TreeUnavailable, match="could not be put back") as told:
                    await rewind(services, space, kept.checkpoint_id)
            failed = told.value.hint.split()[-1]
            await said(services, space, "echo three > notes.txt")
        async with serving(data) as services:
            assert await said(services, space, "cat notes.txt") == "three\n"
            await services.checkpoints.undo(failed)
            assert await said(services, space, "cat notes.txt") == "two\n"


def _no_room(*_args: object, **_more: object) -> bool:
    raise InsufficientDisk("There is no room.")


async def test_a_daemon_that_died_finishes_an_undo(
    data: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ending(data):
        async with serving(data) as services:
            space = await make(services, repository.path, name="desk")
            await said(services, space, "echo one > notes.txt")
            before = await rewind(services, space, START)
            monkeypatch.setattr(SpaceStates, "put_back", _dies)
            with pytest.raises(_Died):
                await services.checkpoints.undo(before.checkpoint_id)
            monkeypatch.undo()
        async with serving(data) as services:
            assert await said(services, space, "cat notes.txt") == "one\n"
            assert not await services.checkpoints.rewinds()


async def test_an_undo_that_failed_half_way_is_done_again(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await make(services, repository.path, name="desk")
    await said(services, space, "echo one > notes.txt")
    before = await rewind(services, space, START)
    with monkeypatch.context() as patch:
        patch.setattr(SpaceStates, "put_back", _no_room)
        with pytest.raises(TreeUnavailable, match="could not be put back") as told:
            await services.checkpoints.undo(before.checkpoint_id)
    assert told.value.hint.endswith(f"carrel undo {before.checkpoint_id}")
    await services.checkpoints.undo(before.checkpoint_id)
    assert await said(services, space, "cat notes.txt") == "one\n"


async def test_a_turn_waits_for_a_checkpoint(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its agent is given, such as a key in a file, is in none."""
    space = await make(services, repository.path, agent="scripted")
    taking, may_take = threading.Event(), threading.Event()
    real = SpaceStates.take

    def take(self: SpaceStates, *words: Any, **more: Any) -> StateSummary:
        taking.set()
        assert may_take.wait(RUN_S)
        return real(self, *words, **more)

    monkeypatch.setattr(SpaceStates, "take", take)
    prepared: list[bool] = []
    prepare = TurnSetup.prepare

    def noted(self: TurnSetup, *words: Any, **more: Any) -> Any:
        prepared.append(may_take.is_set())
        return prepare(self, *words, **more)

    monkeypatch.setattr(TurnSetup, "prepare", noted)
    kept = asyncio.create_task(services.checkpoints.take(LOCAL, space.space_id, ""))
    assert await asyncio.to_thread(taking.wait, RUN_S)
    start = services.turns.start(LOCAL, space.space_id, TurnRequest("", "say x"))
    begun = asyncio.create_task(start)
    await asyncio.wait((begun,), timeout=0.5)
    may_take.set()
    assert (await kept).with_agent
    await services.turns.wait(LOCAL, (await begun).run_id, RUN_S)
    assert prepared == [True]


async def test_nothing_is_taken_of_what_is_being_rewound(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have the half of both."""
    space = await make(services, repository.path, name="desk")
    other = await make(services, repository.path, name="other")
    await said(services, space, "echo one > notes.txt")
    going, may_go = threading.Event(), threading.Event()
    real = SpaceStates.put_back

    def put_back(self: SpaceStates, name: str, **_more: bool) -> bool:
        going.set()
        assert may_go.wait(RUN_S)
        return real(self, name)

    monkeypatch.setattr(SpaceStates, "put_back", put_back)
    rewound = asyncio.create_task(rewind(services, space, START))
    assert await asyncio.to_thread(going.wait, RUN_S)
    wanted = TakeRequest(space.space_id, other.space_id, ("notes.txt",))
    taken = asyncio.create_task(services.takes.take(LOCAL, wanted))
    landed = asyncio.create_task(land(services, space))
    await asyncio.wait((taken, landed), timeout=0.5)
    may_go.set()
    await rewound
    with pytest.raises(PathNotFound):
        await taken
    with pytest.raises(LandingRefused):
        await landed


async def test_a_tokens_fork_counts_for_the_token(
    services: Services, repository: Repository
) -> None:
    """However many it makes of the owner's, it has one share."""
    space = await make(services, repository.path, name="desk", labels={"team": "a"})
    token = Caller("t", Scope(ScopeKind.LABEL, "team=a"))
    made = (await services.checkpoints.fork(token, "desk", ForkRequest(count=2))).spaces
    assert {one.counts_for for one in made} == {"team=a"}
    assert {(one.network, one.limits, one.guest) for one in made} == {
        (space.network, space.limits, space.guest)
    }
    with pytest.raises(SpaceNotFound):
        stranger = Caller("s", Scope(ScopeKind.LABEL, "team=b"))
        await services.checkpoints.fork(stranger, space.space_id, ForkRequest())


async def test_without_git_and_in_other_ways(services: Services, tmp_path: Path) -> None:
    project = tmp_path / "plain"
    project.mkdir()
    (project / "a").write_text("a\n")
    for driver in ("copy", "overlay"):
        space = await make(services, project, driver=driver, name=f"by-{driver}")
        await said(services, space, "echo b > b; rm a; mkdir d; echo c > d/c")
        kept = await services.checkpoints.take(LOCAL, space.space_id, "")
        await said(services, space, "rm -r d b; echo other > a")
        await rewind(services, space, kept.checkpoint_id)
        assert await said(services, space, "cat b d/c; ls a || echo gone") == "b\nc\ngone\n"
        made = await fork(services, space)
        assert await said(services, made, "cat b d/c; ls a || echo gone") == "b\nc\ngone\n"


async def test_an_agent_pushes_out_only_its_own(data: Path, repository: Repository) -> None:
    async with opened(data, checkpoints=3, checkpoint_bytes=1 << 20) as services:
        space = await make(services, repository.path, agent="scripted")

        async def by_agent(name: str, size: int) -> Checkpoint:
            await said(services, space, f"head -c {size} /dev/urandom > {name}")
            return await services.checkpoints.take_for_agent(space.space_id, name)

        await said(services, space, "head -c 300000 /dev/urandom > kept")
        mine = [await services.checkpoints.take(LOCAL, space.space_id, str(n)) for n in range(3)]
        own = [await by_agent("small", 10) for _ in range(MOST_OF_AGENTS + 3)]
        listed = await checkpoints(services, space)
        assert listed == [*reversed(own[3:]), *reversed(mine)]
        # Neither can it by their size.
        last = await by_agent("large", 400_000)
        await by_agent("large", 400_000)
        with pytest.raises(TooLarge):
            await by_agent("large", 900_000)
        listed = await checkpoints(services, space)
        assert listed == [*reversed(mine)]
        assert last not in listed
        more = await by_agent("large", 400_000)
        assert (await checkpoints(services, space))[0] == more
        # What was kept for the owner comes before those of the agent.
        mine.append(await services.checkpoints.take(LOCAL, space.space_id, "4"))
        assert await checkpoints(services, space) == [mine[-1], more, *reversed(mine[1:-1])]
        await said(services, space, "head -c 600000 /dev/urandom > more")
        mine.append(await services.checkpoints.take(LOCAL, space.space_id, "5"))
        assert more not in await checkpoints(services, space)


async def test_an_agent_takes_one_at_a_time(services: Services, repository: Repository) -> None:
    space = await make(services, repository.path)
    take = services.checkpoints.take_for_agent
    done = await asyncio.gather(
        *(take(space.space_id, str(number)) for number in range(3)), return_exceptions=True
    )
    assert isinstance(done[0], Checkpoint) and not done[0].with_agent
    assert all(isinstance(one, StateConflict) for one in done[1:])
    assert (await take(space.space_id, "later")).message == "later"
