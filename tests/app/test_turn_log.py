"""Events of agents on their way into the log of their space."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from carrel.app import agents
from carrel.app.agents import HubTurnLog
from carrel.domain.errors import CarrelError, InsufficientDisk, StoreBusy, StoreDamaged
from carrel.domain.hub import Replay
from carrel.domain.turns import AgentEvent, AgentEventType, Turn, TurnState
from carrel.hub.hub import HubServer, Options
from tests.hub.memory_log import MemoryLog
from tests.hub.rig import SPACE, WAIT_S, KnownSpaces

TURN = Turn("ru_1", SPACE, "se_1", "scripted", "any", "hello", TurnState.RUNNING, 0.0)


def events(*seqs: int, type: AgentEventType = AgentEventType.MESSAGE) -> list[AgentEvent]:
    return [AgentEvent(type, 0.0, seq, "se_1", "ru_1", {"text": "hi"}) for seq in seqs]


@pytest.fixture
async def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
async def turn_log(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HubTurnLog]:
    monkeypatch.setattr(agents, "pauses", lambda: itertools.repeat(0.0))
    hub = HubServer(log, KnownSpaces(), Options())
    await hub.open()
    yield HubTurnLog(hub)
    log.failing = None
    await hub.close()


async def kept(log: MemoryLog) -> int:
    bodies, _ = await log.replay(Replay(SPACE, 0))
    return len(bodies)


async def test_what_is_told_is_kept_and_counted(turn_log: HubTurnLog, log: MemoryLog) -> None:
    await turn_log.tell(SPACE, events(1, 2, 3))
    assert await kept(log) == 3 and await turn_log.told(TURN) == 3


async def test_parts_of_messages_are_not_kept(turn_log: HubTurnLog, log: MemoryLog) -> None:
    await turn_log.tell(SPACE, events(1, 2, type=AgentEventType.MESSAGE_DELTA))
    assert await kept(log) == 0


@pytest.mark.parametrize("error", [StoreBusy("too much"), InsufficientDisk("no room")])
async def test_a_log_that_takes_nothing_is_waited_for(
    turn_log: HubTurnLog, log: MemoryLog, error: CarrelError
) -> None:
    log.failing = error
    telling = asyncio.create_task(turn_log.tell(SPACE, events(1, 2)))
    async with asyncio.timeout(WAIT_S):
        while not log.waiting:
            await asyncio.sleep(0)
        while log.waiting:
            await asyncio.sleep(0)
    assert not telling.done()
    log.failing = None
    await asyncio.wait_for(telling, WAIT_S)
    assert await kept(log) == 2 and await turn_log.told(TURN) == 2


async def test_a_broken_log_is_not_waited_for(turn_log: HubTurnLog, log: MemoryLog) -> None:
    log.failing = StoreDamaged("broken")
    with pytest.raises(StoreDamaged):
        await turn_log.tell(SPACE, events(1))
