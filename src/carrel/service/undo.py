"""What can be taken back: the order in which it is written down, done, and taken back.

It is written down before anything is touched, and after. A daemon that died in between, or a disk
without room, leaves it begun: who comes next to the same place settles it, and so does the next
daemon.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from carrel.domain.errors import CarrelError, LandingHalfDone
from carrel.domain.landing import Landing
from carrel.domain.store import Store
from carrel.domain.takes import UndoRecord

One = TypeVar("One", Landing, UndoRecord)


class Undoables(ABC, Generic[One]):
    """Records of one kind. Who calls has the lock of what they are about, and makes the first
    record."""

    done_name: str
    """Of the state of one that is done."""
    refusal: type[CarrelError]
    """What is raised where somebody's changes are in the way."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @abstractmethod
    async def _to(self, one: One, *, back: bool) -> None:
        """All of it, or nothing; else `LandingHalfDone`."""

    @abstractmethod
    async def _settled(self, one: One, *, back: bool) -> bool:
        """After a crash in `_to`: whether it is done now; else nothing of it is."""

    @abstractmethod
    async def _done(self, one: One) -> One:
        """Writes it down and tells it."""

    @abstractmethod
    async def _undone(self, one: One) -> One:
        """Likewise; nothing is kept for it any more."""

    @abstractmethod
    async def _forget(self, one: One) -> None:
        """What is kept for taking it back. Idempotent."""

    @abstractmethod
    def _in_the_way(self, one: One, error: CarrelError) -> CarrelError: ...

    async def _do(self, begun: One) -> One:
        """Of a record that was written down."""
        try:
            await self._to(begun, back=False)
        except LandingHalfDone:
            raise
        except CarrelError:
            await self._give_up(begun)
            raise
        return await self._done(begun)

    async def _take_back(self, done: One) -> One:
        await self._store.write(_in_state(done, "UNDOING"))
        try:
            await self._to(done, back=True)
        except LandingHalfDone:
            raise
        except CarrelError as error:
            await self._store.write(done)
            if not isinstance(error, self.refusal):
                raise
            raise self._in_the_way(done, error) from error
        return await self._undone(done)

    async def _settle(self, one: One) -> None:
        """Of a record that is begun or is being taken back."""
        back = one.state.name == "UNDOING"
        if await self._settled(one, back=back):
            await (self._undone(one) if back else self._done(one))
        elif back:
            await self._store.write(_in_state(one, self.done_name))
        else:
            await self._give_up(one)

    async def _give_up(self, one: One) -> None:
        await self._store.write(_in_state(one, "UNDONE"))
        await self._forget(one)


def _in_state(one: One, name: str) -> One:
    return dataclasses.replace(one, state=type(one.state)[name])
