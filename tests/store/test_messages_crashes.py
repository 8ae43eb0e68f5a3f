"""`kill -9` at any moment, and a log whose end was lost: what was acknowledged is there once,
in order, and nothing is there by half."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.domain.hub import Keep, PlaceQuery, Replay
from carrel.store.messages import open_log
from tests.sampling import every, examples
from tests.store.children import END_TIMEOUT_S
from tests.store.messages_children import BATCH, WRITERS, child
from tests.store.messages_records import AT, DESK, OTHER, bodies, everything, message, some

ROUNDS = examples(3, exhaustive=12)
FRAME = 4096 + 24
"""A page in SQLite's write-ahead log, with its header."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hub.db"


# -- killed


def _killed(path: Path, after: int) -> dict[int, int]:
    """Lets another process append, and kills it after so many answers. Gives the last that
    it had acknowledged of each space."""
    said = b""
    with child("endless", path) as process:
        assert process.stdout is not None
        while said.count(b"\n") < 1 + after:
            piece = os.read(process.stdout.fileno(), 4096)
            assert piece, "it ended by itself"
            said += piece
        process.kill()
        rest, _ = process.communicate(timeout=END_TIMEOUT_S)
    complete, _, _half = (said + rest).rpartition(b"\n")
    lines = [line.split() for line in complete.splitlines()[1:]]
    return {int(number): int(last) for number, last in lines}


async def _look(path: Path) -> dict[int, int]:
    """Goes over all there is; gives the last of each space."""
    found = {}
    places: list[int] = []
    async with open_log(path) as log:
        for space_id, span in (await log.spans()).items():
            kept = some(span.first, span.last, space_id, size=300)
            assert await log.replay(Replay(space_id, 0, 10**6, 1 << 40)) == (
                bodies(kept),
                span.last,
            )
            assert span.bytes == sum(map(len, bodies(kept)))
            assert span.last % BATCH == 0
            for seq in (await log.consumers(space_id)).values():
                assert seq <= span.last
            found[int(space_id.removeprefix("sp_"))] = span.last
        while page := await log.read(PlaceQuery(after=places[-1] if places else 0)):
            places += [one.place for one in page]
        assert places == sorted(set(places))
        assert places[-1:] == [await log.last_place()] or not places
    return found


@pytest.mark.timeout(300)
async def test_killed_at_any_moment(path: Path) -> None:
    dice = random.Random(20)
    acknowledged: dict[int, int] = {}
    for number in range(ROUNDS):
        # Now and then while it opens the log, in the first round while it makes it.
        after = 0 if number % 4 == 0 else dice.randrange(1, 300)
        acknowledged |= _killed(path, after)
        found = await _look(path)
        assert all(found[one] >= last for one, last in acknowledged.items())
    assert len(acknowledged) == WRITERS
    assert sum(acknowledged.values()) > 1000


# -- the end of the write-ahead log


class _Ends:
    """The files of a log that was in use, and where in its write-ahead log the last
    transaction begins."""

    def __init__(self, folder: Path, target: Path) -> None:
        self.database = (folder / "hub.db").read_bytes()
        self.before = (folder / "before").stat().st_size
        self.log = (folder / "after").read_bytes()
        self.target = target

    def put(self, log: bytes) -> None:
        self.target.write_bytes(self.database)
        Path(f"{self.target}-wal").write_bytes(log)
        Path(f"{self.target}-shm").unlink(missing_ok=True)

    def damaged(self) -> Iterator[bytes]:
        """Every frame's edges and what is around them, and a spread of what lies between."""
        for end in range(self.before, len(self.log)):
            near = (end - 32) % FRAME
            if near < 32 or near > FRAME - 8 or end % 499 == 0:
                yield self.log[:end]
        dice = random.Random(4)
        for size in (1, 7, 24, 100, FRAME, FRAME + 1, 2 * FRAME):
            size = min(size, len(self.log) - self.before)
            yield self.log[:-size] + bytes(size)
            yield self.log[:-size] + dice.randbytes(size)


@pytest.fixture
async def ends(tmp_path: Path, path: Path) -> _Ends:
    folder = tmp_path / "source"
    folder.mkdir()
    source = folder / "hub.db"
    async with open_log(source) as log:
        await log.append(some(1, 50, size=300))
        await log.acknowledge("reader", DESK, 7)
        await log.compact(Keep(messages=40), AT)
        await log.append([message(1, OTHER, origin=5)])
        shutil.copy(f"{source}-wal", folder / "before")
        await log.append([*some(51, 60, size=300), message(2, OTHER, origin=6)])
        shutil.copy(f"{source}-wal", folder / "after")
        shutil.copy(source, folder / "copy")
    (folder / "copy").replace(source)
    return _Ends(folder, path)


async def _whole_or_not(path: Path) -> bool:
    """Whether the last transaction is there; all before it must be. The log goes on."""
    async with open_log(path) as log:
        spans = await log.spans()
        last = spans[DESK].last
        assert (last, spans[OTHER].last) in ((50, 1), (60, 2))
        there = last == 60
        assert spans[DESK].first == 11
        assert await everything(log) == bodies(some(11, last, size=300))
        assert await log.last_origin() == (6 if there else 5)
        assert await log.last_place() == (62 if there else 51)
        assert await log.cursors("reader") == {DESK: 7}
        assert list(await log.append([message(last + 1)])) == [63 if there else 52]
        assert await log._read(
            lambda connection: connection.execute("PRAGMA integrity_check").fetchall()
        ) == [("ok",)]
    return there


async def test_an_end_that_was_lost(ends: _Ends) -> None:
    ends.put(ends.log)
    assert await _whole_or_not(ends.target)
    assert ends.before < len(ends.log)
    for log in every(4, [*ends.damaged()]):
        assert log != ends.log
        ends.put(log)
        assert not await _whole_or_not(ends.target)


async def test_what_was_lost_is_not_found_again(ends: _Ends) -> None:
    """What stood behind the damage must not come back when the log grows over it."""
    ends.put(ends.log[: ends.before] + bytes(FRAME) + ends.log[ends.before + FRAME :])
    for _ in range(2):
        async with open_log(ends.target) as log:
            last = (await log.spans())[DESK].last
            await log.append([message(last + 1)])
    async with open_log(ends.target) as log:
        found = await everything(log)
    assert [int(match[1]) for body in found if (match := re.search(rb'"seq": (\d+)', body))] == [
        *range(11, 53)
    ]
