"""Files of a space from outside, whatever runs in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

from carrel.domain.access import Caller
from carrel.domain.collaborators import Contents
from carrel.domain.errors import SpaceNotFound, StateConflict, TreeDamaged
from carrel.domain.files import Files
from carrel.domain.spaces import SpaceState
from carrel.lifecycle.table import LEAVING, SETTLED
from carrel.service.desk import Desk, Desks
from carrel.service.journal import Journal
from carrel.service.shared import Shared
from carrel.service.spaces import Spaces

T = TypeVar("T")


class SpaceFiles:
    """Every call resolves the space, opens its tree beneath the root, and closes it again;
    the blocking part is done in a worker thread."""

    def __init__(
        self, spaces: Spaces, journal: Journal, desks: Desks, shared: Shared, contents: Contents
    ) -> None:
        self._spaces = spaces
        self._journal = journal
        self._desks = desks
        self._locks = shared.locks
        self._contents = contents

    async def use(
        self, caller: Caller, word: str, work: Callable[[Files], T], *, writes: bool = False
    ) -> T:
        """Does `work` with the files of a space. `PathError`s."""
        space = await self._spaces.existing(caller, word)
        async with self._locks.shared(space.space_id):
            desk = await self._open(space.space_id)

            def done() -> T:
                with self._contents.files(desk.driver, desk.tree) as files:
                    return work(files)

            try:
                result = await asyncio.to_thread(done)
            except TreeDamaged:
                # Somebody took its mount away; `work` has not begun then.
                await self._desks.mend(desk)
                result = await asyncio.to_thread(done)
            if writes:
                now = self._journal.clock()
                await self._journal.write(self._journal.amend(space.space_id, active_at=now))
            return result

    async def archive(self, caller: Caller, word: str, path: str) -> Iterator[bytes]:
        """A tar.zst, made while it is read (in a worker thread)."""
        space = await self._spaces.existing(caller, word)
        desk = await self._open(space.space_id)
        pieces = self._contents.archive(desk.driver, desk.tree, path)
        return whole(pieces, lambda: self._there(space.space_id))

    def _there(self, space_id: str) -> None:
        space = self._journal.get(space_id)
        if space is None or space.state in LEAVING:
            raise SpaceNotFound(f"{space_id} was removed while it was read.", hint="Try another.")

    async def unpack(self, caller: Caller, word: str, stream: BinaryIO, path: str) -> None:
        space = await self._spaces.existing(caller, word)
        async with self._locks.shared(space.space_id):
            desk = await self._open(space.space_id)
            await asyncio.to_thread(self._contents.unpack, desk.driver, desk.tree, stream, path)
            now = self._journal.clock()
            await self._journal.write(self._journal.amend(space.space_id, active_at=now))

    async def _open(self, space_id: str) -> Desk:
        space = self._journal.current(space_id)
        if space.state not in SETTLED or space.state is SpaceState.REMOVED:
            raise StateConflict(
                f"{space_id} is {space.state}.", hint="Try again soon.", state=str(space.state)
            )
        desk = await self._desks.of(space)
        await self._desks.ensure(desk)
        return desk


def whole(pieces: Iterator[bytes], check: Callable[[], object]) -> Iterator[bytes]:
    """All of them. Where a tree goes while it is packed, its files are only not there: then
    `check` raises, and the last piece does not come, so that nobody takes it for all."""
    try:
        held = next(pieces, b"")
        for piece in pieces:
            yield held
            held = piece
        check()
        yield held
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
