"""What all parts of the service share: locks, tasks that outlive their caller, fair shares."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from carrel.domain.access import LOCAL


@dataclass(frozen=True)
class CallerPolicy:
    """What the settings say about what callers may do."""

    project_roots: tuple[Path, ...] = ()
    """Folders of this machine from which callers without full rights may take projects."""


# Work that goes on when whoever began it has gone, and work that waits for its turn.

T = TypeVar("T")

CLOSE_S = 10.0
"""For operations that are under way when the daemon ends: they take milliseconds, but for a
large project's base, which is carried on next time."""


class Tasks:
    """Each goes on to its end."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    async def see_through(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result. When the caller is cancelled, the work is not."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            # Of a task whose caller has gone nobody else would ask.
            task.exception()

    async def close(self) -> None:
        """Waits for what is under way; what takes too long is cancelled, and undoes itself."""
        if self._running:
            await asyncio.wait(self._running, timeout=CLOSE_S)
        for task in list(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=CLOSE_S)


class Errands:
    """Nobody waits for them, and they are given up when the daemon ends."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        if self._closed:
            work.close()
            return
        # The task has the work itself: within another coroutine, it would never be awaited when
        # the task is cancelled before its first step.
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def settled(self) -> None:
        while self._running:
            await asyncio.wait(self._running)

    async def close(self) -> None:
        self._closed = True
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=CLOSE_S)


TURN_S = 30.0
"""Who reads or sends slowly keeps nobody else waiting for longer."""


class CallerSlots:
    """So many at the same time, in the order of asking. Of these, one caller has half at most:
    what it never ends keeps nobody else out. The owner, who is `local`, has as many of his own,
    and waits for nobody else's."""

    def __init__(self, most: int, most_s: float | None = None) -> None:
        """A turn is given back after `most_s`, whether its work has ended or not. The share of a
        caller other than the owner is not: it has no more than that at the same time."""
        self._most = most
        self._most_s = most_s
        self._turns = asyncio.Semaphore(most)
        self._own = asyncio.Semaphore(most)
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, caller: str) -> AsyncIterator[None]:
        if caller == LOCAL.name:
            async with self._turn(self._own):
                yield
            return
        share = self._shares.get(caller)
        if share is None:
            share = self._shares[caller] = asyncio.Semaphore(max(1, self._most // 2))
        async with share, self._turn(self._turns):
            yield

    @asynccontextmanager
    async def _turn(self, turns: asyncio.Semaphore) -> AsyncIterator[None]:
        await turns.acquire()
        taken = [turns]

        def give_back() -> None:
            while taken:
                taken.pop().release()

        loop = asyncio.get_running_loop()
        timer = None if self._most_s is None else loop.call_later(self._most_s, give_back)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            give_back()


# Operations on one space: many that share it, or one that has it for itself.
#
# Whoever wants a space for itself goes before all who come later, so that it is never kept
# waiting by a stream of others. The table holds only what is in use.


class _Lock:
    def __init__(self) -> None:
        self.users = 0
        self.sharing = 0
        self.taken = False
        self.wanted = 0
        self.rushed = asyncio.Event()
        self.givers: list[Callable[[], None]] = []
        self.changed = asyncio.Condition()

    def give_way(self) -> None:
        for one in list(self.givers):
            one()


PATIENCE_S = 5.0
"""With what lasts for as long as a client likes: whoever comes later waits behind who wants it
alone, the owner too."""


class Locks:
    def __init__(self) -> None:
        self._locks: dict[str, _Lock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def is_taken(self, key: str) -> bool:
        """Whether somebody has it for itself."""
        lock = self._locks.get(key)
        return lock is not None and lock.taken

    async def rushed(self, key: str) -> None:
        """For who has it for itself: when somebody else waits in a rush for it."""
        await self._locks[key].rushed.wait()

    @asynccontextmanager
    async def alone(
        self, key: str, *, hurry: bool = False, rush: bool = False
    ) -> AsyncIterator[None]:
        """`hurry`: who shares it now, and can give way, does so at once, and not only after a
        while. `rush`: so does who has it."""
        async with self._used(key) as lock:
            lock.wanted += 1
            loop, wait_s = asyncio.get_running_loop(), 0.0 if hurry else PATIENCE_S
            timer = loop.call_later(wait_s, lock.give_way) if lock.sharing else None
            try:
                if rush:
                    lock.rushed.set()
                async with lock.changed:
                    await lock.changed.wait_for(lambda: not lock.taken and not lock.sharing)
                    lock.taken = True
            finally:
                if timer is not None:
                    timer.cancel()
                lock.wanted -= 1
                if rush:
                    lock.rushed.clear()
            try:
                yield
            finally:
                lock.taken = False
                await _tell(lock)

    @asynccontextmanager
    async def shared(self, key: str, *give_way: Callable[[], None]) -> AsyncIterator[None]:
        """`give_way` ends what else would last for as long as a client likes."""
        async with self._used(key) as lock:
            if lock.taken or lock.wanted:
                async with lock.changed:
                    await lock.changed.wait_for(lambda: not lock.taken and not lock.wanted)
            lock.sharing += 1
            lock.givers += give_way
            try:
                yield
            finally:
                lock.sharing -= 1
                for one in give_way:
                    lock.givers.remove(one)
                if lock.wanted:
                    await _tell(lock)

    @asynccontextmanager
    async def _used(self, key: str) -> AsyncIterator[_Lock]:
        lock = self._locks.setdefault(key, _Lock())
        lock.users += 1
        try:
            yield lock
        finally:
            lock.users -= 1
            if not lock.users:
                del self._locks[key]
            else:
                await _tell(lock)


async def _tell(lock: _Lock) -> None:
    async with lock.changed:
        lock.changed.notify_all()


def files_key(space_id: str) -> str:
    """Of the lock for who replaces a space's files as a whole, or needs them as they are at one
    moment. Taken after all others."""
    return f"files\0{space_id}"


@dataclass(frozen=True)
class Shared:
    locks: Locks = field(default_factory=Locks)
    tasks: Tasks = field(default_factory=Tasks)
    bases_going: set[str] = field(default_factory=set)
    """Bases that are being removed: nobody makes a space from one of them."""
