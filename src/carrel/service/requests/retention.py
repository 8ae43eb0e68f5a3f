"""What is left of a request when it has ended: its workspace by its policy, its outcome until
somebody has it, its record for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

from carrel.domain.access import LOCAL, begin_for
from carrel.domain.errors import SpaceNotFound
from carrel.domain.pauses import pauses
from carrel.domain.requests import (
    Older,
    Policy,
    Request,
    RequestDetails,
    RequestQuery,
    RequestState,
    Workspace,
)
from carrel.domain.store import Forget
from carrel.lifecycle.table import LIVE
from carrel.service.open_spaces import OpenSpace
from carrel.service.requests.book import (
    LiveRequest,
    NotSent,
    RequestBook,
    RequestParts,
    told_path,
    with_details,
)
from carrel.service.requests.view import outcome

GRACE_S = 1.0
EVERY_S = 20.0
FORGET_EVERY = 50
CONTENT_BYTES = 64 << 20
"""Of outcomes that one caller has had, so much is kept in case it asks again."""
MANY = 1 << 20
DRAFT = ".new"
"""How the name of an archive ends that is being written."""
Table = dict[str, asyncio.Task[None]]
"""By the keys of requests: one at a time for each."""
_log = logging.getLogger("carrel")


class RequestKeeper:
    """Everything here may be done twice, and goes on where a daemon was killed."""

    def __init__(self, parts: RequestParts, book: RequestBook) -> None:
        self._parts = parts
        self._book = book
        self._settling: Table = {}
        self._telling: Table = {}
        self._since_forgetting = 0

    # At its end

    def see_to(self, live: LiveRequest) -> asyncio.Task[None]:
        """Does all that is due for one that has ended, and goes on without the caller. Who
        comes while that is under way waits for the same."""
        live.due = True
        return _under_way(self._settling, live.key) or _begin(
            self._settling, live, self._settle(live)
        )

    async def seen_to(self, live: LiveRequest) -> None:
        """All that is due is done, or will be tried again."""
        await asyncio.shield(self.see_to(live))

    async def _settle(self, live: LiveRequest) -> None:
        """One step that fails keeps no other from being done."""
        while live.due:
            live.due = failed = False
            for step in (self._look, self._retain, self._rest, self._newest_only, self.tidy):
                try:
                    await step(live)
                except Exception:
                    _log.exception("what is left of the request %s is not settled", live.key)
                    failed = True
            self._tell(live)
            if failed and not live.due:
                # The next look, or the next daemon, goes on with it.
                live.due = True
                return

    async def _look(self, live: LiveRequest) -> None:
        """Somebody may have removed the space, or a daemon did and could not write it down."""
        request = live.request
        there = self._parts.journal.get(request.space_id) is not None
        if request.workspace is not Workspace.THERE or there:
            return
        size = await asyncio.to_thread(_size, self.archive_of(live.key))
        if size is None:
            await self._book.change(live, workspace=Workspace.GONE)
        else:
            await self._book.change(live, workspace=Workspace.ARCHIVED, archive_bytes=size)

    async def _retain(self, live: LiveRequest) -> None:
        request, keeping = live.request, live.request.asked.keeping
        if request.state is RequestState.CANCELLED or request.workspace is not Workspace.THERE:
            return
        if keeping.policy is Policy.RETAIN and request.retained_until is None:
            until = (request.ended_at or self._book.clock()) + keeping.seconds
            await self._book.change(live, retained_until=until)

    async def _rest(self, live: LiveRequest) -> None:
        """Nothing runs in a workspace that is kept."""
        request = live.request
        space = self._parts.journal.get(request.space_id)
        if space is None or space.state not in LIVE:
            return
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

    async def tidy(self, live: LiveRequest) -> None:
        """What is over goes."""
        request = live.request
        if not request.ended:
            return
        if not self.stays(request) and request.workspace is Workspace.THERE:
            await self.remove(live, Workspace.GONE)
        if live.request.is_bare and self._book.get(live.key) is live:
            self._book.forget(live)
        if live.request.is_settled:
            await self._forget_old(request.caller)

    async def remove(self, live: LiveRequest, then: Workspace, **changes: Any) -> None:
        """The space, wholly; nothing of it is in the trash."""
        space_id = live.request.space_id
        with contextlib.suppress(SpaceNotFound):
            await self._parts.spaces.remove(LOCAL, space_id, force=True, grace_s=0.0)
        await self._parts.log.settled()
        await self._parts.log.forget(space_id)
        await self._book.change(live, workspace=then, **changes)

    async def _forget_old(self, caller: str) -> None:
        """What was sent need not have arrived, and who lost its connection asks again: so it is
        kept, up to a budget for each caller, and records up to a number."""
        await self._parts.store.write(Forget(details_of=caller, details_bytes=CONTENT_BYTES))
        self._since_forgetting += 1
        if self._since_forgetting < FORGET_EVERY:
            return
        self._since_forgetting = 0
        remembered = self._parts.rules.remembered
        await self._parts.store.write(Forget(bare_requests_but=remembered))

    # Webhooks

    def _tell(self, live: LiveRequest) -> None:
        """Nobody waits for the one who is told: that may take its time, or never be."""
        request = live.request
        if request.asked.webhook is None or request.delivered_at is not None or not request.ended:
            return
        if not _under_way(self._telling, live.key):
            _begin(self._telling, live, self._send(live))

    async def _send(self, live: LiveRequest) -> None:
        try:
            await self._try_to_send(live)
            await self._book.change(live, still=_is_new, delivered_at=self._book.clock())
        except Exception:
            _log.exception("the webhook of %s could not be told", live.key)
            live.due = True
            return
        self.see_to(live)

    async def _try_to_send(self, live: LiveRequest) -> None:
        webhook = live.request.asked.webhook
        assert webhook is not None

        async def body() -> bytes:
            whole = await with_details(self._parts.store, live.request)
            frame = outcome(whole, told_path(self._parts, whole))
            told = {"type": str(frame.kind), "request_id": frame.request_id, **frame.data}
            return (await asyncio.to_thread(json.dumps, told)).encode()

        for pause_s in pauses():
            tries = live.request.told + 1
            await self._book.change(live, told=tries)
            try:
                await self._parts.sender.send(live.share, webhook, body)
                return
            except NotSent as error:
                _log.warning("the webhook of %s: %s", live.key, error)
                if error.for_good or tries >= self._parts.rules.webhook_tries:
                    note = f"The webhook was tried {tries} times: {error}."
                    await self._book.change(live, notes=(*live.request.notes, note))
                    return
            await asyncio.sleep(pause_s)

    async def received(self, live: LiveRequest) -> None:
        """Its client has all that it wants: nothing is held for it any more."""
        details = await self._parts.store.request_details(live.key)
        records = () if details is None else (_without_content(details),)
        await self._book.change(live, *records, delivered_at=0.0)
        await self.seen_to(live)

    async def delivered(self, live: LiveRequest) -> None:
        """Somebody has the outcome; or nobody will ever want it. Who said meanwhile that nothing is
        held any more is believed."""
        await self._book.change(live, still=_is_new, delivered_at=self._book.clock())
        self.see_to(live)

    # Versions

    async def versions(self, caller: str, series: str) -> list[Request]:
        """Newest first."""
        query = RequestQuery(caller=caller, series=series, live=False, limit=MANY)
        found = [one for one in await self._parts.store.requests(query) if one.version]
        return sorted(found, key=lambda one: one.version, reverse=True)

    async def _newest_only(self, live: LiveRequest) -> None:
        """As the newest of them has it: what an old one asked for is over."""
        request = live.request
        if not request.version:
            return
        async with self._parts.shared.locks.alone(series_lock(request)):
            found = await self.versions(request.caller, request.asked.keeping.series)
            keeping = found[0].asked.keeping if found else request.asked.keeping
            for one in found[keeping.newest :]:
                if one.workspace is not Workspace.THERE:
                    continue
                old = self._book.get(one.key) or LiveRequest(one)
                if keeping.older is Older.ARCHIVE:
                    await self._archive(old)
                else:
                    await self.remove(old, Workspace.GONE)
                self._book.forget(old)

    async def _archive(self, live: LiveRequest) -> None:
        space_id = live.request.space_id
        async with self._parts.shared.locks.shared(space_id):
            space = self._parts.journal.get(space_id)
            if space is not None:
                opened = await self._parts.open_spaces.of(space)
                await self._parts.open_spaces.ensure(opened)
                await asyncio.to_thread(self._write_archive, live.key, opened)
        size = await asyncio.to_thread(_size, self.archive_of(live.key))
        if size is None:
            await self._book.change(live, workspace=Workspace.GONE)
        else:
            await self.remove(live, Workspace.ARCHIVED, archive_bytes=size)

    def _write_archive(self, key: str, opened: OpenSpace) -> None:
        pieces = self._parts.collecting.archive(opened.driver, opened.tree, everything=True)
        _write(self.archive_of(key), pieces)

    async def discard(self, live: LiveRequest) -> None:
        """Of its workspace nothing is left, in whatever form it was kept."""
        if live.request.workspace is Workspace.THERE:
            await self.remove(live, Workspace.GONE)
        elif live.request.workspace is Workspace.ARCHIVED:
            await self._book.change(live, workspace=Workspace.GONE)
        await asyncio.to_thread(self.archive_of(live.key).unlink, missing_ok=True)

    async def sweep(self) -> None:
        """Archives that a daemon had not finished writing, or removing."""
        for path in await asyncio.to_thread(_listed_in, self._parts.archives):
            key = path.name.partition(".")[0]
            if path.suffix == DRAFT or not await self._has_archive(key):
                await asyncio.to_thread(path.unlink, missing_ok=True)

    async def _has_archive(self, key: str) -> bool:
        request = await self._parts.store.request(key)
        return request is not None and request.workspace in (Workspace.THERE, Workspace.ARCHIVED)

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
            if not live.request.ended:
                continue
            if live.due or self._is_over(live.request):
                await self.seen_to(live)

    def _is_over(self, request: Request) -> bool:
        """Something is to go, or has gone by itself."""
        gone = self._parts.journal.get(request.space_id) is None
        return not self.stays(request) or (request.workspace is Workspace.THERE and gone)

    async def close(self) -> None:
        tasks = [*self._settling.values(), *self._telling.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def settled(self) -> None:
        """What is under way now is done."""
        while tasks := [*self._settling.values(), *self._telling.values()]:
            await asyncio.wait(tasks)


def _under_way(table: Table, key: str) -> asyncio.Task[None] | None:
    task = table.get(key)
    return task if task is not None and not task.done() else None


def _begin(table: Table, live: LiveRequest, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    key = live.key

    def over(done: asyncio.Task[None]) -> None:
        if table.get(key) is done:
            del table[key]

    task = table[key] = begin_for(live.account, work)
    task.add_done_callback(over)
    return task


def _without_content(details: RequestDetails) -> RequestDetails:
    """Its files are listed, without what they held."""
    if details.result is None:
        return details
    files = (dataclasses.replace(one, text=None, base64=None) for one in details.result.files)
    return dataclasses.replace(
        details, result=dataclasses.replace(details.result, files=tuple(files))
    )


def series_lock(request: Request) -> str:
    return f"series\0{request.caller}\0{request.asked.keeping.series}"


def _size(path: Path) -> int | None:
    """None: it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _listed_in(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.exists() else []


def _is_new(request: Request) -> bool:
    """Nobody has its outcome yet."""
    return request.delivered_at is None


def _write(target: Path, pieces: Iterable[bytes]) -> None:
    """Whole or not at all."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = target.with_suffix(DRAFT)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
