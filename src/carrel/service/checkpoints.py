"""Checkpoints of spaces: taken after each turn, gone back to, and forked from.

The files of a state are kept by `States`; here is what else belongs to it: the conversation, and
the order in which things are written down. A rewind first takes a checkpoint of what it replaces,
which also says that it has begun. A daemon that died meanwhile finishes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from carrel.domain.access import LOCAL, Caller, ScopeKind
from carrel.domain.checkpoints import START, Checkpoint, CheckpointKind, States, StateSummary
from carrel.domain.errors import (
    CarrelError,
    CheckpointNotFound,
    Forbidden,
    NotUndoable,
    StateConflict,
    TooLarge,
    TreeUnavailable,
)
from carrel.domain.events import EventType
from carrel.domain.ids import new_id
from carrel.domain.spaces import Space
from carrel.domain.store import Forget, Store
from carrel.domain.systems import Part
from carrel.domain.trees import Tree, TreeDriver, TreeLayer
from carrel.domain.turns import Continuation, Turn
from carrel.lifecycle.table import LIVE
from carrel.service.access import realm_of
from carrel.service.journal import Journal
from carrel.service.open_spaces import STILL_S, OpenSpace, OpenSpaces
from carrel.service.services import SpaceServices
from carrel.service.shared import Shared, files_key
from carrel.service.spaces import Spaces
from carrel.service.turns import Turns

MOST_TURNS = 1000
"""That a rewind looks at."""
_NEWEST = 10
"""Turns that are looked at first."""
MOST_OF_AGENTS = 10
"""Of those that the agent of a space asks for. They are counted for themselves, so that no code in
a space can push out what was kept for its owner."""
_THINNED = 10
"""Removed at once, when there are too many: what they share with others is to be looked for."""
_log = logging.getLogger("carrel")

StatesOf = Callable[[TreeDriver, Tree, tuple[Part, ...]], States]


@dataclass(frozen=True)
class CheckpointBudget:
    """Of one space. `count` 0: none are taken by themselves. Those of agents have a number of their
    own, `MOST_OF_AGENTS`."""

    count: int
    bytes: int


@dataclass(frozen=True)
class ForkRequest:
    count: int = 1
    checkpoint: str = ""
    """Empty: the state of now."""
    name: str = ""


@dataclass(frozen=True)
class Forks:
    spaces: tuple[Space, ...]
    checkpoint: str
    conversation: bool
    """They can go on with a copy of it."""


@dataclass(frozen=True)
class _Layers:
    """What forks begin with, above their base and their images."""

    tree: TreeLayer | None
    parts: Mapping[str, TreeLayer]


class Checkpoints:
    def __init__(
        self,
        store: Store,
        journal: Journal,
        spaces: Spaces,
        open_spaces: OpenSpaces,
        shared: Shared,
        turns: Turns,
        states_of: StatesOf,
        services: SpaceServices,
        budget: CheckpointBudget,
    ) -> None:
        self._store = store
        self._journal = journal
        self._spaces = spaces
        self._open_spaces = open_spaces
        self._locks = shared.locks
        self._tasks = shared.tasks
        self._turns = turns
        self._states_of = states_of
        self._services = services
        self._budget = budget
        self._for_agents: set[str] = set()
        self._bytes: dict[str, int] = {}
        """That are kept of a space, as it was counted last and with what came since: to count costs
        with every file that is kept."""

    # Taking

    async def take(self, caller: Caller, word: str, message: str) -> Checkpoint:
        """While a turn runs, only the files: the conversation is in the middle of something."""
        space = await self._spaces.existing(caller, word)
        return await self._tasks.see_through(
            self._taken_now(space.space_id, CheckpointKind.ASKED, message=message)
        )

    async def take_for_agent(self, space_id: str, message: str) -> Checkpoint:
        """For code in the space itself: one at a time, so that nobody else waits for many. Raises
        `TooLarge` when there is no room for it beside those that were not asked for in this way."""
        if space_id in self._for_agents:
            raise StateConflict(
                "A checkpoint is being taken already.", hint="Wait until it has been taken."
            )
        self._for_agents.add(space_id)
        try:
            return await self._tasks.see_through(
                self._taken_now(space_id, CheckpointKind.AGENT, message=message)
            )
        finally:
            self._for_agents.discard(space_id)

    async def after_turn(self, turn: Turn) -> None:
        """Never raises: the turn has ended, whatever becomes of its checkpoint."""
        space = self._journal.staying(turn.space_id)
        if space is None or not self._budget.count or space.transient or space.place:
            return
        try:
            await self._taken_now(space.space_id, CheckpointKind.TURN)
        except CarrelError as error:
            await self._tell_missing(space, turn, error)
        except Exception:
            _log.exception("no checkpoint of %s could be taken", turn.space_id)

    async def _tell_missing(self, space: Space, turn: Turn, error: CarrelError) -> None:
        if self._journal.staying(space.space_id) is None:
            return
        problem = {"code": error.code, "message": error.message, "hint": error.hint}
        event = self._journal.event(
            EventType.CHECKPOINT, space.space_id, turn=turn.run_id, problem=problem
        )
        with contextlib.suppress(CarrelError):
            await self._journal.write(event)

    async def _taken_now(self, space_id: str, kind: CheckpointKind, **said: Any) -> Checkpoint:
        async with self._locks.shared(space_id), self._locks.alone(files_key(space_id)):
            opened = await self._open(self._journal.current(space_id))
            taken = await self._taken(opened, kind, **said)
            await self._thin(opened)
            return taken

    async def _open(self, space: Space) -> OpenSpace:
        opened = await self._open_spaces.of(space)
        if opened.driver.capabilities.stays:
            raise TreeUnavailable(
                f"{space.name} works in a folder of this machine itself, of which none are taken.",
                hint="Use git in the folder.",
            )
        return opened

    async def _taken(
        self, opened: OpenSpace, kind: CheckpointKind, *, held: bool = False, **said: Any
    ) -> Checkpoint:
        """`held`: who takes it has seen to it that no turn runs. A turn that begins meanwhile
        waits: its agent's key would be kept too. Who goes on thins then: it may need the oldest."""
        space, states = opened.space, self._states(opened)
        space_id = space.space_id
        known = await self._store.checkpoints(space_id)
        last, goes_on_with = await self._last_turn(space)
        checkpoint_id = new_id("ck")
        with self._turns.waiting(space_id):
            agent = bool(space.agent) and (held or not self._turns.working(space_id))
            take = partial(
                states.take,
                checkpoint_id,
                agent=agent,
                without=last.secrets if last is not None else (),
                max_bytes=self._budget.bytes,
                still=self._still(opened),
            )
            before = known[0].left_out if known else ""
            kept, left_out = await self._kept(opened, take, before)
        if space_id in self._bytes:
            self._bytes[space_id] += kept.bytes_new
        if kind is CheckpointKind.AGENT:
            known = await self._make_room(opened, checkpoint_id, known)
        taken = Checkpoint(
            checkpoint_id,
            space_id,
            space.name,
            max(self._journal.clock(), known[0].created_at + 1e-3 if known else 0.0),
            kind,
            turn=last.run_id if last is not None and last.created_at > space.rewound_at else "",
            with_agent=agent,
            continuation=goes_on_with if agent else None,
            files=kept.files,
            changed=kept.changed,
            named=kept.named,
            bytes_new=kept.bytes_new,
            environment=_environment(space),
            merged=space.merged,
            left_out=left_out,
            **said,
        )
        told = {"kind": str(kind), "files": taken.files, "changed": taken.changed}
        event = self._journal.event(
            EventType.CHECKPOINT, space_id, checkpoint_id=checkpoint_id, turn=taken.turn, **told
        )
        try:
            await self._journal.write(taken, event)
        except BaseException:
            left = [one.checkpoint_id for one in known]
            await asyncio.shield(asyncio.to_thread(states.keep_only, left))
            raise
        return taken

    async def _last_turn(self, space: Space) -> tuple[Turn | None, Continuation | None]:
        """The last that has ended, and what the conversation can be gone on with, which nearly
        always one of the newest says: to read a thousand would make the next turn wait."""
        for limit in (_NEWEST, MOST_TURNS):
            found = await self._store.turns(space.space_id, limit=limit)
            turns = [one for one in found if one.ended]
            said = next(filter(None, map(space.continuation_of, turns)), None)
            if said is not None or len(found) < limit:
                break
        return turns[0] if turns else None, said or space.goes_on_with

    async def _kept(
        self, opened: OpenSpace, take: Callable[..., StateSummary], left_out: str
    ) -> tuple[StateSummary, str]:
        """And why the system is not in it. What was worked on comes first: a system that is too
        large takes nobody's checkpoints away. `left_out`: it was so the last time."""
        states, most = self._states(opened), self._budget.bytes
        fits = not left_out or await self._open_spaces.look(opened, lambda: states.parts_fit(most))
        try:
            if fits:
                return await self._open_spaces.look(opened, take), ""
        except TooLarge:
            if not self._open_spaces.parts(opened.space):
                raise
        kept = await self._open_spaces.look(opened, partial(take, parts=False))
        return kept, (
            "What was written in the system is more than `checkpoint_bytes`, so only the tree is"
            " kept."
        )

    async def _thin(self, opened: OpenSpace) -> None:
        """The oldest go, never the newest; first those that the agent asked for."""
        known = await self._store.checkpoints(opened.space.space_id)
        agents = [one for one in known if one.kind is CheckpointKind.AGENT]
        left = [one for one in known if one.kind is not CheckpointKind.AGENT]
        await self._drop(opened, agents[MOST_OF_AGENTS:], known)
        del agents[MOST_OF_AGENTS:]
        while len(agents) + len(left) > 1:
            many = bool(self._budget.count) and len(left) > self._budget.count
            if not many and not await self._too_large(opened, (*agents, *left)):
                break
            going = agents if agents[known[0] in agents :] and not many else left
            count = min(_THINNED, max(1, len(going) // 4))
            await self._drop(opened, going[-count:], (*agents, *left))
            del going[-count:]

    async def _make_room(
        self, opened: OpenSpace, new: str, known: Sequence[Checkpoint]
    ) -> Sequence[Checkpoint]:
        """For one that the agent asked for: only others of these go. Gives those that are left."""
        left = [*known]
        while await self._too_large(opened, left, new):
            old = [one for one in left if one.kind is CheckpointKind.AGENT][-1:]
            if not old:
                states = self._states(opened)
                await asyncio.to_thread(states.keep_only, [one.checkpoint_id for one in left])
                raise TooLarge(
                    "There is no room for it beside the space's other checkpoints.",
                    hint="Go on without, or ask the user to raise `checkpoint_bytes`.",
                )
            await self._drop(opened, old, left, new)
            left.remove(old[0])
        return left

    async def _too_large(self, opened: OpenSpace, left: Sequence[Checkpoint], *new: str) -> bool:
        """Counts no files of a state that was refused or is gone, nor what a daemon that died had
        begun to keep."""
        space_id, states = opened.space.space_id, self._states(opened)
        names = [*(one.checkpoint_id for one in left), *new]

        def count() -> int:
            if (kept := states.bytes_kept()) > self._budget.bytes:
                states.keep_only(names)
                kept = states.bytes_kept()
            return kept

        if self._bytes.get(space_id, self._budget.bytes + 1) > self._budget.bytes:
            for gone in [one for one in self._bytes if self._journal.staying(one) is None]:
                del self._bytes[gone]
            self._bytes[space_id] = await asyncio.to_thread(count)
        return self._bytes[space_id] > self._budget.bytes

    async def _drop(
        self, opened: OpenSpace, old: Sequence[Checkpoint], known: Sequence[Checkpoint], *new: str
    ) -> None:
        if old:
            self._bytes.pop(opened.space.space_id, None)
            states = self._states(opened)
            gone = [one.checkpoint_id for one in old]
            left = [one.checkpoint_id for one in known if one.checkpoint_id not in gone]
            await self._journal.write(Forget(checkpoints=tuple(gone)))
            await asyncio.to_thread(states.keep_only, [*left, *new])

    def _states(self, opened: OpenSpace) -> States:
        parts = self._open_spaces.parts(opened.space)
        return self._states_of(opened.driver, opened.tree, parts)

    def _still(self, opened: OpenSpace) -> Callable[[], AbstractContextManager[None]]:
        """For a thread: what runs in the space stands still within."""
        loop = asyncio.get_running_loop()

        def done(work: Coroutine[Any, Any, None]) -> None:
            asyncio.run_coroutine_threadsafe(work, loop).result(STILL_S)

        @contextlib.contextmanager
        def still() -> Iterator[None]:
            try:
                done(self._open_spaces.pause(opened))
                yield
            finally:
                done(self._open_spaces.resume(opened))

        return still

    # Asking

    async def list(self, caller: Caller, word: str) -> Sequence[Checkpoint]:
        space = await self._spaces.get(caller, word)
        return await self._store.checkpoints(space.space_id)

    # Going back

    async def rewind(self, caller: Caller, word: str, checkpoint: str) -> Checkpoint:
        """Puts files and conversation back; gives the checkpoint of what there was before."""
        space = await self._spaces.existing(caller, word)
        target = await checkpoint_named(self._store, space, checkpoint)
        return await self._tasks.see_through(self._rewind(space.space_id, target))

    async def _rewind(self, space_id: str, target: Checkpoint | None) -> Checkpoint:
        to = target.checkpoint_id if target is not None else START
        with self._turns.held(space_id, "rewind"):
            async with self._locks.shared(space_id), self._locks.alone(files_key(space_id)):
                opened = await self._open(self._journal.current(space_id))
                before = await self._taken(
                    opened, CheckpointKind.REWIND, held=True, to=to, rewinding=True
                )
                try:
                    done = await self._go_to(opened, before, to, parts=not before.left_out)
                except Exception:
                    await self._give_up(opened, before)
                    raise
                await self._thin(opened)
                return done

    async def _give_up(self, opened: OpenSpace, before: Checkpoint) -> None:
        """Puts back what there was. What cannot be now is not done later either, when there is
        other work: it is told, and an undo does it."""
        back = dataclasses.replace(before, undone=True)
        try:
            await self._journal.write(back)
            await self._go_to(opened, back, before.checkpoint_id, undone=True)
        except CarrelError as error:
            await self._journal.write(dataclasses.replace(before, rewinding=False))
            raise TreeUnavailable(
                f"The rewind failed, and what there was could not be put back: {error.message}",
                hint=f"Make room, then: carrel undo {before.checkpoint_id}",
            ) from error

    async def _go_to(
        self,
        opened: OpenSpace,
        before: Checkpoint,
        to: str,
        *,
        undone: bool = False,
        parts: bool = True,
    ) -> Checkpoint:
        """Files first: who died between both does all of it again. Without `parts` the system
        stays as it is: nobody could bring back what it was."""
        states = self._states(opened)
        async with self._without_services(opened.space):
            with_agent = await self._open_spaces.look(
                opened, lambda: states.put_back(to, parts=parts)
            )
        done = dataclasses.replace(before, rewinding=False, undone=undone)
        space_id = opened.space.space_id
        undo = {"undo": True} if undone else {}
        event = self._journal.event(
            EventType.REWOUND, space_id, checkpoint_id=before.checkpoint_id, to=to, **undo
        )
        known = await self._store.checkpoints(space_id)
        target = next((one for one in known if one.checkpoint_id == to), None)
        is_as: dict[str, Any] = {"merged": target.merged if target else {}}
        if with_agent:
            is_as["rewound_at"] = self._journal.clock()
            is_as["goes_on_with"] = target.continuation if target else None
        await self._journal.write(done, self._journal.amend(space_id, **is_as), event)
        return done

    @asynccontextmanager
    async def _without_services(self, space: Space) -> AsyncIterator[None]:
        """They do not go on in files that are replaced: they end, and begin anew on what is there
        then. `carrel services` says of one that cannot."""
        run = bool(space.services) and space.state in LIVE
        if run:
            await self._services.stop(space)
        try:
            yield
        finally:
            if run:
                with contextlib.suppress(CarrelError):
                    await self._services.begin(space, stays=True)

    async def undo(self, checkpoint_id: str) -> Checkpoint:
        """Takes back the rewind before which this one was taken. What was done since is kept in a
        checkpoint of its own. Raises `NotUndoable`."""
        for one in await self.rewinds():
            if one.checkpoint_id == checkpoint_id:
                return await self._tasks.see_through(self._undo(one.space_id, checkpoint_id))
        raise NotUndoable(
            f"There is no rewind {checkpoint_id[:64]!r} to be taken back.",
            hint="`carrel undo --list` lists them.",
        )

    async def _undo(self, space_id: str, checkpoint_id: str) -> Checkpoint:
        with self._turns.held(space_id, "rewind"):
            async with self._locks.shared(space_id), self._locks.alone(files_key(space_id)):
                known = await self._store.checkpoints(space_id)
                found = next((one for one in known if one.checkpoint_id == checkpoint_id), None)
                space = self._journal.staying(space_id)
                if found is None or space is None or found.undone:
                    raise NotUndoable(
                        "The rewind cannot be taken back: its checkpoint is gone, or it was taken"
                        " back already.",
                        hint="`carrel checkpoints SPACE` lists what can be gone back to.",
                    )
                opened = await self._open(space)
                before = await self._taken(
                    opened, CheckpointKind.ASKED, held=True, message="before an undo"
                )
                await self._journal.write(dataclasses.replace(found, rewinding=True, undone=True))
                try:
                    parts = not before.left_out
                    done = await self._go_to(opened, found, checkpoint_id, undone=True, parts=parts)
                except Exception:
                    await self._leave_undone(opened, found, before.checkpoint_id)
                    raise
                await self._thin(opened)
                return done

    async def _leave_undone(self, opened: OpenSpace, rewind: Checkpoint, before: str) -> None:
        """Puts back what there was before an undo that failed. Both states are kept, so it can be
        tried again."""
        states = self._states(opened)
        try:
            await self._open_spaces.look(opened, lambda: states.put_back(before))
        except CarrelError as error:
            raise TreeUnavailable(
                f"The undo failed, and what there was could not be put back: {error.message}",
                hint=f"Make room, then again: carrel undo {rewind.checkpoint_id}",
            ) from error
        finally:
            await self._journal.write(rewind)

    async def rewinds(self) -> Sequence[Checkpoint]:
        """Those that can be taken back, the newest first."""
        found = [
            one
            for space in self._journal.all()
            for one in await self._store.checkpoints(space.space_id)
            if one.kind is CheckpointKind.REWIND and not one.undone and not one.rewinding
        ]
        return sorted(found, key=lambda one: one.created_at, reverse=True)

    async def take_up(self) -> None:
        """Rewinds that a daemon began which died are finished, and so is taking them back. What was
        done since, if it could not be told, is kept."""
        for one in await self._store.checkpoints():
            space_id = one.space_id
            if self._journal.staying(space_id) is None:
                continue
            to = one.checkpoint_id if one.undone else one.to
            # A disk may be missing; the next daemon tries again.
            with contextlib.suppress(CarrelError, OSError), self._turns.held(space_id, "rewind"):
                async with self._locks.shared(space_id), self._locks.alone(files_key(space_id)):
                    opened = await self._open(self._journal.current(space_id))
                    kind, message = CheckpointKind.ASKED, "before a rewind was finished"
                    now = await self._taken(opened, kind, held=True, message=message)
                    parts = not (one.left_out or now.left_out)
                    await self._go_to(opened, one, to, undone=one.undone, parts=parts)
                    await self._thin(opened)

    # Forking

    async def fork(self, caller: Caller, word: str, request: ForkRequest) -> Forks:
        """New spaces that begin with a state of this one. Not for tokens of one space, which make
        no others."""
        space = await self._spaces.existing(caller, word)
        if caller.scope.kind is ScopeKind.SPACE:
            raise Forbidden(
                "A token of one space cannot fork it: that makes another space.",
                hint="Ask an administrator to run `carrel fork`.",
            )
        return await self._tasks.see_through(self._fork(space, realm_of(caller), request))

    async def _fork(self, space: Space, realm: str, request: ForkRequest) -> Forks:
        found = None
        if request.checkpoint:
            found = await checkpoint_named(self._store, space, request.checkpoint)
        else:
            found = await self._taken_now(
                space.space_id, CheckpointKind.ASKED, message="for a fork"
            )
        if found is not None and found.left_out:
            raise TooLarge(
                f"A fork would not have the system of {space.name}: it is more than may be kept.",
                hint="Raise `checkpoint_bytes`, or remove what is not needed in the system.",
            )
        made: list[Space] = []
        # Nobody thins what is being given.
        async with self._locks.shared(space.space_id), self._locks.alone(files_key(space.space_id)):
            opened = await self._open(self._journal.current(space.space_id))
            goes_on = found.continuation if found is not None else None
            if not opened.runtime.capabilities.own_paths:
                # Agents know conversations by the folder that they work in.
                goes_on = None
            try:
                state = found.checkpoint_id if found is not None else START
                layers = await asyncio.to_thread(self._layers, opened, state)
                for name in self._names(space, realm, request):
                    made.append(await self._forked(opened, found, name, realm, goes_on, layers))
            except BaseException:
                for one in made:
                    await self._spaces.remove(LOCAL, one.space_id, force=True)
                raise
        to = found.checkpoint_id if found is not None else START
        return Forks(tuple(made), to, goes_on is not None)

    def _layers(self, opened: OpenSpace, state: str) -> _Layers:
        states = self._states(opened)
        tree = states.layer(state) if opened.driver.capabilities.layers else None
        return _Layers(tree, states.part_layers(state))

    async def _forked(
        self,
        opened: OpenSpace,
        found: Checkpoint | None,
        name: str,
        realm: str,
        goes_on_with: Continuation | None,
        layers: _Layers,
    ) -> Space:
        state = found.checkpoint_id if found is not None else START
        states = self._states(opened)
        layered = opened.driver.capabilities.layers

        def fill(_driver: TreeDriver, tree: Tree, parts: tuple[Part, ...]) -> None:
            states.give(state, tree, parts, files=not layered)

        event = self._journal.event(
            EventType.FORKED, "", checkpoint_id=state, **{"from": opened.space.space_id}
        )
        return await self._spaces.fork(
            opened.space,
            name,
            realm,
            event,
            fill,
            layers.tree,
            layers.parts,
            goes_on_with=goes_on_with,
            merged=found.merged if found is not None else {},
        )

    def _names(self, space: Space, realm: str, request: ForkRequest) -> Sequence[str]:
        taken = {one.name for one in self._journal.all() if one.realm == (realm or space.realm)}
        if request.name and request.count == 1:
            return [request.name]
        word = (request.name or space.name)[:58].rstrip("-._")
        free = (f"{word}-{number}" for number in range(1 if request.name else 2, 10_000))
        names = (name for name in free if name not in taken)
        return [next(names) for _ in range(request.count)]


async def checkpoint_named(store: Store, space: Space, word: str) -> Checkpoint | None:
    """None: what the space began with. Without a word the newest."""
    known = await store.checkpoints(space.space_id)
    if word == START or (not word and not known):
        return None
    for one in known:
        if word in ("", one.checkpoint_id):
            return one
    begun = [one for one in known if one.checkpoint_id.startswith(word) and len(word) > 3]
    if len(begun) == 1:
        return begun[0]
    raise CheckpointNotFound(
        f"{space.name} has no checkpoint {word[:64]!r}.",
        hint=f"`carrel checkpoints {space.name}` lists them.",
    )


def _environment(space: Space) -> Mapping[str, object]:
    return {
        "base": space.base_id,
        "agent": space.agent,
        "runtime": space.runtime,
        "driver": space.driver,
        "network": str(space.network),
        "tools": [tool.name for tool in space.tools.tools],
        "setup": list(space.setup),
        "mcp": list(space.mcp),
    }
