"""Races: the same task for several agents, all of them or none."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import CarrelError, Forbidden, RaceNotFound, SpaceInvalid
from carrel.domain.races import RACE, Race, RaceCheck
from carrel.domain.spaces import RaceRules, SpaceQuery
from carrel.domain.turns import TurnRequest, TurnState
from carrel.service.races import RaceRequest
from carrel.service.turns import Turns
from tests.faults.rig import ending, serving
from tests.review.conftest import Died, Repository, work
from tests.service.rig import RUN_S, family_of, leftovers, opened, request

TASK = "run echo idea > idea.txt; rm old.txt"


def asked(
    repository: Repository, prompt: str = TASK, check: str = "", count: int = 2
) -> RaceRequest:
    rules = RaceRules(check, RUN_S)
    space = request(repository.path, name="try")
    return RaceRequest(space, TurnRequest("", prompt), ("scripted",) * count, rules)


async def ended(services: Services, race_id: str, caller: Caller = LOCAL) -> Race:
    async with asyncio.timeout(RUN_S):
        while not (await services.races.go_on(caller, race_id, RUN_S)).ended:
            pass
    return await services.races.show(caller, race_id)


async def names(services: Services) -> list[str]:
    return [one.name for one in (await services.spaces.list(LOCAL, SpaceQuery())).spaces]


async def test_one_table(services: Services, repository: Repository) -> None:
    check = "echo checked; test $(basename $HOME) && cat idea.txt && ! ls passed-not"
    begun = await services.races.create(LOCAL, asked(repository, check=check))
    assert not begun.ended and [one.space.name for one in begun.racers] == [
        "try-scripted",
        "try-scripted-2",
    ]
    # What makes the check of one of them fail.
    second = begun.racers[1].space
    await work(services, second, "touch passed-not")
    race = await ended(services, begun.race_id)
    assert [one.check for one in race.racers] == [RaceCheck.PASSED, RaceCheck.FAILED]
    assert [one.check_code for one in race.racers] == [0, 1]
    first = race.racers[0]
    assert first.turn is not None and first.turn.state is TurnState.COMPLETE
    assert (first.files, first.added, first.deleted) == (2, 1, 1)
    assert first.seconds > 0 and first.usage.turns == 1
    # Asking again begins nothing; after another turn the check is due again.
    again = await ended(services, race.race_id)
    assert [one.check_run for one in again.racers] == [one.check_run for one in race.racers]
    more = TurnRequest("", "run rm passed-not")
    turn = await services.turns.start(LOCAL, second.space_id, more)
    await services.turns.wait(LOCAL, turn.run_id, RUN_S)
    found = await services.races.show(LOCAL, race.race_id)
    assert found.racers[1].check is RaceCheck.WAITING and not found.ended
    assert (await ended(services, race.race_id)).racers[1].check is RaceCheck.PASSED
    # One that is gone or stopped is no reason to wait.
    await services.spaces.remove(LOCAL, second.space_id, force=True)
    assert len((await services.races.show(LOCAL, race.race_id)).racers) == 1
    await services.spaces.remove(LOCAL, first.space.space_id, force=True)
    with pytest.raises(RaceNotFound):
        await services.races.show(LOCAL, race.race_id)


async def test_all_or_none(
    services: Services, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(leftovers(services.settings.data))
    wanted = asked(repository)
    unknown = dataclasses.replace(wanted, agents=("scripted", "nobody"))
    with pytest.raises(CarrelError):
        await services.races.create(LOCAL, unknown)
    own = dataclasses.replace(wanted.space, labels={RACE: "rc_x"})
    with pytest.raises(SpaceInvalid):
        await services.races.create(LOCAL, dataclasses.replace(wanted, space=own))
    count = 0
    start = Turns.start

    async def second_fails(self: Turns, *given: object) -> object:
        nonlocal count
        count += 1
        if count > 1:
            raise Forbidden("Not this one.")
        return await start(self, *given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Turns, "start", second_fails)
        with pytest.raises(Forbidden):
            await services.races.create(LOCAL, wanted)
    assert await names(services) == []
    assert {one for one in leftovers(services.settings.data) if "trash" not in one} <= before


async def test_a_daemon_that_dies(
    data: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it begins one, nothing is left of it; afterwards, the race goes on."""
    async with ending(data):
        async with serving(data) as services:
            with monkeypatch.context() as patch:
                patch.setattr(Turns, "start", _dies)
                patch.setattr(type(services.races), "_give_up", _nothing)
                with pytest.raises(Died):
                    await services.races.create(LOCAL, asked(repository))
            assert len(await names(services)) == 2
        async with serving(data) as services:
            assert await names(services) == []
            begun = await services.races.create(LOCAL, asked(repository, check="cat idea.txt"))
        async with serving(data) as services:
            race = await ended(services, begun.race_id)
            assert [one.check for one in race.racers] == [RaceCheck.PASSED] * 2


def _dies(*_given: object) -> None:
    raise Died


async def _nothing(*_given: object) -> None:
    pass


async def test_for_tokens(data: Path, repository: Repository) -> None:
    async with opened(data, project_roots=(str(repository.path),)) as services:
        blue = Caller("blue", Scope(ScopeKind.LABEL, "team=blue"))
        red = Caller("red", Scope(ScopeKind.LABEL, "team=red"))
        begun = await services.races.create(blue, asked(repository))
        race = await ended(services, begun.race_id, blue)
        assert all(one.space.labels["team"] == "blue" for one in race.racers)
        for work in (
            services.races.show(red, race.race_id),
            services.races.go_on(red, race.race_id, 0),
        ):
            with pytest.raises(RaceNotFound):
                await work
        first = race.racers[0].space
        inside = Caller("inside", Scope(ScopeKind.SPACE, first.space_id))
        with pytest.raises(Forbidden):
            await services.races.create(inside, asked(repository))
        assert len((await services.races.show(inside, race.race_id)).racers) == 1


async def test_only_what_was_begun_as_one_races(services: Services, repository: Repository) -> None:
    """Neither forks of a racer nor its helpers do."""
    from carrel.service.checkpoints import ForkRequest
    from carrel.service.family import Child

    begun = await services.races.create(LOCAL, asked(repository, count=1))
    race = await ended(services, begun.race_id)
    space = race.racers[0].space
    made = await services.checkpoints.fork(LOCAL, space.space_id, ForkRequest())
    child = await family_of(services).spawn(space.space_id, Child("helper", "", "", ""))
    assert all(RACE not in one.labels for one in (*made.spaces, child))
    assert len((await services.races.show(LOCAL, race.race_id)).racers) == 1
