"""The writing side of the log: what waits together is one transaction and one sync."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Sequence

import msgspec

from carrel.domain.errors import CarrelError, StoreBusy
from carrel.domain.hub import Dropped
from carrel.store.messages_grouping import Gap, Group, Head, Known
from carrel.store.messages_tasks import (
    DROP_MOST,
    Acknowledge,
    Append,
    Drop,
    Forget,
    ForgetConsumer,
    Grouped,
    Piece,
    Task,
)
from carrel.store.opening import Settings
from carrel.store.session import Session

MOST_TASKS = 500
"""In one transaction. Clients that append many messages at once wait for their answers, so
few of those come together."""

SPARE_PAGES = 1024
"""Free room in the file that is not given back: the next messages fill it again."""
GIVE_BACK_PAGES = 256
"""At once: each may have to be moved, about five milliseconds in all."""

_DROP = (
    "DELETE FROM messages WHERE place IN (SELECT one.place FROM json_each(?) AS piece"
    " CROSS JOIN messages AS one ON one.space = json_extract(piece.value, '$[0]')"
    " AND one.seq BETWEEN json_extract(piece.value, '$[1]')"
    " AND json_extract(piece.value, '$[2]'))"
)


class LogWriter:
    """Serves tasks; made, used and closed in one thread. With `disk`, appends that ask for
    it are on the disk when they are answered."""

    def __init__(self, settings: Settings, *, disk: bool) -> None:
        self._session = Session(settings)
        self._disk = disk
        self._failed: dict[str, CarrelError] = {}
        """Spaces of which a message could not be stored, until one can. What was already on
        its way behind it fails as that did: the gap is no mistake of its caller."""
        try:
            self._known = Known.load(self._session.connection())
        except sqlite3.Error as error:
            self._session.close()
            raise self._session.explain(error) from error

    def serve(self, tasks: Sequence[Task]) -> Sequence[object | Exception]:
        answers: list[object | Exception] = []
        for together, some in itertools.groupby(tasks, lambda task: isinstance(task, Grouped)):
            if together:
                answers += self._commit([task for task in some if isinstance(task, Grouped)])
            else:
                answers += [self._alone(task) for task in some]
        return answers

    def tidy(self) -> None:
        """Room is given back by a task of its own: this would come only after other tasks."""

    def close(self) -> None:
        self._session.close()

    def _commit(self, tasks: Sequence[Grouped]) -> list[object | Exception]:
        try:
            self._refresh()
            group = Group(self._known)
            answers = [self._join(group, task) for task in tasks]
            if statements := group.statements():
                full = any(
                    isinstance(task, Append) and task.sync and not isinstance(answer, Exception)
                    for task, answer in zip(tasks, answers, strict=True)
                )
                self._session.write(statements, full=self._disk and full)
        except Exception as error:
            self._session.recover()
            return self._again(tasks, error)
        group.settle()
        if self._failed:
            self._heal(tasks, answers)
        return answers

    def _join(self, group: Group, task: Grouped) -> object | Exception:
        try:
            match task:
                case Append(messages=messages):
                    return group.append(messages)
                case Acknowledge():
                    return group.acknowledge(task.consumer, task.space_id, task.seq)
        except Gap as error:
            before = (self._failed.get(space_id) for space_id in _spaces(task))
            return self._session.explain(next(filter(None, before), error))
        except Exception as error:
            return error

    def _refuse(self, task: Grouped, error: Exception) -> Exception:
        found = self._session.explain(error)
        if isinstance(found, CarrelError):
            self._failed |= dict.fromkeys(_spaces(task), found)
        return found

    def _heal(self, tasks: Sequence[Grouped], answers: Sequence[object | Exception]) -> None:
        for task, answer in zip(tasks, answers, strict=True):
            if not isinstance(answer, Exception):
                for space_id in _spaces(task):
                    self._failed.pop(space_id, None)

    def _again(self, tasks: Sequence[Grouped], error: Exception) -> list[object | Exception]:
        """By halves, so that one that is bad soon stands alone. Not when the lock is taken:
        each half would wait for it as long as the whole did."""
        if len(tasks) == 1 or isinstance(self._session.explain(error), StoreBusy):
            return [self._refuse(task, error) for task in tasks]
        half = len(tasks) // 2
        return self._commit(tasks[:half]) + self._commit(tasks[half:])

    def _alone(self, task: Task) -> object | Exception:
        try:
            self._refresh()
            match task:
                case Drop(pieces=pieces):
                    return self._drop(pieces)
                case Forget(space_id=space_id):
                    return self._forget(space_id)
                case ForgetConsumer(consumer=consumer):
                    return self._forget_consumer(consumer)
                case _:
                    return self._give_back()
        except Exception as error:
            self._session.recover()
            return self._session.explain(error)

    def _drop(self, pieces: Sequence[Piece]) -> list[Dropped]:
        """Passes over what has gone meanwhile."""
        found = [(piece, head) for piece in pieces if (head := self._clipped(piece))]
        if not found:
            return []
        self._delete([(head.number, head.first, head.last) for _piece, head in found])
        dropped = []
        for piece, head in found:
            self._known.heads[piece.space_id].first = head.last + 1
            cursors = self._known.cursors.get(piece.space_id, {})
            missed = {consumer: seq for consumer, seq in cursors.items() if seq < head.last}
            dropped.append(Dropped(piece.space_id, head.first, head.last, missed))
        return dropped

    def _clipped(self, piece: Piece) -> Head | None:
        """What there is of it, without the last message of the space."""
        head = self._known.heads.get(piece.space_id)
        if head is None:
            return None
        first, last = max(piece.first, head.first), min(piece.last, head.last - 1)
        # Only from the beginning, so that no gap comes to be.
        return Head(head.number, first, last) if first == head.first <= last else None

    def _forget(self, space_id: str) -> bool:
        head = self._known.heads.get(space_id)
        if head is None:
            return True
        end = head.first + DROP_MOST
        if end <= head.last:
            self._delete([(head.number, head.first, end - 1)])
            head.first = end
            return False
        self._session.write([("DELETE FROM heads WHERE number = ?", (head.number,))])
        del self._known.heads[space_id]
        self._known.cursors.pop(space_id, None)
        return True

    def _forget_consumer(self, consumer: str) -> object:
        self._session.write([("DELETE FROM cursors WHERE consumer = ?", (consumer,))])
        for cursors in self._known.cursors.values():
            cursors.pop(consumer, None)
        return None

    def _give_back(self) -> bool:
        connection = self._session.connection()
        free: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
        if free <= SPARE_PAGES:
            return False
        pages = min(free - SPARE_PAGES, GIVE_BACK_PAGES)
        # A script, because it gives a row for each page and does no more than are fetched.
        connection.executescript(f"PRAGMA incremental_vacuum({pages})")
        return free - pages > SPARE_PAGES

    def _delete(self, pieces: Sequence[tuple[int, int, int]]) -> None:
        self._session.write([(_DROP, (msgspec.json.encode(pieces).decode(),))])

    def _refresh(self) -> None:
        """With a new connection what is known is asked for anew: nobody can say what came of
        the last write of a broken one."""
        if self._session.lost:
            self._known = Known.load(self._session.connection())


def _spaces(task: Grouped) -> set[str]:
    """Of the messages that it appends."""
    return {one.space_id for one in task.messages} if isinstance(task, Append) else set()
