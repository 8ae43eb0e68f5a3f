"""The daemon is killed at a few random moments under load; `tests.faults.kills` has more."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.kills import Kills, Plan
from tests.soak.__main__ import soaked

MOMENTS = 5
LEAST = 3
"""Of them, on a machine on which every start takes seconds."""
SECONDS = 40.0
BOUND_S = 110.0
"""With a little more for what follows the last one; less than a test may take."""


@pytest.mark.parametrize("seed", [1])
async def test_killed_at_random_moments(seed: int) -> None:
    with soaked() as (data, project):
        kills = Kills(data, project, Plan(MOMENTS, clients=4, seed=seed, seconds=SECONDS))
        async with asyncio.timeout(BOUND_S):
            await kills.run()
    assert kills.kills >= LEAST
    assert kills.ledger.runs and kills.lines
