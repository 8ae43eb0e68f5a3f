"""Keeping the log within its bounds, and saying so where somebody would miss something."""

from __future__ import annotations

import time

from carrel.domain.hub import Dropped, HubLog, Keep
from carrel.hub.access import Spaces
from carrel.hub.envelopes import SYSTEM, Said, raw
from carrel.hub.keeping import Keeper, Pending

DROPPED = "buffer_dropped"


async def compact(
    log: HubLog, keeper: Keeper, spaces: Spaces, keep: Keep, now: float | None = None
) -> None:
    """What nobody acknowledged goes only after the log says so."""
    now = time.time() if now is None else now
    for one in await log.overdue(keep, now):
        if one.missed and spaces.exists(one.space_id):
            keeper.keep(_notice(one, now))
    await keeper.settled()
    await log.compact(keep, now)
    await _forget_removed(log, keeper, spaces, keep, now)


async def _forget_removed(
    log: HubLog, keeper: Keeper, spaces: Spaces, keep: Keep, now: float
) -> None:
    """Of a space that is gone, the last message stays as long as others do."""
    if not keep.seconds:
        return
    for space_id, span in (await log.spans()).items():
        if not space_id or span.first < span.last or spaces.exists(space_id):
            continue
        if await log.since(space_id, now - keep.seconds) == span.last:
            await log.forget(space_id)
            keeper.forget(space_id)


def _notice(dropped: Dropped, now: float) -> Pending:
    payload = {"first": dropped.first, "last": dropped.last, "consumers": dict(dropped.missed)}
    name = f"dropped_{dropped.space_id}_{dropped.last}"
    return Pending(dropped.space_id, now, SYSTEM, [Said(DROPPED, raw(payload), name)])
