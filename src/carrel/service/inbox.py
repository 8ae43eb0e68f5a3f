"""What waits for a person: questions of agents that nobody answered, and words to the user."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from carrel.domain.access import Caller
from carrel.domain.errors import MessageInvalid, SpaceNotFound, StateConflict
from carrel.domain.hub import (
    ANSWER,
    QUESTION,
    SEEN,
    SIGNAL,
    ClientKind,
    HubLog,
    Item,
    LogEnd,
    Placed,
    PlaceQuery,
)
from carrel.service.access import may_see
from carrel.service.journal import Journal

YES = "yes"
PEOPLE = (str(ClientKind.APP), str(ClientKind.IDE), str(ClientKind.CLI))
TYPES = frozenset({QUESTION, ANSWER, SIGNAL, SEEN})
BATCH = 500
MOST_SIGNALS = 500
"""Words to the user that are shown; the newest."""
MAX_ANSWER = 100_000

Say = Callable[[str, str, dict[str, Any], str, str], Awaitable[int]]
"""The caller's name, the space, the payload, its type, and what it answers."""


class Inbox:
    """Reads the log once, and then only what is new in it."""

    def __init__(self, log: HubLog, end: LogEnd, journal: Journal, say: Say) -> None:
        self._log = log
        self._end = end
        self._journal = journal
        self._say = say
        self._place = 0
        self._open: dict[tuple[str, str], Item] = {}
        self._answered: set[tuple[str, str]] = set()
        self._lock = asyncio.Lock()

    async def items(self, caller: Caller) -> list[Item]:
        """Oldest first, of the spaces that the caller may see and that are still there."""
        async with self._lock:
            await self._catch_up()
        seen = []
        for item in list(self._open.values()):
            space = self._journal.get(item.space_id)
            if space is not None and may_see(caller, space):
                seen.append(item)
        return seen

    async def answer(self, caller: Caller, item_id: str, text: str, space_id: str = "") -> int:
        """The number of the answer in the log of the question's space. `space_id` tells apart
        two questions of the same id."""
        if not text or len(text) > MAX_ANSWER:
            raise MessageInvalid(f"An answer has 1 to {MAX_ANSWER} characters.", hint="Say it.")
        found = [
            one
            for one in await self.items(caller)
            if one.question and one.item_id == item_id and space_id in ("", one.space_id)
        ]
        if not found:
            raise self._no_question(item_id, space_id)
        if len(found) > 1:
            spaces = ", ".join(one.space_id for one in found)
            raise StateConflict(f"{item_id} was asked in {spaces}.", hint="Name the space.")
        payload = {"answer": text}
        return await self._say(caller.name, found[0].space_id, payload, ANSWER, item_id)

    async def agreed(self, space_id: str, question_id: str, about: str) -> bool:
        """Whether a person said yes to this question of the space, and the question has these
        words in it: a yes to something else is none."""
        await self._end.settled()
        types, place, asked = frozenset({QUESTION, ANSWER}), 0, False
        while True:
            query = PlaceQuery(place, frozenset({space_id}), types, BATCH)
            found = await self._log.read(query)
            for one in found:
                envelope, place = json.loads(one.body), one.place
                if one.type == QUESTION and envelope["id"] == question_id:
                    asked = about in envelope["payload"]["question"]
                elif asked and _says_yes(envelope, question_id):
                    return True
            if len(found) < BATCH:
                return False

    def _no_question(self, item_id: str, space_id: str) -> Exception:
        shown = repr(item_id[:80])
        if any(key[1] == item_id and space_id in ("", key[0]) for key in self._answered):
            return StateConflict(f"{shown} was answered already.", hint="`carrel inbox` lists.")
        return SpaceNotFound(f"Nobody asked {shown}.", hint="`carrel inbox` lists what waits.")

    async def _catch_up(self) -> None:
        await self._end.settled()
        last = await self._log.last_place()
        while self._place < last:
            found = await self._log.read(PlaceQuery(self._place, None, TYPES, BATCH))
            for one in found:
                self._apply(one)
            self._place = found[-1].place if len(found) == BATCH else last

    def _apply(self, placed: Placed) -> None:
        envelope = json.loads(placed.body)
        if placed.type == SEEN:
            self._forget_signals(placed.space_id, envelope["payload"]["seq"])
            return
        if placed.type == ANSWER:
            key = (placed.space_id, envelope.get("reply_to", ""))
            if self._open.pop(key, None) is not None:
                self._answered.add(key)
            return
        self._open[placed.space_id, envelope["id"]] = _item(placed, envelope)
        signals = [key for key, item in self._open.items() if not item.question]
        for key in signals[:-MOST_SIGNALS]:
            del self._open[key]

    def _forget_signals(self, space_id: str, seq: int) -> None:
        for key, item in list(self._open.items()):
            if item.space_id == space_id and not item.question and item.seq <= seq:
                del self._open[key]

    async def dismiss(self, caller: Caller) -> int:
        """The words to the user have been read; questions stay. Says how many there were."""
        read = [item for item in await self.items(caller) if not item.question]
        for space_id, seq in {item.space_id: item.seq for item in read}.items():
            await self._say(caller.name, space_id, {"seq": seq}, SEEN, "")
        return len(read)


def _says_yes(envelope: dict[str, Any], question_id: str) -> bool:
    return (
        envelope["type"] == ANSWER
        and envelope.get("reply_to") == question_id
        and envelope["sender"]["kind"] in PEOPLE
        and envelope["payload"]["answer"].strip().lower() == YES
    )


def _item(placed: Placed, envelope: dict[str, Any]) -> Item:
    payload = envelope["payload"]
    return Item(
        item_id=envelope["id"],
        space_id=placed.space_id,
        seq=placed.seq,
        at=placed.at,
        text=payload.get("question") or payload.get("message", ""),
        question=placed.type == QUESTION,
        choices=tuple(payload.get("choices", ())),
        priority="" if placed.type == QUESTION else payload.get("priority", "medium"),
    )
