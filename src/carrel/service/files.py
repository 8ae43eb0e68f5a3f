"""Files of a space from outside, and those that its agent is given to read."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import posixpath
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from carrel.domain.access import Caller
from carrel.domain.agents import AgentSetup, Attachment, ContextFile, ContextStore, TurnRequest
from carrel.domain.collaborators import Contents
from carrel.domain.errors import PathNotFound, SpaceNotFound, StateConflict, TreeDamaged
from carrel.domain.files import Files
from carrel.domain.spaces import SpaceState
from carrel.domain.trees import Skipped
from carrel.lifecycle.table import SETTLED
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpace, OpenSpaces
from carrel.service.shared import Shared
from carrel.service.spaces import Spaces

T = TypeVar("T")
MOST_SKIPPED = 1000
"""Of one archive. One that lacks more counts as not taken at all."""
Took = Callable[[], None]


class SpaceFiles:
    """Every call resolves the space, opens its tree beneath the root, and closes it again;
    the blocking part is done in a worker thread."""

    def __init__(
        self,
        spaces: Spaces,
        journal: Journal,
        open_spaces: OpenSpaces,
        shared: Shared,
        contents: Contents,
    ) -> None:
        self._spaces = spaces
        self._journal = journal
        self._open_spaces = open_spaces
        self._locks = shared.locks
        self._contents = contents

    async def use(
        self, caller: Caller, word: str, work: Callable[[Files], T], *, writes: bool = False
    ) -> T:
        """Does `work` with the files of a space. `PathError`s."""
        space = await self._spaces.existing(caller, word)
        async with self._locks.shared(space.space_id):
            opened = await self._open(space.space_id)

            def done() -> T:
                with self._contents.files(opened.driver, opened.tree) as files:
                    return work(files)

            try:
                result = await asyncio.to_thread(done)
            except TreeDamaged:
                # Somebody took its mount away; `work` has not begun then.
                await self._open_spaces.mend(opened)
                result = await asyncio.to_thread(done)
            if writes:
                now = self._journal.clock()
                await self._journal.write(self._journal.amend(space.space_id, active_at=now))
            return result

    async def archive(self, caller: Caller, word: str, path: str) -> Iterator[bytes]:
        """A tar.zst, made while it is read (in a worker thread). What is in it was taken out when
        all of it was; what could not be read is told at its end."""
        space = await self._spaces.existing(caller, word)
        opened = await self._open(space.space_id)
        took = await self._spaces.taking(caller, opened, path)
        skipped: set[Skipped] = set()

        def skip(one: Skipped) -> None:
            if len(skipped) <= MOST_SKIPPED:
                skipped.add(one)

        pieces = self._contents.archive(opened.driver, opened.tree, path, skip)

        def complete() -> None:
            self._check_there(space.space_id)
            if len(skipped) <= MOST_SKIPPED:
                took(skipped)

        return whole(pieces, complete)

    async def read(
        self, caller: Caller, word: str, path: str, begin: Callable[[BinaryIO, Took], T]
    ) -> T:
        """`begin` gets the open file, and what is to be called when all of it was read."""
        space = await self._spaces.existing(caller, word)
        opened = await self._open(space.space_id)

        def work(files: Files) -> T:
            file = files.open_read(path)
            before = os.fstat(file.fileno())

            def took() -> None:
                if os.fstat(file.fileno()).st_ctime_ns == before.st_ctime_ns:
                    self._spaces.took(opened, path, before)

            return begin(file, took)

        return await self.use(caller, space.space_id, work)

    def _check_there(self, space_id: str) -> None:
        if self._journal.staying(space_id) is None:
            raise SpaceNotFound(f"{space_id} was removed while it was read.", hint="Try another.")

    async def unpack(self, caller: Caller, word: str, stream: BinaryIO, path: str) -> None:
        space = await self._spaces.existing(caller, word)
        async with self._locks.shared(space.space_id):
            opened = await self._open(space.space_id)
            await asyncio.to_thread(self._contents.unpack, opened.driver, opened.tree, stream, path)
            now = self._journal.clock()
            await self._journal.write(self._journal.amend(space.space_id, active_at=now))

    async def _open(self, space_id: str) -> OpenSpace:
        space = self._journal.current(space_id)
        if space.state not in SETTLED or space.state is SpaceState.REMOVED:
            raise StateConflict(
                f"{space.name} is {space.state}.", hint="Try again soon.", state=str(space.state)
            )
        opened = await self._open_spaces.of(space)
        await self._open_spaces.ensure(opened)
        return opened


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


# What the agent of a space is given to read, beside its tree.


class SpaceContext:
    def __init__(
        self, spaces: Spaces, open_spaces: OpenSpaces, shared: Shared, store: ContextStore
    ) -> None:
        self._spaces = spaces
        self._open_spaces = open_spaces
        self._locks = shared.locks
        self._store = store

    async def list(self, caller: Caller, word: str) -> Sequence[ContextFile]:
        return await self._use(caller, word, self._store.list)

    async def read(self, caller: Caller, word: str, name: str) -> bytes:
        return await self._use(caller, word, lambda folder: self._store.read(folder, name))

    async def put(self, caller: Caller, word: str, name: str, data: bytes) -> None:
        """Instead of what had that name. `PathInvalid`, `TooLarge`."""
        await self._use(caller, word, lambda folder: self._store.put(folder, name, data))

    async def remove(self, caller: Caller, word: str, name: str) -> None:
        """Raises `PathNotFound`."""
        await self._use(caller, word, lambda folder: self._store.remove(folder, name))

    async def _use(self, caller: Caller, word: str, work: Callable[[Path], T]) -> T:
        async with self._place(caller, word) as folder:
            return await asyncio.to_thread(work, folder)

    @asynccontextmanager
    async def _place(self, caller: Caller, word: str) -> AsyncIterator[Path]:
        """The space's folder, with those of an agent in it: it may get one later."""
        space = await self._spaces.existing(caller, word)
        async with self._locks.shared(space.space_id):
            if space.owner is None:
                raise StateConflict(
                    f"{space.name} is {space.state}.", hint="Try again soon.", state=space.state
                )
            await asyncio.to_thread(
                self._open_spaces.make_agent_folders, space.space_id, space.owner
            )
            yield self._open_spaces.folder(space.space_id)


class Attachments:
    """Files that go with a prompt are looked at before the agent is told of them."""

    def __init__(self, open_spaces: OpenSpaces, contents: Contents, store: ContextStore) -> None:
        self._open_spaces = open_spaces
        self._contents = contents
        self._store = store

    async def check(self, opened: OpenSpace, attachments: Sequence[Attachment]) -> None:
        """Each is a file that can be read, in the tree or in the context. `PathError`s."""
        if attachments:
            await self._open_spaces.ensure(opened)
            await asyncio.to_thread(self._check, opened, attachments)

    def _check(self, opened: OpenSpace, attachments: Sequence[Attachment]) -> None:
        known = {file.name for file in self._store.list(opened.sandbox.spec.folder)}
        with self._contents.files(opened.driver, opened.tree) as files:
            for one in attachments:
                if not one.in_context:
                    files.open_read(one.path).close()
                elif one.path not in known:
                    raise PathNotFound(f"There is no context file {one.path[:80]!r}.")


def seen(request: TurnRequest, setup: AgentSetup) -> TurnRequest:
    """With the attachments where the agent finds them."""
    if not request.attachments:
        return request
    found = tuple(
        dataclasses.replace(
            one, path=posixpath.join(setup.context if one.in_context else setup.workspace, one.path)
        )
        for one in request.attachments
    )
    return dataclasses.replace(request, attachments=found)
