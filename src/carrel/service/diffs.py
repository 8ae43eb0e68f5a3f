"""How the files of spaces differ: from what each began with, or from one another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from typing import TypeVar

from carrel.domain.access import Caller
from carrel.domain.errors import MessageInvalid, StateConflict
from carrel.domain.review import Diff, Differ, DiffTree, TreeDiffQuery
from carrel.domain.spaces import Space
from carrel.domain.store import Store
from carrel.lifecycle.table import LEAVING, SETTLED
from carrel.service.checkpoints import checkpoint_named
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpace, OpenSpaces
from carrel.service.shared import Shared, files_key
from carrel.service.spaces import Spaces

T = TypeVar("T")


@dataclass(frozen=True)
class DiffRequest:
    """As `TreeDiffQuery`, with spaces by their names or ids; `to` is a second one, and `since` a
    checkpoint of the first."""

    space: str
    to: str = ""
    paths: tuple[str, ...] = ()
    ignored: bool = False
    since: str = ""


class SpaceDiffs:
    """While a tree is read its space is neither stopped nor removed; who wants that ends the
    comparison, which says so. What was read is told without the space."""

    def __init__(
        self,
        store: Store,
        spaces: Spaces,
        journal: Journal,
        open_spaces: OpenSpaces,
        shared: Shared,
        differ: Differ,
    ) -> None:
        self._store = store
        self._spaces = spaces
        self._journal = journal
        self._open_spaces = open_spaces
        self._shared = shared
        self._differ = differ

    async def text(self, caller: Caller, request: DiffRequest) -> Iterator[bytes]:
        """See `Differ.text`; all is read from the trees when this returns."""

        def begin(query: TreeDiffQuery) -> tuple[bytes, Generator[bytes, None, None]]:
            pieces = self._differ.text(query)
            return next(pieces, b""), pieces

        def give_up(begun: tuple[bytes, Generator[bytes, None, None]]) -> None:
            begun[1].close()

        first, rest = await self._compare(caller, request, begin, give_up)
        return _after(first, rest)

    async def files(self, caller: Caller, request: DiffRequest, most: int) -> Diff:
        return await self._compare(
            caller, request, lambda query: self._differ.files(query, most), lambda _diff: None
        )

    async def _compare(
        self,
        caller: Caller,
        request: DiffRequest,
        work: Callable[[TreeDiffQuery], T],
        give_up: Callable[[T], None],
    ) -> T:
        """A thread cannot be stopped: when the caller goes, it ends with the next file, and what
        it has begun is given up."""
        if request.since and request.to:
            raise MessageInvalid(
                "A space is compared with a checkpoint of its own or with another space.",
                hint="Leave out one of `since` and `to`.",
            )
        words = [request.space, *([request.to] if request.to else [])]
        ids = [(await self._spaces.existing(caller, word)).space_id for word in words]
        leaving = threading.Event()

        def check() -> None:
            if leaving.is_set():
                raise StateConflict(
                    "The space is being stopped, removed or set up.", hint="Try again soon."
                )

        async def compare() -> T:
            async with self._opened(ids, leaving.set, kept=bool(request.since)) as opened:
                since = await self._since(opened[0].space, request.since)
                sides = [DiffTree(one.driver, one.tree, not one.space.guest) for one in opened]
                query = TreeDiffQuery(
                    after=sides[-1],
                    before=sides[0] if request.to else None,
                    since=since,
                    paths=request.paths,
                    ignored=request.ignored,
                    check=check,
                )
                found = await self._open_spaces.look(opened[-1], lambda: work(query), *opened[:-1])
            if gone:
                await asyncio.to_thread(give_up, found)
            return found

        gone: list[bool] = []
        try:
            return await self._shared.tasks.see_through(compare())
        except asyncio.CancelledError:
            gone.append(True)
            leaving.set()
            raise

    @asynccontextmanager
    async def _opened(
        self, ids: list[str], give_way: Callable[[], None], *, kept: bool
    ) -> AsyncIterator[list[OpenSpace]]:
        """In the order of the ids; one that is named twice is held once. If its checkpoints are
        `kept`, none is taken or thinned meanwhile."""
        async with AsyncExitStack() as held:
            for space_id in sorted(set(ids)):
                await held.enter_async_context(self._shared.locks.shared(space_id, give_way))
                if kept:
                    await held.enter_async_context(self._shared.locks.shared(files_key(space_id)))
            yield [await self._open(space_id, alone=len(ids) == 1) for space_id in ids]

    async def _since(self, space: Space, word: str) -> str:
        """The state's name; empty: what the space began with."""
        found = await checkpoint_named(self._store, space, word) if word else None
        return found.checkpoint_id if found is not None else ""

    async def _open(self, space_id: str, *, alone: bool) -> OpenSpace:
        space = self._journal.current(space_id)
        if space.state not in SETTLED - LEAVING:
            raise StateConflict(
                f"{space.name} is {space.state}.", hint="Try again soon.", state=str(space.state)
            )
        opened = await self._open_spaces.of(space)
        if alone and opened.driver.capabilities.stays:
            raise StateConflict(
                f"{space.name} works in a folder itself, and there is no copy of how it was.",
                hint="Use git in that folder, or name a second space.",
                state=str(space.state),
            )
        await self._open_spaces.ensure(opened)
        return opened


def _after(first: bytes, rest: Generator[bytes, None, None]) -> Iterator[bytes]:
    with closing(rest):
        if first:
            yield first
        yield from rest
