"""What is left of a request when it has ended: its workspace by its policy, its outcome until
somebody has it, its record for a while."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from carrel.domain.access import LOCAL
from carrel.domain.errors import CarrelError, SpaceNotFound
from carrel.domain.pauses import pauses
from carrel.domain.requests import (
    Older,
    Policy,
    Request,
    RequestQuery,
    RequestState,
    Result,
    Workspace,
)
from carrel.domain.storing import Forget
from carrel.service.requests.book import Book, Live
from carrel.service.requests.parts import NotSent, RequestParts
from carrel.service.requests.viewing import outcome

GRACE_S = 1.0
EVERY_S = 20.0
FORGET_EVERY = 50
CONTENT_BYTES = 64 << 20
MANY = 1 << 20
_log = logging.getLogger("carrel")


class Keeper:
    """Everything here may be done twice, and goes on where a daemon was killed."""

    def __init__(self, parts: RequestParts, book: Book) -> None:
        self._parts = parts
        self._book = book
        self._tasks: set[asyncio.Task[None]] = set()
        self._since_forgetting = 0
        self._contents: deque[tuple[str, int]] = deque()
        """Of outcomes that were delivered, the oldest first."""
        self._content_bytes = 0

    # At its end

    def see_to(self, live: Live) -> None:
        """Does all that is due for one that has ended, and goes on without the caller."""
        task = asyncio.create_task(self._settle(live))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle(self, live: Live) -> None:
        try:
            await self._look(live)
            await self._retain(live)
            await self._rest(live)
            if live.request.version:
                await self._newest_only(live.request)
            if live.request.asked.webhook is not None and live.request.delivered_at is None:
                await self._send(live)
            await self.tidy(live)
        except Exception:
            # The next look, or the next daemon, goes on with it.
            _log.exception("what is left of the request %s could not be settled", live.key)

    async def _look(self, live: Live) -> None:
        """Somebody may have removed the space, or a daemon did and could not write it down."""
        request = live.request
        there = self._parts.journal.get(request.space_id) is not None
        if request.workspace is Workspace.THERE and not there:
            await self._book.change(live, workspace=Workspace.GONE)

    async def _retain(self, live: Live) -> None:
        request, keeping = live.request, live.request.asked.keeping
        if request.state is RequestState.CANCELLED or request.workspace is not Workspace.THERE:
            return
        if keeping.policy is Policy.RETAIN and request.retained_until is None:
            until = (request.ended_at or self._book.clock()) + keeping.seconds
            await self._book.change(live, retained_until=until)

    async def _rest(self, live: Live) -> None:
        """Nothing runs in a workspace that is kept."""
        request = live.request
        if request.workspace is Workspace.THERE and self.stays(request):
            with contextlib.suppress(SpaceNotFound):
                await self._parts.spaces.stop(LOCAL, request.space_id, GRACE_S)

    def stays(self, request: Request) -> bool:
        """Its workspace is not to go yet."""
        if request.state is RequestState.CANCELLED:
            return False
        match request.asked.keeping.policy:
            case Policy.RETAIN:
                until = request.retained_until
                return until is None or self._book.clock() < until
            case Policy.VERSIONED:
                return request.state is RequestState.DONE
            case _:
                return request.delivered_at is None or self._held(request)

    def _held(self, request: Request) -> bool:
        hold_s = request.asked.keeping.hold_s
        return hold_s > 0 and self._book.clock() < (request.delivered_at or 0) + hold_s

    async def tidy(self, live: Live) -> None:
        """What is over goes."""
        request = live.request
        if not request.ended or self.stays(request):
            return
        if request.workspace is Workspace.THERE:
            await self.remove(live, Workspace.GONE)
        if live.request.is_bare:
            self._book.forget(live)
            self._remember(live.request)
            await self._forget_old()

    async def remove(self, live: Live, then: Workspace, **changes: object) -> None:
        """The space, wholly; nothing of it is in the trash."""
        space_id = live.request.space_id
        with contextlib.suppress(SpaceNotFound):
            await self._parts.spaces.remove(LOCAL, space_id, force=True, grace_s=0.0)
        await self._parts.log.settled()
        await self._parts.log.forget(space_id)
        await self._book.change(live, workspace=then, **changes)

    def _remember(self, request: Request) -> None:
        """What was sent need not have arrived: who lost its connection asks again."""
        size = _content_bytes(request)
        if size:
            self._contents.append((request.key, size))
            self._content_bytes += size
        if len(self._contents) > self._parts.rules.remembered + FORGET_EVERY:
            # Its record has gone.
            self._oldest_content()

    def _oldest_content(self) -> str:
        """The request that it is of; it counts no more."""
        key, size = self._contents.popleft()
        self._content_bytes -= size
        return key

    async def _forget_old(self) -> None:
        """What the files of outcomes held, beyond a budget; records beyond the newest."""
        while self._content_bytes > CONTENT_BYTES:
            await self._strip(self._oldest_content())
        self._since_forgetting += 1
        if self._since_forgetting < FORGET_EVERY:
            return
        self._since_forgetting = 0
        remembered = self._parts.rules.remembered
        await self._parts.store.write(Forget(bare_requests_but=remembered))

    # Webhooks

    async def _send(self, live: Live) -> None:
        webhook = live.request.asked.webhook
        assert webhook is not None
        frame = outcome(live.request)
        body = json.dumps(
            {"type": str(frame.kind), "request_id": frame.request_id, **frame.data}
        ).encode()
        for pause_s in pauses():
            tries = live.request.told + 1
            await self._book.change(live, told=tries)
            try:
                await self._parts.sender.send(webhook, body)
                break
            except NotSent as error:
                _log.warning("the webhook of %s: %s", live.key, error)
                if error.for_good or tries >= self._parts.rules.webhook_tries:
                    note = f"The webhook was tried {tries} times: {error}."
                    await self._book.change(live, notes=(*live.request.notes, note))
                    break
            await asyncio.sleep(pause_s)
        await self._book.change(live, delivered_at=self._book.clock())

    async def received(self, live: Live) -> None:
        """Its client has all that it wants: nothing is held for it any more."""
        await self._book.change(live, delivered_at=0.0, result=_listed(live.request))
        self.see_to(live)
        await self.settled()

    async def _strip(self, key: str) -> None:
        request = await self._parts.store.request(key)
        if request is not None:
            await self._book.change(Live(request), result=_listed(request))

    async def delivered(self, live: Live) -> None:
        """Somebody has the outcome; or nobody will ever want it."""
        if live.request.delivered_at is None:
            await self._book.change(live, delivered_at=self._book.clock())
        self.see_to(live)

    # Versions

    async def versions(self, caller: str, series: str) -> list[Request]:
        """Newest first."""
        query = RequestQuery(caller=caller, series=series, live=False, limit=MANY)
        found = [one for one in await self._parts.store.requests(query) if one.version]
        return sorted(found, key=lambda one: one.version, reverse=True)

    async def _newest_only(self, request: Request) -> None:
        keeping = request.asked.keeping
        async with self._parts.shared.locks.alone(series_lock(request)):
            for one in (await self.versions(request.caller, keeping.series))[keeping.newest :]:
                if one.workspace is not Workspace.THERE:
                    continue
                live = self._book.get(one.key) or Live(one)
                if keeping.older is Older.ARCHIVE:
                    await self._archive(live)
                else:
                    await self.remove(live, Workspace.GONE)
                self._book.forget(live)

    async def _archive(self, live: Live) -> None:
        space = self._parts.journal.get(live.request.space_id)
        if space is None:
            await self._book.change(live, workspace=Workspace.GONE)
            return
        desk = await self._parts.desks.of(space)
        await self._parts.desks.ensure(desk)
        target = self.archive_of(live.key)

        def write() -> int:
            pieces = self._parts.collecting.archive(desk.driver, desk.tree, everything=True)
            return _write(target, pieces)

        size = await asyncio.to_thread(write)
        await self.remove(live, Workspace.ARCHIVED, archive_bytes=size)

    def archive_of(self, key: str) -> Path:
        return self._parts.archives / f"{key}.tar.gz"

    # Now and then

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.tidy_all()

    async def tidy_all(self) -> None:
        for live in self._book.all():
            try:
                await self._look(live)
                await self.tidy(live)
            except CarrelError as error:
                _log.warning("the request %s could not be tidied: %s", live.key, error)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def settled(self) -> None:
        """What is under way now is done."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))


def _content_bytes(request: Request) -> int:
    files = request.result.files if request.result is not None else ()
    return sum(len(file.text or file.base64 or "") for file in files)


def _listed(request: Request) -> Result | None:
    """The result without what its files held."""
    result = request.result
    if result is None:
        return None
    files = tuple(dataclasses.replace(file, text=None, base64=None) for file in result.files)
    return dataclasses.replace(result, files=files)


def series_lock(request: Request) -> str:
    return f"series\0{request.caller}\0{request.asked.keeping.series}"


def _write(target: Path, pieces: Iterable[bytes]) -> int:
    """Whole or not at all."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = target.with_suffix(".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    draft.replace(target)
    return size
