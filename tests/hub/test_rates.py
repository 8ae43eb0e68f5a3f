"""How much of the daemon's time the connections of one caller take."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from carrel.hub import rates
from carrel.hub.rates import SLICE, Intake, Pace
from tests.idle_time import IdleTimeLoop

SLICE_S = 0.01
"""What the test takes for a slice."""
SLICES = 20


class Pipe:
    """A transport that only says whether it is read."""

    def __init__(self) -> None:
        self.read = True

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.read = False

    def resume_reading(self) -> None:
        self.read = True


class Client:
    def __init__(self, loop: IdleTimeLoop, pace: Pace | None, free: int = 0) -> None:
        self.pipe, self.taken, self.held = Pipe(), bytearray(), False
        self._loop = loop
        transport = cast(asyncio.Transport, self.pipe)
        self.intake = Intake(transport, self._take, lambda: pace, lambda: self.held, free)

    def _take(self, data: bytes) -> None:
        self._loop.work(SLICE_S)
        self.taken += data


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> IdleTimeLoop:
    loop = IdleTimeLoop()
    clock = SimpleNamespace(monotonic=loop.time, thread_time=loop.time)
    monkeypatch.setattr(rates, "time", clock)
    return loop


DATA = bytes(range(256)) * (SLICES * SLICE // 256)


def test_what_all_of_a_caller_bring_takes_its_share_of_time(loop: IdleTimeLoop) -> None:
    """However much is there at once, between two looks at others there is one slice of it."""

    async def scenario() -> None:
        loop.work(100)
        pace = Pace(0.2, 5 * SLICE_S)
        clients = [Client(loop, pace) for _ in range(10)]
        other = Client(loop, None)
        begun = loop.time()
        for client in clients:
            client.intake.came(DATA)
        assert loop.time() - begun <= 7 * SLICE_S
        assert not any(client.pipe.read for client in clients)
        other.intake.came(DATA)
        assert other.taken == DATA and other.pipe.read
        while any(client.intake.waits for client in clients):
            await asyncio.sleep(SLICE_S)
        spent = 10 * SLICES * SLICE_S / 0.2
        assert 0.9 * spent <= loop.time() - begun <= 1.1 * spent
        assert all(client.taken == DATA and client.pipe.read for client in clients)

    loop.run_until_complete(scenario())
    loop.close()


def test_who_can_take_no_more_is_given_the_rest_when_it_can(loop: IdleTimeLoop) -> None:
    async def scenario() -> None:
        client = Client(loop, Pace(1.0, 1000.0))
        client.held = True
        client.intake.came(DATA)
        client.intake.came(b"end")
        assert not client.taken and not client.pipe.read
        client.held = False
        client.intake.go_on()
        await asyncio.sleep(1)
        assert client.taken == DATA + b"end" and client.pipe.read

    loop.run_until_complete(scenario())
    loop.close()


def test_the_beginning_of_a_connection_waits_for_nobody(loop: IdleTimeLoop) -> None:
    async def scenario() -> None:
        pace = Pace(0.1, 0.0)
        pace.spend(60.0, loop.time())
        client = Client(loop, pace, 100)
        client.intake.came(DATA)
        assert client.taken == DATA[:100]
        client.intake.close()

    loop.run_until_complete(scenario())
    loop.close()
