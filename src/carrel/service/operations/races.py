"""Races, as the contract has them."""

from __future__ import annotations

from carrel.api.types import races as types
from carrel.api.types.common import shared
from carrel.domain.access import Caller
from carrel.domain.errors import MessageInvalid
from carrel.domain.races import Race, Racer
from carrel.domain.spaces import RaceRules
from carrel.service.operations.agents import turn_request
from carrel.service.operations.spaces import space_request
from carrel.service.races import MOST_RACERS, RaceRequest, Races


class RaceOperations:
    def __init__(self, races: Races) -> None:
        self._races = races

    async def create(self, caller: Caller, new: types.RaceBody) -> types.RaceInfo:
        """All agents work when this is answered, or nothing was made."""
        return _info(await self._races.create(caller, _request(new)))

    async def show(self, caller: Caller, race: str) -> types.RaceInfo:
        return _info(await self._races.show(caller, race))

    async def check(self, caller: Caller, race: str, asked: types.RaceQuery) -> types.RaceInfo:
        """Begins the checks of those whose agent has ended; counts no files."""
        return _info(await self._races.go_on(caller, race, asked.wait_s))


def _request(new: types.RaceBody) -> RaceRequest:
    agents = tuple(agent for agent in new.agents for _ in range(new.count))
    if len(agents) > MOST_RACERS:
        raise MessageInvalid(
            f"A race has at most {MOST_RACERS} spaces, and these would be {len(agents)}.",
            hint="Name fewer agents, or a smaller count.",
        )
    turn = new.turn
    if new.space.agent or turn.frontend:
        raise MessageInvalid("The agents of a race are `agents`.", hint="Leave the others out.")
    if turn.terminal or turn.queue or turn.continuation or not turn.prompt.strip():
        raise MessageInvalid(
            "Each agent of a race begins with the same prompt, and nothing before it.",
            hint="Give a prompt; leave out `terminal`, `queue` and `continuation`.",
        )
    rules = RaceRules(new.check, new.check_s)
    return RaceRequest(space_request(new.space), turn_request(turn), agents, rules)


def _info(race: Race) -> types.RaceInfo:
    racers = tuple(map(_racer, race.racers))
    return types.RaceInfo(id=race.race_id, check=race.check, ended=race.ended, racers=racers)


def _racer(racer: Racer) -> types.RacerInfo:
    turn = racer.turn
    error = turn.result.error if turn is not None and turn.result is not None else None
    told = {
        "space": racer.space.space_id,
        "name": racer.space.name,
        "agent": racer.space.agent,
        "state": racer.space.state,
        "turn": "" if turn is None else turn.run_id,
        "outcome": None if turn is None else turn.state,
        "problem": "" if error is None else error.message,
    }
    return types.RacerInfo(**{**shared(racer, types.RacerInfo), **told})
