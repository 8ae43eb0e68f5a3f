"""Operations on one space: many that share it, or one that has it for itself.

Whoever wants a space for itself goes before all who come later, so that it is never kept
waiting by a stream of others. The table holds only what is in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class _Lock:
    def __init__(self) -> None:
        self.users = 0
        self.sharing = 0
        self.taken = False
        self.wanted = 0
        self.changed = asyncio.Condition()


class Locks:
    def __init__(self) -> None:
        self._locks: dict[str, _Lock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def alone(self, key: str) -> AsyncIterator[None]:
        async with self._used(key) as lock:
            lock.wanted += 1
            try:
                async with lock.changed:
                    await lock.changed.wait_for(lambda: not lock.taken and not lock.sharing)
                    lock.taken = True
            finally:
                lock.wanted -= 1
            try:
                yield
            finally:
                lock.taken = False
                await _tell(lock)

    @asynccontextmanager
    async def shared(self, key: str) -> AsyncIterator[None]:
        async with self._used(key) as lock:
            if lock.taken or lock.wanted:
                async with lock.changed:
                    await lock.changed.wait_for(lambda: not lock.taken and not lock.wanted)
            lock.sharing += 1
            try:
                yield
            finally:
                lock.sharing -= 1
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
