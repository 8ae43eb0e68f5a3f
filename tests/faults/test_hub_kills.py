"""The short form of `python -m tests.faults.hub_kills`."""

from __future__ import annotations

import random
from pathlib import Path

from tests.faults.hub_kills import Plan, daemon, run


async def test_what_was_acknowledged_outlives_the_daemon(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    with daemon(tmp_path) as data:
        ledger = await run(data, Plan(4, 4000, random.Random(7)))
    assert len(ledger.acknowledged) > 100
