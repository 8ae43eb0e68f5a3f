"""The line in which requests wait, and what their clients hear and fetch: the view of a log from
any point on, files, versions.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from typing import BinaryIO

from carrel.domain.access import LOCAL, Caller, ScopeKind
from carrel.domain.errors import (
    Capacity,
    MessageInvalid,
    RequestNotFound,
    SpaceNotFound,
    VersionNotFound,
    WorkspaceGone,
)
from carrel.domain.hub import Replay
from carrel.domain.requests import (
    Collected,
    Frame,
    FrameKind,
    Request,
    RequestQuery,
    RequestState,
    VersionFiles,
    Workspace,
)
from carrel.domain.spaces import Space
from carrel.service.files import whole
from carrel.service.open_spaces import OpenSpace
from carrel.service.requests.book import (
    LiveRequest,
    RequestBook,
    RequestParts,
    path_of,
    told_path,
    with_details,
)
from carrel.service.requests.retention import RequestKeeper
from carrel.service.requests.view import View, number, outcome
from carrel.service.shared import TURN_S, CallerSlots

Owners = OrderedDict[str, deque[str]]


class Line:
    """The first of each table is who has waited longest for a turn."""

    def __init__(self) -> None:
        self._callers: OrderedDict[str, Owners] = OrderedDict()
        self._where: dict[str, tuple[str, str]] = {}
        self._places: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self._where)

    def of(self, caller: str) -> int:
        """How many of this caller wait."""
        return sum(len(keys) for keys in self._callers.get(caller, {}).values())

    def add(self, key: str, caller: str, owner: str) -> None:
        owners = self._callers.setdefault(caller, OrderedDict())
        owners.setdefault(owner, deque()).append(key)
        self._where[key] = (caller, owner)
        self._places = None

    def take(self, may: Callable[[str], object] = lambda _: True) -> str:
        """The next one, of a caller that may; it is in the line no more. `LookupError` when there
        is none."""
        for caller in self._callers:
            if may(caller):
                break
        else:
            raise LookupError("Nobody waits who may.")
        self._places = None
        # The others keep their place before those who had a turn.
        self._callers.move_to_end(caller, last=False)
        key = _take(self._callers)
        del self._where[key]
        return key

    def leave(self, key: str) -> None:
        """Idempotent."""
        if key not in self._where:
            return
        caller, owner = self._where.pop(key)
        owners = self._callers[caller]
        owners[owner].remove(key)
        if not owners[owner]:
            del owners[owner]
        if not owners:
            del self._callers[caller]
        self._places = None

    def place(self, key: str) -> int:
        """From 1; 0 for one that does not wait. As it would be if nobody else came."""
        if self._places is None:
            self._places = {one: place for place, one in enumerate(self._order(), start=1)}
        return self._places.get(key, 0)

    def _order(self) -> list[str]:
        copy: OrderedDict[str, Owners] = OrderedDict(
            (caller, OrderedDict((owner, deque(keys)) for owner, keys in owners.items()))
            for caller, owners in self._callers.items()
        )
        found = []
        while copy:
            found.append(_take(copy))
        return found


def _take(callers: OrderedDict[str, Owners]) -> str:
    caller, owners = callers.popitem(last=False)
    owner, keys = owners.popitem(last=False)
    key = keys.popleft()
    if keys:
        owners[owner] = keys
    if owners:
        callers[caller] = owners
    return key


# Following a request: from any number on, as it happens, to its outcome.

OUTCOMES = 16
"""Each may be of some megabytes, and is in memory until its client has read it."""
PAGE = 500
NEAR = 10
MOST_FOLLOWERS = 1000
"""Of one account: each is woken whenever the line moves."""
MOST_PARTS = 1000
"""Parts of messages that wait for a follower; those beyond are not told."""
PART_BYTES = 16 << 10
"""A larger one is not told either: a part is some words, and the whole message comes later."""


class RequestEvents:
    def __init__(self, parts: RequestParts, book: RequestBook, line: Line) -> None:
        self._parts = parts
        self._book = book
        self._line = line
        self._parts_of: dict[str, list[deque[tuple[str, bytes]]]] = {}
        self._outcomes = CallerSlots(OUTCOMES, TURN_S)
        self._followers: Counter[str] = Counter()
        parts.log.on_kept(book.ring_spaces)
        parts.log.on_live(self._heard_live)

    def _heard_live(self, space_id: str, type: str, payload: bytes) -> None:
        if (queues := self._parts_of.get(space_id)) and len(payload) <= PART_BYTES:
            for queue in queues:
                queue.append((type, payload))
            live = self._book.in_space(space_id)
            if live is not None:
                self._book.ring(live.key)

    async def follow(
        self, live: LiveRequest, after: int, account: str
    ) -> AsyncGenerator[Frame, None]:
        """Ends with the outcome, which is told again however often somebody asks; of the large ones
        that are on their way at the same time, an account has a share."""
        if account != LOCAL.name and self._followers[account] >= MOST_FOLLOWERS:
            raise Capacity(
                f"Requests are followed {MOST_FOLLOWERS} times already.",
                hint="Close some connections, or follow each request once.",
            )
        self._followers[account] += 1
        bell, leave = self._book.listen(live.key)
        self._parts.log.listening(1)
        # Who goes on has heard of those that are there.
        told = _Told(after, len(live.files) if after else 0)
        try:
            while True:
                bell.clear()
                request = live.request
                for frame in self._waiting(live, told):
                    yield frame
                async for frame in self._log_of(request, told):
                    yield frame
                for frame in self._files_of(live, told):
                    yield frame
                if request.ended:
                    async with self._outcomes.of(account):
                        whole = await with_details(self._parts.store, request)
                        yield outcome(whole, told_path(self._parts, request))
                    return
                await bell.wait()
        finally:
            leave()
            self._followers[account] -= 1
            self._parts.log.listening(-1)
            self._close(told)

    def _waiting(self, live: LiveRequest, told: _Told) -> list[Frame]:
        """What is true now, and told only then."""
        request = live.request
        if request.state is RequestState.QUEUED:
            place = self._line.place(live.key)
            if place and told.is_news(place):
                told.place = place
                return [Frame(FrameKind.QUEUED, request.request_id, 0, {"place": place})]
        elif request.state is RequestState.MAKING and live.making not in ("", told.making):
            if not told.accepted:
                # The log is a moment behind, and that comes first.
                return []
            told.making = live.making
            return [self._view(request, told).making(live.making)]
        return []

    async def _log_of(self, request: Request, told: _Told) -> AsyncGenerator[Frame, None]:
        if not request.space_id:
            return
        view = self._view(request, told)
        last = number(request.seq) if request.ended else math.inf
        if request.ended:
            await self._parts.log.settled()
        while True:
            bodies, reached = await self._parts.log.log.replay(
                Replay(request.space_id, told.reached, PAGE)
            )
            for body in bodies:
                for frame in view.frames(body):
                    told.accepted = told.accepted or frame.kind is FrameKind.ACCEPTED
                    if told.after < frame.seq < last:
                        yield frame
            if reached == told.reached:
                break
            told.reached = reached
        while told.parts:
            for frame in view.live(*told.parts.popleft()):
                yield frame

    def _files_of(self, live: LiveRequest, told: _Told) -> Iterator[Frame]:
        """Those that appeared since this follower heard of some."""
        if told.view is not None and told.accepted:
            # More may come while one is told.
            while told.files < len(live.files):
                told.files += 1
                yield told.view.appeared(live.files[told.files - 1])

    def _view(self, request: Request, told: _Told) -> View:
        """Of the space that it has now."""
        if told.view is None or told.space_id != request.space_id:
            self._close(told)
            told.space_id, told.reached, told.parts = request.space_id, 0, deque(maxlen=MOST_PARTS)
            told.accepted = False
            told.view = View(request, told_path(self._parts, request))
            self._parts_of.setdefault(request.space_id, []).append(told.parts)
        return told.view

    def _close(self, told: _Told) -> None:
        queues = self._parts_of.get(told.space_id)
        if queues is not None:
            queues[:] = [queue for queue in queues if queue is not told.parts]
            if not queues:
                del self._parts_of[told.space_id]


class _Told:
    """How far one follower is."""

    def __init__(self, after: int, files: int) -> None:
        self.after = after
        self.place = 0
        """In the line, as it was told last."""
        self.accepted = False
        """It has heard of its workspace, or knows of it."""
        self.making = ""
        self.files = files
        self.space_id = ""
        self.reached = 0
        self.view: View | None = None
        self.parts: deque[tuple[str, bytes]] = deque(maxlen=MOST_PARTS)

    def is_news(self, place: int) -> bool:
        """Far back in a long line not every step is worth a word to everybody."""
        return place != self.place and (
            place <= NEAR or not self.place or abs(self.place - place) * NEAR >= self.place
        )


# Finding requests, and fetching what was made for them.


class RequestReads:
    """What `Requests` does without changing anything."""

    def __init__(self, parts: RequestParts) -> None:
        self._parts = parts
        self._book = RequestBook(parts.journal)
        self._line = Line()
        self._keeper = RequestKeeper(parts, self._book)
        self._hearing = RequestEvents(parts, self._book, self._line)

    async def get(self, caller: Caller, word: str) -> Request:
        """By the caller's own id for it, or by its key. `RequestNotFound`."""
        live = self._book.get(word)
        found = live.request if live is not None else await self._find(caller, word)
        if found is None or not _sees(caller, found):
            raise RequestNotFound(
                f"There is no request {word[:80]!r}.", hint="`carrel request ls` lists them."
            )
        return self._now(found)

    async def _find(self, caller: Caller, word: str) -> Request | None:
        store = self._parts.store
        return await store.request_of(caller.name, word) or await store.request(word)

    async def with_details(self, request: Request) -> Request:
        """With what lists leave out."""
        return await with_details(self._parts.store, request)

    def _now(self, request: Request) -> Request:
        live = self._book.get(request.key)
        return live.request if live is not None else request

    async def _live(self, caller: Caller, word: str) -> LiveRequest:
        request = await self.get(caller, word)
        return self._book.get(request.key) or LiveRequest(request)

    async def list(self, caller: Caller, query: RequestQuery) -> Sequence[Request]:
        if caller.scope.kind is not ScopeKind.ADMIN:
            query = dataclasses.replace(query, caller=caller.name)
        return [self._now(one) for one in await self._parts.store.requests(query)]

    def place(self, request: Request) -> int:
        """In the line, from 1; 0: it does not wait."""
        return self._line.place(request.key)

    def path_of(self, request: Request) -> str:
        """Where its workspace is on this machine."""
        return path_of(self._parts, request)

    # Its files

    async def files(self, caller: Caller, word: str, after: str = "", most: int = 0) -> Collected:
        """What changed in its workspace, in pages by path. `WorkspaceGone`."""
        request = await self.get(caller, word)
        most = min(most or self._parts.rules.most_files, self._parts.rules.most_files)
        collect = self._parts.collecting.collect
        async with self._staying(request):
            opened = await self._opened(request)
            return await asyncio.to_thread(
                collect, opened.driver, opened.tree, most=most, after=after
            )

    async def open(self, caller: Caller, word: str, path: str) -> BinaryIO:
        """One file. `WorkspaceGone`, `PathError`s."""
        request = await self.get(caller, word)
        self._space(request)
        try:
            return await self._parts.files.use(
                LOCAL, request.space_id, lambda files: files.open_read(path)
            )
        except SpaceNotFound:
            raise self._gone(request) from None

    async def archive(self, caller: Caller, word: str, *, everything: bool) -> Iterator[bytes]:
        """A tar.gz: of what was made, or of all that is there. Made while it is read, in a
        worker thread. An archived version has everything only."""
        request = await self.get(caller, word)
        async with self._staying(request):
            found = await self._version(request)
            if found.archive is not None:
                return _pieces(await asyncio.to_thread(found.archive.open, "rb"))
            assert found.driver is not None and found.tree is not None
            pieces = self._parts.collecting.archive(found.driver, found.tree, everything=everything)
        return whole(pieces, lambda: self._space(request))

    @asynccontextmanager
    async def _staying(self, *requests: Request) -> AsyncIterator[None]:
        """Their workspaces do not go meanwhile, but may have gone before."""
        async with AsyncExitStack() as held:
            for space_id in sorted({one.space_id for one in requests} - {""}):
                await held.enter_async_context(self._parts.shared.locks.shared(space_id))
            yield

    async def _opened(self, request: Request) -> OpenSpace:
        opened = await self._parts.open_spaces.of(self._space(request))
        await self._parts.open_spaces.ensure(opened)
        return opened

    def _space(self, request: Request) -> Space:
        """As it is now: one that is on its way out has gone."""
        space = self._parts.journal.staying(request.space_id)
        if request.workspace is not Workspace.THERE or space is None:
            raise self._gone(request)
        return space

    def _gone(self, request: Request) -> WorkspaceGone:
        there = request.workspace is Workspace.THERE
        hint = "Ask for `retain` or `hold_s` to fetch files later."
        if request.workspace is Workspace.ARCHIVED:
            hint = f"All its files: carrel request fetch {request.request_id} --out FOLDER"
        return WorkspaceGone(
            f"The workspace of {request.request_id} is "
            f"{Workspace.GONE if there else request.workspace}.",
            hint=hint,
        )

    async def versions(self, caller: Caller, series: str) -> Sequence[Request]:
        """Newest first. `VersionNotFound` when there is none."""
        found = await self._keeper.versions(caller.name, series)
        if not found:
            raise VersionNotFound(
                f"There is no series {series[:80]!r}.",
                hint="`carrel request ls` lists requests and their series.",
            )
        return found

    async def diff(self, caller: Caller, series: str, before: int, after: int) -> Iterator[bytes]:
        """As `git diff` has it; `before` 0 is nothing at all. Made while it is read."""
        if not after:
            raise MessageInvalid("Versions count from 1.", hint="Give the numbers of two versions.")
        known = {one.version: one for one in await self.versions(caller, series)}
        for wanted_version in (before, after):
            if wanted_version and wanted_version not in known:
                raise VersionNotFound(
                    f"{series} has no version {wanted_version}.", hint="List its versions first."
                )
        new, old = known[after], known[before] if before else None
        async with self._staying(new, *([old] if old is not None else [])):
            first = await self._version(old) if old is not None else None
            pieces = self._parts.differing.diff(first, await self._version(new))
            return _after(await asyncio.to_thread(next, pieces, b""), pieces)

    async def _version(self, request: Request) -> VersionFiles:
        """An archive that is there is whole, be the workspace still on its way out."""
        archive = self._keeper.archive_of(request.key)
        if await asyncio.to_thread(archive.exists):
            return VersionFiles(archive=archive)
        opened = await self._opened(request)
        return VersionFiles(driver=opened.driver, tree=opened.tree)


def _sees(caller: Caller, request: Request) -> bool:
    return caller.scope.kind is ScopeKind.ADMIN or request.caller == caller.name


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while piece := file.read(1 << 16):
            yield piece


def _after(first: bytes, rest: Generator[bytes, None, None]) -> Iterator[bytes]:
    with closing(rest):
        yield first
        yield from rest
