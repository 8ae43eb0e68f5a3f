"""Turns of agents in spaces: started, followed to their end, taken up again after a restart.

An agent is a run as any other, so it goes on without the daemon and what it says is in files.
Following those gives its events; the same lines give the same events, so after a restart the
ones that are in the log already are counted and passed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from carrel.domain.access import Caller
from carrel.domain.agents import (
    AgentFolders,
    Attaching,
    Events,
    Frontend,
    Frontends,
    MakeEvents,
    Prepared,
    TurnLog,
)
from carrel.domain.errors import (
    AgentCrashed,
    CarrelError,
    Forbidden,
    MessageInvalid,
    RunNotFound,
    SpaceNotFound,
    StateConflict,
    TurnNotFound,
    UnsupportedFrontend,
)
from carrel.domain.hub import SHELLS
from carrel.domain.ids import new_id
from carrel.domain.pauses import pauses
from carrel.domain.runtimes import Command, Network
from carrel.domain.spaces import Space
from carrel.domain.store import Forget, Store
from carrel.domain.systems import CommandPlace
from carrel.domain.turns import (
    NOTHING_SPENT,
    Activity,
    Asked,
    Continuation,
    Control,
    ControlKind,
    InteractionMode,
    Permission,
    Turn,
    TurnError,
    TurnRequest,
    TurnResult,
    TurnState,
    Usage,
)
from carrel.service import turn_queue
from carrel.service.access import check_agent, is_owner, require_admin
from carrel.service.agents import AgentSpaces, check_network
from carrel.service.credentials import AgentKeys
from carrel.service.files import Attachments
from carrel.service.journal import Journal, problem_of
from carrel.service.live_turn import LiveTurn
from carrel.service.runs import Input, Inputs, Runs
from carrel.service.shared import Shared
from carrel.service.space_servers import SpaceServers
from carrel.service.spaces import Spaces
from carrel.service.tokens import Tokens
from carrel.service.trust import Trust
from carrel.service.turn_follower import Followed, Following, plus
from carrel.service.turn_queue import QueuedTurn, TurnQueue
from carrel.service.turn_setup import TurnSetup, place_of, request_of, resolved

KEEP_TURNS, KEEP_BYTES = 1000, 64 << 20
"""Of each space that have ended, the newest. Those that ran go with their runs, but of those that
were taken out of the queue there would be no end."""
PRUNE_EVERY = 20
"""Ended turns between two looks for those that are too many."""
GIVEN_S = 2.0
"""For an agent to take its prompt: one that is larger than a pipe waits for it to read."""
LOOKED_AT = 20
"""Of a space's newest turns, for the conversation that is to be gone on with."""
INTERRUPT, TERMINATE = 2, 15


@dataclass(frozen=True)
class TurnParts:
    """What `Turns` is made of."""

    store: Store
    journal: Journal
    spaces: Spaces
    agents: AgentSpaces
    attachments: Attachments
    runs: Runs
    shared: Shared
    frontends: Frontends
    agent_folders: AgentFolders
    keys: AgentKeys
    trust: Trust
    servers: SpaceServers
    log: TurnLog
    make_events: MakeEvents
    tokens: Tokens


@dataclass(frozen=True)
class AttachedTurn:
    turn: Turn
    how: Attaching


DEV_SHELLS = f"/run/carrel/{SHELLS}"
"""Where a sandbox has them; only runtimes that show it there have images."""


class Turns:
    def __init__(self, parts: TurnParts) -> None:
        self._parts = parts
        self._setup = TurnSetup(parts.agent_folders, parts.keys)
        self._inputs = Inputs(parts.runs)
        self._queue = TurnQueue(self._account)
        self._beginning: dict[str, QueuedTurn] = {}
        """Out of the queue, and do not run yet."""
        self._starting: set[asyncio.Task[None]] = set()
        self._closing = False
        self._live: dict[str, LiveTurn] = {}
        self._of_space: dict[str, str] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._since_prune: dict[str, int] = {}
        """Turns that have ended, by space."""
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        """What is done after the last turn of a space, before its next one begins."""
        self.after_turn: Callable[[Turn], Awaitable[None]] | None = None
        """Never raises."""

    def _account(self, space_id: str) -> str:
        space = self._parts.journal.get(space_id)
        return space_id if space is None else space.counts_for

    # Starting

    async def start(self, caller: Caller, word: str, request: TurnRequest) -> Turn:
        """Returns when the agent runs. Raises `AgentError`s, `StateConflict` when another turn
        of this space runs, and what starting a command raises."""
        space = await self._parts.spaces.existing(caller, word)
        name = request.frontend or space.agent
        if not name:
            raise UnsupportedFrontend(
                f"{space.name} has no agent yet.", hint="Say which: --agent NAME"
            )
        check_agent(caller, space, name)
        request = dataclasses.replace(request, frontend=name)
        frontend = self._frontend(request)
        if request.trust:
            require_admin(caller)
        if request.prompt == "" and request.mode is not InteractionMode.INTERACTIVE:
            raise MessageInvalid("The prompt is empty.", hint="Give a prompt.")
        if request.queue:
            self._queue.check(space.space_id, request)
        if request.queue and (self._queue.of(space.space_id) or self.working(space.space_id)):
            start = self._enqueue(caller, space.space_id, frontend, request)
        else:
            start = self._start(space.space_id, frontend, request, owner=is_owner(caller))
        return await self._parts.shared.tasks.see_through(start)

    async def _enqueue(
        self, caller: Caller, space_id: str, frontend: Frontend, request: TurnRequest
    ) -> Turn:
        opened = await self._parts.agents.opened(space_id)
        await self._parts.attachments.check(opened, request.attachments)
        request = resolved(opened, request, request.run_id or new_id("ru"))
        self._queue.check(space_id, request)
        at = self._parts.journal.clock()
        turn = turn_queue.drafted(caller, space_id, frontend, request, at)
        self._queue.add(turn)
        try:
            await self._parts.journal.write(turn)
        except BaseException:
            self._queue.take(turn.run_id)
            raise
        # The one before it may have ended meanwhile.
        self._begin_next(space_id)
        return turn

    def _begin_next(self, space_id: str) -> None:
        """Begins what waits, if nothing runs there."""
        if self._closing or self.working(space_id) or not self._queue.of(space_id):
            return
        if self._parts.journal.staying(space_id) is None:
            self._queue.drop(space_id)
            return
        task = asyncio.create_task(self._start_queued(self._queue.of(space_id)[0].turn))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start_queued(self, turn: Turn) -> None:
        if self.working(turn.space_id) or (taken := self._queue.take(turn.run_id)) is None:
            return
        request = dataclasses.replace(
            request_of(turn), attachments=turn.attachments, answer_s=turn.answer_s, queue=True
        )
        self._beginning[turn.run_id] = taken
        try:
            if not await self._parts.tokens.reaches(turn.caller, turn.space_id):
                raise Forbidden("The token that asked for it opens nothing any more.")
            frontend = self._frontend(turn)
            await self._start(turn.space_id, frontend, request, owner=turn.owner)
        except Exception as error:
            told = problem_of("start", error)
            known = await self._parts.store.turn(turn.run_id)
            if known is not None and not known.ended:
                await self._failed(turn, TurnError(told.code, told.message))
        finally:
            del self._beginning[turn.run_id]
            taken.begun.set()
            self._begin_next(turn.space_id)

    def _frontend(self, asked: TurnRequest | Turn) -> Frontend:
        if asked.mode is InteractionMode.INTERACTIVE:
            return self._parts.frontends.in_terminal(asked.frontend)
        return self._parts.frontends.get(asked.frontend)

    def check(self, caller: Caller, wanted: TurnRequest, network: Network) -> None:
        """Whether such a turn of this caller's could be run. Raises `VariableRefused`,
        `LoginExpired`, `NetworkNeeded`, `ModelNotSupported` and `UnsupportedFrontend`. Blocking,
        quick."""
        found = self._parts.frontends.get(wanted.frontend)
        check_network(found, network, wanted.env)
        self._parts.keys.given(found, wanted.env, owner=is_owner(caller))
        self._parts.frontends.check_model(wanted.frontend, wanted.model, wanted.env)

    async def _start(
        self, space_id: str, frontend: Frontend, request: TurnRequest, *, owner: bool
    ) -> Turn:
        run_id = request.run_id or new_id("ru")
        self._claim(space_id, run_id)
        try:
            await self._settled(space_id)
            if request.queue:
                earlier = await self._parts.store.turns(space_id, limit=LOOKED_AT)
                space = self._parts.journal.current(space_id)
                request = turn_queue.follow(request, str(frontend.provider), space, earlier)
            opened = await self._parts.agents.equip(space_id, frontend)
            await self._parts.attachments.check(opened, request.attachments)
            request = resolved(opened, request, run_id)
            owner = owner and not opened.space.guest
            given = await self._parts.servers.given(space_id)
            brought = await self._parts.trust.look(opened, frontend)
            if request.trust:
                brought = await self._parts.trust.agree(brought)
            prepared = await asyncio.to_thread(
                self._setup.prepare, opened, frontend, request, given, brought, owner=owner
            )
            drafted = self._drafted(opened.space, frontend, request, prepared)
            turn = dataclasses.replace(drafted, owner=owner)
            try:
                await self._parts.journal.write(turn, *self._entered(space_id))
            except BaseException:
                await self._forget(space_id, turn.secrets)
                raise
            await self._run(turn, prepared)
        except BaseException:
            self._of_space.pop(space_id, None)
            raise
        return self._watch(turn, frontend, prepared, told=0).turn

    def _entered(self, space_id: str) -> Sequence[Space]:
        """An agent is there again."""
        if not self._parts.journal.current(space_id).agent_exited:
            return ()
        return (self._parts.journal.amend(space_id, agent_exited=False),)

    def _claim(self, space_id: str, run_id: str) -> None:
        """One agent works in a space."""
        other = self._of_space.get(space_id)
        if other is not None:
            name = self._name(space_id)
            raise StateConflict(
                f"An agent works in {name} already: {other}.",
                hint="Let this wait until it is done: carrel send --queue. "
                f"Or end it: carrel interrupt {name}",
                run_id=other,
            )
        self._of_space[space_id] = run_id

    @contextlib.contextmanager
    def held(self, space_id: str, why: str) -> Iterator[None]:
        """No turn begins meanwhile. `StateConflict` when one runs."""
        self._claim(space_id, why)
        try:
            yield
        finally:
            self._of_space.pop(space_id, None)
            self._begin_next(space_id)

    @contextlib.contextmanager
    def waiting(self, space_id: str) -> Iterator[None]:
        """A turn that begins meanwhile waits for the end of this before it changes anything."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(space_id, set()).add(done)
        try:
            yield
        finally:
            self._waiting[space_id].discard(done)
            if not self._waiting[space_id]:
                del self._waiting[space_id]
            done.set_result(None)

    async def _settled(self, space_id: str) -> None:
        if (ending := self._ending.get(space_id)) is not None:
            await asyncio.wait((ending,))
        while (others := self._waiting.get(space_id)) is not None:
            await asyncio.wait(tuple(others))

    def _drafted(
        self, space: Space, frontend: Frontend, request: TurnRequest, prepared: Prepared
    ) -> Turn:
        return Turn(
            run_id=request.run_id,
            space_id=space.space_id,
            session_id=request.session_id,
            frontend=frontend.name,
            provider=str(frontend.provider),
            prompt=request.prompt,
            state=TurnState.RUNNING,
            created_at=self._parts.journal.clock(),
            model=request.model,
            asked=request.continuation,
            after=self._parts.log.last(space.space_id),
            permission=request.permission or Permission.DENY,
            system_prompt=request.system_prompt,
            timeout_s=request.timeout_s,
            mode=request.mode,
            first=prepared.first,
            duplex=prepared.duplex,
            notes=prepared.notes,
            keys=prepared.keys,
            secrets=tuple(prepared.secrets),
        )

    async def _run(self, turn: Turn, prepared: Prepared) -> None:
        in_image = self._parts.journal.current(turn.space_id).image is not None
        shell = {"SHELL": f"{DEV_SHELLS}/bash"} if in_image else {}
        command = Command(
            argv=prepared.argv,
            env={**shell, **prepared.env},
            path_first=(DEV_SHELLS,) if in_image else (),
            stdin=bool(prepared.first) or prepared.duplex,
            timeout_s=turn.timeout_s,
            display=f"agent: {turn.frontend}",
        )
        try:
            await self._parts.runs.start(
                turn.space_id, command, run_id=turn.run_id, place=CommandPlace.AGENT
            )
        except CarrelError as error:
            await self._failed(turn, TurnError(error.code, error.message))
            raise
        target = self._give(turn.run_id, prepared)
        if target is not None:
            # From then on the turn needs no daemon.
            await target.given_within(GIVEN_S)

    def _give(self, run_id: str, prepared: Prepared, given: int = 0) -> Input | None:
        target = self._inputs.of(run_id)
        if target is None:
            return None
        if prepared.first[given:]:
            target.push(prepared.first[given:])
        if not prepared.duplex:
            target.end()
        return target

    async def _failed(self, turn: Turn, error: TurnError) -> None:
        """It never ran: its events say so before anybody hears of it otherwise."""
        events = self._events(turn, told := Followed())
        events.start()
        events.finish(TurnResult(False, error=error))
        await self._parts.log.tell(turn.space_id, told.take())
        await self._ended(turn, TurnResult(False, error=error), events, told)

    # Following

    def _watch(self, turn: Turn, frontend: Frontend, prepared: Prepared, told: int) -> LiveTurn:
        followed = Followed(told, terminal=turn.mode is InteractionMode.INTERACTIVE)
        live = LiveTurn(turn, prepared, followed, self._parts.runs, self._inputs)
        self._live[turn.run_id] = live
        self._of_space[turn.space_id] = turn.run_id
        live.task = asyncio.create_task(self._see_to_end(live, frontend))
        return live

    async def _see_to_end(self, live: LiveTurn, frontend: Frontend) -> None:
        turn, followed = live.turn, live.followed
        events = self._events(turn, followed)
        translator = frontend.translator(request_of(turn))
        following = Following(self._parts.runs, self._parts.log, turn, translator)
        try:
            result = await following.to_end(events, followed, lambda: live.interrupted)
            events.finish(result)
            await self._parts.log.tell(turn.space_id, followed.take())
            live.turn = await self._ended(turn, result, events, followed)
            await self._tell_given_up(live.turn)
        finally:
            self._live.pop(turn.run_id, None)
            if self._of_space.get(turn.space_id) == turn.run_id:
                del self._of_space[turn.space_id]
            if live.turn.ended:
                self._end(live.turn)
            live.ended.set()
            if live.ending is not None:
                live.ending.cancel()
            self._begin_next(turn.space_id)

    def _end(self, turn: Turn) -> None:
        if self.after_turn is None or self._closing:
            return

        async def work() -> None:
            assert self.after_turn is not None
            try:
                await self.after_turn(turn)
            finally:
                self._ending.pop(turn.space_id, None)

        self._ending[turn.space_id] = asyncio.create_task(work())

    async def _tell_given_up(self, turn: Turn) -> None:
        """Nobody may be looking at a terminal that has ended by itself."""
        error = turn.result.error if turn.result else None
        if turn.mode is InteractionMode.INTERACTIVE and error and error.code == AgentCrashed.code:
            await self._parts.log.alert(turn.space_id, f"{turn.frontend}: {error.message}")

    def _events(self, turn: Turn, followed: Followed) -> Events:
        return self._parts.make_events(request_of(turn), turn.provider, [followed.hear])

    async def _ended(
        self, turn: Turn, result: TurnResult, events: Events, followed: Followed
    ) -> Turn:
        journal = self._parts.journal
        await self._forget(turn.space_id, turn.secrets)
        earlier = await self._earlier(turn, events) if followed.is_cumulative else NOTHING_SPENT
        usage = followed.usage(earlier)
        ended = dataclasses.replace(
            turn,
            state=TurnState.COMPLETE if result.success else TurnState.ERROR,
            continuation=events.continuation,
            result=result,
            usage=usage,
            ended_at=journal.clock(),
            first=b"",
        )
        surplus = self._surplus(turn.space_id)
        for pause_s in pauses():
            try:
                await journal.write(ended, *self._spent(ended), *surplus)
                break
            except CarrelError:
                await asyncio.sleep(pause_s)
        return ended

    def _surplus(self, space_id: str) -> Sequence[Forget]:
        """In whose place comes what has just ended."""
        journal, count = self._parts.journal, self._since_prune.pop(space_id, 0) + 1
        if count < PRUNE_EVERY:
            self._since_prune[space_id] = count
            return ()
        known = self._since_prune.items()
        self._since_prune = {one: count for one, count in known if journal.get(one) is not None}
        return (Forget(turns_of=space_id, turns_but=KEEP_TURNS, turns_bytes=KEEP_BYTES),)

    async def _forget(self, space_id: str, paths: Sequence[str]) -> None:
        """No login stays in a space when its agent does not work."""
        if paths:
            folder = self._parts.agents.folder(space_id)
            await asyncio.to_thread(self._parts.agent_folders.remove, folder, paths)

    def _spent(self, ended: Turn) -> Sequence[Space]:
        journal = self._parts.journal
        space = journal.get(ended.space_id)
        if space is None:
            return ()
        spent = plus(space.spent, ended.usage)
        exited = ended.mode is InteractionMode.INTERACTIVE
        return (journal.amend(ended.space_id, spent=spent, agent_exited=exited),)

    async def _earlier(self, turn: Turn, events: Events) -> Usage:
        """What the conversation had used before this turn of it."""
        spent = NOTHING_SPENT
        for other in await self._parts.store.usages(turn.space_id):
            same = other.continuation is not None and other.continuation == events.continuation
            if same and other.run_id != turn.run_id:
                spent = plus(spent, other.usage)
        return spent

    # Taking up

    async def take_up(self) -> None:
        """Turns of an earlier daemon. Their runs have been taken up before."""
        for turn in await self._parts.store.live_turns():
            if turn.state is TurnState.QUEUED:
                self._queue.add(turn)
                continue
            with contextlib.suppress(CarrelError):
                await self._take_up(turn)
        for space_id in self._queue.spaces():
            self._begin_next(space_id)

    async def _take_up(self, turn: Turn) -> None:
        parts = self._parts
        if parts.journal.staying(turn.space_id) is None:
            await self._failed(turn, TurnError("agent_crashed", "Its space is gone."))
            return
        try:
            await parts.runs.get(turn.run_id)
        except RunNotFound:
            error = TurnError("agent_crashed", "It never started: the daemon ended before.")
            await self._failed(turn, error)
            return
        frontend = self._frontend(turn)
        told = await parts.log.told(turn)
        prepared = Prepared((), {}, first=turn.first, duplex=turn.duplex)
        self._watch(turn, frontend, prepared, told)
        live = parts.runs.live(turn.run_id)
        given = None if live is None else live.run.input_bytes
        if given is not None:
            self._give(turn.run_id, prepared, given)

    # Asking

    async def get(self, caller: Caller, run_id: str) -> Turn:
        live = self._live.get(run_id)
        turn = live.turn if live is not None else await self._parts.store.turn(run_id)
        if turn is None or not await self._sees(caller, turn):
            raise TurnNotFound(
                f"There is no turn {run_id[:40]!r}.", hint="`carrel turns SPACE` lists them."
            )
        return turn

    async def _sees(self, caller: Caller, turn: Turn) -> bool:
        """Who may not see the space must not learn that there was a turn in it."""
        try:
            await self._parts.spaces.get(caller, turn.space_id)
        except SpaceNotFound:
            return False
        return True

    def continuation_of(self, turn: Turn) -> Continuation | None:
        """What its conversation can be gone on with, as the space has it now."""
        space = self._parts.journal.get(turn.space_id)
        return turn.continuation if space is None else space.continuation_of(turn)

    async def newest(self, space_id: str) -> Turn | None:
        return next(iter(await self._parts.store.turns(space_id, limit=1)), None)

    async def permission(self, space_id: str) -> Permission | None:
        """What its agent may do without asking, by its newest turn; None when it had none."""
        newest = await self.newest(space_id)
        return newest.permission if newest else None

    async def list(self, caller: Caller, word: str, limit: int = 100) -> Sequence[Turn]:
        space = await self._parts.spaces.get(caller, word)
        return await self._parts.store.turns(space.space_id, limit=limit)

    async def wait(self, caller: Caller, run_id: str, timeout_s: float | None = None) -> Turn:
        """The turn when it has ended, or as it is when the time is over."""
        turn = await self.get(caller, run_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                queued = self._queue.find(run_id) or self._beginning.get(run_id)
                if queued is not None:
                    await queued.begun.wait()
                    turn = await self.get(caller, run_id)
                if (live := self._live.get(run_id)) is not None:
                    await live.ended.wait()
                    turn = live.turn
        return turn

    def working(self, space_id: str) -> str:
        """The turn that runs there; empty when none does."""
        return self._of_space.get(space_id, "")

    def pending(self, space_id: str) -> str:
        """The turn that runs there, or is the next to; empty when its agent has nothing to do."""
        beginning = [one for one in self._beginning.values() if one.turn.space_id == space_id]
        queued = [*beginning, *self._queue.of(space_id)]
        return self.working(space_id) or (queued[0].turn.run_id if queued else "")

    def has_keys(self, space_id: str, wanted: frozenset[str]) -> bool:
        """Whether an agent works there that was given all of these, by their names."""
        live = self._live.get(self.working(space_id))
        return live is not None and wanted <= set(live.turn.keys)

    def would_get(self, frontend: Frontend, *, owner: bool) -> frozenset[str]:
        """The names of all that is secret and that this agent would be given. Blocking, quick."""
        return self._parts.keys.would_get(frontend, owner=owner)

    def is_owners(self, space_id: str) -> bool:
        """Whether a turn runs there, and is the owner's."""
        live = self._live.get(self.working(space_id))
        return live is not None and live.turn.owner

    def _name(self, space_id: str) -> str:
        space = self._parts.journal.get(space_id)
        return space_id if space is None else space.name

    def since(self, space: Space) -> float:
        """When it began to do what it does now, be that nothing."""
        live = self._live.get(self.working(space.space_id))
        return live.since if live is not None else space.stopped_at or space.active_at

    def activity(self, space: Space) -> Activity:
        live = self._live.get(self.working(space.space_id))
        if live is not None:
            return live.followed.waiting.activity
        if self.working(space.space_id):
            return Activity.WORKING
        if space.agent_exited:
            return Activity.EXITED
        return Activity.IDLE if space.agent else Activity.NONE

    def doing(self, space: Space) -> str:
        """What its agent does now, where its activity does not say enough; else empty."""
        live = self._live.get(self.working(space.space_id))
        return "" if live is None else live.followed.waiting.doing(self._parts.journal.clock())

    def asking(self, run_id: str) -> Sequence[Asked]:
        """The permissions that the turn waits for now."""
        live = self._live.get(run_id)
        return () if live is None else tuple(live.followed.waiting.asking.values())

    def asking_now(self) -> Iterator[tuple[Turn, float, Sequence[Asked]]]:
        """The turns that wait for permissions, since when, and which."""
        for live in list(self._live.values()):
            if asking := live.followed.waiting.asking:
                yield live.turn, live.since, tuple(asking.values())

    async def attaching(
        self, caller: Caller, word: str, *, read_only: bool, prefix: str = ""
    ) -> AttachedTurn:
        """How one attaches to the terminal of the agent of a space. `StateConflict` when there
        is none."""
        space = await self._parts.spaces.existing(caller, word)
        live = self._live.get(self.working(space.space_id))
        if live is None or live.turn.mode is not InteractionMode.INTERACTIVE:
            raise StateConflict(
                f"No agent is in a terminal in {space.name}.",
                hint=f"Start it: carrel attach {space.name}",
            )
        await live.is_up(space.name)
        opened = await self._parts.agents.opened(space.space_id)
        place = place_of(opened, self._frontend(live.turn))
        setup = await asyncio.to_thread(self._parts.agent_folders.setup, place)
        how = self._parts.frontends.attaching(setup.state, read_only=read_only, prefix=prefix)
        return AttachedTurn(live.turn, how)

    # Speaking with one that runs

    async def control(self, caller: Caller, run_id: str, control: Control) -> None:
        """More input, or the answer to a permission. `UnsupportedFrontend` when the frontend
        does not listen while it works, `StateConflict` when the turn is over, does not wait for
        that permission, or reads nothing: what it was told is kept until it does."""
        live = await self._running(caller, run_id)
        live.control(control)

    async def interrupt(self, caller: Caller, run_id: str) -> None:
        """As Ctrl-C. In a terminal that is all; a turn is ended by it: it is asked, then
        signalled, then killed. One that waits never begins."""
        await self.get(caller, run_id)
        if (queued := self._queue.take(run_id)) is not None:
            error = TurnError("interrupted", "It was taken out of the queue.")
            await self._failed(queued.turn, error)
            queued.begun.set()
            return
        live = await self._running(caller, run_id)
        if live.turn.mode is InteractionMode.INTERACTIVE:
            live.say(Control.interrupt())
            return
        live.end(INTERRUPT, Control.interrupt())

    async def stop(self, caller: Caller, run_id: str) -> None:
        """The agent is asked to end, and after a while it is killed."""
        live = await self._running(caller, run_id)
        live.end(TERMINATE, Control(ControlKind.STOP))

    async def _running(self, caller: Caller, run_id: str) -> LiveTurn:
        await self.get(caller, run_id)
        live = self._live.get(run_id)
        if live is None:
            raise StateConflict(
                f"The turn {run_id} is over.", hint="Send a new task: carrel send SPACE PROMPT"
            )
        return live

    # Ending

    async def close(self) -> None:
        """The daemon ends; agents go on."""
        self._closing = True
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*self._ending.values(), return_exceptions=True)
        tasks = [task for live in self._live.values() for task in (live.task, live.ending)]
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
