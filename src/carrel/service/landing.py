"""Landings: the work of spaces is brought into their projects, and taken back.

A landing is written down before the project's branch moves and after. A daemon that died in between
looks where the branch is: either it moved, or it did not.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from carrel.domain.access import Caller
from carrel.domain.errors import (
    CarrelError,
    CheckFailed,
    LandingConflicts,
    LandingRefused,
    NotUndoable,
)
from carrel.domain.events import EventType, NewEvent
from carrel.domain.ids import new_id
from carrel.domain.landing import (
    MOST_CHECKS,
    Lander,
    Landing,
    LandingCheck,
    LandingState,
    LandRequest,
    PreparedLanding,
)
from carrel.domain.spaces import Space
from carrel.domain.store import Record, Store
from carrel.service.access import require_admin
from carrel.service.checks import LandingChecks
from carrel.service.conflicts import ConflictTurns
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpace, OpenSpaces
from carrel.service.shared import Shared, files_key
from carrel.service.spaces import Spaces
from carrel.service.undo import Undoables

MOST_KEPT = 50
"""Landings in projects without git that can be taken back: both states of their files are kept."""
_BEGUN = (LandingState.BEGUN, LandingState.UNDOING)
MOST_LOOKED = 1000
"""Landings that an undo is looked for among."""


Also = Callable[[Landing], Record] | None
"""See `Landings.land_now`."""


@dataclass(frozen=True)
class ReadyLanding:
    """A landing that was prepared, and what of the space it takes out."""

    opened: OpenSpace
    prepared: PreparedLanding
    taken: bytes


class Landings(Undoables[Landing]):
    done_name = LandingState.LANDED.name
    refusal = LandingRefused

    def __init__(
        self,
        store: Store,
        journal: Journal,
        spaces: Spaces,
        open_spaces: OpenSpaces,
        shared: Shared,
        lander: Lander,
        working: Callable[[str], str],
        checks: LandingChecks,
        conflicts: ConflictTurns,
    ) -> None:
        """`working` names the turn that runs in a space, if one does."""
        self._conflicts = conflicts
        self._checks = checks
        self._working = working
        super().__init__(store)
        self._journal = journal
        self._spaces = spaces
        self._open_spaces = open_spaces
        self._locks = shared.locks
        self._tasks = shared.tasks
        self._lander = lander

    async def land(
        self, caller: Caller, word: str, request: LandRequest
    ) -> tuple[Landing, PreparedLanding]:
        """Raises `LandingError`s. The project is as it was when something is raised."""
        space = await self._spaces.existing(caller, word)
        # The project is the owner's.
        require_admin(caller)
        self.check(space, request)
        return await self.land_now(caller, space, request)

    def check(self, space: Space, request: LandRequest) -> None:
        """Raises what can be said before anything is looked at."""
        if self._working(space.space_id):
            raise LandingRefused(
                f"The agent of {space.name} is at work: half of what it does would land.",
                hint="Wait for the end of its turn (carrel turns), or stop it: carrel interrupt",
            )
        if request.resolve and request.commits:
            raise LandingRefused(
                "What an agent merges lands as one commit.",
                hint="Leave out --commits or --resolve.",
            )

    async def land_now(
        self,
        caller: Caller,
        space: Space,
        request: LandRequest,
        also: Callable[[Landing], Record] | None = None,
    ) -> tuple[Landing, PreparedLanding]:
        """`also` gives what is written down together with the landing, before the project is
        touched; what it raises ends the landing."""
        try:
            return await self._land_somehow(caller, space, request, also)
        except LandingConflicts as error:
            if not request.resolve:
                raise
            turn = await self._conflicts.begin(caller, space, error)
            raise LandingConflicts(
                error.message,
                hint=f"The agent merges it in its turn {turn}: when that has ended (carrel turns"
                f" {space.name}), look at it with `carrel diff {space.name}`, and land again.",
                **{**error.details, "turn": turn},
            ) from error

    async def _land_somehow(
        self, caller: Caller, space: Space, request: LandRequest, also: Also
    ) -> tuple[Landing, PreparedLanding]:
        if request.check is None:
            return await self._tasks.see_through(self._land(caller, space, request, also))
        return await self._land_checked(caller, space, request, request.check, also)

    async def _land(
        self, caller: Caller, space: Space, request: LandRequest, also: Also
    ) -> tuple[Landing, PreparedLanding]:
        async with self._alone_in(space):
            ready = await self._prepare(caller, space, request)
            return await self._finish(ready, also), ready.prepared

    async def _land_checked(
        self,
        caller: Caller,
        space: Space,
        request: LandRequest,
        check: LandingCheck,
        also: Also,
    ) -> tuple[Landing, PreparedLanding]:
        """Nobody waits for the check but who asked for it: if the branch moves meanwhile, the work
        is merged with that and checked again."""
        for _ in range(MOST_CHECKS):
            ready = await self._tasks.see_through(self._prepare_alone(caller, space, request))
            try:
                await self._checks.run(space, ready.prepared, check)
            except BaseException as error:
                await asyncio.to_thread(self._lander.forget, ready.prepared.place)
                if isinstance(error, CheckFailed):
                    await self._tell_checked(ready, passed=False)
                raise
            await self._tell_checked(ready, passed=True)
            try:
                done = await self._tasks.see_through(self._finish_alone(ready, also))
                return done, ready.prepared
            except LandingRefused as error:
                if not error.details.get("moved"):
                    raise
        raise LandingRefused(
            f"The branch moved during each of {MOST_CHECKS} checks.",
            hint="Land again when less lands there, or land by the queue: --queue",
        )

    @contextlib.asynccontextmanager
    async def _alone_in(self, space: Space) -> AsyncIterator[None]:
        async with (
            self._locks.shared(space.space_id),
            self._locks.alone(_key(space.project.location)),
            self._locks.alone(files_key(space.space_id)),
        ):
            await self._settle_half_done(space.project.location)
            yield

    async def _prepare_alone(
        self, caller: Caller, space: Space, request: LandRequest
    ) -> ReadyLanding:
        async with self._alone_in(space):
            return await self._prepare(caller, space, request)

    async def _tell_checked(self, ready: ReadyLanding, *, passed: bool) -> None:
        space_id, branch = ready.opened.space.space_id, ready.prepared.place.branch
        told = {"branch": branch, "passed": passed}
        await self._store.write(
            NewEvent(EventType.LANDING_CHECKED, space_id, told, self._journal.clock())
        )

    async def _finish_alone(self, ready: ReadyLanding, also: Also) -> Landing:
        async with self._alone_in(ready.opened.space):
            return await self._finish(ready, also)

    async def _prepare(self, caller: Caller, space: Space, request: LandRequest) -> ReadyLanding:
        opened = await self._open_spaces.of(space)
        taking = await self._spaces.taking(caller, opened, "")
        known = await self._store.landings(limit=MOST_LOOKED)
        earlier = [one for one in known if one.space_id == space.space_id]
        prepared = await self._open_spaces.look(
            opened,
            lambda: self._lander.prepare(
                space, opened.driver, opened.tree, request, taking.sends, earlier
            ),
        )
        taking.only_commits(prepared.commits)
        return ReadyLanding(opened, prepared, taking.done())

    async def _finish(self, ready: ReadyLanding, also: Also) -> Landing:
        prepared, space = ready.prepared, ready.opened.space
        landing = Landing(
            landing_id=new_id("ld"),
            space_id=space.space_id,
            name=space.name,
            project=prepared.place.project,
            branch=prepared.place.branch,
            kept=prepared.place.kept,
            worktree=prepared.place.worktree,
            before=prepared.before,
            after=prepared.after,
            created_at=self._journal.clock(),
            files=len(prepared.files),
            work=prepared.work,
            commits=prepared.commits,
        )
        await self._store.write(landing, *([] if also is None else [also(landing)]))
        done = await self._do(landing)
        await asyncio.to_thread(self._spaces.took, ready.opened, ready.taken)
        await self._spaces.note_merged(space.space_id, {})
        return done

    async def _to(self, one: Landing, *, back: bool) -> None:
        await asyncio.to_thread(self._lander.move, one.place, *_ends(one, back))

    async def _settled(self, one: Landing, *, back: bool) -> bool:
        return await asyncio.to_thread(self._lander.settle, one.place, *_ends(one, back))

    async def _forget(self, one: Landing) -> None:
        await asyncio.to_thread(self._lander.forget, one.place)

    async def _done(self, one: Landing) -> Landing:
        done = dataclasses.replace(one, state=LandingState.LANDED)
        told = {
            "landing_id": done.landing_id,
            "branch": done.branch,
            "before": done.before,
            "after": done.after,
            "files": done.files,
        }
        await self._store.write(done, NewEvent(EventType.LANDED, done.space_id, told))
        return done

    async def list(self, caller: Caller, limit: int) -> Sequence[Landing]:
        require_admin(caller)
        return await self._store.landings(limit=limit)

    async def undo(self, caller: Caller, landing_id: str) -> Landing:
        """Takes a landing back; without an id the last one. Raises `NotUndoable`,
        `LandingHalfDone`."""
        require_admin(caller)
        return await self._tasks.see_through(self._undo(await self._found(landing_id)))

    async def _undo(self, landing: Landing) -> Landing:
        async with self._locks.alone(_key(landing.project)):
            await self._settle_half_done(landing.project)
            # Another undo may have been first.
            landing = await self._found(landing.landing_id)
            await self._spaces.forget_taken(landing.space_id)
            return await self._take_back(landing)

    def _in_the_way(self, one: Landing, error: CarrelError) -> CarrelError:
        return NotUndoable(
            f"The landing of {one.name} cannot be taken back: {error.message}",
            hint=f"Take the commit back with git: git revert {one.after[:12]}",
        )

    async def _undone(self, one: Landing) -> Landing:
        now = self._journal.clock()
        undone = dataclasses.replace(one, state=LandingState.UNDONE, undone_at=now)
        told = {"landing_id": one.landing_id, "branch": one.branch}
        await self._store.write(undone, NewEvent(EventType.UNDONE, one.space_id, told))
        await self._forget(one)
        return undone

    async def _found(self, landing_id: str) -> Landing:
        for one in await self._store.landings(limit=MOST_LOOKED):
            half = one.state is LandingState.UNDOING
            if landing_id in ("", one.landing_id) and (one.state is LandingState.LANDED or half):
                return one
            if one.landing_id == landing_id:
                raise NotUndoable(
                    f"The landing {landing_id} was taken back already.",
                    hint="`carrel undo --list` lists them.",
                )
        raise NotUndoable(
            f"There is no landing {landing_id[:64]!r}."
            if landing_id
            else "There is nothing to take back.",
            hint="`carrel undo --list` lists them.",
        )

    async def take_up(self) -> None:
        """What a daemon that died was about to do is done, or is not. Of landings long ago nothing
        is kept, nor of those that were never written down."""
        known = await self._store.landings(limit=MOST_LOOKED)
        begun = [one for one in known if one.state in _BEGUN]
        kept = {one.kept for one in (*known[:MOST_KEPT], *begun)}
        await asyncio.to_thread(self._lander.sweep, kept)
        for one in begun:
            # A project may be on a disk that is not there; the next daemon looks again.
            with contextlib.suppress(CarrelError, OSError):
                await self._settle(one)

    async def _settle_half_done(self, project: str) -> None:
        """What is begun in this project is at rest: its lock is ours."""
        for one in await self._store.landings(limit=MOST_LOOKED):
            if one.state in _BEGUN and _key(one.project) == _key(project):
                await self._settle(one)


def _ends(landing: Landing, back: bool) -> tuple[str, str]:
    ends = (landing.before, landing.after)
    return ends[::-1] if back else ends


def _key(project: str) -> str:
    return f"land\0{os.path.realpath(project)}"
