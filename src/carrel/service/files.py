"""Files of a space from outside, and those that its agent is given to read."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import posixpath
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, TypeVar, runtime_checkable

from carrel.domain.access import Caller
from carrel.domain.agents import ContextFile, ContextStore
from carrel.domain.collaborators import Contents
from carrel.domain.errors import (
    CopyNotFound,
    PathNotFound,
    SpaceNotFound,
    StateConflict,
    TreeDamaged,
)
from carrel.domain.files import Files
from carrel.domain.runtimes import LocalRuntime
from carrel.domain.spaces import SpaceState
from carrel.domain.turns import AgentSetup, Attachment, TurnRequest
from carrel.lifecycle.table import SETTLED
from carrel.service.access import is_owner
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpace, OpenSpaces
from carrel.service.shared import Shared
from carrel.service.spaces import Spaces

T = TypeVar("T")


@runtime_checkable
class Coming(Protocol):
    """A body of which a client has not sent all. `give_up` is called on the event loop: who reads
    it in a thread gets a `StateConflict`, at once."""

    def give_up(self) -> None: ...


def _give_way(coming: object) -> tuple[Callable[[], None], ...]:
    return (coming.give_up,) if isinstance(coming, Coming) else ()


STEP = 4 << 20
"""Bytes that are written between two looks whether there is room: so far above its limit a space
may come by each body."""
CHECK_S = 120.0
"""For a look, which waits for those at other spaces."""


class WriteRoom:
    """Sees to it that others than the owner write no more into a space from outside than its disk
    limit has room for: no command is there that could be ended. Made on the event loop."""

    def __init__(self, caller: Caller) -> None:
        self._free = is_owner(caller)
        self._loop = asyncio.get_running_loop()
        self._opened: OpenSpace | None = None
        self._taken = 0

    async def enter(self, opened: OpenSpace) -> None:
        """Raises `InsufficientDisk`."""
        self._opened = opened
        await self._check()

    async def _check(self, written: int = 0) -> None:
        opened = self._opened
        if not self._free and opened is not None and isinstance(opened.runtime, LocalRuntime):
            await opened.runtime.check_writing(opened.sandbox, written)

    def take(self, size: int) -> None:
        """For so many bytes more. In a worker thread; raises `InsufficientDisk`."""
        if self._free:
            return
        self._taken += size
        if self._taken >= STEP:
            written, self._taken = self._taken, 0
            check = self._check(written)
            asyncio.run_coroutine_threadsafe(check, self._loop).result(CHECK_S)

    def pieces(self, data: Iterable[bytes]) -> Iterator[bytes]:
        for piece in data:
            self.take(len(piece))
            yield piece


COPY_S = 600.0
"""For a client to say that it has all of what it was sent: a slow disk takes seconds, not hours."""
MAX_COPIES = 256
MAX_SENT = 64 << 20
"""Of one account, and bytes that tell what was in them (see `Reviews.sent`), for which the largest
has room; the oldest go. Clients say so at once, so that few wait."""


class Copy(NamedTuple):
    """One that begins. `sent` is to be called, in a worker thread, when all of it was read."""

    ticket: str
    sent: Callable[[], None]


class _Sent(NamedTuple):
    space_id: str
    content: bytes
    at: float


class Copies:
    """What was sent, until its client says that all of it arrived: only that counts as taken out. A
    daemon that ends forgets it, and who removes the space is asked. For any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._accounts: dict[str, dict[str, _Sent]] = {}

    def begin(self, account: str, space_id: str, content: Callable[[], bytes | None]) -> Copy:
        """`content` is asked when all was read; None: it does not count."""
        ticket = secrets.token_urlsafe(16)

        def sent() -> None:
            found = content()
            if found is not None:
                self._keep(account, ticket, _Sent(space_id, found, self._clock()))

        return Copy(ticket, sent)

    def take(self, account: str, space_id: str, ticket: str) -> bytes:
        """Raises `CopyNotFound`."""
        with self._lock:
            self._forget_old()
            own = self._accounts.get(account, {})
            if ticket not in own or own[ticket].space_id != space_id:
                raise CopyNotFound(
                    "There is no such copy, or it was sent too long ago.",
                    hint="Copy it again, so that it counts as copied out.",
                )
            return own.pop(ticket).content

    def _keep(self, account: str, ticket: str, sent: _Sent) -> None:
        with self._lock:
            self._forget_old()
            own = self._accounts.setdefault(account, {})
            own[ticket] = sent
            size = sum(len(one.content) for one in own.values())
            while len(own) > MAX_COPIES or size > MAX_SENT:
                size -= len(own.pop(next(iter(own))).content)

    def _forget_old(self) -> None:
        before = self._clock() - COPY_S
        for account, own in list(self._accounts.items()):
            for ticket in [ticket for ticket, one in own.items() if one.at < before]:
                del own[ticket]
            if not own:
                del self._accounts[account]


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
        self._copies = Copies()

    async def use(
        self,
        caller: Caller,
        word: str,
        work: Callable[[Files], T],
        *,
        writes: bool = False,
        coming: object = None,
        room: WriteRoom | None = None,
    ) -> T:
        """Does `work` with the files of a space. `PathError`s. `coming` is what it writes, if that
        is not all here: when the space is stopped or removed it is given up. `room` is asked where
        something is added."""
        space = await self._spaces.existing(caller, word)
        async with self._locks.shared(space.space_id, *_give_way(coming)):
            opened = await self.opened(space.space_id)
            await self._note(space.space_id, coming)
            if room is not None:
                await room.enter(opened)

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

    async def archive(
        self, caller: Caller, word: str, path: str, *, zstd: bool = True
    ) -> tuple[str, Iterator[bytes]]:
        """A ticket for `copied`, and a tar, made while it is read (in a worker thread). What could
        not be read is told at its end."""
        space = await self._spaces.existing(caller, word)
        opened = await self.opened(space.space_id)
        taking = await self._spaces.taking(caller, opened, path)
        pieces = self._contents.archive(opened.driver, opened.tree, path, taking, zstd=zstd)

        copy = self.begin_copy(caller, space.space_id, taking.done)
        return copy.ticket, whole(pieces, copy.sent)

    def begin_copy(
        self, caller: Caller, space_id: str, content: Callable[[], bytes | None]
    ) -> Copy:
        """See `Copies.begin`, for what others read from a space and send."""

        def complete() -> bytes | None:
            self._check_there(space_id)
            return content()

        return self._copies.begin(caller.account, space_id, complete)

    async def copied(self, caller: Caller, word: str, ticket: str) -> None:
        """All that was sent under this ticket has arrived. Raises `CopyNotFound`."""
        space = await self._spaces.existing(caller, word)
        async with self._locks.shared(space.space_id):
            opened = await self.opened(space.space_id)
            sent = self._copies.take(caller.account, space.space_id, ticket)
            await asyncio.to_thread(self._spaces.took, opened, sent)

    async def read(
        self, caller: Caller, word: str, path: str, begin: Callable[[BinaryIO, Copy], T]
    ) -> T:
        """`begin` gets the open file, and the copy that it may become."""
        space = await self._spaces.existing(caller, word)
        opened = await self.opened(space.space_id)

        def work(files: Files) -> T:
            file = files.open_read(path)
            before = os.fstat(file.fileno())

            def content() -> bytes | None:
                same = os.fstat(file.fileno()).st_ctime_ns == before.st_ctime_ns
                return self._spaces.sent(opened, path, before) if same else None

            return begin(file, self._copies.begin(caller.account, space.space_id, content))

        return await self.use(caller, space.space_id, work)

    def _check_there(self, space_id: str) -> None:
        if self._journal.staying(space_id) is None:
            raise SpaceNotFound(f"{space_id} was removed while it was read.", hint="Try another.")

    async def unpack(
        self, caller: Caller, word: str, stream: BinaryIO, path: str, coming: object = None
    ) -> None:
        """`coming`: see `use`."""
        space = await self._spaces.existing(caller, word)
        async with self._locks.shared(space.space_id, *_give_way(coming)):
            opened = await self.opened(space.space_id)
            await self._note(space.space_id, coming)
            room = WriteRoom(caller)
            await room.enter(opened)
            place, unpack = (opened.driver, opened.tree), self._contents.unpack
            await asyncio.to_thread(unpack, *place, stream, path, room.take)
            now = self._journal.clock()
            await self._journal.write(self._journal.amend(space.space_id, active_at=now))

    async def _note(self, space_id: str, coming: object) -> None:
        """A space to which something large is sent is not idle."""
        if coming is not None:
            now = self._journal.clock()
            await self._journal.write(self._journal.amend(space_id, active_at=now))

    async def opened(self, space_id: str) -> OpenSpace:
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
        """Instead of what had that name. `PathInvalid`, `TooLarge`, `InsufficientDisk`."""
        space = await self._spaces.existing(caller, word)
        if space.owner is not None:
            await WriteRoom(caller).enter(await self._open_spaces.of(space))
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
