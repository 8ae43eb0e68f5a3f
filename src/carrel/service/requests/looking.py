"""Finding requests, and fetching what was made for them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from typing import BinaryIO

from carrel.domain.access import LOCAL, Caller, ScopeKind
from carrel.domain.errors import (
    MessageInvalid,
    RequestNotFound,
    SpaceNotFound,
    VersionNotFound,
    WorkspaceGone,
)
from carrel.domain.requests import Collected, Request, RequestQuery, VersionFiles, Workspace
from carrel.domain.spaces import Space
from carrel.lifecycle.table import LEAVING
from carrel.service.desk import Desk
from carrel.service.files import whole
from carrel.service.requests.book import Book, Live
from carrel.service.requests.hearing import Hearing
from carrel.service.requests.keeping import Keeper
from carrel.service.requests.line import Line
from carrel.service.requests.parts import RequestParts


class Looking:
    """What `Requests` does without changing anything."""

    def __init__(self, parts: RequestParts) -> None:
        self._parts = parts
        self._book = Book(parts.journal)
        self._line = Line()
        self._keeper = Keeper(parts, self._book)
        self._hearing = Hearing(parts, self._book, self._line)

    async def get(self, caller: Caller, word: str) -> Request:
        """By the caller's own id for it, or by its key. `RequestNotFound`."""
        live = self._book.get(word)
        found = live.request if live is not None else await self._find(caller, word)
        if found is None or not _sees(caller, found):
            raise RequestNotFound(f"There is no request {word[:80]!r}.", hint="List them first.")
        return self._now(found)

    async def _find(self, caller: Caller, word: str) -> Request | None:
        store = self._parts.store
        return await store.request_of(caller.name, word) or await store.request(word)

    def _now(self, request: Request) -> Request:
        live = self._book.get(request.key)
        return live.request if live is not None else request

    async def _live(self, caller: Caller, word: str) -> Live:
        request = await self.get(caller, word)
        return self._book.get(request.key) or Live(request)

    async def list(self, caller: Caller, query: RequestQuery) -> Sequence[Request]:
        if caller.scope.kind is not ScopeKind.ADMIN:
            query = dataclasses.replace(query, caller=caller.name)
        return [self._now(one) for one in await self._parts.store.requests(query)]

    def place(self, request: Request) -> int:
        """In the line, from 1; 0: it does not wait."""
        return self._line.place(request.key)

    def path_of(self, request: Request) -> str:
        """Where its workspace is on this machine."""
        return self._hearing.path_of(request) if request.space_id else ""

    # Its files

    async def files(self, caller: Caller, word: str, after: str = "", most: int = 0) -> Collected:
        """What changed in its workspace, in pages by path. `WorkspaceGone`."""
        request = await self.get(caller, word)
        most = min(most or self._parts.rules.most_files, self._parts.rules.most_files)
        collect = self._parts.collecting.collect
        async with self._staying(request):
            desk = await self._desk(request)
            return await asyncio.to_thread(collect, desk.driver, desk.tree, most=most, after=after)

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

    async def _desk(self, request: Request) -> Desk:
        desk = await self._parts.desks.of(self._space(request))
        await self._parts.desks.ensure(desk)
        return desk

    def _space(self, request: Request) -> Space:
        """As it is now: one that is on its way out has gone."""
        space = self._parts.journal.get(request.space_id) if request.space_id else None
        if request.workspace is not Workspace.THERE or space is None or space.state in LEAVING:
            raise self._gone(request)
        return space

    def _gone(self, request: Request) -> WorkspaceGone:
        there = request.workspace is Workspace.THERE
        return WorkspaceGone(
            f"The workspace of {request.request_id} is "
            f"{Workspace.GONE if there else request.workspace}.",
            hint="Ask for `retain` or `hold_s` to fetch files later.",
        )

    async def versions(self, caller: Caller, series: str) -> Sequence[Request]:
        """Newest first. `VersionNotFound` when there is none."""
        found = await self._keeper.versions(caller.name, series)
        if not found:
            raise VersionNotFound(f"There is no series {series[:80]!r}.", hint="List requests.")
        return found

    async def diff(self, caller: Caller, series: str, before: int, after: int) -> Iterator[bytes]:
        """As `git diff` has it; `before` 0 is nothing at all. Made while it is read."""
        if not after:
            raise MessageInvalid("Versions count from 1.", hint="Say which two.")
        known = {one.version: one for one in await self.versions(caller, series)}
        for number in (before, after):
            if number and number not in known:
                raise VersionNotFound(
                    f"{series} has no version {number}.", hint="List its versions first."
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
        desk = await self._desk(request)
        return VersionFiles(driver=desk.driver, tree=desk.tree)


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
