"""`kill -9` at any moment: what was acknowledged is there, and nothing is there by half."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from carrel.domain.events import EventQuery
from carrel.domain.spaces import SpaceQuery
from carrel.store import open_store
from tests.sampling import examples
from tests.store.children import END_TIMEOUT_S, child

ROUNDS = examples(4, exhaustive=20)
MOST = 10**6


def _killed(path: Path, first: int, after: int) -> set[int]:
    """Lets another process write, and kills it after so many answers. Gives what it had
    acknowledged."""
    said = b""
    with child("endless", path, str(first)) as process:
        assert process.stdout is not None
        while said.count(b"\n") < 1 + after:
            piece = os.read(process.stdout.fileno(), 4096)
            assert piece, "it ended by itself"
            said += piece
        process.kill()
        rest, _ = process.communicate(timeout=END_TIMEOUT_S)
    complete, _, _half = (said + rest).rpartition(b"\n")
    return {int(line) for line in complete.splitlines()[1:]}


async def _look(path: Path) -> dict[str, set[int]]:
    """Which numbers have each of the records that were written together."""
    async with open_store(path) as store:
        spaces = (await store.spaces(SpaceQuery(limit=MOST))).spaces
        events = await store.events(EventQuery(limit=MOST))
        runs = await store.runs(limit=MOST)
        steps = [one for space in spaces for one in await store.steps(space.space_id)]
        # Dense, and in the order in which they were written.
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert len(steps) == len(spaces) == len(runs) == len(events)
        assert sum((await store.count()).values()) == len(spaces)
    return {
        "spaces": {int(space.created_at) for space in spaces},
        "events": {int(str(event.data["n"])) for event in events},
        "runs": {run.pid for run in runs},
    }


@pytest.mark.timeout(300)
async def test_killed_at_any_moment(path: Path) -> None:
    dice = random.Random(20)
    acknowledged: set[int] = set()
    first = 0
    for number in range(ROUNDS):
        # Now and then while it opens the database, in the first round while it makes it.
        after = 0 if number % 5 == 0 else dice.randrange(1, 500)
        acknowledged |= _killed(path, first, after)
        found = await _look(path)
        assert found["spaces"] == found["events"] == found["runs"]
        assert acknowledged <= found["spaces"]
        first = max(found["spaces"], default=0) + 1
    assert len(acknowledged) > 1000
