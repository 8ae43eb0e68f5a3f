"""How a space goes: its processes, its tree, its record; what nobody took out is kept in the trash,
but for git's own notes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection
from pathlib import Path

from carrel.domain.checkpoints import PartStates, PartStatesOf
from carrel.domain.collaborators import Downloads, TrashCan, Users
from carrel.domain.environments import NO_SETTINGS
from carrel.domain.errors import CarrelError, LauncherUnavailable, TooLarge
from carrel.domain.images import Images
from carrel.domain.keys import looks_like_key
from carrel.domain.spaces import AUTO, Removal, Space, SpaceState, Trashed
from carrel.domain.store import Forget
from carrel.domain.systems import SpaceService
from carrel.domain.trees import Owner, Review, ReviewQuery
from carrel.service.journal import Journal, JournaledOperation, problem_of
from carrel.service.open_spaces import OpenSpace, OpenSpaces
from carrel.service.reviews import COUNTED, ROUGH, SpaceReviews
from carrel.service.shared import Locks

# The end of a space: stopped, its changes kept for a while, everything of it gone.
#
# Every step copes with a space that is half made, or half gone, so the same steps serve a
# removal, an undone creation, and what a crash has left.

OPERATION = "remove"
STOP, KEEP, TREE, FOLDER = "stop", "keep", "tree", "folder"
KEEP_AGAIN = "keep again"
"""After a crash in the middle of keeping. Who ends there once more goes on without: else what
strangers wrote in a tree could end every daemon that starts."""
LEAST_KEY = 8
"""Characters of a key that is looked for inside of other texts."""
UNDO_GRACE_S = 0.5
"""For what runs in a space that goes anyway; those who stop it with care ask for more."""

RemoveFolder = Callable[[Path], None]
_log = logging.getLogger("carrel")


@dataclasses.dataclass(frozen=True)
class Remover:
    users: Users
    open_spaces: OpenSpaces
    journal: Journal
    reviews: SpaceReviews
    trash: TrashCan
    downloads: Downloads
    images: Images
    remove_folder: RemoveFolder
    """Blocking, idempotent, follows no symlink."""
    states_of: PartStatesOf
    locks: Locks

    async def stop(self, space_id: str, grace_s: float, operation: JournaledOperation) -> Space:
        """Ready or running → stopped."""
        space, event = self.journal.moved(space_id, SpaceState.STOPPING)
        await operation.begin(STOP, space, event)
        return await self.carry_on_stop(space_id, grace_s, operation)

    async def carry_on_stop(
        self, space_id: str, grace_s: float, operation: JournaledOperation
    ) -> Space:
        try:
            opened = await self.open_spaces.of(self.journal.current(space_id))
            await self._end_all(opened, grace_s)
        except Exception as error:
            problem = problem_of(STOP, error)
            records = self.journal.moved(space_id, SpaceState.FAILED, problem=problem)
            await operation.fail(error, *records)
            raise
        now = self.journal.clock()
        stopped, event = self.journal.moved(space_id, SpaceState.STOPPED, stopped_at=now)
        await operation.end(stopped, event)
        return stopped

    async def _end_all(self, opened: OpenSpace, grace_s: float) -> None:
        """At once when somebody waits to remove the space, whoever gave it the time."""
        stopping = asyncio.create_task(opened.stop(grace_s))
        rushed = asyncio.create_task(self.locks.rushed(opened.space.space_id))
        try:
            await asyncio.wait((stopping, rushed), return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done():
                # The launcher makes one of both, and answers them together.
                await asyncio.gather(stopping, opened.stop(0.0))
            await stopping
        finally:
            rushed.cancel()
            stopping.cancel()

    async def remove(
        self, space_id: str, operation: JournaledOperation, *, ended: bool = False
    ) -> Removal:
        """A space that is stopped, failed or was never completed. `ended`: the caller has stopped
        it, and has let nobody at it since, so that nothing of it can run."""
        await operation.begin(KEEP, *self.journal.moved(space_id, SpaceState.REMOVING))
        space = self.journal.current(space_id)
        if space.downloads:
            home = self.open_spaces.home(space)
            await asyncio.to_thread(self.downloads.gather, space.downloads, home)
        return await self.carry_on_remove(space_id, operation, ended=ended, query=COUNTED)

    async def carry_on_remove(
        self,
        space_id: str,
        operation: JournaledOperation,
        *,
        kept: bool = False,
        ended: bool = False,
        query: ReviewQuery = ROUGH,
    ) -> Removal:
        """`kept`: the changes are in the trash already, and the tree may be half gone. Nobody hears
        what is told of one that is gone on with, and a daemon that starts has no time for it."""
        space = self.journal.current(space_id)
        removal = Removal(space_id, 0)
        try:
            if not kept:
                removal = await self._keep(space, query)
            await operation.begin(TREE, *([removal.kept] if removal.kept is not None else []))
            await self._drop(space, ended)
            await operation.begin(FOLDER)
            await asyncio.to_thread(self._clear, space)
        except Exception as error:
            problem = problem_of(operation.step, error)
            records = self.journal.moved(space_id, SpaceState.FAILED, problem=problem)
            await operation.fail(error, *records)
            raise
        await self._gone(space_id, operation)
        return removal

    async def undo(
        self, space_id: str, operation: JournaledOperation, error: BaseException
    ) -> None:
        """A creation that failed: everything goes, whatever happens to the caller."""
        await asyncio.shield(self._undo(space_id, operation, error))

    async def _undo(
        self, space_id: str, operation: JournaledOperation, error: BaseException
    ) -> None:
        problem = problem_of(operation.step, error)
        space, event = self.journal.moved(space_id, SpaceState.REMOVING, problem=problem)
        await operation.fail(error, space, event)
        await self.carry_on_undo(space)

    async def carry_on_undo(self, space: Space) -> None:
        undoing = self.journal.operation(space.space_id, "undo")
        await undoing.begin(TREE)
        try:
            await self._drop(space)
            await undoing.begin(FOLDER)
            await asyncio.to_thread(self._clear, space)
        except Exception as second:
            await undoing.fail(second, *self.journal.moved(space.space_id, SpaceState.FAILED))
            return
        await self._gone(space.space_id, undoing)

    async def _keep(self, space: Space, query: ReviewQuery) -> Removal:
        """What `undelete` needs. A removal goes on when nothing can be kept, and says so. Raises
        `LauncherUnavailable`."""
        if space.owner is None or not space.base_id or space.transient:
            return Removal(space.space_id, 0)
        _, driver = await self.open_spaces.back_ends(space)
        if driver.capabilities.stays:
            return Removal(space.space_id, 0)
        try:
            opened = await self.open_spaces.of(space)
            found = await self._reviewed(opened, query)
            parts = await self._parts(opened)
            if found is not None and not found.worth_keeping and parts is None:
                return Removal(space.space_id, 0)
            # Keys are not kept: whoever wants it back gives them again.
            plain = [one for one in space.env.items() if not looks_like_key(*one)]
            packages = NO_SETTINGS if space.packages.credentials else space.packages
            bare = dataclasses.replace(space, env=dict(plain), packages=packages)
            bare = dataclasses.replace(bare, services=_without_keys(space))
            lost = ""
            try:
                kept = await self._kept(opened, bare, parts)
            except TooLarge as error:
                if parts is None:
                    raise
                # What was worked on comes first: what was installed can be installed again.
                kept = await self._kept(opened, bare, None)
                lost = f"What was written in its system is not kept: {error.message}"
        except TooLarge as error:
            return Removal(space.space_id, found.files if found else 0, lost=error.message)
        except LauncherUnavailable:
            # That says nothing of the tree: to be tried again.
            raise
        except CarrelError as error:
            # A tree that cannot be read any more has nothing to keep, and must be removable.
            return Removal(space.space_id, 0, lost=f"The changes could not be read: {error}")
        if found is None:
            return Removal(space.space_id, kept.changes if kept else 0, kept, lost)
        if kept is not None:
            kept = dataclasses.replace(kept, changes=found.files)
        return Removal(space.space_id, found.files, kept, lost)

    async def _parts(self, opened: OpenSpace) -> PartStates | None:
        """What it has beside its tree, if there is something to be kept."""
        parts = self.open_spaces.parts(opened.space)
        if not parts:
            return None
        states = self.states_of(opened.driver, opened.tree, parts)
        found = await self.open_spaces.look(opened, states.has_parts_to_keep)
        return states if found else None

    async def _kept(
        self, opened: OpenSpace, bare: Space, parts: PartStates | None
    ) -> Trashed | None:
        tree, driver = opened.tree, opened.driver
        return await self.open_spaces.look(
            opened, lambda: self.trash.keep(bare, tree, driver, parts)
        )

    async def _reviewed(self, opened: OpenSpace, query: ReviewQuery) -> Review | None:
        """Whatever strangers wrote, a space can be removed. None: what changed cannot be told, so
        all of it is kept, which needs no review."""
        try:
            return await self.reviews.of_opened(opened, query)
        except Exception:
            _log.exception("the changes of %s cannot be told", opened.space.space_id)
            return None

    async def _drop(self, space: Space, ended: bool = False) -> None:
        """The sandbox, unless it has `ended`, and the tree, as far as they were made."""
        self.open_spaces.forget(space.space_id)
        if not space.base_id or AUTO in (space.driver, space.runtime):
            return
        owner = space.owner or await asyncio.to_thread(self._owner, space)
        if owner is None:
            # Whatever is made is made for somebody.
            return
        opened = await self.open_spaces.of(dataclasses.replace(space, owner=owner))
        # A second sandbox, which is prepared when it is first used, may have come since.
        if not ended or len(opened.sandboxes) > 1:
            await opened.stop(UNDO_GRACE_S)
        await self.open_spaces.drop(opened)

    def _clear(self, space: Space) -> None:
        """The user is given back last: until then nobody else gets it."""
        self.remove_folder(self.open_spaces.folder(space.space_id))
        held = [one.image for one in space.services]
        for image in {one.image_id for one in (space.image, *held) if one is not None}:
            self.images.release(space.space_id, image)
        owner = self._owner(space)
        if owner is not None:
            self.users.give_back(space.space_id, owner)

    def _owner(self, space: Space) -> Owner | None:
        """Also when a daemon ended before it wrote down whom it took. A full disk has no room
        for taking one only to give it back. Blocking."""
        return space.owner or self.users.find(space.space_id)

    async def _gone(self, space_id: str, operation: JournaledOperation) -> None:
        now = self.journal.clock()
        before = self.journal.current(space_id)
        had_values = bool(before.env) or before.packages.credentials or bool(before.services)
        space, event = self.journal.moved(
            space_id,
            SpaceState.REMOVED,
            removed_at=now,
            env={},
            packages=NO_SETTINGS,
            services=(),
        )
        gone = (space_id,) if space.transient else ()
        forgotten = Forget(
            steps_of=space_id,
            claims_of=space_id,
            runs_of=space_id,
            checkpoints_of=space_id,
            spaces=gone,
            values=had_values,
        )
        await operation.end(space, event, forgotten)


def _without_keys(space: Space) -> tuple[SpaceService, ...]:
    """Its services, without the keys of the space that their file referred to."""
    keys = {value for name, value in space.env.items() if looks_like_key(name, value)}
    found = []
    for one in space.services:
        spec = one.spec
        kept = {
            name: _without(value, keys)
            for name, value in spec.environment.items()
            if value not in keys
        }
        health = spec.health
        if health is not None:
            health = dataclasses.replace(health, argv=_all_without(health.argv, keys))
        command = None if spec.command is None else _all_without(spec.command, keys)
        entrypoint = None if spec.entrypoint is None else _all_without(spec.entrypoint, keys)
        spec = dataclasses.replace(
            spec, environment=kept, health=health, command=command, entrypoint=entrypoint
        )
        found.append(dataclasses.replace(one, spec=spec, argv=_all_without(one.argv, keys)))
    return tuple(found)


def _all_without(words: tuple[str, ...], keys: Collection[str]) -> tuple[str, ...]:
    return tuple(_without(word, keys) for word in words)


def _without(text: str, keys: Collection[str]) -> str:
    """A key may be in a URL or in a command. Shorter ones are part of other words."""
    for key in sorted(keys, key=len, reverse=True):
        text = text.replace(key, "") if len(key) >= LEAST_KEY else text
    return text
