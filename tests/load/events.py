"""Somebody who follows all events, and sees that none is missing."""

from __future__ import annotations

import asyncio
from collections import Counter

from carrel.client import AsyncClient
from carrel.client.events import GAP
from carrel.domain.spaces import SpaceState
from carrel.lifecycle.table import can_move
from tests.load.ledger import Ledger

CATCH_UP_S = 60.0
"""An event is told a moment after it happened; the rest is for a loaded machine."""
_STEP_S = 0.05


class Follower:
    """Over any number of connections. `dense`: numbers have no gaps, as long as nobody asks for
    a workspace whose log goes with it."""

    def __init__(self, client: AsyncClient, *, dense: bool = True) -> None:
        self._client = client
        self._dense = dense
        self._last: int | None = None
        self._states: dict[str, SpaceState] = {}
        self.count = 0
        self.started: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()

    async def follow(self) -> None:
        """Until it is cancelled."""
        async for event in self._client.events(after=0):
            assert event.type != GAP, event
            if self._last is not None:
                fits = event.seq == self._last + 1 if self._dense else event.seq > self._last
                assert fits, (self._last, event)
            self._last = event.seq
            self.count += 1
            if event.type == "space.state":
                self._moved(event.space, SpaceState(event.data["to"]))
            elif event.type == "run.started":
                self.started[event.data["run_id"]] += 1
            elif event.type == "run.ended":
                self.ended[event.data["run_id"]] += 1

    def _moved(self, space: str, state: SpaceState) -> None:
        before = self._states.get(space)
        assert before is None or can_move(before, state), (space, before, state)
        self._states[space] = state

    async def check(self, ledger: Ledger) -> None:
        """That it heard of all that the clients know of."""
        async with asyncio.timeout(CATCH_UP_S):
            while missing := self._missing(ledger):
                await asyncio.sleep(_STEP_S)
        assert not missing
        twice = [run_id for run_id, count in self.ended.items() if count > 1]
        assert twice == []

    def _missing(self, ledger: Ledger) -> list[str]:
        gone = ledger.ever - ledger.held.keys()
        removed = [one for one in gone if self._states.get(one) is not SpaceState.REMOVED]
        return [*removed, *(run_id for run_id in ledger.runs if not self.ended[run_id])]
