"""What the agent of a space is given to read, beside its tree."""

from __future__ import annotations

import asyncio
import dataclasses
import posixpath
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from carrel.domain.access import Caller
from carrel.domain.agents import Attachment, ContextFile, ContextStore, Seat, TurnRequest
from carrel.domain.collaborators import Contents
from carrel.domain.errors import PathNotFound, StateConflict
from carrel.service.desk import Desk, Desks
from carrel.service.shared import Shared
from carrel.service.spaces import Spaces

T = TypeVar("T")


class SpaceContext:
    def __init__(self, spaces: Spaces, desks: Desks, shared: Shared, store: ContextStore) -> None:
        self._spaces = spaces
        self._desks = desks
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
                    f"{space.space_id} is {space.state}.", hint="Try again soon.", state=space.state
                )
            await asyncio.to_thread(self._desks.seat, space.space_id, space.owner)
            yield self._desks.folder(space.space_id)


class Attachments:
    """Files that go with a prompt are looked at before the agent is told of them."""

    def __init__(self, desks: Desks, contents: Contents, store: ContextStore) -> None:
        self._desks = desks
        self._contents = contents
        self._store = store

    async def check(self, desk: Desk, attachments: Sequence[Attachment]) -> None:
        """Each is a file that can be read, in the tree or in the context. `PathError`s."""
        if attachments:
            await self._desks.ensure(desk)
            await asyncio.to_thread(self._check, desk, attachments)

    def _check(self, desk: Desk, attachments: Sequence[Attachment]) -> None:
        known = {file.name for file in self._store.list(desk.sandbox.spec.folder)}
        with self._contents.files(desk.driver, desk.tree) as files:
            for one in attachments:
                if not one.in_context:
                    files.open_read(one.path).close()
                elif one.path not in known:
                    raise PathNotFound(f"There is no context file {one.path[:80]!r}.")


def seen(request: TurnRequest, seat: Seat) -> TurnRequest:
    """With the attachments where the agent finds them."""
    if not request.attachments:
        return request
    found = tuple(
        dataclasses.replace(
            one, path=posixpath.join(seat.context if one.in_context else seat.workspace, one.path)
        )
        for one in request.attachments
    )
    return dataclasses.replace(request, attachments=found)
