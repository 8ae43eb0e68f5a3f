"""Makes reality match the record: at start, after a crash, and now and then.

The record is right about what was promised, the machine about what is there. What was
under way is carried on or undone; what runs is taken up again; what nobody knows is
removed. Everything here may be done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import takewhile
from weakref import WeakValueDictionary

from carrel.domain.access import LOCAL, begin_for
from carrel.domain.cleanup import Action, Stray, Sweeper
from carrel.domain.errors import CarrelError
from carrel.domain.events import EventType
from carrel.domain.runs import RunRecord, RunState
from carrel.domain.runtimes import LocalRuntime
from carrel.domain.spaces import Problem, Space, SpaceQuery, SpaceState
from carrel.domain.store import Store
from carrel.lifecycle.table import LIVE, SETTLED
from carrel.service import removal
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpaces
from carrel.service.removal import Remover
from carrel.service.runs import Runs
from carrel.service.shared import Shared

PAGE = 1000
AT_ONCE = 16
"""So many spaces are seen to at the same time: each waits for the launcher or the disk."""
STOP_GRACE_S = 2.0
_UNRECORDED = "no record says what it was, and it may hold work: look at it, and remove it yourself"
_OVER = (RunState.ENDED, RunState.FAILED)

MOST_TRIES = 8
"""Of daemons that ended while they kept the changes of one space. Work is lost by giving up, but
one tree that ends every daemon would keep everybody out."""
_HALF = frozenset({SpaceState.CREATING, SpaceState.REMOVING})
"""Half made or half gone: what an earlier daemon left so goes."""

Work = Callable[[Space], Awaitable[Action | None]]

_log = logging.getLogger("carrel")


class Reconciler:
    def __init__(
        self,
        store: Store,
        journal: Journal,
        open_spaces: OpenSpaces,
        remover: Remover,
        runs: Runs,
        shared: Shared,
        sweeper: Sweeper,
    ) -> None:
        self._store = store
        self._journal = journal
        self._open_spaces = open_spaces
        self._remover = remover
        self._runs = runs
        self._locks = shared.locks
        self._sweeper = sweeper
        self._clearing: dict[str, asyncio.Task[Action | None]] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._given_up: frozenset[str] = frozenset()
        """Where an earlier daemon set projects up: nobody waits for that any more."""

    async def at_start(self, *, rebooted: bool) -> list[Action]:
        """Before anybody is served. Costs what was under way, not how many spaces there are, nor
        how large: those that go are cleared while others are served."""
        await self._load()
        live = [record for record in await self._store.runs(live=True, limit=1 << 30)]
        of_space: dict[str, list[RunRecord]] = {}
        for record in live:
            of_space.setdefault(record.space_id, []).append(record)
        self._given_up = frozenset(one.space_id for one in self._journal.all() if one.setting_up)
        self._clear_half()
        staying = [space for space in self._journal.all() if not self._goes(space)]
        actions = await self._for_each(
            staying, lambda space: self._settle(space, of_space, rebooted)
        )
        await self._report(actions)
        return actions

    async def _load(self) -> None:
        after = ""
        states = frozenset(SpaceState) - {SpaceState.REMOVED}
        while True:
            page = await self._store.spaces(SpaceQuery(states=states, limit=PAGE, after=after))
            for space in page.spaces:
                self._journal.know(space)
            after = page.next
            if not after:
                return

    async def _for_each(self, spaces: Sequence[Space], work: Work) -> list[Action]:
        gate = asyncio.Semaphore(AT_ONCE)
        found: list[Action] = []

        async def one(space: Space) -> None:
            async with gate, self._locks.alone(space.space_id):
                action = await self._try(space, work)
            if action is not None:
                found.append(action)

        async with asyncio.TaskGroup() as group:
            for space in spaces:
                group.create_task(one(space))
        return found

    @staticmethod
    async def _try(space: Space, work: Work) -> Action | None:
        """One space that cannot be settled must not keep the others from it."""
        try:
            return await work(space)
        except Exception as error:
            if not isinstance(error, CarrelError | OSError):
                _log.exception("the space %s could not be settled", space.space_id)
            return Action("settle", space.space_id, str(error), done=False)

    async def _settle(
        self, space: Space, runs: dict[str, list[RunRecord]], rebooted: bool
    ) -> Action | None:
        state, space_id = space.state, space.space_id
        mine = runs.get(space_id, [])
        action = None
        if state is SpaceState.STOPPING:
            operation = self._journal.operation(space_id, "stop")
            await self._remover.carry_on_stop(space_id, STOP_GRACE_S, operation)
            action = Action("stop", space_id, "its stop was interrupted")
        if mine:
            await self._take_up(space_id, mine)
        if mine and state in (SpaceState.STOPPED, SpaceState.FAILED):
            # Its services were being started when the daemon ended, and nobody heard of it.
            opened = await self._open_spaces.of(self._journal.current(space_id))
            await opened.stop(STOP_GRACE_S)
            await self._runs.settled(space_id)
            action = Action("stop", space_id, "its start was interrupted")
        if rebooted and state in LIVE:
            return await self._stopped_by_reboot(space_id)
        if state is SpaceState.RUNNING and not self._runs.live_of(space_id):
            current = self._journal.current(space_id)
            if current.state is SpaceState.RUNNING:
                await self._journal.write(*self._journal.moved(space_id, SpaceState.READY))
        return action

    # Half made, or half gone

    def _goes(self, space: Space) -> bool:
        return space.state in _HALF or space.space_id in self._given_up

    def _clear_half(self) -> list[asyncio.Task[Action | None]]:
        """Goes on with those that nobody is at: each in the share of its account, where they go one
        after the other. Removing a large tree takes its time, and keeps nobody else waiting."""
        for space in self._journal.all():
            space_id = space.space_id
            known = space_id in self._clearing or self._locks.is_taken(space_id)
            if self._goes(space) and not known:
                task = begin_for(space.account or LOCAL.name, self._clear(space))
                self._clearing[space_id] = task
                task.add_done_callback(partial(self._cleared, space_id))
        return list(self._clearing.values())

    def _cleared(self, space_id: str, _task: asyncio.Task[Action | None]) -> None:
        del self._clearing[space_id]

    async def _clear(self, space: Space) -> Action | None:
        """Has the space from the first step on: who calls it meanwhile waits until it is gone."""
        turn = self._turns.setdefault(space.counts_for, asyncio.Lock())
        async with self._locks.alone(space.space_id), turn:
            current = self._journal.get(space.space_id)
            if current is None or not self._goes(current):
                return None
            action = await self._try(current, self._carry_on)
        await self._report([action] if action is not None else [])
        return action

    async def _carry_on(self, space: Space) -> Action:
        if space.state is SpaceState.CREATING:
            return await self._undo(space)
        if space.state is SpaceState.REMOVING:
            return await self._carry_on_removal(space)
        return await self._give_up(space)

    async def cleared(self) -> None:
        """What an earlier daemon left half made or half gone is gone, or could not go."""
        while self._clearing:
            await asyncio.wait(list(self._clearing.values()))

    async def close(self) -> None:
        """The next daemon goes on with what is under way."""
        for task in self._clearing.values():
            task.cancel()
        await self.cleared()

    async def _undo(self, space: Space) -> Action:
        problem = Problem("create", "interrupted", "The daemon ended while it was made.")
        records = self._journal.moved(space.space_id, SpaceState.REMOVING, problem=problem)
        await self._journal.write(*records)
        await self._remover.carry_on_undo(records[0])
        return Action("undo", space.space_id, "its creation was interrupted")

    async def _give_up(self, space: Space) -> Action:
        stop, space_id = self._journal.operation(space.space_id, "stop"), space.space_id
        if space.state in LIVE:
            await self._remover.stop(space_id, 0.0, stop)
        elif space.state is SpaceState.STOPPING:
            await self._remover.carry_on_stop(space_id, 0.0, stop)
        await self._remover.remove(space_id, self._journal.operation(space_id, removal.OPERATION))
        return Action("remove", space_id, "the set-up in it was interrupted")

    async def _carry_on_removal(self, space: Space) -> Action:
        begun = await self._store.steps(space.space_id)
        names = [step.name for step in begun if step.operation == removal.OPERATION]
        if not names:
            await self._remover.carry_on_undo(space)
            return Action("undo", space.space_id, "undoing its creation was interrupted")
        operation = self._journal.operation(space.space_id, removal.OPERATION)
        # Not those of an earlier one that failed: the space may have been worked in since.
        steps = {*takewhile(lambda name: name != removal.KEEP, reversed(names))}
        # Then what is left of the tree is not the whole.
        kept = removal.TREE in steps
        tries = sum(name.startswith(removal.KEEP_AGAIN) for name in steps)
        if tries >= MOST_TRIES and not kept:
            _log.warning("the changes of %s are not kept: it failed too often", space.space_id)
            kept = True
        elif not kept:
            await operation.begin(f"{removal.KEEP_AGAIN} {tries + 1}")
        await self._remover.carry_on_remove(space.space_id, operation, kept=kept)
        return Action("remove", space.space_id, "its removal was interrupted")

    async def _take_up(self, space_id: str, records: list[RunRecord]) -> None:
        opened = await self._open_spaces.of(self._journal.current(space_id))
        for record in records:
            await self._runs.take_up(record, opened)

    async def _stopped_by_reboot(self, space_id: str) -> Action:
        for state in (SpaceState.STOPPING, SpaceState.STOPPED):
            changes = {"stopped_at": self._journal.clock()} if state is SpaceState.STOPPED else {}
            await self._journal.write(*self._journal.moved(space_id, state, **changes))
        return Action("stop", space_id, "the machine was restarted")

    async def settle(self, *, wait: bool = True) -> list[Action]:
        """Spaces that an operation has left on the way, because not even its failure could
        be written down: the disk was full, for instance. Who does not wait for those that go has
        their actions in the log only."""
        clearing = self._clear_half()
        stuck = [
            one for one in self._journal.all() if one.state not in SETTLED and not self._goes(one)
        ]
        actions = []
        for space in stuck:
            async with self._locks.alone(space.space_id):
                # Whoever was at it is done with it now.
                current = self._journal.get(space.space_id)
                if current is not None and current.state not in SETTLED | _HALF:
                    action = await self._try(current, lambda one: self._settle(one, {}, False))
                    actions += [action] if action is not None else []
        for record in await self._store.runs(live=True, limit=1 << 30):
            if self._runs.live(record.run_id) is None:
                actions += await self._take_up_again(record)
        await self._report(actions)
        if wait and clearing:
            # Not gathered: who gives up waiting does not end them.
            done, _ = await asyncio.wait(clearing)
            actions += [one for task in done if not task.cancelled() and (one := task.result())]
        return actions

    async def _take_up_again(self, record: RunRecord) -> list[Action]:
        """A command that the record believes to be running, and nobody watches: the launcher
        did not answer, or its failure could not be written down."""
        found = self._journal.get(record.space_id)
        if found is None or self._goes(found):
            # It goes with its space.
            return []
        async with self._locks.alone(record.space_id):
            # Whoever was starting it is done with it now.
            current = await self._store.run(record.run_id)
            space = self._journal.get(record.space_id)
            watched = self._runs.live(record.run_id) is not None
            if current is None or current.state in _OVER or space is None or watched:
                return []
            action = await self._try(space, lambda one: self._take_up(one.space_id, [current]))
        return [action] if action is not None else []

    # Looking around

    async def sweep(self, *, dry_run: bool = False) -> list[Action]:
        """What is on the machine and in no record."""
        known = frozenset(space.space_id for space in self._journal.all())
        removed = await self._removed()
        strays = await asyncio.to_thread(self._sweeper.find, known, removed)
        actions = [await self._sweep_one(stray, dry_run) for stray in strays]
        if not dry_run:
            await self._report(actions)
        return actions

    async def _removed(self) -> frozenset[str]:
        states = frozenset({SpaceState.REMOVED})
        page = await self._store.spaces(SpaceQuery(states=states, limit=PAGE))
        return frozenset(space.space_id for space in page.spaces)

    async def _sweep_one(self, stray: Stray, dry_run: bool) -> Action:
        target = f"{stray.kind} {stray.path}"
        why = f"no space {stray.space_id} is known"
        if stray.holds_work and await self._store.space(stray.space_id) is None:
            # Not ours to remove: the records were lost, or are older than the space.
            return Action("keep", target, _UNRECORDED, done=False)
        if dry_run:
            return Action("remove", target, why)
        try:
            await asyncio.to_thread(self._sweeper.remove, stray)
        except (CarrelError, OSError) as error:
            # Another stray is not to stay because of this one.
            return Action("remove", target, str(error), done=False)
        return Action("remove", target, why)

    async def watch(self) -> None:
        """Processes that commands have left in spaces have limits too, and people edit trees: once
        in a daemon's life, for its own commands and trees are watched from their beginning."""
        for space in self._journal.all():
            with contextlib.suppress(CarrelError):
                if space.state in LIVE:
                    opened = await self._open_spaces.of(space)
                    if isinstance(opened.runtime, LocalRuntime):
                        for one in opened.sandboxes:
                            opened.runtime.watch(one)
                    await self._open_spaces.ensure(opened)

    async def check(self) -> list[Action]:
        """Spaces whose folders somebody took away are marked as failed. No other is waited for, nor
        kept waiting."""
        return await self._for_each(
            await asyncio.to_thread(self._without_folder, self._journal.all()), self._check_one
        )

    def _without_folder(self, spaces: Sequence[Space]) -> list[Space]:
        """Of those that should have one. Blocking."""
        return [
            space
            for space in spaces
            if space.state in LIVE | {SpaceState.STOPPED}
            and not self._open_spaces.folder(space.space_id).is_dir()
        ]

    async def _check_one(self, space: Space) -> Action | None:
        current = self._journal.get(space.space_id)
        if current is None or not self._without_folder([current]):
            return None
        folder = self._open_spaces.folder(space.space_id)
        problem = Problem("check", "folder_missing", f"Its folder {folder} is gone.", "Remove it.")
        await self._journal.write(
            *self._journal.moved(space.space_id, SpaceState.FAILED, problem=problem)
        )
        return Action("fail", space.space_id, problem.message)

    async def _report(self, actions: list[Action]) -> None:
        if actions:
            shown = [dataclasses.asdict(action) for action in actions[:100]]
            await self._journal.write(self._journal.event(EventType.RECONCILED, actions=shown))
