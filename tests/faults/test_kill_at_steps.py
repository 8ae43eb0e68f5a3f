"""The daemon is killed at the writes of every operation; its successor sets things right.

Right before a write something is done, but not written down; right after it, the next is not yet
begun. A sample has one of both for operations that are much alike.
"""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from carrel.app.service import Services, open_service
from carrel.config import Settings
from carrel.domain.access import LOCAL
from carrel.domain.runs import RunRecord, RunState, Stream
from carrel.domain.runtimes import ExitReason
from carrel.domain.spaces import Space, SpaceQuery, SpaceState
from carrel.lifecycle.table import SETTLED
from tests.etc import share_etc
from tests.faults.child import SCENARIOS, play
from tests.forking import forked
from tests.launchers import nursery
from tests.load.clearing import end_everything
from tests.sampling import EXHAUSTIVE, every
from tests.service.rig import RUN_S, leftovers, output, run

CHILD_S = 90.0
"""A scenario takes about a second; its own bound is shorter than this one."""
MOST_WRITES = 40
"""No operation has so many; a scenario that needs more shows that here."""
ELSEWHERE = {("run", "after"), ("run_on", "before"), ("stop", "after"), ("start", "before")}
"""What a sample leaves to the operation that is the most alike, at the other moment."""
CASES = [
    (scenario, moment)
    for scenario in SCENARIOS
    for moment in ("before", "after")
    if EXHAUSTIVE or (scenario, moment) not in {*ELSEWHERE, ("undelete", "after")}
]


def act(told: Path, data: Path, scenario: str, moment: str, number: int) -> list[dict[str, Any]]:
    """What the killed one had acknowledged, which is in the file `told`."""
    args = (nursery(), str(told), str(data), scenario, moment, number)
    process = forked.Process(target=play, args=args)
    process.start()
    process.join(CHILD_S)
    assert process.exitcode in (0, -9)
    return [json.loads(line) for line in told.read_text().splitlines()]


@pytest.mark.parametrize(("scenario", "moment"), CASES)
async def test_killed_at_its_writes(scenario: str, moment: str, data: Path, tmp_path: Path) -> None:
    """All of them on one data folder: what one leaves would be the next one's trouble."""
    share_etc(data)
    try:
        for number in every(4, range(1, MOST_WRITES)):
            told = tmp_path / "told"
            said = await asyncio.to_thread(act, told, data, scenario, moment, number)
            async with open_service(Settings(data=data)) as services:
                await check(services, said)
                await clear(services, data)
            if any("writes" in one for one in said):
                assert number > 1
                return
        raise AssertionError("the operation never ends")
    finally:
        await asyncio.to_thread(end_everything, data)


async def check(services: Services, said: list[dict[str, Any]]) -> None:
    told = {key: value for one in said for key, value in one.items()}
    async with asyncio.timeout(RUN_S):
        await services.reconciler.cleared()
    page = await services.spaces.list(LOCAL, SpaceQuery(limit=1000))
    assert all(space.state in SETTLED for space in page.spaces), page.spaces
    there = {space.space_id: space for space in page.spaces}
    for one in said:
        if "created" in one and one["created"] != told.get("removed"):
            assert_not_lost(there, one["created"], told)
    if "stopped" in told:
        assert there[told["stopped"]].state is SpaceState.STOPPED
    if "removed" in told:
        assert told["removed"] not in there
    if "wrote" in told:
        await check_work(services, there, told)
    for record in await services.store.runs(limit=1000):
        await check_run(services, record)


def assert_not_lost(there: dict[str, Space], space_id: str, told: dict[str, Any]) -> None:
    """A removal that was asked for may have been carried on."""
    assert space_id in there or "wrote" in told


async def check_work(services: Services, there: dict[str, Space], told: dict[str, Any]) -> None:
    """What was written is in the space, in the trash, or in what was undeleted from it."""
    found = []
    for space in there.values():
        if space.state is SpaceState.STOPPED:
            await services.spaces.start(LOCAL, space.space_id)
        _, text = await run(services, space, "cat work.txt")
        found.append(text)
    trash = [entry.space.space_id for entry in await services.spaces.trashed(LOCAL)]
    if "precious\n" not in found:
        assert told["wrote"] in trash
        back = await services.spaces.undelete(LOCAL, told["wrote"])
        _, text = await run(services, back, "cat work.txt")
        assert text == "precious\n"


async def check_run(services: Services, record: RunRecord) -> None:
    if record.argv == ("sleep", "1000"):
        # Whether it was stopped or goes on: the successor has it in its hands.
        await services.runs.signal(record.run_id, signal.SIGKILL)
    if "-e go" in record.argv[-1] and record.state is RunState.RUNNING:
        await run(services, await services.spaces.get(LOCAL, record.space_id), "touch go")
    async with asyncio.timeout(RUN_S):
        record = await services.runs.wait(record.run_id)
    assert record.state in (RunState.ENDED, RunState.FAILED)
    if record.state is RunState.FAILED:
        assert (await services.runs.read(record, Stream.STDOUT, 0, 10)).data == b""
        return
    assert record.exit is not None
    assert record.exit.reason is not ExitReason.LOST
    script = record.argv[-1]
    if "exit 7" in script:
        assert record.exit.code == 7
        assert await output(services, record) == "out\nerr\n"
    if "exit 9" in script:
        assert record.exit.code == 9
        lines = (await output(services, record)).splitlines()
        assert lines == [f"line {number}" for number in range(2000)]


async def clear(services: Services, data: Path) -> None:
    """Everything can be removed, and then nothing is left."""
    page = await services.spaces.list(LOCAL, SpaceQuery(limit=1000))
    for space in page.spaces:
        await services.spaces.remove(LOCAL, space.space_id, force=True, grace_s=0.2)
    for entry in await services.spaces.trashed(LOCAL):
        await services.spaces.purge(entry)
    await services.reconciler.sweep()
    gone = await services.spaces.list(
        LOCAL, SpaceQuery(states=frozenset({SpaceState.REMOVED}), limit=1000)
    )
    assert leftovers(data, *(space.space_id for space in gone.spaces)) == []
