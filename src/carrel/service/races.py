"""Races: several agents are given the same task, and what they made is told side by side.

A race has no record of its own: it is the spaces that carry its label. They and their turns go on
by themselves, and how they stand is found anew each time. The check of a space runs in it as
a command when its turn has ended and somebody waits; its outcome is that command's record.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from carrel.domain.access import LOCAL, Caller
from carrel.domain.errors import CarrelError, RaceNotFound, SpaceNotFound, StateConflict
from carrel.domain.events import EventType
from carrel.domain.ids import new_id
from carrel.domain.races import RACE, Race, RaceCheck, Racer
from carrel.domain.runs import RunRecord, RunState
from carrel.domain.runtimes import Command, ExitReason
from carrel.domain.spaces import RaceRules, Space, SpaceQuery, SpaceRequest
from carrel.domain.store import Store
from carrel.domain.turns import Turn, TurnRequest
from carrel.lifecycle.table import LIVE
from carrel.service.access import is_owner, realm_of
from carrel.service.diffs import DiffRequest, SpaceDiffs
from carrel.service.journal import Journal
from carrel.service.runs import Runs
from carrel.service.shared import CallerSlots, Shared
from carrel.service.space_requests import check_labels
from carrel.service.spaces import Spaces
from carrel.service.turns import Turns

CHECK = "check of a race"
"""How people see the command. Only the service names commands."""
MOST_RACERS = 20
LOOKS = 4
"""At trees, at the same time."""
LOOKED_AT = 1000
"""Of a space's newest commands and turns."""
_LONGEST_NAME = 63


@dataclass(frozen=True)
class RaceRequest:
    """`space` and `turn` are without an agent; the space's name is how their names begin."""

    space: SpaceRequest
    turn: TurnRequest
    agents: tuple[str, ...]
    """One for each space."""
    rules: RaceRules


@dataclass(frozen=True)
class Races:
    store: Store
    journal: Journal
    spaces: Spaces
    turns: Turns
    runs: Runs
    diffs: SpaceDiffs
    shared: Shared
    looks: CallerSlots = dataclasses.field(default_factory=lambda: CallerSlots(LOOKS))

    # Beginning

    async def create(self, caller: Caller, request: RaceRequest) -> Race:
        """All agents work when this returns, or nothing was made. Raises what making a space and
        starting a turn raise."""
        check_labels(request.space.labels, {})
        env = {**request.space.env, **request.turn.env}
        for agent in dict.fromkeys(request.agents):
            wanted = dataclasses.replace(request.space, agent=agent, name="")
            found = self.spaces.check(caller, wanted)
            turn = dataclasses.replace(request.turn, frontend=agent, env=env)
            self.turns.check(caller, turn, found.network)
        race_id = new_id("rc")
        await self.shared.tasks.see_through(self._create(caller, race_id, request))
        return await self.show(caller, race_id, counted=False)

    async def _create(self, caller: Caller, race_id: str, request: RaceRequest) -> None:
        made: list[Space] = []
        names = self._names(request, realm_of(caller))
        labels = {**request.space.labels, RACE: race_id}
        common = dataclasses.replace(
            request.space,
            labels=labels,
            race=request.rules,
            race_begins=True,
            unwatched=True,
        )
        try:
            for agent in request.agents:
                wanted = dataclasses.replace(common, agent=agent, name=next(names))
                made.append(await self.spaces.create(caller, wanted))
            for one in made:
                await self.turns.start(caller, one.space_id, request.turn)
            ids = [one.space_id for one in made]
            begun = [self.journal.amend(each, race_begins=False) for each in ids]
            told = {"race": race_id, "racers": ids}
            events = [self.journal.event(EventType.RACE_BEGUN, each, **told) for each in ids]
            await self.journal.write(*begun, *events)
        except BaseException:
            for one in made:
                await self._give_up(one.space_id)
            raise

    async def _give_up(self, space_id: str) -> None:
        with contextlib.suppress(SpaceNotFound):
            await self.spaces.remove(LOCAL, space_id, force=True, grace_s=0.0)

    async def take_up(self) -> None:
        """A race that a daemon was beginning when it died does not begin."""
        for space in self.journal.all():
            if space.race_begins:
                # A disk may be missing; the next daemon tries again.
                with contextlib.suppress(CarrelError, OSError):
                    await self._give_up(space.space_id)

    def _names(self, request: RaceRequest, realm: str) -> Iterator[str]:
        taken = {one.name for one in self.journal.all() if one.realm == realm}
        for agent in request.agents:
            word = f"{request.space.name or 'race'}-{agent}"
            word = word[: _LONGEST_NAME - 5].rstrip("-._")
            tries = (f"{word}-{number}" if number > 1 else word for number in range(1, 10_000))
            name = next(one for one in tries if one not in taken)
            taken.add(name)
            yield name

    # Going on

    async def go_on(self, caller: Caller, race_id: str, wait_s: float) -> Race:
        """Begins the checks of those whose turn has ended. Waits until one more of the turns and
        checks that run has ended, or so long."""
        spaces = await self._of(caller, race_id)
        waiting = await self._begin_checks(caller, spaces)
        try:
            if waiting and wait_s:
                tasks = [asyncio.create_task(one) for one in waiting]
                waiting = []
                try:
                    await asyncio.wait(tasks, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
                waiting = await self._begin_checks(caller, await self._of(caller, race_id))
        finally:
            for one in waiting:
                one.close()
        return await self.show(caller, race_id, counted=False)

    async def _begin_checks(
        self, caller: Caller, spaces: Sequence[Space]
    ) -> list[Coroutine[Any, Any, object]]:
        """What there is to wait for."""
        found: list[Coroutine[Any, Any, object]] = []
        for space in spaces:
            turn = await self.turns.newest(space.space_id)
            if turn is not None and not turn.ended:
                found.append(self.turns.wait(caller, turn.run_id))
                continue
            run = None if turn is None else await self._checked(caller, space, turn)
            if run is not None and run.state in (RunState.STARTING, RunState.RUNNING):
                found.append(self.runs.wait(run.run_id))
        return found

    async def _checked(self, caller: Caller, space: Space, turn: Turn) -> RunRecord | None:
        """The check of what this turn has left, which is begun if need be and can be."""
        if space.race is None or not space.race.check:
            return None
        async with self.shared.locks.alone(f"{RACE}\0{space.space_id}"):
            if (run := await self._check_of(space, turn)) is not None:
                return run
            command = Command(
                ("/bin/sh", "-c", space.race.check),
                timeout_s=space.race.check_s,
                display=CHECK,
                may_make_room=is_owner(caller),
            )
            # One that is stopped has no check.
            with contextlib.suppress(StateConflict):
                return await self.runs.start(space.space_id, command)
        return None

    async def _check_of(self, space: Space, turn: Turn) -> RunRecord | None:
        for record in await self.store.runs(space.space_id, limit=LOOKED_AT):
            if record.display == CHECK:
                since = record.created_at >= (turn.ended_at or turn.created_at)
                live = self.runs.live(record.run_id)
                return (live.record if live is not None else record) if since else None
        return None

    # Asking

    async def show(self, caller: Caller, race_id: str, *, counted: bool = True) -> Race:
        """`counted`: with the files and lines that each has changed. `RaceNotFound`."""
        spaces = await self._of(caller, race_id)
        looks = [self._racer(caller, space, counted=counted) for space in spaces]
        rules = spaces[0].race or RaceRules()
        return Race(race_id, rules.check, tuple(await asyncio.gather(*looks)))

    async def _of(self, caller: Caller, race_id: str) -> Sequence[Space]:
        query = SpaceQuery(labels={RACE: race_id[:64]}, limit=2 * MOST_RACERS)
        page = await self.spaces.list(caller, query)
        found = [one for one in page.spaces if one.race is not None and not one.race_begins]
        if not found:
            raise RaceNotFound(
                f"There is no race {race_id[:64]!r}, or all its spaces are gone.",
                hint=f"`carrel ls` lists the spaces; those of a race have the label {RACE}.",
            )
        return sorted(found, key=lambda one: (one.created_at, one.space_id))

    async def _racer(self, caller: Caller, space: Space, *, counted: bool) -> Racer:
        turns = await self.store.turns(space.space_id, limit=LOOKED_AT)
        turn = turns[0] if turns else None
        now = self.journal.clock()
        run = None if turn is None else await self._check_of(space, turn)
        racer = Racer(
            space,
            turn,
            sum(max(0.0, (one.ended_at or now) - one.created_at) for one in turns),
            space.spent,
            _outcome(space, turn, run),
            check_run="" if run is None else run.run_id,
            check_code=None if run is None or run.exit is None else run.exit.code,
        )
        if not counted:
            return racer
        # A tree that cannot be read now is no reason to tell nothing of the others.
        with contextlib.suppress(CarrelError):
            async with self.looks.of(caller.account):
                found = await self.diffs.files(caller, DiffRequest(space.space_id), 1)
            return dataclasses.replace(
                racer, files=found.total, added=found.added, deleted=found.deleted
            )
        return racer


def _outcome(space: Space, turn: Turn | None, run: RunRecord | None) -> RaceCheck:
    if space.race is None or not space.race.check:
        return RaceCheck.NONE
    if run is None:
        begins = turn is not None and space.state in LIVE
        return RaceCheck.WAITING if begins else RaceCheck.NOT_RUN
    if run.state in (RunState.STARTING, RunState.RUNNING):
        return RaceCheck.RUNNING
    ended = run.exit
    good = ended is not None and ended.reason is ExitReason.EXITED and ended.code == 0
    return RaceCheck.PASSED if good else RaceCheck.FAILED
