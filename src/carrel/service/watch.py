"""What the daemon does by itself, now and then."""

from __future__ import annotations

import asyncio
import logging

from carrel.domain.events import EventType
from carrel.domain.runtimes import LimitHit
from carrel.service.gc import Collector
from carrel.service.journal import Journal
from carrel.service.reconciling import Reconciler

EVERY_S = 30.0
"""The health of all spaces is looked at so often."""
_log = logging.getLogger("carrel")


class Watch:
    """One task for all spaces. What goes wrong in it is told, and tried again next time."""

    def __init__(self, journal: Journal, collector: Collector, reconciler: Reconciler) -> None:
        self._journal = journal
        self._collector = collector
        self._reconciler = reconciler
        self._writes: set[asyncio.Task[None]] = set()

    def limit_hit(self, hit: LimitHit) -> None:
        """Becomes an event of the space; called on the event loop."""
        data = {"kind": str(hit.kind), "figure": hit.figure, "message": hit.message}
        if hit.run_id is not None:
            data["run_id"] = hit.run_id
        event = self._journal.event(EventType.LIMIT_HIT, hit.sandbox_id, **data)
        task = asyncio.create_task(self._journal.write(event))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def run(self, every_s: float = EVERY_S) -> None:
        """Until it is cancelled. Begins with a look for what a crash has left."""
        first = True
        while True:
            try:
                if first:
                    await self._reconciler.sweep()
                await self._reconciler.settle()
                await self._reconciler.check()
                await self._collector.retire()
            except Exception:
                _log.exception("the regular look at all spaces failed")
            first = False
            await asyncio.sleep(every_s)
