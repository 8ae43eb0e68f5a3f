"""A few seconds of the soak; `python -m tests.soak` takes ten minutes."""

from __future__ import annotations

import asyncio

from tests.soak.__main__ import soaked
from tests.soak.soak import Plan, Soak

SECONDS = 5.0
BOUND_S = 110.0
"""The clients finish what they do; less than a test may take."""


async def test_a_short_soak() -> None:
    with soaked() as (data, project):
        plan = Plan(SECONDS, clients=6, seed=1, flat_memory=False)
        async with asyncio.timeout(BOUND_S):
            report = await Soak(data, project, plan).run()
    assert [figures.when for figures in report.figures] == ["start", "middle", "end"]
    assert report.ledger.counts["create"] >= plan.clients
    assert report.events and report.ledger.runs and report.ledger.counts["request"]
