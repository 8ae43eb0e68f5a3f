"""What tests of the log let other processes do:
`python -m tests.store.messages_children VERB PATH`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from carrel.domain.errors import CarrelError, InsufficientDisk
from carrel.domain.hub import Keep, Sync
from carrel.store.messages import open_log
from tests.store import children
from tests.store.children import say
from tests.store.messages_records import bodies, everything, message, some

WRITERS = 8
BATCH = 7
MOST = 5000
"""Appends of a kilobyte and more: more than there is room for."""


child = partial(children.child, module=__name__)


async def endless(path: Path) -> None:
    """Appends without end, compacts now and then, and says what was acknowledged."""
    say("up")
    async with open_log(path) as log:
        spans = await log.spans()

        async def work(number: int) -> None:
            space_id = f"sp_{number}"
            last = spans[space_id].last if space_id in spans else 0
            while True:
                batch = some(last + 1, last + BATCH, space_id, size=300)
                await log.append(batch, sync=number % 2 == 0)
                last += BATCH
                say(f"{number} {last}")
                await log.acknowledge("reader", space_id, last)
                if last % 50 == 0:
                    await log.compact(Keep(messages=400), 0.0, space_id)

        await asyncio.gather(*(work(number) for number in range(WRITERS)))


async def tell_opening(path: Path) -> None:
    """Says with which code the opening failed, if it did."""
    try:
        async with open_log(path) as log:
            await log.append([message((await log.last_place()) + 1)])
            say("ok")
    except CarrelError as error:
        say(error.code)


async def check_full_disk(
    path: Path, fill: Callable[[], None], relieve: Callable[[], None]
) -> None:
    """Appends until there is no room, one by one and many at once; what was acknowledged is
    there, the rest is not, and when there is room again the log goes on."""
    async with open_log(path, sync=Sync.PROCESS) as log:
        last = 0

        async def append() -> None:
            nonlocal last
            await log.append([message(last + 1, size=1000)])
            last += 1

        await append()
        fill()
        with pytest.raises(InsufficientDisk) as caught:
            for _ in range(MOST):
                await append()
        assert str(path) in caught.value.message
        # Each but the first follows one that fails: not a mistake of its caller.
        calls = [log.append([message(last + n, size=1000)]) for n in range(1, 200)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        failed = [isinstance(one, BaseException) for one in results]
        assert {type(one) for one in results if isinstance(one, BaseException)} == {
            InsufficientDisk
        }
        assert failed == sorted(failed)
        last += failed.count(False)
        relieve()
        await append()
        expected = bodies(some(1, last, size=1000))
        assert await everything(log) == expected
    async with open_log(path) as log:
        assert await everything(log) == expected
        await log.append([message(last + 1)])


limited = partial(children.limited, check=check_full_disk)


def main(verb: str, path: Path) -> None:
    match verb:
        case "endless":
            asyncio.run(endless(path))
        case "open":
            asyncio.run(tell_opening(path))
        case "limited":
            asyncio.run(limited(path))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
