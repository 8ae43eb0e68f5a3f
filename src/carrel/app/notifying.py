"""Telling a person, by the ways that the settings name."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from carrel.config import Settings
from carrel.hub.hub import Hub
from carrel.interfaces.notifying.desktop import find_desktop
from carrel.interfaces.notifying.notifier import Notifier, Way
from carrel.interfaces.notifying.webhook import Webhook

FAILED = "notice.failed"


@asynccontextmanager
async def notifying(settings: Settings, hub: Hub) -> AsyncIterator[None]:
    ways = _ways(settings)
    if not ways:
        yield
        return

    def failed(space_id: str, notice: dict[str, Any], why: str) -> None:
        hub.tell(space_id, FAILED, {"id": notice["id"], "why": why})

    note = settings.data / "notified"
    notifier = Notifier(hub.log, hub.keeper, note, ways, failed)
    hub.on_kept.append(notifier.ring)
    task = asyncio.create_task(notifier.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _ways(settings: Settings) -> list[Way]:
    ways: list[Way] = [Webhook(settings.webhook)] if settings.webhook else []
    desktop = find_desktop(os.environ) if settings.desktop else None
    return ways if desktop is None else [*ways, desktop]
