"""Spaces, from the first to the last: what callers can do with them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from carrel.domain.access import Caller, ScopeKind
from carrel.domain.agents import Frontends
from carrel.domain.checkpoints import PartStatesOf
from carrel.domain.collaborators import Taking, TrashCan
from carrel.domain.errors import (
    CarrelError,
    Forbidden,
    KeyReused,
    MessageInvalid,
    NameTaken,
    SpaceAmbiguous,
    SpaceNotFound,
    StateConflict,
    UnexportedChanges,
)
from carrel.domain.events import EventType, NewEvent
from carrel.domain.limits import Limits, ResourceUsage, together
from carrel.domain.projects import OnProgress, ignore_progress
from carrel.domain.runtimes import Capabilities, Proof
from carrel.domain.spaces import (
    Removal,
    Retention,
    Space,
    SpacePage,
    SpaceQuery,
    SpaceRequest,
    SpaceState,
    Trashed,
)
from carrel.domain.store import Claim, Forget, Record, Store
from carrel.domain.systems import Part
from carrel.domain.trees import Review, ReviewQuery, Tree, TreeDriver, TreeLayer, TreeUsage
from carrel.domain.turns import Continuation
from carrel.lifecycle.table import LIVE
from carrel.service import agents, space_requests
from carrel.service.access import (
    admit,
    check_grace,
    check_relabel,
    check_rename,
    check_untouched,
    check_visible,
    may_see,
    narrow,
    not_found,
    realm_of,
    require_admin,
)
from carrel.service.creation import Creator, Fill
from carrel.service.environments import waiting
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpace, OpenSpaces
from carrel.service.removal import Remover
from carrel.service.reviews import COUNTED
from carrel.service.runs import Runs
from carrel.service.shared import CallerPolicy, CallerSlots, Shared
from carrel.service.tokens import Tokens

if TYPE_CHECKING:
    from carrel.service.environments import SpaceEnvironments
    from carrel.service.setup import Setups
    from carrel.service.space_servers import ResidentServer, SpaceServers

SEEN = "/see"
"""Where a space sees the files of others."""
GRACE_S = 2.0
"""From the request to end to the kill, for callers who do not say."""
MAX_KEY = 255
LOOKS = 4
"""Through whole trees at the same time. Each takes a processor, and Python has one for all."""


@dataclass(frozen=True)
class SpaceChanges:
    """None: as it is."""

    name: str | None = None
    labels: Mapping[str, str] | None = None
    retention: Retention | None = None
    description: str | None = None
    ssh_agent: bool | None = None


@dataclass(frozen=True)
class SpaceUsage:
    """What a space costs now. `processes` is None where the machine cannot tell."""

    space_id: str
    sandbox: ResourceUsage
    tree: TreeUsage | None


@dataclass(frozen=True)
class Parts:
    """What `Spaces` is made of."""

    store: Store
    journal: Journal
    open_spaces: OpenSpaces
    creator: Creator
    remover: Remover
    runs: Runs
    trash: TrashCan
    states_of: PartStatesOf
    shared: Shared
    policy: CallerPolicy
    frontends: Frontends
    servers: SpaceServers
    tokens: Tokens


class Spaces:
    def __init__(self, parts: Parts) -> None:
        self._store = parts.store
        self._journal = parts.journal
        self._open_spaces = parts.open_spaces
        self._creator = parts.creator
        self._remover = parts.remover
        self._reviews = parts.remover.reviews
        self._runs = parts.runs
        self._trash = parts.trash
        self._states_of = parts.states_of
        self._locks = parts.shared.locks
        self._tasks = parts.shared.tasks
        self._policy = parts.policy
        self._frontends = parts.frontends
        self._servers = parts.servers
        self._tokens = parts.tokens
        self._looks = CallerSlots(LOOKS)
        self.setups: Setups | None = None
        """Given when there are spaces to run set-up commands in."""
        self.environments: SpaceEnvironments | None = None
        """As `setups`."""

    # Finding

    async def get(self, caller: Caller, word: str) -> Space:
        """By id, name, or the unique beginning of an id; of those with the name, the one that the
        caller has named so. `SpaceNotFound`, `SpaceAmbiguous`."""
        space = self._journal.get(word)
        if space is not None:
            return check_visible(caller, space, word)
        among = narrow(caller, SpaceQuery())
        found = await self._store.find(word, realm_of(caller), among)
        seen = [space for space in found if may_see(caller, space)]
        if not seen:
            raise not_found(word)
        if len(seen) > 1:
            ids = ", ".join(space.space_id for space in seen[:5])
            hint = "Use the id." if seen[0].name == word else "Write more of the id."
            raise SpaceAmbiguous(f"{word!r} could be {ids}.", hint=hint)
        return self._journal.get(seen[0].space_id) or seen[0]

    async def existing(self, caller: Caller, word: str) -> Space:
        """As `get`, but not a removed one, nor one that nobody may work in."""
        space = await self._there(caller, word)
        check_untouched(space)
        return space

    async def _there(self, caller: Caller, word: str) -> Space:
        space = await self.get(caller, word)
        if space.state is SpaceState.REMOVED:
            raise SpaceNotFound(
                f"{space.name} was removed.", hint="`carrel undelete` may bring it back."
            )
        return space

    async def list(self, caller: Caller, query: SpaceQuery) -> SpacePage:
        return await self._store.spaces(narrow(caller, query))

    # Making

    def check(self, caller: Caller, request: SpaceRequest) -> SpaceRequest:
        """As this caller may ask it. Raises all that can be known before anything is done."""
        request = admit(caller, request, self._policy.project_roots)
        request = agents.resolve(self._frontends, request)
        space_requests.check_request(request)
        return request

    async def check_servers(self, names: tuple[str, ...]) -> None:
        """Raises what a space with these MCP servers would be refused for."""
        await asyncio.to_thread(self._servers.needs, names)

    async def create(
        self,
        caller: Caller,
        request: SpaceRequest,
        on_progress: OnProgress = ignore_progress,
        key: str = "",
    ) -> Space:
        """Returns when it is ready. The same `key` with the same request gives the same
        space, however often it is asked for."""
        request = admit(caller, request, self._policy.project_roots)
        request = agents.resolve(self._frontends, request)
        if request.see:
            request = dataclasses.replace(request, sees=await self._seen(caller, request.see))
        limits = space_requests.check_request(request)
        if len(key) > MAX_KEY:
            raise MessageInvalid("The idempotency key is too long.", hint="Use up to 255 bytes.")
        if not key:
            # Before somebody waits for an image; with a key the name may be taken by itself.
            self._check_free(request)
        found = request
        if self.environments is not None and (not key or await self._claim(caller, key) is None):
            # A build ends with its caller; the space is made to its end.
            found = await self.environments.found(request, on_progress)
        if not key:
            return await self._tasks.see_through(self._create(found, limits, on_progress))
        digest = hashlib.sha256(repr(request).encode("utf-8", "surrogateescape")).digest()
        return await self._tasks.see_through(
            self._create_once(caller, key, digest, found, limits, on_progress)
        )

    async def _seen(self, caller: Caller, words: Sequence[str]) -> dict[str, str]:
        """Where others are shown to a new space; who asks sees them all."""
        found: dict[str, str] = {}
        for word in words:
            other = await self.existing(caller, word)
            if other.space_id in found.values():
                continue
            place = f"{SEEN}/{other.name}"
            found[f"{SEEN}/{other.space_id}" if place in found else place] = other.space_id
        return found

    async def _create(
        self, request: SpaceRequest, limits: Limits, on_progress: OnProgress
    ) -> Space:
        space, request = await self._draft(request, limits, on_progress)
        return await self.make(space, request, on_progress)

    async def make(
        self, space: Space, request: SpaceRequest, on_progress: OnProgress, *records: Record
    ) -> Space:
        """Of a draft that nobody else knows."""
        async with self._locks.alone(space.space_id):
            space = await self._creator.create(space, request, on_progress, *records)
        if self.environments is not None:
            await self.environments.write_down(space, request)
            if space.setting_up and not request.setting_up:
                space = await self.environments.set_up(space, request, on_progress)
        self._servers.begin(space)
        return space

    async def _draft(
        self, request: SpaceRequest, limits: Limits, on_progress: OnProgress
    ) -> tuple[Space, SpaceRequest]:
        """Its sandbox shows from the start what its servers need, and its base is one on which
        the set-up commands have run, if they are to."""
        setup: tuple[str, ...] = ()
        if self.setups is not None and await self.setups.asked(request):
            self._check_free(request)
            request, setup = await self.setups.prepared(request, limits, on_progress)
        draft = dataclasses.replace(self._creator.draft(request, limits), setup=setup)
        draft = waiting(draft, request)
        if not request.mcp:
            return draft, request
        mcp = tuple(dict.fromkeys(request.mcp))
        shows = await asyncio.to_thread(self._servers.needs, mcp)
        return dataclasses.replace(draft, mcp=mcp, shows=shows), request

    async def _create_once(
        self,
        caller: Caller,
        key: str,
        digest: bytes,
        request: SpaceRequest,
        limits: Limits,
        on_progress: OnProgress,
    ) -> Space:
        async with self._locks.alone(f"{caller.name}\0{key}"):
            claim = await self._claim(caller, key)
            if claim is None:
                space, request = await self._draft(request, limits, on_progress)
                claim = Claim(caller.name, key, digest, space.space_id, space.created_at)
                return await self.make(space, request, on_progress, claim)
        if claim.digest != digest:
            raise KeyReused(
                "This idempotency key came with another request before.", hint="Use a new one."
            )
        # It may have left the caller's reach.
        return check_visible(caller, self._journal.current(claim.space_id), claim.space_id)

    async def made_with(self, caller: Caller, key: str) -> Space | None:
        """The space that was asked for with this idempotency key, if it is there."""
        claim = await self._claim(caller, key)
        return None if claim is None else self._journal.get(claim.space_id)

    async def _claim(self, caller: Caller, key: str) -> Claim | None:
        """Of a space that an earlier daemon left half made or half gone there is none when that is
        cleared, for which this waits. Asked again then: it may have gone since it was read."""
        claim = await self._store.claim(caller.name, key)
        if claim is None:
            return None
        async with self._locks.shared(claim.space_id):
            return await self._store.claim(caller.name, key)

    # Changing

    async def update(self, caller: Caller, word: str, update: SpaceChanges) -> Space:
        space = await self.existing(caller, word)
        changes: dict[str, object] = {}
        if update.name is not None:
            space_requests.check_name(update.name)
            changes["name"] = update.name
            if update.name != space.name:
                check_rename(caller, space)
                changes["realm"] = realm_of(caller) or space.realm
        if update.labels is not None and update.labels != space.labels:
            space_requests.check_labels(update.labels, space.labels)
            changes["labels"] = dict(update.labels)
            after = dataclasses.replace(space, labels=dict(update.labels))
            check_relabel(caller, space, after)
            await self._tokens.check_relabel(caller, space, after)
        if update.retention is not None:
            space_requests.check_retention(update.retention)
            changes["retention"] = update.retention
        if update.description is not None:
            space_requests.check_description(update.description)
            changes["description"] = update.description
        if update.ssh_agent is not None:
            # It lends out what its person has elsewhere.
            require_admin(caller)
            changes["ssh_agent"] = update.ssh_agent
        if not changes:
            return space
        new = self._journal.amend(space.space_id, **changes, active_at=self._journal.clock())
        await self._journal.write(
            new,
            self._journal.event(
                EventType.SPACE_UPDATED,
                space.space_id,
                name=new.name,
                labels=dict(new.labels),
                retention=dataclasses.asdict(new.retention),
                description=new.description,
            ),
        )
        return new

    # Stopping and starting

    async def stop(self, caller: Caller, word: str, grace_s: float = GRACE_S) -> Space:
        """All its processes have ended when this returns. Stopping twice is no error."""
        check_grace(caller, grace_s)
        space = await self.existing(caller, word)
        return await self._tasks.see_through(self._stop(space.space_id, grace_s))

    @contextlib.asynccontextmanager
    async def at_rest(self, space_id: str) -> AsyncIterator[Space]:
        """Stopped, and nobody can start it or write to it until the block ends."""
        async with self._locks.alone(space_id, hurry=True):
            yield await self._stop_now(space_id, GRACE_S)

    async def _stop(self, space_id: str, grace_s: float) -> Space:
        stopped = await self._stop_alone(space_id, grace_s)
        for child in self._going_with(stopped):
            if child.state in LIVE:
                await self._stop(child.space_id, grace_s)
        return stopped

    def _going_with(self, space: Space) -> Sequence[Space]:
        """What its agents asked for has an end when a transient one has: nobody else knows of
        it. Those of others are spaces as any, with work of their own."""
        if not space.transient:
            return ()
        return [one for one in self._journal.all() if one.parent == space.space_id]

    async def _stop_alone(self, space_id: str, grace_s: float) -> Space:
        await self._servers.give_up(space_id)
        async with self._locks.alone(space_id, hurry=True):
            space = self._journal.current(space_id)
            if space.state is SpaceState.STOPPED:
                return space
            return await self._stop_now(space_id, grace_s)

    async def _stop_now(self, space_id: str, grace_s: float) -> Space:
        await self._servers.leave(space_id)
        await self._creator.services.stop(self._journal.current(space_id))
        operation = self._journal.operation(space_id, "stop")
        stopped = await self._remover.stop(space_id, grace_s, operation)
        await self._runs.settled(space_id)
        return stopped

    async def start(self, caller: Caller, word: str) -> Space:
        space = await self.existing(caller, word)
        return await self._tasks.see_through(self._start(space.space_id))

    async def restart(self, caller: Caller, word: str, grace_s: float = GRACE_S) -> Space:
        """Whoever asked may be gone meanwhile: it is started again all the same."""
        check_grace(caller, grace_s)
        space = await self.existing(caller, word)
        return await self._tasks.see_through(self._restart(space.space_id, grace_s))

    async def _restart(self, space_id: str, grace_s: float) -> Space:
        if self._journal.current(space_id).state in LIVE:
            await self._stop(space_id, grace_s)
        return await self._start(space_id)

    async def _start(self, space_id: str) -> Space:
        space = self._journal.current(space_id)
        if space.state in LIVE and not self._locks.is_taken(space_id):
            # Nobody waits behind who has nothing to do.
            self._servers.begin(space)
            return space
        async with self._locks.alone(space_id):
            space = self._journal.current(space_id)
            if space.state in LIVE:
                self._servers.begin(space)
                return space
            if space.state not in (SpaceState.STOPPED, SpaceState.FAILED):
                raise StateConflict(
                    f"{space.name} is {space.state}.",
                    hint="Wait until that has ended, and try again.",
                    state=str(space.state),
                )
            opened = await self._open_spaces.of(space)
            operation = self._journal.operation(space_id, "start")
            try:
                space = await self._creator.start_again(opened, operation)
            except BaseException as error:
                await operation.fail(error)
                raise
        self._servers.begin(space)
        if self.environments is not None:
            await self.environments.started(space)
        return space

    # Removing

    async def remove(
        self, caller: Caller, word: str, *, force: bool = False, grace_s: float = GRACE_S
    ) -> Removal:
        """Nothing of it is left when this returns, but what `undelete` needs.
        `UnexportedChanges` unless `force`."""
        check_grace(caller, grace_s)
        space = await self._there(caller, word)
        return await self._tasks.see_through(self._remove(space.space_id, force, grace_s))

    async def _remove(self, space_id: str, force: bool, grace_s: float) -> Removal:
        space = self._journal.current(space_id)
        if not force:
            self._check_unseen(space)
        if force:
            # Before it, so that who removes it again finds those that cannot be removed; and
            # after it, when nothing in it can ask for another.
            await self._remove_children(space, grace_s)
        await self._servers.give_up(space_id)
        try:
            removal = await self._remove_alone(space_id, force, grace_s)
        except UnexportedChanges:
            self._servers.begin(self._journal.current(space_id))
            raise
        await self.refresh_seers(grace_s)
        await self._remove_children(space, grace_s)
        if removal.kept is not None:
            await self.trim_trash()
        return removal

    def _check_unseen(self, space: Space) -> None:
        for one in self._journal.all():
            if space.space_id in one.sees.values() and self._runs.live_of(one.space_id):
                raise StateConflict(
                    f"{one.name} sees the files of {space.name}, and commands run in it.",
                    hint=f"Stop it first: carrel stop {one.name}. With --force they are ended.",
                    state=str(space.state),
                )

    async def refresh_seers(self, grace_s: float = GRACE_S) -> None:
        """Sets up the sandboxes anew that see a space which is gone: what they have mounted would
        keep its tree alive. What runs in them ends."""
        for one in self._journal.all():
            if any(self._journal.staying(each) is None for each in one.sees.values()):
                # What cannot be done now is done with the next removal, or by the next daemon.
                with contextlib.suppress(CarrelError):
                    await self._refresh_seer(one.space_id, grace_s)

    async def _refresh_seer(self, space_id: str, grace_s: float) -> None:
        await self._servers.give_up(space_id)
        async with self._locks.alone(space_id, hurry=True):
            space = self._journal.current(space_id)
            before = await self._open_spaces.of(space) if space.state in LIVE else None
            if before is not None:
                await self._servers.leave(space_id)
                await before.stop(grace_s, services=False)
            left = {
                place: each
                for place, each in space.sees.items()
                if self._journal.staying(each) is not None
            }
            await self._journal.write(self._journal.amend(space_id, sees=left))
        self._servers.begin(self._journal.current(space_id))

    async def trim_trash(self) -> None:
        """To what it may hold: who removes one space after the other fills no disk with it."""
        await self.lighten_trash()
        for one in self._trash.expire(await self._store.trash(), self._journal.clock()):
            await self.purge(one)

    async def lighten_trash(self) -> None:
        for one in self._trash.lighten(await self._store.trash()):
            async with self._locks.alone(f"trash\0{one.space.space_id}"):
                await self._journal.write(one)
                await asyncio.to_thread(self._trash.drop_system, one)

    async def _remove_children(self, space: Space, grace_s: float) -> None:
        for child in self._going_with(space):
            with contextlib.suppress(SpaceNotFound):
                await self._remove(child.space_id, True, grace_s)

    async def _remove_alone(self, space_id: str, force: bool, grace_s: float) -> Removal:
        space = self._journal.current(space_id)
        if space.state is SpaceState.STOPPING and not force:
            # What is stopped with care is not ended at once for a removal that is refused.
            await self._reviews.check_taken(space)
        async with self._locks.alone(space_id, hurry=True, rush=True):
            space = self._journal.current(space_id)
            if not force:
                await self._reviews.check_taken(space)
            lives = space.state in LIVE
            if lives:
                await self._stop_now(space_id, grace_s)
                if not force:
                    # What ran may have written on its way out.
                    await self._reviews.check_taken(self._journal.current(space_id))
            await self._servers.leave(space_id)
            await self._creator.services.forget(space_id)
            operation = self._journal.operation(space_id, "remove")
            return await self._remover.remove(space_id, operation, ended=lives)

    def residents(self, space: Space) -> Sequence[ResidentServer]:
        """The MCP servers that it was made with, as they are."""
        return self._servers.residents(space)

    async def unexported(self, space: Space) -> int:
        """How many changes and commits of it would be lost."""
        found = await self._reviews.left(space)
        return found.left_files + found.left_commits

    async def trashed(self, caller: Caller) -> Sequence[Trashed]:
        return [one for one in await self._store.trash() if may_see(caller, one.space)]

    async def undelete(self, caller: Caller, word: str) -> Space:
        """A new space with the changes of a removed one. Not for tokens of one space, which make
        no others."""
        found = [
            one
            for one in await self.trashed(caller)
            if one.space.space_id == word or one.space.name == word
        ]
        if not found:
            raise SpaceNotFound(
                f"No changes of {word[:80]!r} were kept.",
                hint="`carrel undelete` lists the spaces that can be restored.",
            )
        if caller.scope.kind is ScopeKind.SPACE:
            raise Forbidden(
                "A token of one space cannot restore it: that makes another space.",
                hint="Ask an administrator to run `carrel undelete`.",
            )
        realm = realm_of(caller)
        own = [one for one in found if one.space.realm == realm]
        return await self._tasks.see_through(self._undelete((own or found)[-1], realm))

    def _draft_again(self, old: Space, name: str, realm: str) -> tuple[Space, SpaceRequest]:
        """A space as an older one was, with all that was resolved for that."""
        request = space_requests.request_again(old, name, realm or old.realm)
        # Who is not the owner has its own share, whoever made the first.
        request = dataclasses.replace(request, account=realm or old.account)
        draft = self._creator.draft(request, old.limits)
        draft = dataclasses.replace(
            draft,
            restored_from=old.space_id,
            shows=old.shows,
            tools=old.tools,
            shown=old.shown,
            packages=old.packages,
            setup=old.setup,
            # Whether it may still see others is to be said anew.
            sees={},
        )
        return draft, request

    async def fork(
        self,
        old: Space,
        name: str,
        realm: str,
        forked: NewEvent,
        fill: Fill,
        layer: TreeLayer | None,
        part_layers: Mapping[str, TreeLayer],
        goes_on_with: Continuation | None,
        merged: Mapping[str, str],
    ) -> Space:
        """Another one as this is, on the same base."""
        space_requests.check_name(name)
        draft, request = self._draft_again(old, name, realm)
        draft = dataclasses.replace(
            draft, agent=old.agent, goes_on_with=goes_on_with, merged=dict(merged)
        )
        event = dataclasses.replace(forked, space_id=draft.space_id)
        async with self._locks.alone(draft.space_id):
            space = await self._creator.create(
                draft,
                request,
                ignore_progress,
                event,
                fill=fill,
                layer=layer,
                part_layers=part_layers,
            )
        self._servers.begin(space)
        return space

    async def _undelete(self, trashed: Trashed, realm: str) -> Space:
        old = trashed.space
        name = self._free_name(old.name, realm or old.realm)
        draft, request = self._draft_again(old, name, realm)
        restored = self._journal.event(
            EventType.SPACE_RESTORED, draft.space_id, **{"from": old.space_id}
        )

        def fill(driver: TreeDriver, tree: Tree, parts: tuple[Part, ...]) -> None:
            self._trash.restore(trashed, tree, driver, self._states_of(driver, tree, parts))

        async with self._locks.alone(draft.space_id), self._locks.alone(f"trash\0{old.space_id}"):
            space = await self._creator.create(draft, request, ignore_progress, restored, fill=fill)
            await self._forget_trash(trashed)
        self._servers.begin(space)
        return space

    def _check_free(self, request: SpaceRequest) -> None:
        if request.name and not self._free_name(request.name, request.realm):
            raise NameTaken(
                f"Another space is named {request.name!r}.",
                hint="Choose another name, or remove that space first.",
                name=request.name,
            )

    def _free_name(self, name: str, realm: str) -> str:
        taken = any((one.name, one.realm) == (name, realm) for one in self._journal.all())
        return "" if taken else name

    async def _forget_trash(self, trashed: Trashed) -> None:
        await asyncio.to_thread(self._trash.purge, trashed)
        await self._journal.write(Forget(trash_of=trashed.space.space_id))

    async def purge(self, trashed: Trashed) -> None:
        """For clean-up: what was kept is gone for good."""
        async with self._locks.alone(f"trash\0{trashed.space.space_id}"):
            await self._forget_trash(trashed)

    async def discard_strays(self) -> Sequence[str]:
        """What an interrupted removal left in the trash."""
        gone = []
        for path in await asyncio.to_thread(self._trash.stray, await self._store.trash()):
            async with self._locks.alone(path.name):
                # A removal that was under way may have written its record meanwhile.
                if path in self._trash.stray(await self._store.trash()):
                    await asyncio.to_thread(self._trash.discard, path)
                    gone.append(str(path))
        return gone

    # Looking

    async def opened(self, caller: Caller, word: str) -> OpenSpace:
        """Its tree and sandbox, for reading."""
        return await self._open_spaces.of(await self.existing(caller, word))

    async def capabilities(self, space: Space) -> Capabilities | None:
        """What confines it; None while that is not decided."""
        if space.owner is None or not space.base_id:
            return None
        return (await self._open_spaces.back_ends(space))[0].capabilities

    async def review(self, caller: Caller, word: str, query: ReviewQuery = COUNTED) -> Review:
        """What differs from its base: as many changes as somebody can make, of which only some are
        listed."""
        space = await self.existing(caller, word)
        async with self._looks.of(caller.account):
            return await self._reviews.of(space, query)

    async def system_changes(self, caller: Caller, word: str, most: int) -> Review:
        """How the system of its image differs from that."""
        space = await self.existing(caller, word)
        async with self._looks.of(caller.account):
            return await self._reviews.of_system(space, most)

    async def taking(self, caller: Caller, opened: OpenSpace, path: str) -> Taking:
        """For who is about to send what is there."""
        async with self._looks.of(caller.account):
            return await self._reviews.taking(opened, path)

    def sent(self, opened: OpenSpace, path: str, status: os.stat_result) -> bytes:
        """See `Reviews.sent`."""
        return self._reviews.reviews.sent(opened.tree, path, status)

    def took(self, opened: OpenSpace, sent: bytes) -> None:
        """See `Reviews.took`. Blocking."""
        self._reviews.reviews.took(opened.tree, sent)

    async def forget_taken(self, space_id: str) -> None:
        """See `Reviews.forget_taken`. Nothing is to be done for a space that is gone."""
        with contextlib.suppress(SpaceNotFound):
            opened = await self._open_spaces.of(self._journal.current(space_id))
            await asyncio.to_thread(self._reviews.reviews.forget_taken, opened.tree)

    async def note_merged(self, space_id: str, merged: Mapping[str, str]) -> None:
        """See `Space.merged`. Nothing is to be done for a space that is gone."""
        space = self._journal.staying(space_id)
        if space is not None and space.merged != merged:
            await self._journal.write(self._journal.amend(space_id, merged=dict(merged)))

    async def usage(self, caller: Caller, space: Space, *, disk: bool = True) -> SpaceUsage:
        opened = await self._open_spaces.of(space)
        used = [await opened.runtime.usage(one) for one in opened.sandboxes]
        tree = None
        if disk:
            async with self._looks.of(caller.account):
                tree = await asyncio.to_thread(self._open_spaces.disk_use, opened)
        return SpaceUsage(space.space_id, together(used), tree)

    async def verify(self, caller: Caller, word: str) -> Proof:
        """Tries to break out of the space, now."""
        space = await self.existing(caller, word)
        async with self._locks.shared(space.space_id):
            space = self._journal.current(space.space_id)
            if space.state not in LIVE:
                raise StateConflict(
                    f"{space.name} is {space.state}.",
                    hint="Start it: carrel start SPACE",
                    state=str(space.state),
                )
            opened = await self._open_spaces.of(space)
            await self._open_spaces.mend(opened)
            async with self._open_spaces.mounted(opened) as mount:
                proofs = [await opened.runtime.verify(one, mount) for one in opened.sandboxes]
            found = tuple(attempt for proof in proofs for attempt in proof.attempts)
            return dataclasses.replace(proofs[0], attempts=found)
