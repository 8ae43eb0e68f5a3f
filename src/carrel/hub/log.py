"""The way into the log: everything that is kept passes here, in one order.

While one batch is being written the next one gathers, so that however many publish, one
sync serves them all. Numbers are given when a batch is formed: what could not be written
leaves no gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import operator
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from carrel.domain.access import LOCAL
from carrel.domain.errors import CarrelError, StoreBusy
from carrel.domain.events import Event, EventQuery
from carrel.domain.hub import Dropped, HubLog, Keep, Message, Span
from carrel.hub.access import VisibleSpaces, consumer_name
from carrel.hub.envelopes import SYSTEM, Said, Sent, encode_lines, raw

MOST = 2000
"""In one batch: some ten milliseconds of work, which the first of them waits for."""
MOST_WAITING = 100_000
"""All publishers but the owner, who has as many; beyond, they are told to come again."""
MOST_OF_ACCOUNT = 10_000
"""Of one publisher that is not the owner."""

OWN = ""
"""The account of what Carrel itself tells from its store."""

GATHER_S = 0.1
"""What Carrel itself tells is in the store already, and waits this long for more of its kind:
making a space is a dozen steps, and nobody wants to wait for a dozen writes."""
SOON_S = 0.005
"""… and this long when somebody listens."""
RETRY_S = 1.0
"""What Carrel itself tells is not given up when the disk is full, but tried again."""
TELL_S = 0.03
"""Of telling on what is kept, until others have their turn: hundreds may listen to one space."""

_log = logging.getLogger("carrel.hub")

OnKept = Callable[[list["Pending"]], Iterable[int]]
OnDone = Callable[["Pending", CarrelError | None], None]


@dataclass(slots=True)
class Pending:
    """What somebody said at once of one space, on its way into the log: all of it or nothing,
    one after the other. `first` and `runs` are set when it is there."""

    space: str
    ts: float
    sender: msgspec.Raw
    said: Sequence[Said]
    origin: int = 0
    done: OnDone | None = None
    account: str = LOCAL.name
    """Whose turn it takes."""
    number: int = 0
    """In the order in which all were given."""
    first: int = 0
    runs: list[Message] = field(default_factory=list)

    @property
    def last(self) -> int:
        return self.first + len(self.said) - 1


class LogWriter:
    """`kept` gets every batch that is in the log, in order, and tells it on in small steps. After
    each it gives how many more of the batch everybody has heard."""

    def __init__(self, log: HubLog, kept: OnKept) -> None:
        self._log = log
        self._kept = kept
        self._last: dict[str, int] = {}
        self._waiting: OrderedDict[str, deque[Pending]] = OrderedDict()
        """By account; the first is whose turn it is."""
        self._sizes: Counter[str] = Counter()
        """Messages that wait, by account."""
        self._writing: asyncio.Task[None] | None = None
        self._given = 0
        self._settling: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Who waits until all up to that number are done."""
        self._hurry = asyncio.Event()
        self._listening = 0
        self._closed = False
        self.count = 0

    def begin(self, spans: Mapping[str, Span]) -> None:
        self._last = {space: span.last for space, span in spans.items()}

    def last(self, space: str) -> int:
        return self._last.get(space, 0)

    def spaces(self) -> list[str]:
        return list(self._last)

    def forget(self, space: str) -> None:
        self._last.pop(space, None)

    def keep(self, pending: Pending) -> None:
        """Raises `StoreBusy`. Never waits."""
        account = OWN if pending.origin else pending.account
        if account != OWN and self._is_full(account):
            raise StoreBusy("Too many messages wait to be stored.", hint="Try again in a moment.")
        self._given += 1
        pending.number = self._given
        self._waiting.setdefault(account, deque()).append(pending)
        self._sizes[account] += len(pending.said)
        if not pending.origin:
            self._hurry.set()
        self._go_on()

    def _is_full(self, account: str) -> bool:
        if account == LOCAL.name:
            return self._sizes[account] >= MOST_WAITING
        others = self._sizes.total() - self._sizes[LOCAL.name] - self._sizes[OWN]
        return self._sizes[account] >= MOST_OF_ACCOUNT or others >= MOST_WAITING

    def _go_on(self) -> None:
        if self._writing is None and self._waiting and not self._closed:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def close(self) -> None:
        """What waits is still written."""
        await self.settled()
        self._closed = True

    def listening(self, change: int) -> None:
        """So many more (or fewer) want to hear at once what there is to tell."""
        self._listening += change

    async def settled(self) -> None:
        """What was given until now is in the log, or could not be put there."""
        if self._writing is None:
            return
        self._hurry.set()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settling.append((self._given, future))
        await future

    async def _write(self) -> None:
        try:
            while self._waiting:
                await self._gather()
                batch = self._next()
                if self._waiting:
                    # Some of these have waited for long enough.
                    self._hurry.set()
                if not await self._batch(batch):
                    asyncio.get_running_loop().call_later(RETRY_S, self._go_on)
                    break
        finally:
            self._writing = None
            # What is to be tried again is waited for by nobody.
            self._settle(self._given)

    async def _gather(self) -> None:
        if self._hurry.is_set():
            # Whoever has something to say in this turn of the loop gets in.
            await asyncio.sleep(0)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SOON_S if self._listening else GATHER_S):
                    await self._hurry.wait()
        self._hurry.clear()

    def _next(self) -> list[Pending]:
        """What Carrel itself tells comes first: of a space, before what is said in it. Then of each
        account in turn what it said at once."""
        batch: list[Pending] = []
        room = MOST
        while self._waiting:
            account = OWN if OWN in self._waiting else next(iter(self._waiting))
            queue = self._waiting[account]
            if batch and len(queue[0].said) > room:
                break
            one = queue.popleft()
            room -= len(one.said)
            batch.append(one)
            self._sizes[account] -= len(one.said)
            self._waiting.move_to_end(account)
            if not queue:
                del self._waiting[account], self._sizes[account]
        return batch

    async def _batch(self, batch: list[Pending]) -> bool:
        """False when something of it has to be tried again."""
        error: CarrelError | None = None
        last = {one.space: self.last(one.space) for one in batch}
        messages = [message for one in batch for message in self._number(one, last)]
        try:
            await self._log.append(messages, sync=any(not one.origin for one in batch))
        except CarrelError as caught:
            error = caught
        except Exception:
            # A mistake of ours is not to be the end of everybody's words.
            _log.exception("a batch of messages could not be kept")
            error = CarrelError("The message could not be stored.", hint="See the daemon's log.")
        if error is None:
            self.count += sum(len(one.said) for one in batch)
            await self._tell(batch)
            self._last |= last
        else:
            for one in batch:
                _answer(one, error)
        again = [one for one in batch if error is not None and one.origin]
        for one in reversed(again):
            self._waiting.setdefault(OWN, deque()).appendleft(one)
            self._sizes[OWN] += len(one.said)
        waiting = (queue[0].number for queue in self._waiting.values())
        self._settle(min(waiting, default=self._given + 1) - 1)
        return not again

    async def _tell(self, batch: list[Pending]) -> None:
        """Whoever reads the log meanwhile reads up to what was told, and hears the rest. Nobody
        waits for what is told after his own."""
        until = time.monotonic() + TELL_S
        waiting = iter(batch)
        for told in self._kept(batch):
            for one in itertools.islice(waiting, told):
                self._last[one.space] = one.last
                _answer(one, None)
            if time.monotonic() > until:
                await asyncio.sleep(0)
                until = time.monotonic() + TELL_S

    def _settle(self, reached: int) -> None:
        while self._settling and self._settling[0][0] <= reached:
            _, future = self._settling.popleft()
            if not future.done():
                future.set_result(None)

    @staticmethod
    def _number(one: Pending, last: dict[str, int]) -> list[Message]:
        space, ts, sender = one.space, one.ts, one.sender
        one.first = last[space] + 1
        one.runs = []
        for type, run in itertools.groupby(one.said, _type_of):
            first = last[space] + 1
            sent = [
                Sent(type, said.id, ts, sender, said.payload, space, seq, said.reply_to)
                for seq, said in enumerate(run, first)
            ]
            last[space] += len(sent)
            body = encode_lines(sent)
            one.runs.append(Message(space, last[space], type, ts, body, one.origin, len(sent)))
        return one.runs


_type_of = operator.attrgetter("type")


def _answer(one: Pending, error: CarrelError | None) -> None:
    if one.done is not None:
        with contextlib.suppress(Exception):
            one.done(one, error)


# Keeping the log within its bounds, and saying so where somebody would miss something.

DROPPED = "buffer_dropped"


async def compact(
    log: HubLog, keeper: LogWriter, spaces: VisibleSpaces, keep: Keep, now: float | None = None
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
    log: HubLog, keeper: LogWriter, spaces: VisibleSpaces, keep: Keep, now: float
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


MOST_NAMED = 100
"""Consumers, those that miss most: a message is no larger than clients take."""


def _notice(dropped: Dropped, now: float) -> Pending:
    # Whose they are is not for everybody who may see the space.
    furthest_first = sorted(dropped.missed.items(), key=lambda one: -one[1])
    missed = {consumer_name(kept): seq for kept, seq in furthest_first}
    named = sorted(missed, key=missed.__getitem__)[:MOST_NAMED]
    payload: dict[str, object] = {"first": dropped.first, "last": dropped.last}
    payload["consumers"] = {name: missed[name] for name in named}
    if len(named) < len(missed):
        payload["others"] = len(missed) - len(named)
    name = f"dropped_{dropped.space_id}_{dropped.last}"
    return Pending(dropped.space_id, now, SYSTEM, [Said(DROPPED, raw(payload), name)])


# What Carrel itself has to tell goes into the same log as everything else.
#
# The store has it first, together with what it is about; here it is told on. What a crash kept
# from being told is told at the next start.

BATCH = 1000

ReadEvents = Callable[[EventQuery], Awaitable[Sequence[Event]]]


class Teller:
    def __init__(self, keeper: LogWriter) -> None:
        self._keeper = keeper

    async def catch_up(self, log: HubLog, read: ReadEvents) -> None:
        """What is in the store, and not yet in the log."""
        after = await log.last_origin()
        while events := await read(EventQuery(after=after, limit=BATCH)):
            self.tell(events)
            after = events[-1].seq
            await self._keeper.settled()

    def tell(self, events: Sequence[Event]) -> None:
        """Called by the store after every write of events, in their order."""
        for event in events:
            self._keeper.keep(
                Pending(
                    event.space_id,
                    event.at,
                    SYSTEM,
                    [Said(str(event.type), raw(event.data), f"ev_{event.seq}")],
                    origin=event.seq,
                )
            )
