"""Commands that end with whoever watches them."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from carrel.domain.errors import RunNotFound
from carrel.domain.runs import RunRecord, RunState
from carrel.service import runs
from carrel.service.runs import HANGUP, Hangups

SHORT_S = 0.02


class Running:
    """Stands for `Runs`: the commands in it run until they are hung up."""

    def __init__(self, *records: RunRecord) -> None:
        self.records = {record.run_id: record for record in records}
        self.signals: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    def alive(self) -> list[RunRecord]:
        return list(self.records.values())

    def live(self, run_id: str) -> RunRecord | None:
        return self.records.get(run_id)

    async def signal(self, run_id: str, number: int) -> None:
        self.signals.put_nowait((run_id, number))
        if self.records.pop(run_id, None) is None:
            raise RunNotFound("gone")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "WAIT_S", SHORT_S)


def record(run_id: str, *, hangup: bool = True) -> RunRecord:
    return RunRecord(run_id, "sp", ("x",), RunState.RUNNING, 0.0, hangup=hangup)


def of(runs: Running) -> Hangups:
    stands_for: Any = runs
    return Hangups(stands_for)


async def heard(runs: Running) -> tuple[str, int]:
    return await asyncio.wait_for(runs.signals.get(), 10)


async def test_the_last_to_leave_hangs_up() -> None:
    runs = Running(one := record("one"))
    watch = of(runs)
    with watch.watching(one):
        with watch.watching(one):
            pass
        await asyncio.sleep(2 * SHORT_S)
        assert runs.signals.empty()
    assert await heard(runs) == ("one", HANGUP)
    await watch.close()


async def test_who_is_back_in_time_goes_on() -> None:
    runs = Running(one := record("one"))
    watch = of(runs)
    with watch.watching(one):
        pass
    with watch.watching(one):
        await asyncio.sleep(2 * SHORT_S)
        assert runs.signals.empty()
    await watch.close()
    await asyncio.sleep(2 * SHORT_S)
    assert runs.signals.empty()


async def test_only_those_that_ask_for_it() -> None:
    runs = Running(one := record("one", hangup=False))
    watch = of(runs)
    with watch.watching(one):
        pass
    watch.begin()
    await asyncio.sleep(2 * SHORT_S)
    assert runs.signals.empty()
    await watch.close()


async def test_after_a_restart_clients_have_some_time() -> None:
    runs = Running(one := record("one"), record("two"))
    watch = of(runs)
    watch.begin()
    with watch.watching(dataclasses.replace(one)):
        assert await heard(runs) == ("two", HANGUP)
        assert runs.signals.empty()
    await watch.close()
