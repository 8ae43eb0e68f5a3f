"""Requests, from asking to the last trace: what callers can do with them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

from carrel.domain.access import LOCAL, Caller, begin_for
from carrel.domain.errors import (
    Capacity,
    RequestCancelled,
    RequestInvalid,
    RequestReused,
    StateConflict,
)
from carrel.domain.hub import Item
from carrel.domain.ids import new_id
from carrel.domain.requests import (
    Failure,
    Frame,
    Generate,
    Policy,
    Request,
    RequestAnswer,
    RequestQuery,
    RequestState,
    Workspace,
)
from carrel.domain.turns import Control, ControlKind, TurnRequest
from carrel.service.requests import intake
from carrel.service.requests.book import LiveRequest, RequestParts
from carrel.service.requests.retention import MANY, series_lock
from carrel.service.requests.stream import RequestReads
from carrel.service.requests.work import RequestWorker, wanted_space

SHARES = 4
"""One caller has at most such a part of the line."""
WAITING_CHARACTERS = 10_000_000
"""Of what one caller's waiting requests say, which is in memory until their turn comes."""


class Requests(RequestReads):
    def __init__(self, parts: RequestParts) -> None:
        super().__init__(parts)
        self._worker = RequestWorker(parts, self._book)
        self._presence = Presence(parts.rules.given_up_s, self._give_up)
        self._working: Counter[str] = Counter()
        """How many of each caller are worked on."""
        self._closing = False
        self._regular: asyncio.Task[None] | None = None

    # Asking

    async def submit(self, caller: Caller, asked: Generate, by: str = "") -> Request:
        """Returns when it is written down: from then on it is done, whatever becomes of the
        daemon. `by` is the connection that it came by. `Capacity`, `RequestReused`,
        `RequestInvalid`, and what a space that cannot be made raises."""
        intake.check(caller, asked, self._parts.rules)
        gone = asyncio.Event()
        try:
            work = self._entered(caller, asked, by, gone)
            return await self._parts.shared.tasks.see_through(work)
        except asyncio.CancelledError:
            gone.set()
            self._left(by)
            raise

    async def _entered(
        self, caller: Caller, asked: Generate, by: str, gone: asyncio.Event
    ) -> Request:
        enter = self._once if asked.request_id else self._enter
        request = await enter(caller, asked, by)
        if gone.is_set():
            self._left(by)
        return request

    def _left(self, by: str) -> None:
        """That connection has gone, before it could follow what it had asked for."""
        for live in self._book.all():
            if by and live.by == by and not live.followed:
                live.followed = True
                self._presence.look(live)

    async def _once(self, caller: Caller, asked: Generate, by: str) -> Request:
        name = asked.request_id
        async with self._parts.shared.locks.alone(f"request\0{caller.name}\0{name}"):
            before = await self._parts.store.request_of(caller.name, name)
            if before is None:
                return await self._enter(caller, asked, by)
        if before.digest != intake.digest(asked):
            raise RequestReused(
                f"The request_id {name!r} was used for a different request.",
                hint="Use a new request_id.",
            )
        return self._now(before)

    async def _admitted(self, caller: Caller, asked: Generate) -> Request:
        """As this caller may ask it, and as it can be made: what is wrong is told at once."""
        digest = intake.digest(asked)
        if not asked.frontend:
            usual = self._parts.rules.frontend or self._parts.usual_agent(caller, asked.env)
            asked = dataclasses.replace(asked, frontend=usual)
        request = self._drafted(caller, asked, digest)
        wanted = await wanted_space(self._parts, self._book, request)
        # Without the label that only Carrel sets.
        wanted = dataclasses.replace(wanted, labels=asked.labels, transient=False)
        admitted = self._parts.spaces.check(caller, wanted)
        if asked.mcp:
            await self._parts.spaces.check_servers(asked.mcp)
        asked = dataclasses.replace(asked, labels=dict(admitted.labels), frontend=admitted.agent)
        turn = TurnRequest(asked.frontend, "", model=asked.model, env=asked.env)
        self._parts.turns.check(caller, turn, admitted.network)
        guest, realm = admitted.guest, admitted.realm
        return dataclasses.replace(request, asked=asked, guest=guest, realm=realm)

    def _drafted(self, caller: Caller, asked: Generate, digest: str) -> Request:
        key = new_id("rq")
        now = self._book.clock()
        return Request(
            request_id=asked.request_id or key,
            key=key,
            caller=caller.name,
            asked=asked,
            digest=digest,
            state=RequestState.QUEUED,
            created_at=now,
            updated_at=now,
        )

    async def _enter(self, caller: Caller, asked: Generate, by: str) -> Request:
        live = LiveRequest(await self._admitted(caller, asked), by=by)
        self._check_room(caller)
        self._book.know(live)
        self._stand(live)
        try:
            await self._parts.journal.write(live.request)
        except BaseException:
            self._line.leave(live.key)
            self._book.forget(live)
            raise
        self._presence.look(live)
        self._next()
        return live.request

    def _check_room(self, caller: Caller) -> None:
        """Of the line one account has a part, and who has few in it finds a place in a full one:
        nobody fills it for others. The daemon's own user has it all."""
        most, begins = self._parts.rules.waiting, self._room(caller.account)
        # Who begins at once stands in the line for a moment only.
        waiting, mine = (
            count - begins for count in (len(self._line), self._line.of(caller.account))
        )
        share, few = max(1, most // SHARES), max(1, most // 100)
        if caller.name == LOCAL.name:
            share = few = most
        if mine >= share or (mine > 0 and self._waiting_text(caller.account) > WAITING_CHARACTERS):
            raise Capacity(f"{mine} of your requests wait already.", hint="Try again later.")
        if waiting >= most and mine >= few:
            raise Capacity(f"{waiting} requests wait already.", hint="Try again later.")

    def _waiting_text(self, account: str) -> int:
        if account == LOCAL.name:
            return 0
        asked = (one.request for one in self._book.all() if one.share == account)
        return sum(intake.text_length(one.asked) for one in asked if not one.ended)

    def _stand(self, live: LiveRequest) -> None:
        owner = live.request.asked.owner or live.by
        self._line.add(live.key, live.share, owner)

    # Working

    def _next(self) -> None:
        """Whose turn it is, as long as there is room."""
        moved = False
        with contextlib.suppress(LookupError):
            while not self._closing:
                live = self._book.get(self._line.take(self._room))
                if live is not None and not live.request.ended:
                    self._begin(live)
                    moved = True
        if moved:
            self._book.ring_all()

    def _room(self, account: str) -> int:
        """How many of its own may begin now. One place is left for others: an agent may take as
        long as its caller said. For one of the daemon's own user there always is one."""
        most, mine = self._parts.rules.at_once, self._working[account]
        free = max(0, most - self._working.total())
        if account == LOCAL.name:
            return free or int(not mine)
        return min(free, max(0, max(1, most - 1) - mine))

    def _begin(self, live: LiveRequest) -> None:
        self._working[live.share] += 1
        # Whoever's request has just ended, or whose daemon has: it takes its own share.
        live.task = begin_for(live.account, self._work(live))

    async def _work(self, live: LiveRequest) -> None:
        try:
            await self._worker.work(live)
        finally:
            self._working[live.share] -= 1
            self._working += Counter()  # without those of whom there is none
            live.task = None
            if not self._closing:
                self._next()
        if live.request.ended:
            self._keeper.see_to(live)
            self._presence.look(live)

    # Hearing

    async def follow(
        self, caller: Caller, word: str, after: int = 0
    ) -> AsyncGenerator[Frame, None]:
        """Frames after that number, to the outcome; who hears that says `delivered`."""
        live = await self._live(caller, word)
        self._presence.came(live)
        try:
            async with contextlib.aclosing(
                self._hearing.follow(live, after, caller.account)
            ) as frames:
                async for frame in frames:
                    yield frame
        finally:
            self._presence.went(live)

    def followed(self, request: Request) -> bool:
        """Somebody hears of it now, who is to have its outcome."""
        live = self._book.get(request.key)
        return live is not None and live.followers > 0

    async def delivered(self, caller: Caller, word: str) -> None:
        """The outcome has reached this one: that counts when it is who asked for it."""
        live = await self._live(caller, word)
        if live.request.ended and live.request.caller == caller.name:
            await self._keeper.delivered(live)

    def noticed(self, caller: Caller, request: Request) -> None:
        """Somebody has looked after it: if it is who asked for it, it is not given up yet."""
        live = self._book.get(request.key)
        if live is not None and request.caller == caller.name:
            self._presence.look(live)

    async def done(self, caller: Caller, word: str) -> Request:
        """Its files were fetched: what was held for that goes."""
        live = await self._live(caller, word)
        if not live.request.ended:
            raise StateConflict(f"{word[:80]!r} has not ended.", hint="Cancel it, or wait.")
        await self._keeper.received(live)
        return live.request

    async def _give_up(self, live: LiveRequest) -> None:
        if live.request.ended:
            await self._keeper.delivered(live)
            return
        failure = _cancelled(live.request, "Nobody was there for it any more.")
        await self._cancel(live, failure)

    # Saying something to one that is under way

    async def cancel(self, caller: Caller, word: str) -> Request:
        """All that ran for it has ended, and its workspace is gone, when this returns.
        Cancelling what has ended changes nothing."""
        live = await self._live(caller, word)
        if not live.request.ended:
            await self._cancel(live, _cancelled(live.request, "It was cancelled."))
        return live.request

    async def _cancel(self, live: LiveRequest, failure: Failure) -> None:
        self._line.leave(live.key)
        await self._parts.shared.tasks.see_through(self._cancel_now(live, failure))

    async def _cancel_now(self, live: LiveRequest, failure: Failure) -> None:
        live.cancelling = True
        if not await self._worker.cancel(live, failure):
            return
        task = live.task
        if live.request.space_id:
            # Ends what runs there; who waits for it sees that the request has ended.
            await self._keeper.remove(live, Workspace.GONE)
        if task is not None:
            await asyncio.wait({task})
            # It may have been just about to be made.
            await self._keeper.remove(live, Workspace.GONE)
        await self._keeper.seen_to(live)

    async def answer(self, caller: Caller, word: str, answer: RequestAnswer) -> None:
        """To what its agent asked. `StateConflict` when it asks nothing."""
        await answer_question(self._parts, caller, await self.get(caller, word), answer)

    # Those that are kept

    async def extend(self, caller: Caller, word: str, seconds: float) -> Request:
        """So long from now on its workspace stays."""
        live = await self._live(caller, word)
        request = live.request
        if request.asked.keeping.policy is not Policy.RETAIN:
            raise RequestInvalid(
                "Only a retained workspace can be extended.",
                hint="Use the policy `retain` for the request.",
            )
        if not 1 <= seconds <= intake.MAX_SECONDS:
            raise RequestInvalid("The time is out of range.", hint="Use at least 1 second.")
        if not request.ended:
            raise StateConflict(
                f"{word[:80]!r} has not ended.", hint="Wait for its end: its time begins then."
            )
        await self._opened(request)
        await self._book.change(live, retained_until=self._book.clock() + seconds)
        return live.request

    async def remove(self, caller: Caller, word: str) -> Request:
        """Ends it if it has not, and nothing of it is left but its record."""
        live = await self._live(caller, word)
        if not live.request.ended:
            return await self.cancel(caller, word)
        async with self._parts.shared.locks.alone(_removal_lock(live.request)):
            # It may have been archived until now.
            live = await self._live(caller, word)
            await self._keeper.discard(live)
        await self._keeper.delivered(live)
        await self._keeper.seen_to(live)
        return live.request

    # The daemon's beginning and end

    async def take_up(self) -> None:
        """What an earlier daemon had not finished, in the order of asking. Turns and runs have
        been taken up before."""
        await self._keeper.sweep()
        found = await self._parts.store.requests(RequestQuery(bare=False, limit=MANY))
        for request in sorted(found, key=lambda one: (one.created_at, one.key)):
            if request.ended and request.workspace is Workspace.ARCHIVED:
                continue
            live = LiveRequest(request)
            self._book.know(live)
            if request.ended:
                self._keeper.see_to(live)
            elif request.state is RequestState.QUEUED and not request.attempts:
                self._stand(live)
            else:
                self._begin(live)
            self._presence.look(live)
        self._regular = begin_for(LOCAL.name, self._keeper.run())
        self._next()

    def ending(self) -> None:
        """The daemon will end: who is cut off by that has not gone away."""
        self._presence.stop()

    async def close(self) -> None:
        """The daemon ends; agents go on, and requests when it is there again."""
        self._closing = True
        await self._presence.close()
        tasks = [live.task for live in self._book.all() if live.task is not None]
        tasks += [self._regular] if self._regular is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._keeper.close()

    async def tidy(self) -> None:
        """What is over goes now, and not only at the next look."""
        await self._keeper.tidy_all()

    async def settled(self) -> None:
        """What is being cleaned up now is gone."""
        await self._keeper.settled()


def _removal_lock(request: Request) -> str:
    return series_lock(request) if request.version else f"removal\0{request.key}"


def _cancelled(request: Request, message: str) -> Failure:
    return Failure(RequestCancelled.code, message, str(request.state), retriable=True)


# What is said to a request that is under way.


async def answer_question(
    parts: RequestParts, caller: Caller, request: Request, said: RequestAnswer
) -> None:
    """To what its agent asked. `StateConflict` when it asks nothing, or something else."""
    if request.state is not RequestState.WORKING or not request.run_id:
        raise StateConflict(
            f"{request.request_id} asks nothing now.", hint="Wait for input_needed."
        )
    asked = [one.id for one in parts.turns.asking(request.run_id)]
    if said.allow is not None or said.id in asked:
        await _permit(parts, caller, request.run_id, asked, said)
        return
    items = await _questions(parts, caller, request.space_id)
    wanted = said.id or (items[0].item_id if len(items) == 1 else "")
    if not wanted:
        raise StateConflict(
            f"{len(items)} questions are open." if items else "Nothing is asked now.",
            hint="Say which, by `id`.",
        )
    await parts.inbox.answer(caller, wanted, said.text, request.space_id)


async def _questions(parts: RequestParts, caller: Caller, space_id: str) -> Sequence[Item]:
    items = await parts.inbox.items(caller)
    return [item for item in items if item.question and item.space_id == space_id]


async def _permit(
    parts: RequestParts, caller: Caller, run_id: str, asked: Sequence[str], said: RequestAnswer
) -> None:
    wanted = said.id or (asked[0] if len(asked) == 1 else "")
    if wanted not in asked:
        raise StateConflict("That permission is not asked for.", hint="Say which, by `id`.")
    allow = said.allow if said.allow is not None else said.text == "allow"
    control = Control(ControlKind.PERMISSION, id=wanted, allow=allow)
    await parts.turns.control(caller, run_id, control)


# Whether anybody is there for a request: one that nobody comes back for is given up.

TIED_S = 10.0
"""For the connection that a request came by to follow it: after that it is not there."""

GiveUp = Callable[[LiveRequest], Awaitable[Any]]


class Presence:
    def __init__(self, given_up_s: float, give_up: GiveUp) -> None:
        self._given_up_s = given_up_s
        self._give_up = give_up
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def came(self, live: LiveRequest) -> None:
        live.followers += 1
        live.followed = True
        self.look(live)

    def went(self, live: LiveRequest) -> None:
        live.followers -= 1
        self.look(live)

    def look(self, live: LiveRequest) -> None:
        """Starts the time, or takes it back."""
        if live.lonely is not None:
            live.lonely.cancel()
            live.lonely = None
        wait_s = self._wait_s(live)
        if wait_s is not None and not self._closed:
            loop = asyncio.get_running_loop()
            live.lonely = loop.call_later(wait_s, self._over, live)

    def _wait_s(self, live: LiveRequest) -> float | None:
        asked = live.request.asked
        if live.followers or live.request.delivered_at is not None or live.request.is_bare:
            return None
        if asked.tied and not live.request.ended:
            return 0.0 if live.followed else TIED_S
        if asked.webhook is not None or asked.keeping.policy is not Policy.EPHEMERAL:
            return None
        if not live.followed and not live.request.ended:
            # Who only asks now and then is not there in between; an agent has its own time.
            return None
        return self._given_up_s

    def _over(self, live: LiveRequest) -> None:
        live.lonely = None
        if self._closed:
            return
        task = begin_for(live.account, self._leave(live))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _leave(self, live: LiveRequest) -> None:
        if not live.followers:
            await self._give_up(live)

    def stop(self) -> None:
        """The daemon ends: that is nobody's going away."""
        self._closed = True

    async def close(self) -> None:
        self.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
