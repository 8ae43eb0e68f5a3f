"""Writing down what happens to a space: its moves, and the steps of every operation.

A step is recorded before it begins and after it ended, so that whoever comes after a crash
knows how far it got. The end of one step and the beginning of the next are one write.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import time
from collections.abc import Callable
from typing import Any

from carrel.domain.errors import CarrelError, InsufficientDisk, SpaceNotFound
from carrel.domain.events import EventType, NewEvent
from carrel.domain.spaces import Problem, Space, SpaceState
from carrel.domain.store import Record, Step, Store
from carrel.lifecycle.table import LEAVING, check_move
from carrel.service.space_config import SpaceConfigs

Clock = Callable[[], float]
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Journal:
    """Also knows every space that is not removed, as it is right now: a move is decided and
    noted in one go, and the store gets the writes in the same order. What could not be
    written did not happen."""

    def __init__(
        self, store: Store, clock: Clock = time.time, configs: SpaceConfigs | None = None
    ) -> None:
        """`configs` are written for people when something of a space has changed."""
        self._store = store
        self._configs = configs
        self._spaces: dict[str, Space] = {}
        self.clock = clock

    def __len__(self) -> int:
        return len(self._spaces)

    # What is

    def know(self, space: Space) -> None:
        """One that was found in the store, or is about to be written."""
        self._spaces[space.space_id] = space

    def get(self, space_id: str) -> Space | None:
        return self._spaces.get(space_id)

    def staying(self, space_id: str) -> Space | None:
        """None also for one that is on its way out: something of it may be gone already."""
        space = self._spaces.get(space_id)
        return None if space is None or space.state in LEAVING else space

    def all(self) -> list[Space]:
        return list(self._spaces.values())

    def current(self, space_id: str) -> Space:
        """Raises `SpaceNotFound` for one that is gone."""
        space = self._spaces.get(space_id)
        if space is None:
            raise SpaceNotFound(f"{space_id} is gone.", hint="`carrel ls` lists what there is.")
        return space

    # What becomes; all of it is for `write`

    def amend(self, space_id: str, **changes: Any) -> Space:
        """The space with something of it changed, but not its state."""
        before = self.current(space_id)
        new = _changed(before, updated_at=self.clock(), **_onward(before, changes))
        self._spaces[space_id] = new
        return new

    def moved(self, space_id: str, state: SpaceState, **changes: Any) -> tuple[Space, NewEvent]:
        """The space in another state, and the event of it. `StateConflict`."""
        before = self.current(space_id)
        check_move(before.name, before.state, state)
        now = self.clock()
        data: dict[str, object] = {"from": str(before.state), "to": str(state)}
        problem = changes.get("problem")
        if isinstance(problem, Problem):
            data["problem"] = dataclasses.asdict(problem)
        new = _changed(before, state=state, updated_at=now, **_onward(before, changes))
        self._spaces[space_id] = new
        return new, NewEvent(EventType.SPACE_STATE, space_id, data, now)

    def event(self, type: EventType, space_id: str = "", **data: object) -> NewEvent:
        return NewEvent(type, space_id, data, self.clock())

    def operation(self, space_id: str, name: str) -> JournaledOperation:
        return JournaledOperation(self, space_id, name)

    async def write(self, *records: Record) -> None:
        if not records:
            return
        spaces = [record for record in records if isinstance(record, Space)]
        try:
            await self._store.write(*records)
        except BaseException:
            for space in spaces:
                await asyncio.shield(self._look_again(space))
            raise
        for space in spaces:
            if space.state is SpaceState.REMOVED:
                self._spaces.pop(space.space_id, None)
            if self._configs is not None and self._configs.is_stale(space):
                await asyncio.to_thread(self._configs.write, self.get(space.space_id) or space)

    async def _look_again(self, space: Space) -> None:
        """Only if nothing newer was decided meanwhile."""
        if self._spaces.get(space.space_id) is not space:
            return
        stored = await self._store.space(space.space_id)
        if stored is None or stored.state is SpaceState.REMOVED:
            self._spaces.pop(space.space_id, None)
        else:
            self._spaces[space.space_id] = stored


class JournaledOperation:
    """The steps of one operation, one after the other."""

    def __init__(self, journal: Journal, space_id: str, name: str) -> None:
        self._journal = journal
        self._space_id = space_id
        self._name = name
        self._current: Step | None = None

    @property
    def step(self) -> str:
        return self._current.name if self._current is not None else self._name

    async def begin(self, step: str, *records: Record) -> None:
        """Ends the step before, if there is one. `records` are written with it."""
        now = self._journal.clock()
        ended = self._ended(now)
        self._current = Step(self._space_id, self._name, step, now)
        begun = self._event(EventType.STEP_BEGUN, step)
        await self._journal.write(*ended, *records, self._current, begun)

    async def end(self, *records: Record) -> None:
        ended = self._ended(self._journal.clock())
        self._current = None
        await self._journal.write(*ended, *records)

    async def fail(self, error: BaseException, *records: Record) -> None:
        now, step = self._journal.clock(), self._current
        self._current = None
        if step is None:
            await self._journal.write(*records)
            return
        text = error.code if isinstance(error, CarrelError) else type(error).__name__
        failed = dataclasses.replace(step, ended_at=now, problem=text)
        event = self._event(EventType.STEP_FAILED, step.name, problem=text)
        await self._journal.write(failed, event, *records)

    def _ended(self, now: float) -> tuple[Record, ...]:
        if self._current is None:
            return ()
        ended = dataclasses.replace(self._current, ended_at=now)
        return ended, self._event(EventType.STEP_DONE, self._current.name)

    def _event(self, type: EventType, step: str, **data: object) -> NewEvent:
        return self._journal.event(type, self._space_id, operation=self._name, step=step, **data)


def _changed(space: Space, **changes: Any) -> Space:
    """As `dataclasses.replace`, which asks for each of its many fields by name: ten times as long,
    for what each step of each space does."""
    if unknown := changes.keys() - vars(space).keys():
        raise TypeError(f"a space has no {', '.join(sorted(unknown))}")
    new = object.__new__(Space)
    vars(new).update(vars(space), **changes)
    return new


def _onward(before: Space, changes: dict[str, Any]) -> dict[str, Any]:
    """What was used a moment ago is not idle for a year because a clock was put right."""
    if "active_at" in changes:
        return {**changes, "active_at": max(before.active_at, changes["active_at"])}
    return changes


def plain(error: BaseException) -> BaseException:
    """A full disk may be met wherever something is made; it is told in one way."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        hint = "Make room, or move the data folder."
        return InsufficientDisk("There is no room on the disk.", hint=hint)
    return error


def problem_of(step: str, error: BaseException) -> Problem:
    if isinstance(error, CarrelError):
        return Problem(step, error.code, error.message, error.hint)
    return Problem(step, "internal", f"{type(error).__name__}: {error}")


def printable(text: str) -> str:
    """On one line of the daemon's log, whoever chose it."""
    return text if text.isprintable() else ascii(text)
