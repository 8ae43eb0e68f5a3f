"""The one way into the log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from carrel.domain.errors import CarrelError, InsufficientDisk, StoreBusy
from carrel.hub import log
from carrel.hub.envelopes import SYSTEM, Said, raw
from carrel.hub.log import LogWriter, Pending
from tests.hub.memory_log import MemoryLog

WAIT_S = 30.0
SPACE = "sp_aaaaaaaaaaaa"


class Rig:
    def __init__(self) -> None:
        self.log = MemoryLog()
        self.told: list[int] = []
        self.batches: list[int] = []
        self.bodies: list[bytes] = []
        self.answers: list[tuple[int, str]] = []
        self.keeper = LogWriter(self.log, self._kept)

    def _kept(self, batch: list[Pending]) -> Iterator[int]:
        self.batches.append(len(batch))
        for one in batch:
            self.told += range(one.first, one.last + 1)
            self.bodies += [line for run in one.runs for line in run.body.split(b"\n")]
            yield 1

    def _done(self, one: Pending, error: CarrelError | None) -> None:
        self.answers.append((one.first, "" if error is None else error.code))

    def keep(self, number: int, origin: int = 0, many: int = 1, account: str = "local") -> None:
        done = None if origin else self._done
        type = "space.state" if origin else "buffer_custom_x"
        said = [Said(type, raw({"number": number}), f"m{number}.{n}") for n in range(many)]
        self.keeper.keep(
            Pending(SPACE, 1.0, SYSTEM, said, origin=origin, done=done, account=account)
        )

    async def settled(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self.keeper.settled()


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_what_comes_together_is_one_batch(rig: Rig) -> None:
    for number in range(100):
        rig.keep(number)
    await rig.settled()
    assert rig.batches == [100] and rig.told == list(range(1, 101))
    assert rig.answers == [(seq, "") for seq in range(1, 101)]


async def test_what_is_said_at_once_stays_in_one_batch(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MOST", 10)
    for many in (4, 5, 3, 25, 1):
        rig.keep(many, many=many)
    await rig.settled()
    assert rig.batches == [2, 1, 1, 1]
    assert rig.told == list(range(1, 39))
    assert rig.answers == [(first, "") for first in (1, 5, 10, 13, 38)]


async def test_others_have_their_turn_while_much_is_told(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody waits for what is told after his own."""
    monkeypatch.setattr(log, "TELL_S", 0.0)
    for number in range(5):
        rig.keep(number)
    seen = {0}
    async with asyncio.timeout(WAIT_S):
        while len(rig.answers) < 5:
            await asyncio.sleep(0)
            seen.add(len(rig.answers))
            assert rig.keeper.last(SPACE) == len(rig.answers) == len(rig.told)
    assert seen == {0, 1, 2, 3, 4, 5} and rig.batches == [5]


async def test_too_much_is_counted_by_messages(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MOST_WAITING", 10)
    rig.keep(0, many=10)
    with pytest.raises(StoreBusy):
        rig.keep(1)
    await rig.settled()
    rig.keep(2)
    await rig.settled()
    assert rig.told == list(range(1, 12))


async def test_who_floods_waits_and_keeps_nobody_waiting(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accounts take turns, and each has a part of the room; the owner has his own."""
    monkeypatch.setattr(log, "MOST", 4)
    monkeypatch.setattr(log, "MOST_WAITING", 20)
    monkeypatch.setattr(log, "MOST_OF_ACCOUNT", 10)
    for number in range(10):
        rig.keep(number, account="blue")
    with pytest.raises(StoreBusy):
        rig.keep(10, account="blue")
    for number in range(10):
        rig.keep(number, account="red")
    with pytest.raises(StoreBusy):
        rig.keep(0, account="green")
    rig.keep(100)
    settled = asyncio.create_task(rig.keeper.settled())
    async with asyncio.timeout(WAIT_S):
        while not rig.batches:
            await asyncio.sleep(0)
    # The third of the first four: blue, red, own, blue.
    assert [b'"number":100' in body for body in rig.bodies[:4]] == [False, False, True, False]
    assert not settled.done()
    rig.keep(101)
    await asyncio.wait_for(settled, WAIT_S)
    await rig.settled()
    assert sorted(rig.told) == list(range(1, 23)) and len(rig.answers) == 22


async def test_carrels_own_words_wait_for_more_of_them(rig: Rig) -> None:
    rig.keep(1, origin=1)
    for _ in range(5):
        await asyncio.sleep(0)
    rig.keep(2, origin=2)
    assert rig.batches == []
    async with asyncio.timeout(WAIT_S):
        while not rig.batches:
            await asyncio.sleep(0)
    assert rig.batches == [2]


async def test_nobody_elses_words_wait_for_that(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "GATHER_S", 3600.0)
    monkeypatch.setattr(log, "MOST", 10)
    rig.keep(1, origin=1)
    await asyncio.sleep(0)
    for number in range(25):
        rig.keep(number)
    async with asyncio.timeout(WAIT_S):
        while len(rig.answers) < 25:
            await asyncio.sleep(0)
    rig.keep(1, origin=2)
    await rig.settled()
    assert rig.told == list(range(1, 28))


async def test_what_is_given_later_is_not_waited_for(rig: Rig) -> None:
    """Else whoever reads would wait for as long as somebody writes."""
    rig.keep(0)
    settled = asyncio.create_task(rig.keeper.settled())
    number = 1
    async with asyncio.timeout(WAIT_S):
        while not settled.done():
            rig.keep(number)
            number += 1
            await asyncio.sleep(0)
    await rig.settled()


async def test_a_full_disk_leaves_no_gap_and_loses_nothing_of_carrels_own(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "RETRY_S", 0.0)
    rig.log.failing = InsufficientDisk("no room")
    rig.keep(1)
    rig.keep(2, origin=5)
    await rig.settled()
    assert [code for _, code in rig.answers] == ["insufficient_disk"] and rig.told == []
    rig.log.failing = None
    rig.keep(3)
    async with asyncio.timeout(WAIT_S):
        while len(rig.told) < 2:
            await asyncio.sleep(0)
    assert rig.told == [1, 2]
    assert await rig.log.last_origin() == 5
