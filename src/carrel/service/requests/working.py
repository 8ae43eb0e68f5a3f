"""One request from its turn to its end. Where a daemon was killed the record says where to go on:
every step looks first at what of it is done."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from carrel.domain.access import LOCAL
from carrel.domain.agents import Turn, TurnRequest, TurnState
from carrel.domain.errors import (
    AgentCrashed,
    CarrelError,
    InsufficientDisk,
    RunNotFound,
    SpaceNotFound,
    StateConflict,
    StoreBusy,
)
from carrel.domain.ids import new_id
from carrel.domain.pauses import pauses
from carrel.domain.requests import (
    Failure,
    Generate,
    Policy,
    Request,
    RequestQuery,
    RequestState,
    Result,
    Workspace,
)
from carrel.domain.runs import RunState
from carrel.domain.spaces import Space, SpaceState
from carrel.lifecycle.table import LIVE
from carrel.service.requests import checking
from carrel.service.requests.book import Book, Live
from carrel.service.requests.keeping import series_lock
from carrel.service.requests.parts import RequestParts
from carrel.service.requests.prompting import RULES, missing_in, prompt_of
from carrel.service.requests.wanting import space_request, telling, wants_content

MOST_ATTEMPTS = 5
"""A daemon that was killed each time is no reason to go on for ever."""
SUMMARY_CHARACTERS = 20_000
PLACES = "places"
"""The lock of all folders that callers name."""
_PASSING = frozenset(
    {InsufficientDisk.code, StoreBusy.code, "sandbox_unavailable", "launcher_unavailable"}
    | {AgentCrashed.code, "timeout", "interrupted", "project_changed", "git_timeout"}
)
"""What may be otherwise the next time."""
_log = logging.getLogger("carrel")


class Worker:
    def __init__(self, parts: RequestParts, book: Book) -> None:
        self._parts = parts
        self._book = book

    async def work(self, live: Live) -> None:
        """Until it has ended. Raises nothing but its own cancelling, and what the store raises
        when even the failure cannot be written down."""
        try:
            while not live.request.ended:
                await self._step(live)
        except CarrelError as error:
            await self.fail(live, error)
        except Exception as error:
            if not live.cancelling:
                _log.exception("the request %s failed", live.key)
            await self.fail(live, CarrelError(f"{type(error).__name__}: {error}"))

    async def _step(self, live: Live) -> None:
        match live.request.state:
            case RequestState.QUEUED:
                await self._accept(live)
            case RequestState.MAKING:
                await self._make(live)
            case RequestState.WORKING:
                await self._have_it_made(live)
            case RequestState.CHECKING:
                await self._check(live)
            case RequestState.COLLECTING:
                await self._collect(live)

    async def fail(self, live: Live, error: CarrelError) -> None:
        if live.cancelling:
            # By that: whoever cancels it writes it down.
            return
        step = str(live.request.state)
        failure = Failure(error.code, error.message, step, error.code in _PASSING, error.hint)
        await self._end(live, RequestState.FAILED, failure=failure)

    # The workspace

    async def _accept(self, live: Live) -> None:
        """Its turn has come. Where it will be is known before anything is made."""
        request = live.request
        if request.attempts >= MOST_ATTEMPTS:
            raise AgentCrashed(
                f"{request.attempts} attempts ended with the daemon.", hint="Look at its log."
            )
        earlier = self._parts.log.last(request.space_id) if request.space_id else 0
        await self._book.move(
            live,
            RequestState.MAKING,
            "making the workspace",
            space_id=new_id("sp"),
            attempts=request.attempts + 1,
            offset=request.offset + earlier,
        )

    async def _make(self, live: Live) -> None:
        request = live.request
        space = self._parts.journal.get(request.space_id)
        if space is None:
            if await self._was_begun(request):
                # The daemon ended while it was made, and nothing of it is left.
                await self._book.change(live, state=RequestState.QUEUED)
                return
            await self._create(live)
        elif space.state not in LIVE:
            raise StateConflict(f"{space.space_id} is {space.state}.", state=str(space.state))
        for name, text in request.asked.context_files.items():
            await self._parts.context.put(LOCAL, request.space_id, name, text.encode())
        frontend = self._frontend(request.asked)
        await self._book.move(
            live, RequestState.WORKING, f"{frontend} begins", workspace=Workspace.THERE
        )

    async def _create(self, live: Live) -> None:
        async with contextlib.AsyncExitStack() as held:
            if live.request.asked.workspace_path:
                # Whether somebody works there is looked at before it is known that we do.
                await held.enter_async_context(self._parts.shared.locks.alone(PLACES))
            wanted = await asyncio.to_thread(space_request, self._parts, live.request)
            await self._parts.spaces.create(LOCAL, wanted, telling(self._book, live))

    async def _was_begun(self, request: Request) -> bool:
        """By an earlier daemon: of what this one has not begun there is no message."""
        return request.attempts > 0 and self._parts.log.last(request.space_id) > 1

    def _frontend(self, asked: Generate) -> str:
        return asked.frontend or self._parts.rules.frontend

    # The agent

    async def _have_it_made(self, live: Live) -> None:
        request = live.request
        if not request.run_id:
            turn = await self._begun(request) or await self._begin(request)
            await self._book.change(live, run_id=turn.run_id)
        turn = await self._parts.turns.wait(LOCAL, live.request.run_id)
        if turn.state is TurnState.ERROR and await self._never_ran(request, turn.run_id):
            attempts = request.attempts + 1
            await self._book.change(live, run_id="", attempts=attempts)
            turn = await self._begin(request)
            await self._book.change(live, run_id=turn.run_id)
            return
        await self._left_nothing(request.space_id, turn.run_id)
        if turn.result is None or turn.state is not TurnState.COMPLETE:
            error = turn.result.error if turn.result is not None else None
            raise (
                _TurnFailed(error.code, error.message)
                if error
                else _TurnFailed(AgentCrashed.code, "The agent ended without a word.")
            )
        if request.asked.check is not None:
            await self._book.move(live, RequestState.CHECKING, "checking")
        else:
            await self._book.move(live, RequestState.COLLECTING, "looking at what changed")

    async def _begun(self, request: Request) -> Turn | None:
        """By an earlier daemon, which could not write it down here any more."""
        turns = await self._parts.store.turns(request.space_id, limit=1)
        return turns[0] if turns else None

    async def _never_ran(self, request: Request, run_id: str) -> bool:
        """A daemon ended between writing it down and doing it, and it is worth another try."""
        if request.attempts >= MOST_ATTEMPTS:
            return False
        try:
            return (await self._parts.runs.get(run_id)).state is RunState.FAILED
        except RunNotFound:
            return True

    async def _begin(self, request: Request) -> Turn:
        asked = request.asked
        wanted = TurnRequest(
            frontend=self._frontend(asked),
            prompt=prompt_of(asked),
            model=asked.model,
            system_prompt=RULES,
            timeout_s=asked.timeout_s or self._parts.rules.timeout_s,
            # Some agents are told by it where their models are.
            env=asked.env,
        )
        return await self._parts.turns.start(LOCAL, request.space_id, wanted)

    async def _left_nothing(self, space_id: str, run_id: str) -> None:
        """What an agent has left running would go on writing while its work is looked at."""
        space = self._parts.journal.get(space_id)
        if space is None:
            raise SpaceNotFound(f"The workspace {space_id} was removed.", hint="Ask again.")
        desk = await self._parts.desks.of(space)
        await desk.runtime.kill(desk.sandbox, run_id)

    # The check

    async def _check(self, live: Live) -> None:
        request = live.request
        if not request.check_run_id:
            await self._book.change(live, check_run_id=new_id("ru"))
        run_id = live.request.check_run_id
        checked = await checking.run(self._parts, request, run_id)
        if checked is None and await self._never_ran(request, run_id):
            await self._book.change(live, check_run_id="", attempts=request.attempts + 1)
            return
        if checked is None:
            await self._left_nothing(request.space_id, run_id)
            checked = await checking.outcome(self._parts, run_id)
        said = "looking at what changed"
        await self._book.move(live, RequestState.COLLECTING, said, checked=checked)

    # The result

    async def _collect(self, live: Live) -> None:
        request = live.request
        rules = self._parts.rules
        space = self._parts.journal.current(request.space_id)
        desk = await self._parts.desks.of(space)
        await self._parts.desks.ensure(desk)
        collected = await asyncio.to_thread(
            self._parts.collecting.collect,
            desk.driver,
            desk.tree,
            most=rules.most_files,
            content_bytes=rules.content_bytes if wants_content(request.asked) else 0,
        )
        turn = await self._parts.turns.get(LOCAL, request.run_id)
        said = turn.result.final_output if turn.result is not None else ""
        missing = missing_in(said)
        passed = request.checked is None or request.checked.passed
        result = Result(
            complete=bool(collected.total) and not missing and passed,
            summary=said[:SUMMARY_CHARACTERS],
            files=collected.files,
            total=collected.total,
            needs_research=missing,
            check=request.checked,
            usage=turn.usage,
        )
        if request.asked.keeping.policy is not Policy.VERSIONED:
            await self._end(live, RequestState.DONE, result=result)
            return
        async with self._parts.shared.locks.alone(series_lock(request)):
            version = await self._next_version(request)
            await self._end(live, RequestState.DONE, result=result, version=version)

    async def _next_version(self, request: Request) -> int:
        query = RequestQuery(
            caller=request.caller, series=request.asked.keeping.series, live=False, limit=1 << 20
        )
        found = await self._parts.store.requests(query)
        return max((one.version for one in found), default=0) + 1

    async def _end(self, live: Live, state: RequestState, **outcome: object) -> None:
        """What its client hears last comes after all that it can hear of the space."""
        await self._parts.log.settled()
        request = live.request
        space_id = request.space_id
        there = self._parts.journal.get(space_id) if space_id else None
        now = self._book.clock()
        changes = {
            **outcome,
            "ended_at": now,
            "retained_until": _until(request, state, there, now),
            "seq": request.offset + (self._parts.log.last(space_id) if space_id else 0) + 1,
            "workspace": _workspace(request, there),
        }
        for pause_s in pauses():
            try:
                await self._book.move(live, state, "", **changes)
                return
            except CarrelError as error:
                # However long the disk is full: an outcome is not lost.
                _log.warning("the end of the request %s is not written: %s", live.key, error)
                if live.cancelling:
                    await self._halt(live)
                await asyncio.sleep(pause_s)

    async def _halt(self, live: Live) -> None:
        """What runs for one that was cancelled may be what fills the disk."""
        space = self._parts.journal.get(live.request.space_id)
        if space is None:
            return
        try:
            desk = await self._parts.desks.of(space)
            await desk.runtime.stop(desk.sandbox, 0.0)
        except CarrelError as error:
            _log.warning("what runs for the request %s goes on: %s", live.key, error)

    async def cancel(self, live: Live, failure: Failure) -> bool:
        """Whether it had not ended. What it made goes with it; that is the keeper's."""
        await self._end(live, RequestState.CANCELLED, failure=failure)
        return live.request.failure is failure


class _TurnFailed(CarrelError):
    """As the turn says it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, hint="What it said is among the events.")
        self.code = code  # type: ignore[misc]


def _until(request: Request, state: RequestState, space: Space | None, now: float) -> float | None:
    keeping = request.asked.keeping
    kept = keeping.policy is Policy.RETAIN and state is not RequestState.CANCELLED
    return now + keeping.seconds if kept and space is not None else None


def _workspace(request: Request, space: Space | None) -> Workspace:
    if space is not None and space.state is not SpaceState.REMOVED:
        return Workspace.THERE
    return Workspace.NONE if request.workspace is Workspace.NONE else Workspace.GONE
