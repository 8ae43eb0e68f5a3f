"""How the log is written: few statements, and as safe as it was asked for."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from carrel.domain.errors import StoreBusy
from carrel.store.database import DatabaseSettings
from carrel.store.message_writes import MOST_ROWS, AcknowledgeTask, Append, MessageWriter
from carrel.store.messages import MESSAGES, open_log
from tests.store import children
from tests.store.children import END_TIMEOUT_S
from tests.store.messages_records import DESK, OTHER, bodies, everything, message, some

NORMAL, FULL = 1, 2
"""What SQLite calls them."""


@pytest.fixture
def settings(tmp_path: Path) -> DatabaseSettings:
    return DatabaseSettings(tmp_path / "hub.db", busy_timeout_s=0.2, schema=MESSAGES)


@pytest.fixture
def writer(settings: DatabaseSettings) -> Iterator[MessageWriter]:
    with closing(MessageWriter(settings, disk=True)) as opened:
        opened.serve([Append([message(1), message(1, OTHER)], sync=True)])
        yield opened


class _Traced:
    """Stands in for the writer's connection, and notes what it executes. SQLite's own trace
    would tell of every row that a trigger sees."""

    def __init__(self, writer: MessageWriter) -> None:
        self._connection = writer._session.connection()
        self.statements: list[str] = []
        cast(Any, writer._session)._connection = self

    def execute(self, sql: str, values: Any = ()) -> sqlite3.Cursor:
        self.statements.append(sql)
        return self._connection.execute(sql, values)

    def close(self) -> None:
        self._connection.close()

    def take(self) -> list[str]:
        taken = [sql.split("(")[0].strip() for sql in self.statements]
        self.statements.clear()
        return taken

    def synchronous(self) -> int:
        found: int = self._connection.execute("PRAGMA synchronous").fetchone()[0]
        self.statements.clear()
        return found


def test_what_waits_together_is_one_statement(writer: MessageWriter) -> None:
    traced = _Traced(writer)
    tasks = [Append([message(seq), message(seq, OTHER)], sync=True) for seq in range(2, 400)]
    answers = writer.serve(tasks)
    assert [list(one) for one in answers if isinstance(one, range)] == [
        [n, n + 1] for n in range(3, 799, 2)
    ]
    assert traced.take() == ["INSERT INTO messages SELECT * FROM"]
    # All of a transaction, when there is more than one.
    writer.serve([Append([message(400)], sync=True), AcknowledgeTask("a", DESK, 400)])
    assert traced.take() == [
        "BEGIN IMMEDIATE",
        "INSERT INTO messages SELECT * FROM",
        "INSERT INTO cursors SELECT json_extract",
        "COMMIT",
    ]
    writer.serve([Append(some(401, 401 + 2 * MOST_ROWS), sync=True)])
    assert len(traced.take()) == 2 + 3


def test_the_disk_is_waited_for_when_one_asks_for_it(writer: MessageWriter) -> None:
    traced = _Traced(writer)
    assert traced.synchronous() == FULL
    writer.serve([Append([message(2)], sync=False), AcknowledgeTask("a", DESK, 1)])
    assert traced.synchronous() == NORMAL
    writer.serve([Append([message(3)], sync=False), Append([message(4)], sync=True)])
    assert traced.synchronous() == FULL
    # It is switched when it changes, and not for one that is refused.
    writer.serve([Append([message(5)], sync=True)])
    assert traced.take() == ["INSERT INTO messages SELECT * FROM"]
    writer.serve([Append([message(6)], sync=False), Append([message(9)], sync=True)])
    assert traced.synchronous() == NORMAL
    writer.serve([Append([message(9)], sync=True)])
    assert traced.take() == []


def test_a_log_that_never_waits_for_the_disk(settings: DatabaseSettings) -> None:
    with closing(MessageWriter(settings, disk=False)) as writer:
        traced = _Traced(writer)
        writer.serve([Append([message(1)], sync=True)])
        assert traced.synchronous() == NORMAL


def test_what_is_refused_leaves_no_trace(writer: MessageWriter) -> None:
    answers = writer.serve(
        [Append([message(1, "sp_new"), message(3)], sync=True), Append([message(2)], sync=True)]
    )
    assert [type(one) for one in answers] == [type(answers[0]), range]
    assert isinstance(answers[0], ValueError)
    assert list(writer._known.heads) == [DESK, OTHER]


def test_with_a_new_connection_the_truth_is_asked_for(writer: MessageWriter) -> None:
    writer.serve([AcknowledgeTask("a", DESK, 1)])
    writer._session.connection().close()
    tasks = [Append([message(2)], sync=True), Append([message(3)], sync=True)]
    assert isinstance(writer.serve(tasks[:1])[0], Exception)
    assert writer._session.lost
    writer._known.heads.clear()
    writer._known.cursors.clear()
    assert writer.serve([*tasks, AcknowledgeTask("a", DESK, 0)]) == [range(3, 4), range(4, 5), 1]


async def test_what_follows_one_that_failed_fails_like_it(settings: DatabaseSettings) -> None:
    """Also when it is only asked for afterwards, as by somebody who had not yet heard."""
    async with open_log(settings.path, busy_timeout_s=0.2) as log:
        with children.child("lock-writing", settings.path) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"locked\n"
            with pytest.raises(StoreBusy):
                await log.append([message(1)])
            process.communicate(timeout=END_TIMEOUT_S)
        with pytest.raises(StoreBusy):
            await log.append([message(2)])
        with pytest.raises(ValueError):
            await log.append([message(0)])
        await log.append([message(1)])
        with pytest.raises(ValueError, match="cannot follow"):
            await log.append([message(3)])
        results = await asyncio.gather(*(log.append([message(seq)]) for seq in range(2, 200)))
        assert [list(places) for places in results] == [[seq] for seq in range(2, 200)]
        assert await everything(log) == bodies(some(1, 199))
