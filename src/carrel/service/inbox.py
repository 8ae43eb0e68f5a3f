"""What waits for a person: questions of agents that nobody answered, and words to the user."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from carrel.domain.access import LOCAL, Caller
from carrel.domain.errors import (
    AgreementNeeded,
    Forbidden,
    MessageInvalid,
    SpaceNotFound,
    StateConflict,
)
from carrel.domain.hub import (
    ANSWER,
    NOT_YOURS,
    QUESTION,
    SEEN,
    SIGNAL,
    ClientKind,
    HubLog,
    Item,
    LogEnd,
    Placed,
    PlaceQuery,
    envelope_in,
)
from carrel.domain.ids import new_id
from carrel.domain.spaces import Space
from carrel.domain.turns import Activity, Asked, Control, ControlKind, Turn
from carrel.service.access import may_agree, may_see
from carrel.service.journal import Journal
from carrel.service.turns import Turns

YES, NO = "yes", "no"
PEOPLE = (str(ClientKind.APP), str(ClientKind.IDE), str(ClientKind.CLI))
TYPES = frozenset({QUESTION, ANSWER, SIGNAL, SEEN})
BATCH = 500
MOST_SIGNALS = 100
"""Words to the user that are shown of one space; the newest."""
MOST_OF_ACCOUNT = 5 * MOST_SIGNALS
"""… and of all spaces of one account together."""
MOST_ANSWERED = 10_000
"""Questions of which is known that they were answered, for a better word to who is too late."""
_SPENT = "spent-"
"""What the id of a message begins with that tells so of a question."""
MAX_ANSWER = 100_000
MAX_TEXT = 10_000
"""Characters that are shown of one: all that waits is kept in memory, and told at once. Its
space's log has the rest."""

Say = Callable[[Caller, str, dict[str, Any], str, str], Awaitable[int]]
"""The caller, the space, the payload, its type, and what it answers."""
Ask = Callable[[str, dict[str, Any], str, str], Awaitable[None]]
"""The space, the payload, its type and its id: a message of Carrel's own."""


Envelope = dict[str, Any]


class Inbox:
    """Reads the log once, and then only what is new in it."""

    def __init__(self, log: HubLog, end: LogEnd, journal: Journal, say: Say, ask: Ask) -> None:
        self._log = log
        self._end = end
        self._journal = journal
        self._say = say
        self._ask = ask
        self._asking: dict[tuple[str, str], str] = {}
        """Carrel's own questions by space and text, so that none is asked twice at a time."""
        self._place = 0
        self._open: dict[tuple[str, str], Item] = {}
        self._signals: dict[str, deque[tuple[str, str]]] = {}
        """Those of them that are no questions, by space."""
        self._answered: dict[tuple[str, str], None] = {}
        """The newest last."""
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
            raise MessageInvalid(
                f"An answer has 1 to {MAX_ANSWER} characters.", hint="Give an answer."
            )
        found = [
            one
            for one in await self.items(caller)
            if one.question and one.item_id == item_id and space_id in ("", one.space_id)
        ]
        if not found:
            raise self._no_question(caller, item_id, space_id)
        if len(found) > 1:
            spaces = [self._journal.get(one.space_id) for one in found]
            names = ", ".join(one.name for one in spaces if one is not None)
            raise StateConflict(
                f"{item_id} was asked in several spaces: {names}.",
                hint="Name the space: --space SPACE",
            )
        if found[0].own and not may_agree(caller, self._journal.current(found[0].space_id)):
            raise Forbidden(NOT_YOURS, hint="Ask the owner.")
        payload = {"answer": text}
        return await self._say(caller, found[0].space_id, payload, ANSWER, item_id)

    async def landed(self, space_id: str, branch: str) -> None:
        """Who has landed the work of a space has looked at it: that answers its requests."""
        text = f"Landed on {branch}." if branch else "Landed."
        for item in await self.items(LOCAL):
            if item.review and item.space_id == space_id:
                await self._say(LOCAL, space_id, {"answer": text}, ANSWER, item.item_id)

    async def agreed(self, space_id: str, question_id: str, target: Space) -> bool:
        """Whether a person said yes to this question of the space, who could have removed the
        target without it; and the question has the target's id in what is shown of it: a yes to
        something else is none."""
        asking = self._journal.current(space_id)

        def agrees(question: Envelope, answer: Envelope) -> bool:
            same = target.space_id in question["payload"]["question"][:MAX_TEXT]
            return same and _says_yes(answer) and _reaches(answer["sender"], asking, target)

        return await self._has_answer(space_id, question_id, agrees)

    async def require(self, space_id: str, text: str, question_id: str) -> None:
        """Returns when a person has agreed to exactly this, asked by Carrel itself: what is
        more than the space has is not the space's to ask for in words of its own. Who may not
        agree (`may_agree`) agrees to nothing. `AgreementNeeded` until then, `Forbidden` when the
        answer was another."""

        def agrees(question: Envelope, answer: Envelope) -> bool:
            same = _is_own(question) and question["payload"]["question"] == text
            return same and _says_yes(answer)

        spent = bool(question_id) and await self._is_spent(space_id, question_id)
        if question_id and not spent and await self._has_answer(space_id, question_id, agrees):
            return
        async with self._lock:
            await self._catch_up()
            if spent and self._asking.get((space_id, text)) == question_id:
                del self._asking[space_id, text]
            asked = self._asking.get((space_id, text), "")
            if question_id and question_id == asked and (space_id, asked) not in self._open:
                raise Forbidden("The user did not agree.", hint="Do without.")
            if (space_id, asked) not in self._open:
                asked = self._asking[space_id, text] = new_id("qu")
                payload = {"question": text, "choices": (YES, NO)}
                await self._ask(space_id, payload, QUESTION, asked)
        raise AgreementNeeded(
            "The user must agree first.",
            hint=f"When {asked} was answered with yes, try again, with it as `agreed`.",
            question_id=asked,
        )

    async def spend(self, space_id: str, question_id: str) -> None:
        """A yes is for one thing. Kept in the log behind the answer, so it is there for as long as
        the answer is."""
        await self._ask(space_id, {"seq": 0}, SEEN, f"{_SPENT}{question_id}")

    async def _is_spent(self, space_id: str, question_id: str) -> bool:
        await self._end.settled()
        place = 0
        while found := await self._log.read(
            PlaceQuery(place, frozenset({space_id}), frozenset({SEEN}), BATCH)
        ):
            for one in found:
                envelope, place = envelope_in(one.body), one.place
                if envelope is not None and envelope["id"] == f"{_SPENT}{question_id}":
                    return True
        return False

    async def _has_answer(
        self, space_id: str, question_id: str, fits: Callable[[Envelope, Envelope], bool]
    ) -> bool:
        """Whether some answer to the question fits. Of several questions by one id the first
        is meant until it is answered, as in `_apply`: it is the one that people see."""
        await self._end.settled()
        guest = self._journal.current(space_id).guest
        types, place = frozenset({QUESTION, ANSWER}), 0
        asked: Envelope | None = None
        while True:
            query = PlaceQuery(place, frozenset({space_id}), types, BATCH)
            found = await self._log.read(query)
            for one in found:
                envelope, place = envelope_in(one.body), one.place
                if envelope is None:
                    continue
                if one.type == QUESTION and envelope["id"] == question_id:
                    asked = asked or envelope
                elif asked and one.type == ANSWER and envelope.get("reply_to") == question_id:
                    if not _counts(envelope, guest, own=_is_own(asked)):
                        continue
                    if fits(asked, envelope):
                        return True
                    asked = None
            if not found:
                return False

    def _no_question(self, caller: Caller, item_id: str, space_id: str) -> Exception:
        shown = repr(item_id[:80])
        asked = [key[0] for key in self._answered if key[1] == item_id]
        spaces = [self._journal.get(one) for one in asked if space_id in ("", one)]
        if any(space is not None and may_see(caller, space) for space in spaces):
            return StateConflict(
                f"{shown} was answered already.", hint="`carrel inbox` lists the open questions."
            )
        return SpaceNotFound(
            f"There is no question {shown}.", hint="`carrel inbox` lists the open questions."
        )

    def _forget_removed(self) -> None:
        """What waited in spaces that are gone waits no more."""
        spaces = {space_id for space_id, _ in self._open} | self._signals.keys()
        if gone := {one for one in spaces if self._journal.get(one) is None}:
            for kept in (self._open, self._asking):
                for key in [key for key in kept if key[0] in gone]:
                    del kept[key]
            for space_id in gone:
                self._signals.pop(space_id, None)

    async def _catch_up(self) -> None:
        self._forget_removed()
        await self._end.settled()
        last = await self._log.last_place()
        while self._place < last:
            found = await self._log.read(PlaceQuery(self._place, None, TYPES, BATCH))
            for one in found:
                if self._journal.get(one.space_id) is not None:
                    self._apply(one)
            self._share_signals()
            self._place = found[-1].place if found else last

    def _apply(self, placed: Placed) -> None:
        envelope = envelope_in(placed.body)
        if envelope is None:
            return
        if placed.type == SEEN:
            self._forget_signals(placed.space_id, envelope["payload"]["seq"])
            return
        if placed.type == ANSWER:
            key = (placed.space_id, envelope.get("reply_to", ""))
            item, guest = self._open.get(key), self._journal.current(placed.space_id).guest
            if item is not None and _counts(envelope, guest, own=item.own):
                del self._open[key]
                self._answered[key] = None
                if len(self._answered) > MOST_ANSWERED:
                    del self._answered[next(iter(self._answered))]
            return
        key = (placed.space_id, envelope["id"])
        if key in self._open and self._open[key].question:
            # Nobody puts other words under a question that a person is looking at.
            return
        item = self._open[key] = _item(placed, envelope)
        if not item.question:
            signals = self._signals.setdefault(placed.space_id, deque())
            signals.append(key)
            self._shorten(signals, MOST_SIGNALS)

    def _shorten(self, signals: deque[tuple[str, str]], most: int) -> None:
        """To the newest."""
        while len(signals) > most:
            key = signals.popleft()
            item = self._open.get(key)
            # What has this name now may be newer, or a question.
            if item is not None and not item.question and key not in signals:
                del self._open[key]

    def _share_signals(self) -> None:
        """Who has many spaces has no more that is kept of them together: in turn, so that a loud
        one pushes out its own."""
        accounts: dict[str, list[deque[tuple[str, str]]]] = {}
        for space_id, signals in self._signals.items():
            space = self._journal.get(space_id)
            accounts.setdefault(space.counts_for if space else "", []).append(signals)
        for several in accounts.values():
            each = MOST_SIGNALS
            while each > 1 and sum(min(len(one), each) for one in several) > MOST_OF_ACCOUNT:
                each -= 1
            for signals in several:
                self._shorten(signals, each)

    def _forget_signals(self, space_id: str, seq: int) -> None:
        signals = self._signals.get(space_id, deque())
        for key in list(signals):
            self._forget_signal(key, seq)
        kept = (key for key in signals if key in self._open)
        self._signals[space_id] = deque(dict.fromkeys(kept))

    def _forget_signal(self, key: tuple[str, str], seq: int) -> None:
        """Unless what has this name now is newer, or a question."""
        item = self._open.get(key)
        if item is not None and not item.question and item.seq <= seq:
            del self._open[key]

    async def dismiss(self, caller: Caller) -> int:
        """The words to the user have been read; questions stay. Says how many there were."""
        read = [item for item in await self.items(caller) if not item.question]
        for space_id, seq in {item.space_id: item.seq for item in read}.items():
            await self._say(caller, space_id, {"seq": seq}, SEEN, "")
        return len(read)


def _says_yes(answer: Envelope) -> bool:
    said = str(answer["payload"]["answer"]).strip().lower()
    return said == YES and answer["sender"]["kind"] in PEOPLE


def _is_own(question: Envelope) -> bool:
    return bool(question["sender"]["kind"] == ClientKind.SYSTEM)


def _counts(answer: Envelope, guest: bool, *, own: bool) -> bool:
    """Who may not agree (see `may_agree`) has not answered Carrel's own question. The hub refuses
    to keep such an answer; a log may have older ones."""
    sender = answer["sender"]
    return bool(not own or sender.get("owner") or (guest and not sender.get("space")))


def _reaches(sender: Envelope, asking: Space, target: Space) -> bool:
    """Whether who answered where the one asks may remove the other. A child can have been given to
    others, and a token of one space sees no children."""
    if sender.get("owner") or target.space_id == asking.space_id:
        return True
    return not sender.get("space") and target.labels == asking.labels


def _item(placed: Placed, envelope: dict[str, Any]) -> Item:
    payload = envelope["payload"]
    text = payload.get("question") or payload.get("message", "")
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}… ({len(text)} characters in all)"
    return Item(
        item_id=envelope["id"],
        space_id=placed.space_id,
        seq=placed.seq,
        at=placed.at,
        text=text,
        question=placed.type == QUESTION,
        choices=tuple(payload.get("choices", ())),
        priority="" if placed.type == QUESTION else payload.get("priority", "medium"),
        own=_is_own(envelope),
        review=placed.type == QUESTION and bool(payload.get("review")),
    )


# With the permissions that agents wait for now: these are in no log as open, and end with the turn.

_ALLOW = {"yes": True, "y": True, "allow": True, "no": False, "n": False, "deny": False}


class WaitingItems:
    """All that waits for a person, and one way to answer it."""

    def __init__(self, inbox: Inbox, turns: Turns, journal: Journal) -> None:
        self._inbox = inbox
        self._turns = turns
        self._journal = journal

    async def items(self, caller: Caller) -> list[Item]:
        """Oldest first. That an agent waits is told once, and only while it does."""
        told = await self._inbox.items(caller)
        newest = {one.space_id: one for one in told if one.own and not one.question}
        found = [
            one
            for one in told
            if one.question or not one.own or (newest[one.space_id] is one and self._waits(one))
        ]
        found += self._permissions(caller)
        return sorted(found, key=lambda one: one.at)

    async def answer(self, caller: Caller, item_id: str, text: str, space_id: str = "") -> int:
        """See `Inbox.answer`; for a permission, which is answered with yes or no, 0."""
        asked = [
            one
            for one in self._permissions(caller)
            if one.item_id == item_id and space_id in ("", one.space_id)
        ]
        if not asked:
            return await self._inbox.answer(caller, item_id, text, space_id)
        if any(one.item_id == item_id and one.question for one in await self._inbox.items(caller)):
            # An agent chooses the ids of its questions.
            raise StateConflict(
                f"{item_id} is also the id of a question.", hint="Use: carrel permit SPACE"
            )
        allow = _ALLOW.get(text.strip().lower())
        if allow is None:
            raise MessageInvalid("A permission is answered with yes or no.", hint="Say yes or no.")
        control = Control(ControlKind.PERMISSION, id=asked[0].permission, allow=allow)
        await self._turns.control(caller, asked[0].turn, control)
        return 0

    def _waits(self, item: Item) -> bool:
        space = self._journal.get(item.space_id)
        if space is None or self._turns.asking(self._turns.working(item.space_id)):
            return False
        # One that has exited, and says why, waits to be looked at.
        return self._turns.activity(space) in (Activity.INPUT, Activity.WAITING, Activity.EXITED)

    def _permissions(self, caller: Caller) -> list[Item]:
        found = []
        for turn, since, asked in self._turns.asking_now():
            space = self._journal.get(turn.space_id)
            if space is None or not may_see(caller, space):
                continue
            found += [_permission(turn, since, one) for one in asked]
        return found


def _permission(turn: Turn, since: float, asked: Asked) -> Item:
    # Its own id is an agent's word, and may be that of another space's too.
    named = hashlib.sha256(f"{turn.run_id}\0{asked.id}".encode("utf-8", "surrogatepass"))
    given = json.dumps(asked.input, ensure_ascii=False, default=str)[:MAX_TEXT]
    return Item(
        item_id=f"pe_{named.hexdigest()[:12]}",
        space_id=turn.space_id,
        seq=0,
        at=since,
        text=f"{turn.frontend} asks for permission: {asked.name} {given}",
        question=True,
        choices=(YES, NO),
        priority="high",
        own=True,
        turn=turn.run_id,
        permission=asked.id,
    )
