"""The writing side: many writes in one transaction, each of them whole or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from carrel.domain.errors import CarrelError, StoreBusy
from carrel.domain.events import Event, NewEvent
from carrel.store import problems
from carrel.store.documents import load
from carrel.store.opening import Settings
from carrel.store.session import Session
from carrel.store.statements import ADD_EVENT, PRUNE_EVENTS, PUT_SPACE, Statement

MOST_WRITES = 500
"""In one transaction: about twenty milliseconds of work, which the first of them waits for."""

PRUNE_EVERY = 256
"""How many events beyond those to be kept there may be, so that pruning costs little."""
PRUNE_MOST = 1024
"""At once, so that no write waits long for it. More than are mostly added meanwhile."""

Write = Sequence[Statement]
Outcome = Sequence[Event] | Exception


class Writer:
    """Serves writes; made, used and closed in one thread.

    The writes that wait together are committed together. Each stands in a savepoint of its
    own, so that a bad one fails alone. When the transaction as a whole fails, as on a full
    disk, each is tried by itself.
    """

    def __init__(self, settings: Settings) -> None:
        self._session = Session(settings)
        self._keep_events = settings.keep_events
        self._unpruned = PRUNE_EVERY

    def serve(self, tasks: Sequence[Write]) -> Sequence[Outcome]:
        try:
            connection = self._session.begin()
        except (sqlite3.Error, OSError, CarrelError) as error:
            self._session.recover()
            return [self._session.explain(error) for _task in tasks]
        try:
            if len(tasks) == 1:
                outcomes: list[Outcome] = [_apply(connection, tasks[0])]
            else:
                outcomes = [self._attempt(connection, task) for task in tasks]
            connection.execute("COMMIT")
        except Exception as error:
            self._session.recover()
            return [self._session.explain(error)] if len(tasks) == 1 else self._one_by_one(tasks)
        self._unpruned += sum(len(done) for done in outcomes if not isinstance(done, Exception))
        return outcomes

    def tidy(self) -> None:
        """Drops the oldest events. If that cannot be, the next write hears of it."""
        if self._unpruned < PRUNE_EVERY or self._session.lost:
            return
        values = {"most": PRUNE_MOST, "keep": self._keep_events}
        try:
            dropped = self._session.connection().execute(PRUNE_EVENTS, values).rowcount
        except (sqlite3.Error, CarrelError):
            self._session.recover()
        else:
            self._unpruned = PRUNE_EVERY if dropped == PRUNE_MOST else 0

    def close(self) -> None:
        self._session.close()

    def _attempt(self, connection: sqlite3.Connection, write: Write) -> Outcome:
        """Raises `sqlite3.Error` if the whole transaction has failed."""
        connection.execute("SAVEPOINT one")
        outcome: Outcome
        try:
            outcome = _apply(connection, write)
        except Exception as error:
            if not connection.in_transaction:
                raise
            connection.execute("ROLLBACK TO one")
            outcome = self._session.explain(error)
        connection.execute("RELEASE one")
        return outcome

    def _one_by_one(self, tasks: Sequence[Write]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for task in tasks:
            outcome = self.serve([task])[0]
            outcomes.append(outcome)
            if isinstance(outcome, StoreBusy):
                # Each of the others would wait for the lock as long as this one did.
                outcomes += [self._session.explain(outcome) for _task in tasks[len(outcomes) :]]
                break
        return outcomes


def _apply(connection: sqlite3.Connection, write: Write) -> list[Event]:
    """Raises `NameTaken`, `sqlite3.Error`."""
    events = []
    for statement in write:
        try:
            cursor = connection.execute(statement.sql, statement.values)
        except sqlite3.IntegrityError as error:
            if statement.sql is PUT_SPACE and problems.is_about_name(error):
                raise problems.name_taken(str(statement.values[1])) from None
            raise
        if statement.sql is ADD_EVENT:
            events.append(as_event(cursor.lastrowid or 0, str(statement.values[-1])))
    return events


def as_event(seq: int, document: str) -> Event:
    """As it is kept, for those who hear of it now and those who read it later alike."""
    new = load(NewEvent, document)
    return Event(seq, new.type, new.space_id, new.data, new.at)
