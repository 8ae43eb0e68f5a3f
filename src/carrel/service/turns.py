"""Turns of agents in spaces: started, followed to their end, taken up again after a restart.

An agent is a run as any other, so it goes on without the daemon and what it says is in files.
Following those gives its events; the same lines give the same events, so after a restart the
ones that are in the log already are counted and passed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from carrel.domain.access import Caller
from carrel.domain.agents import (
    NOTHING_SPENT,
    Activity,
    Asked,
    Attaching,
    Control,
    ControlKind,
    Events,
    Frontend,
    Frontends,
    InteractionMode,
    MakeEvents,
    Permission,
    Prepared,
    SeatRequest,
    Seats,
    Turn,
    TurnError,
    TurnLog,
    TurnRequest,
    TurnResult,
    TurnState,
    Usage,
)
from carrel.domain.errors import (
    AgentCrashed,
    CarrelError,
    MessageInvalid,
    PermissionDenied,
    RunNotFound,
    SpaceNotFound,
    StateConflict,
    TurnNotFound,
    UnsupportedFrontend,
)
from carrel.domain.ids import new_id
from carrel.domain.pauses import pauses
from carrel.domain.runtimes import Command
from carrel.domain.spaces import Space
from carrel.domain.storing import Store
from carrel.service.agents import AgentSpaces
from carrel.service.context import Attachments, seen
from carrel.service.desk import Desk
from carrel.service.inputs import Inputs
from carrel.service.journal import Journal
from carrel.service.runs import Runs
from carrel.service.shared import Shared
from carrel.service.space_servers import Given, SpaceServers
from carrel.service.spaces import Spaces
from carrel.service.turn_following import Followed, Following, encode_control, plus

UP_S = 20.0
"""For a terminal to come up, on a busy machine."""
GRACE_S = 5.0
"""From asking an agent to stop to the signal, and from that to the kill."""
INTERRUPT, KILL, TERMINATE = 2, 9, 15


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
    seats: Seats
    servers: SpaceServers
    log: TurnLog
    make_events: MakeEvents


@dataclass(frozen=True)
class AttachedTurn:
    turn: Turn
    how: Attaching


@dataclass
class LiveTurn:
    turn: Turn
    prepared: Prepared
    ended: asyncio.Event
    followed: Followed
    interrupted: bool = False
    task: asyncio.Task[None] | None = None
    ending: asyncio.Task[None] | None = None


class Turns:
    def __init__(self, parts: TurnParts) -> None:
        self._parts = parts
        self._inputs = Inputs(parts.runs)
        self._live: dict[str, LiveTurn] = {}
        self._of_space: dict[str, str] = {}

    # Starting

    async def start(self, caller: Caller, word: str, request: TurnRequest) -> Turn:
        """Returns when the agent runs. Raises `AgentError`s, `StateConflict` when another turn
        of this space runs, and what starting a command raises."""
        space = await self._parts.spaces.existing(caller, word)
        name = request.frontend or space.agent
        if not name:
            raise UnsupportedFrontend(
                f"{space.space_id} has no agent yet.", hint="Say which: --agent NAME"
            )
        request = dataclasses.replace(request, frontend=name)
        frontend = self._frontend(request)
        if request.prompt == "" and request.mode is not InteractionMode.INTERACTIVE:
            raise MessageInvalid("There is nothing to say to the agent.", hint="Say it.")
        start = self._start(space.space_id, frontend, request)
        return await self._parts.shared.tasks.see_through(start)

    def _frontend(self, asked: TurnRequest | Turn) -> Frontend:
        if asked.mode is InteractionMode.INTERACTIVE:
            return self._parts.frontends.in_terminal(asked.frontend)
        return self._parts.frontends.get(asked.frontend)

    async def _start(self, space_id: str, frontend: Frontend, request: TurnRequest) -> Turn:
        run_id = new_id("ru")
        self._claim(space_id, run_id)
        try:
            desk = await self._parts.agents.equip(space_id, frontend)
            await self._parts.attachments.check(desk, request.attachments)
            request = self._resolved(desk, request, run_id)
            given = await self._parts.servers.given(space_id)
            prepared = await asyncio.to_thread(self._prepare, desk, frontend, request, given)
            turn = self._drafted(desk.space, frontend, request, prepared)
            await self._parts.journal.write(turn, *self._entered(space_id))
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
            raise StateConflict(
                f"An agent works in {space_id} already: {other}.",
                hint=f"Wait for it, or end it: carrel interrupt {space_id}",
                run_id=other,
            )
        self._of_space[space_id] = run_id

    @staticmethod
    def _resolved(desk: Desk, request: TurnRequest, run_id: str) -> TurnRequest:
        confines = desk.runtime.capabilities.confines
        permission = request.permission
        if permission is None:
            permission = Permission.SANDBOXED if confines else Permission.ASK
        elif permission is Permission.SANDBOXED and not confines:
            raise PermissionDenied(
                f"The runtime {desk.runtime.name} confines nothing.",
                hint="Ask for permission `ask` or `deny`, or use a runtime that confines.",
            )
        session_id = request.session_id or new_id("se")
        return dataclasses.replace(
            request, permission=permission, run_id=run_id, session_id=session_id
        )

    def _prepare(
        self, desk: Desk, frontend: Frontend, request: TurnRequest, given: Given
    ) -> Prepared:
        place = self._place(desk, frontend)
        seat = self._parts.seats.take(place)
        seat = dataclasses.replace(seat, servers=given.servers, server_env=given.env)
        prepared = frontend.prepare(seen(request, seat), seat)
        self._parts.seats.put(place, prepared.files)
        return dataclasses.replace(prepared, notes=(*given.notes, *prepared.notes))

    @staticmethod
    def _place(desk: Desk, frontend: Frontend) -> SeatRequest:
        abilities = desk.runtime.capabilities
        spec = desk.sandbox.spec
        return SeatRequest(
            spec.folder, spec.tree, spec.owner, frontend, abilities.own_paths, abilities.confines
        )

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
        )

    async def _run(self, turn: Turn, prepared: Prepared) -> None:
        command = Command(
            argv=prepared.argv,
            env=prepared.env,
            stdin=bool(prepared.first) or prepared.duplex,
            timeout_s=turn.timeout_s,
            display=f"agent: {turn.frontend}",
        )
        try:
            await self._parts.runs.start(turn.space_id, command, run_id=turn.run_id)
        except CarrelError as error:
            await self._failed(turn, TurnError(error.code, error.message))
            raise
        self._give(turn.run_id, prepared)

    def _give(self, run_id: str, prepared: Prepared, given: int = 0) -> None:
        target = self._inputs.of(run_id)
        if target is None:
            return
        if prepared.first[given:]:
            target.push(prepared.first[given:])
        if not prepared.duplex:
            target.end()

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
        live = LiveTurn(turn, prepared, asyncio.Event(), followed)
        self._live[turn.run_id] = live
        self._of_space[turn.space_id] = turn.run_id
        live.task = asyncio.create_task(self._see_to_end(live, frontend))
        return live

    async def _see_to_end(self, live: LiveTurn, frontend: Frontend) -> None:
        turn, followed = live.turn, live.followed
        events = self._events(turn, followed)
        translator = frontend.translator(_request(turn))
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
            live.ended.set()
            if live.ending is not None:
                live.ending.cancel()

    async def _tell_given_up(self, turn: Turn) -> None:
        """Nobody may be looking at a terminal that has ended by itself."""
        error = turn.result.error if turn.result else None
        if turn.mode is InteractionMode.INTERACTIVE and error and error.code == AgentCrashed.code:
            await self._parts.log.alert(turn.space_id, f"{turn.frontend}: {error.message}")

    def _events(self, turn: Turn, followed: Followed) -> Events:
        return self._parts.make_events(_request(turn), turn.provider, [followed.hear])

    async def _ended(
        self, turn: Turn, result: TurnResult, events: Events, followed: Followed
    ) -> Turn:
        journal = self._parts.journal
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
        for pause_s in pauses():
            try:
                await journal.write(ended, *self._spent(ended))
                break
            except CarrelError:
                await asyncio.sleep(pause_s)
        return ended

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
        for other in await self._parts.store.turns(turn.space_id, limit=1 << 20):
            same = other.continuation is not None and other.continuation == events.continuation
            if same and other.run_id != turn.run_id:
                spent = plus(spent, other.usage)
        return spent

    # Taking up

    async def take_up(self) -> None:
        """Turns of an earlier daemon. Their runs have been taken up before."""
        for turn in await self._parts.store.live_turns():
            with contextlib.suppress(CarrelError):
                await self._take_up(turn)

    async def _take_up(self, turn: Turn) -> None:
        parts = self._parts
        if parts.journal.get(turn.space_id) is None:
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
            raise TurnNotFound(f"There is no turn {run_id[:40]!r}.", hint="List them first.")
        return turn

    async def _sees(self, caller: Caller, turn: Turn) -> bool:
        """Who may not see the space must not learn that there was a turn in it."""
        try:
            await self._parts.spaces.get(caller, turn.space_id)
        except SpaceNotFound:
            return False
        return True

    async def list(self, caller: Caller, word: str, limit: int = 100) -> Sequence[Turn]:
        space = await self._parts.spaces.get(caller, word)
        return await self._parts.store.turns(space.space_id, limit=limit)

    async def wait(self, caller: Caller, run_id: str, timeout_s: float | None = None) -> Turn:
        """The turn when it has ended, or as it is when the time is over."""
        turn = await self.get(caller, run_id)
        live = self._live.get(run_id)
        if live is None:
            return turn
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await live.ended.wait()
        return live.turn

    def working(self, space_id: str) -> str:
        """The turn that runs there; empty when none does."""
        return self._of_space.get(space_id, "")

    def activity(self, space: Space) -> Activity:
        live = self._live.get(self.working(space.space_id))
        if live is not None:
            return live.followed.waiting.activity
        if self.working(space.space_id):
            return Activity.WORKING
        if space.agent_exited:
            return Activity.EXITED
        return Activity.IDLE if space.agent else Activity.NONE

    def asking(self, run_id: str) -> Sequence[Asked]:
        """The permissions that the turn waits for now."""
        live = self._live.get(run_id)
        return () if live is None else tuple(live.followed.waiting.asking.values())

    async def attaching(self, caller: Caller, word: str, *, read_only: bool) -> AttachedTurn:
        """How one attaches to the terminal of the agent of a space. `StateConflict` when there
        is none."""
        space = await self._parts.spaces.existing(caller, word)
        live = self._live.get(self.working(space.space_id))
        if live is None or live.turn.mode is not InteractionMode.INTERACTIVE:
            raise StateConflict(
                f"No agent is in a terminal in {space.space_id}.",
                hint=f"Start it: carrel attach {space.space_id}",
            )
        await self._is_up(live)
        desk = await self._parts.agents.desk(space.space_id)
        place = self._place(desk, self._frontend(live.turn))
        seat = await asyncio.to_thread(self._parts.seats.take, place)
        how = self._parts.frontends.attaching(seat.state, read_only=read_only)
        return AttachedTurn(live.turn, how)

    async def _is_up(self, live: LiveTurn) -> None:
        waits = [live.followed.waiting.up.wait(), live.ended.wait()]
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            await asyncio.wait(tasks, timeout=UP_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        if live.ended.is_set() or not live.followed.waiting.up.is_set():
            error = live.turn.result.error if live.turn.result else None
            why = error.message if error else "It has not come up yet."
            raise StateConflict(
                f"There is no terminal to attach to: {why}",
                hint=f"See `carrel turns {live.turn.space_id}`.",
            )

    # Speaking with one that runs

    async def control(self, caller: Caller, run_id: str, control: Control) -> None:
        """More input, or the answer to a permission. `UnsupportedFrontend` when the frontend
        does not listen while it works, `StateConflict` when the turn is over, or does not wait
        for that permission."""
        live = await self._running(caller, run_id)
        if not live.prepared.duplex:
            raise UnsupportedFrontend(
                f"{live.turn.frontend} cannot be spoken to while it works.",
                hint="Interrupt it, or wait for its end.",
            )
        waiting = live.followed.waiting
        if control.kind is ControlKind.PERMISSION and not waiting.may_answer(control.id):
            raise StateConflict(
                f"The turn {run_id} does not wait for the permission {control.id[:80]!r}.",
                hint=f"See what it waits for: carrel permit {live.turn.space_id}",
            )
        self._say(live, control)

    async def interrupt(self, caller: Caller, run_id: str) -> None:
        """As Ctrl-C. In a terminal that is all; a turn is ended by it: it is asked, then
        signalled, then killed."""
        live = await self._running(caller, run_id)
        if live.turn.mode is InteractionMode.INTERACTIVE:
            self._say(live, Control.interrupt())
            return
        self._end(live, INTERRUPT, Control.interrupt())

    async def stop(self, caller: Caller, run_id: str) -> None:
        """The agent is asked to end, and after a while it is killed."""
        live = await self._running(caller, run_id)
        self._end(live, TERMINATE, Control(ControlKind.STOP))

    def _end(self, live: LiveTurn, number: int, control: Control) -> None:
        live.interrupted = True
        if live.ending is None:
            live.ending = asyncio.create_task(self._stop(live, number, control))

    async def _running(self, caller: Caller, run_id: str) -> LiveTurn:
        await self.get(caller, run_id)
        live = self._live.get(run_id)
        if live is None:
            raise StateConflict(f"The turn {run_id} is over.", hint="Begin another.")
        return live

    def _say(self, live: LiveTurn, control: Control) -> None:
        target = self._inputs.of(live.turn.run_id)
        if target is not None:
            target.push(encode_control(control))

    async def _stop(self, live: LiveTurn, number: int, control: Control) -> None:
        run_id = live.turn.run_id
        if live.prepared.duplex:
            self._say(live, control)
            await asyncio.sleep(GRACE_S)
        for signal in (number, KILL):
            with contextlib.suppress(CarrelError):
                await self._parts.runs.signal(run_id, signal)
            await asyncio.sleep(GRACE_S)

    # Ending

    async def close(self) -> None:
        """The daemon ends; agents go on."""
        tasks = [task for live in self._live.values() for task in (live.task, live.ending)]
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _request(turn: Turn) -> TurnRequest:
    return TurnRequest(
        frontend=turn.frontend,
        prompt=turn.prompt,
        session_id=turn.session_id,
        run_id=turn.run_id,
        model=turn.model,
        continuation=turn.asked,
        permission=turn.permission,
        system_prompt=turn.system_prompt,
        timeout_s=turn.timeout_s,
        mode=turn.mode,
    )
