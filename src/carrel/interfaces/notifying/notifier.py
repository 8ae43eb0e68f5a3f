"""Tells on what waits for a person, in order, and goes on where it was after a restart."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from carrel.domain.hub import QUESTION, SIGNAL, HubLog, LogEnd, Placed, PlaceQuery

TYPES = frozenset({QUESTION, SIGNAL})
BATCH = 100
TRIES = 8
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Between two tries: a service that is restarted is back soon, one that is gone is not asked
more often than that."""
_log = logging.getLogger("carrel.notify")

Notice = dict[str, Any]
Failed = Callable[[str, Notice, str], None]
"""The space, what was to be told, and why it was not."""


class NotTold(Exception):
    """This way is closed now; `for_good` when it makes no sense to try again."""

    def __init__(self, why: str, *, for_good: bool = False) -> None:
        super().__init__(why)
        self.for_good = for_good


class Way(Protocol):
    """To a person. Raises `NotTold`."""

    async def tell(self, notice: Notice) -> None: ...


class Notifier:
    """`note` is the file in which it says how far it has come."""

    def __init__(
        self, log: HubLog, end: LogEnd, note: Path, ways: Sequence[Way], failed: Failed
    ) -> None:
        self._log = log
        self._end = end
        self._note = note
        self._ways = ways
        self._failed = failed
        self._bell = asyncio.Event()

    def ring(self) -> None:
        """There is something new in the log."""
        self._bell.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        place = await self._begin()
        while True:
            self._bell.clear()
            await self._end.settled()
            found = await self._log.read(PlaceQuery(place, None, TYPES, BATCH))
            for one in found:
                await self._tell(one)
                place = one.place
                await asyncio.to_thread(self._write, place)
            if not found:
                await self._bell.wait()

    async def _begin(self) -> int:
        """What was there before anybody wanted to hear of it is not told."""
        try:
            return int(self._note.read_text())
        except (OSError, ValueError):
            await self._end.settled()
            place = await self._log.last_place()
            await asyncio.to_thread(self._write, place)
            return place

    async def _tell(self, placed: Placed) -> None:
        notice = _notice(placed)
        await asyncio.gather(*(self._tell_by(way, placed.space_id, notice) for way in self._ways))

    async def _tell_by(self, way: Way, space_id: str, notice: Notice) -> None:
        pause_s, why = FIRST_PAUSE_S, ""
        for _ in range(TRIES):
            try:
                await way.tell(notice)
                return
            except NotTold as error:
                why = str(error)
                if error.for_good:
                    break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        _log.warning("a person could not be told: %s", why)
        self._failed(space_id, notice, why)

    def _write(self, place: int) -> None:
        draft = self._note.with_suffix(".new")
        draft.write_text(str(place))
        os.replace(draft, self._note)


def _notice(placed: Placed) -> Notice:
    envelope = json.loads(placed.body)
    payload = envelope["payload"]
    asks = placed.type == QUESTION
    return {
        "kind": "question" if asks else "signal",
        "id": envelope["id"],
        "space": placed.space_id,
        "seq": placed.seq,
        "at": placed.at,
        "text": payload["question"] if asks else payload["message"],
        "choices": payload.get("choices", []),
        "priority": "high" if asks else payload.get("priority", "medium"),
        "suggested_actions": payload.get("suggested_actions", []),
    }
