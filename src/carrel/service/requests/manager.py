"""Requests, from asking to the last trace: what callers can do with them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator

from carrel.domain.access import Caller
from carrel.domain.errors import (
    Capacity,
    RequestCancelled,
    RequestInvalid,
    RequestReused,
    StateConflict,
)
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
from carrel.service.requests import asking, steering
from carrel.service.requests.book import Live
from carrel.service.requests.keeping import MANY, series_lock
from carrel.service.requests.looking import Looking
from carrel.service.requests.parts import RequestParts
from carrel.service.requests.presence import Presence
from carrel.service.requests.wanting import space_request
from carrel.service.requests.working import Worker


class Requests(Looking):
    def __init__(self, parts: RequestParts) -> None:
        super().__init__(parts)
        self._worker = Worker(parts, self._book)
        self._presence = Presence(parts.rules.given_up_s, self._give_up)
        self._working = 0
        self._closing = False
        self._regular: asyncio.Task[None] | None = None

    # Asking

    async def submit(self, caller: Caller, asked: Generate, by: str = "") -> Request:
        """Returns when it is written down: from then on it is done, whatever becomes of the
        daemon. `by` is the connection that it came by. `Capacity`, `RequestReused`,
        `RequestInvalid`, and what a space that cannot be made raises."""
        asking.check(caller, asked, self._parts.rules)
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
        if before.digest != asking.digest(asked):
            raise RequestReused(
                f"{name!r} came with something else before.", hint="Use a new request_id."
            )
        return self._now(before)

    async def _admitted(self, caller: Caller, asked: Generate) -> Request:
        """As this caller may ask it, and as it can be made: what is wrong is told at once."""
        request = self._drafted(caller, asked)
        if asked.workspace_path:
            wanted = await asyncio.to_thread(space_request, self._parts, request)
        else:
            # It looks at no folder, and threads would change the order of those who ask.
            wanted = space_request(self._parts, request)
        wanted = dataclasses.replace(wanted, labels=asked.labels)
        admitted = self._parts.spaces.check(caller, wanted)
        asked = dataclasses.replace(asked, labels=dict(admitted.labels), frontend=admitted.agent)
        return dataclasses.replace(request, asked=asked)

    def _drafted(self, caller: Caller, asked: Generate) -> Request:
        key = new_id("rq")
        now = self._book.clock()
        return Request(
            request_id=asked.request_id or key,
            key=key,
            caller=caller.name,
            asked=asked,
            digest=asking.digest(asked),
            state=RequestState.QUEUED,
            created_at=now,
            updated_at=now,
        )

    async def _enter(self, caller: Caller, asked: Generate, by: str) -> Request:
        live = Live(await self._admitted(caller, asked), by=by)
        if len(self._line) >= self._parts.rules.waiting:
            raise Capacity(f"{len(self._line)} requests wait already.", hint="Try again later.")
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

    def _stand(self, live: Live) -> None:
        owner = live.request.asked.owner or live.by
        self._line.add(live.key, live.request.caller, owner)

    # Working

    def _next(self) -> None:
        """Whose turn it is, as long as there is room."""
        moved = False
        while len(self._line) and self._working < self._parts.rules.at_once and not self._closing:
            live = self._book.get(self._line.take())
            if live is not None and not live.request.ended:
                self._begin(live)
                moved = True
        if moved:
            self._book.ring_all()

    def _begin(self, live: Live) -> None:
        self._working += 1
        live.task = asyncio.create_task(self._work(live))

    async def _work(self, live: Live) -> None:
        try:
            await self._worker.work(live)
        finally:
            self._working -= 1
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
            async with contextlib.aclosing(self._hearing.follow(live, after)) as frames:
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

    async def _give_up(self, live: Live) -> None:
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

    async def _cancel(self, live: Live, failure: Failure) -> None:
        self._line.leave(live.key)
        await self._parts.shared.tasks.see_through(self._cancel_now(live, failure))

    async def _cancel_now(self, live: Live, failure: Failure) -> None:
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
        await steering.answer(self._parts, await self.get(caller, word), answer)

    # Those that are kept

    async def extend(self, caller: Caller, word: str, seconds: float) -> Request:
        """So long from now on its workspace stays."""
        live = await self._live(caller, word)
        request = live.request
        if request.asked.keeping.policy is not Policy.RETAIN:
            raise RequestInvalid("Only what is retained can be extended.", hint="Use `retain`.")
        if not 1 <= seconds <= asking.MAX_SECONDS:
            raise RequestInvalid("So long cannot be.", hint="Use at least 1 second.")
        if not request.ended:
            raise StateConflict(f"{word[:80]!r} has not ended.", hint="Its time has not begun.")
        await self._desk(request)
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
            live = Live(request)
            self._book.know(live)
            if request.ended:
                self._keeper.see_to(live)
            elif request.state is RequestState.QUEUED and not request.attempts:
                self._stand(live)
            else:
                self._begin(live)
            self._presence.look(live)
        self._regular = asyncio.create_task(self._keeper.run())
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
