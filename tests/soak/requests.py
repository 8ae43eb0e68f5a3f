"""Thousands of ephemeral requests in a row: `python -m tests.soak.requests [--count 5000]`.

Ends with 0 when each had its own result and nothing of them is left, else with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import traceback
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from carrel.client import AsyncClient
from carrel.config import Settings
from carrel.service.requests.retention import FORGET_EVERY
from carrel.store.database import KEEP_EVENTS
from carrel.store.writes import PRUNE_EVERY
from tests.load.holdings import EVENTS, REQUESTS, Holdings, holdings
from tests.soak.__main__ import soaked

LANES = 4
"""Requests that are under way at the same time; each is followed by the next."""
QUIET_S = 90.0
"""For sandboxes in which nothing runs to end, which they do after a while."""
MORE_MIB = 16.0
MORE_DESCRIPTORS = 8
_STEP_S = 0.5
_SAID_EVERY = 500


@dataclass(frozen=True)
class Row:
    """What was there before and after."""

    count: int
    seconds: float
    before: Holdings
    after: Holdings

    def __str__(self) -> str:
        lines = [f"{self.count} requests in {self.seconds:.0f} s"]
        for when, one in (("before", self.before), ("after", self.after)):
            lines.append(
                f"{when:6}  {len(one.files)} files, {one.bytes} bytes, {one.mounts} mounts, "
                f"{one.processes} processes, daemon {one.daemon.rss_mib:.1f} MiB, launcher "
                f"{one.launcher.rss_mib:.1f} MiB, databases {one.databases / (1 << 20):.1f} MiB, "
                f"rows {dict(one.rows)}"
            )
        return "\n".join(lines)


async def in_a_row(data: Path, warm_up: int, count: int) -> Row:
    """Raises AssertionError for a result that is not its own, and for what is left. Those of
    the warming up fill what has a bound."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient(data=data))
        await _ask(client, warm_up)
        before = await _quiet(data)
        begun = time.monotonic()
        await _ask(client, count)
        seconds = time.monotonic() - begun
        after = await _quiet(data, like=before)
    row = Row(count, seconds, before, after)
    print(row, flush=True)
    _judge(row)
    return row


async def _ask(client: AsyncClient, count: int) -> None:
    numbers = iter(range(count))

    async def lane() -> None:
        for number in numbers:
            if number % _SAID_EVERY == _SAID_EVERY - 1:
                print(f"{number + 1} of {count}", flush=True)
            await _one(client, number)

    async with asyncio.TaskGroup() as group:
        for _ in range(LANES):
            group.create_task(lane())


async def _one(client: AsyncClient, number: int) -> None:
    path, text = f"made-{number}.txt", f"hello {number}"
    asked = f"write {path} {text}\nsay done"
    stream = await client.requests.generate(asked, frontend="scripted")
    async with stream:
        result = await stream.result()
    found = [(file.path, file.change, file.text) for file in result.files]
    assert result.complete and found == [(path, "added", f"{text}\n")], result


async def _quiet(data: Path, like: Holdings | None = None) -> Holdings:
    """When nothing changes any more; or when all that was there is there again."""
    until = time.monotonic() + QUIET_S
    found = await asyncio.to_thread(holdings, data)
    while time.monotonic() < until:
        await asyncio.sleep(_STEP_S)
        last, found = found, await asyncio.to_thread(holdings, data)
        at_rest = not any((data / "spaces").iterdir()) and found.rows == last.rows
        if at_rest and found.processes <= (last if like is None else like).processes:
            break
    return found


def _judge(row: Row) -> None:
    before, after = row.before, row.after
    remembered = Settings(data=Path("/")).requests_remembered
    bounds = {EVENTS: KEEP_EVENTS + PRUNE_EVERY, REQUESTS: remembered + FORGET_EVERY}
    assert after.files <= before.files, sorted(after.files - before.files)
    assert after.bytes <= before.bytes and after.mounts <= before.mounts, row
    assert after.processes <= before.processes, row
    assert not after.more_rows(before, bounds), after.more_rows(before, bounds)
    for first, last in ((before.daemon, after.daemon), (before.launcher, after.launcher)):
        assert last.descriptors <= first.descriptors + MORE_DESCRIPTORS, (first, last)
        assert last.rss_mib <= first.rss_mib + MORE_MIB, (first, last)


def main() -> int:
    parser = argparse.ArgumentParser(description="Many ephemeral requests, one after the other.")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--warm-up", type=int, default=1100)
    given = parser.parse_args()
    try:
        with soaked() as (data, _):
            asyncio.run(in_a_row(data, given.warm_up, given.count))
    except BaseException:
        traceback.print_exc()
        print("FAILED")
        return 1
    print("each had its own result, and nothing is left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
