"""The hub itself: clients come and go, speak, and hear what they asked for.

`Connection.received` never waits: what takes time goes on in tasks, and its outcome is a
message. So no client's words hold up another's.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import operator
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Raw

from carrel.domain.access import LOCAL, Caller
from carrel.domain.errors import (
    CarrelError,
    MessageInvalid,
)
from carrel.domain.hub import (
    ANSWER,
    QUESTION,
    ClientKind,
    HubLog,
    Keep,
    PlaceQuery,
    Sync,
    envelope_in,
    is_kept,
)
from carrel.domain.hub import Replay as LogReplay
from carrel.hub import access, delivery, types
from carrel.hub.access import Identity, VisibleSpaces
from carrel.hub.client import ALL, OVERHEAD, Client, Patterns, Sink, sender_of
from carrel.hub.clients import ConnectedClients
from carrel.hub.connection import Connection
from carrel.hub.delivery import HearingClients, PersonQuestions
from carrel.hub.envelopes import SYSTEM, Received, Said, Sent, encode, message_id, problem, raw
from carrel.hub.log import LogWriter, Pending, compact
from carrel.hub.rates import Rate
from carrel.hub.requests import HubRequests

COMPACT_S = 60.0
"""Between two looks at what is beyond the bounds of the log."""
PAGE = 1000
"""Messages that are read from the log at once."""
DELIVER_S = 0.002
"""Between two deliveries of what was said; the first after a pause goes at once."""
MANY = 512
"""Who leaves less unread than such a part of what an account may is not looked at: all of them
together have no more."""
MISSED = 3
"""Heartbeats that may be missed before a client counts as lost."""

_log = logging.getLogger("carrel.hub")


@dataclass(frozen=True)
class Options:
    heartbeat_s: float = 15.0
    register_s: float = 10.0
    """A client that does not say who it is in this time is cut off."""
    most_clients: int = 100
    """Beside those of the daemon's own user, who has so many too: others cannot keep it out."""
    most_in_space: int = 32
    """… from inside one space."""
    most_questions: int = 100
    """Of one space that nobody has answered yet."""
    rate: Rate = field(default_factory=lambda: Rate(5000.0, 10_000))
    most_waiting: int = 8 << 20
    """Bytes that a client may leave unread."""
    most_of_account: int = 32 << 20
    """… and all of one account together, inside and outside of its spaces."""
    keep: Keep = field(default_factory=Keep)
    sync: Sync = Sync.DISK


class HubServer:
    def __init__(self, log: HubLog, spaces: VisibleSpaces, options: Options) -> None:
        self.log = log
        self.options = options
        self.keeper = LogWriter(log, self._kept)
        self._spaces = spaces
        self._clients = ConnectedClients(spaces, options.most_clients, options.most_in_space)
        self._questions = PersonQuestions(spaces, options.most_questions)
        self.hearing = HearingClients(spaces)
        self._consumers: dict[str, Client] = {}
        self.requests = HubRequests(self, self._clients)
        self._tasks: set[asyncio.Task[None]] = set()
        self._regular: list[asyncio.Task[None]] = []
        self._told: set[tuple[str, Client]] = set()
        """Who has heard what is being told now, of which space."""
        self._hearing_late: list[Client] = []
        """Who is to be flushed together."""
        self._delivered_at = 0.0
        self._cut: dict[str, int] = {}
        self._live = 0
        self._said: dict[str, int] = {}
        """Bytes of each space since the log was last brought within its bounds."""
        self._too_much = asyncio.Event()
        self.on_gone: list[Callable[[str], None]] = []
        """Called with the id of a client that has gone."""
        self.on_kept: list[Callable[[set[str]], None]] = []
        """Called with the spaces of which there is something new in the log."""
        self.on_live: list[Callable[[str, str, bytes], None]] = []
        """Called with the space, the type and the payload of what is told and not kept."""

    async def open(self) -> None:
        self.keeper.begin(await self.log.spans())
        self._regular = [
            asyncio.create_task(self._beats()),
            asyncio.create_task(self._compactions()),
            asyncio.create_task(self._recall_questions()),
        ]

    async def close(self) -> None:
        """Everybody is told; what was published is still written."""
        for client in list(self._clients.values()):
            self.cut_off(client, "daemon_shutdown")
        tasks = [*self._regular, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.keeper.close()

    # Connections

    def connect(self, identity: Identity, sink: Sink) -> Connection:
        """Raises `TooManyClients`."""
        self._clients.check_room(identity)
        client_id = f"cl_{secrets.token_hex(8)}"
        now = time.monotonic()
        client = Client(client_id, identity, sink, self.options.rate, now)
        self._clients.add(client)
        self.keeper.listening(1)
        return Connection(self, client)

    def cut_off(self, client: Client, reason: str, error: CarrelError | None = None) -> None:
        """The last that it hears is why."""
        if client.closed:
            return
        if error is not None:
            self.refuse(client, error, "")
        self._send(client, "client_disconnected", {"client_id": client.client_id, "reason": reason})
        client.flush()
        client.sink.close(reason)
        self.gone(client, reason)

    def gone(self, client: Client, reason: str) -> None:
        """The connection has ended, one way or the other."""
        if client.closed:
            return
        client.closed = True
        self._clients.remove(client)
        self.keeper.listening(-1)
        self.hearing.leave(client)
        if self._consumers.get(client.consumer) is client:
            del self._consumers[client.consumer]
        self._cut[reason] = self._cut.get(reason, 0) + 1
        self.requests.gone(client)
        if client.kind is not None:
            told = {"client_id": client.client_id, "kind": str(client.kind), "reason": reason}
            self.spread(client.identity.space_id, "client_disconnected", raw(told))
        for heard in self.on_gone:
            heard(client.client_id)

    def is_connected(self, client_id: str, caller: Caller = LOCAL) -> bool:
        """As far as this caller may speak of it: of clients with its own rights; an administrator
        of all."""
        client = self._clients.get(client_id)
        own = client is not None and client.identity.caller.scope == caller.scope
        return own or (client is not None and access.is_admin(Identity(caller)))

    def tell_client(self, client_id: str, type: str, payload: object) -> None:
        """To that one alone, and not kept; nothing when it has gone."""
        client = self._clients.get(client_id)
        if client is not None:
            self._send(client, type, payload)

    # Hearing

    def patterns(self, client: Client, wanted: types.Subscriptions) -> Patterns:
        """What it wants to hear. Raises `MessageInvalid`."""
        found = Patterns(wanted.types)
        self._clients.check_patterns(client, found)
        return found

    def _kept(self, batch: list[Pending]) -> Iterator[int]:
        """Client by client: there may be hundreds, and a thousand messages for each. What comes
        together of one space is told together, since to begin costs more than a message."""
        for space, said in itertools.groupby(batch, operator.attrgetter("space")):
            together = list(said)
            for one in together:
                self._questions.kept(space, one.said, ours=one.sender is SYSTEM)
            runs = [run for one in together for run in one.runs]
            self._count_kept(space, sum(len(run.body) for run in runs))
            if self.hearing.anybody(space):
                lines = [(run.type, line) for run in runs for line in run.body.split(b"\n")]
                for client in self.hearing.at(space):
                    if space not in client.reading and client.hears(space):
                        self._told.add((space, client))
                        self._deliver(client, client.types.heard(lines))
                    yield 0
                # Who came meanwhile, or has read to the end: from now on all that is in the log
                # up to here counts as told.
                for client in self.hearing.at(space):
                    if (space, client) not in self._told and space not in client.reading:
                        self._deliver(client, client.types.heard(lines))
                self._told.clear()
            yield len(together)
        spaces = {one.space for one in batch}
        for heard in self.on_kept:
            heard(spaces)

    def _count_kept(self, space: str, size: int) -> None:
        """A space that says as much as may be kept of it does not wait for the next look."""
        most = self.options.keep.bytes
        self._said[space] = said = self._said.get(space, 0) + size
        if most and said > most:
            self._too_much.set()

    def spread(
        self, space: str, type: str, payload: Raw, sender: Raw = SYSTEM, id: str = ""
    ) -> int:
        """A live message; says how many got it."""
        self._live += 1
        for heard in self.on_live:
            heard(space, type, bytes(payload))
        body, count = b"", 0
        for client in self.hearing.of(space, type):
            if not body:
                body = encode(Sent(type, id or message_id(), time.time(), sender, payload, space))
            self._deliver(client, [body])
            count += 1
        return count

    def _deliver(self, client: Client, bodies: Sequence[bytes]) -> None:
        """Who listens is woken up for several at once when there is much to hear: that costs
        them and us more than the message."""
        if not bodies or not client.push_late(bodies):
            return
        self._hearing_late.append(client)
        if len(self._hearing_late) == 1:
            loop = asyncio.get_running_loop()
            wait_s = self._delivered_at + DELIVER_S - loop.time()
            if wait_s > 0:
                loop.call_later(wait_s, self._flush_late)
            else:
                loop.call_soon(self._flush_late)

    def _flush_late(self) -> None:
        self._delivered_at = asyncio.get_running_loop().time()
        clients, self._hearing_late = self._hearing_late, []
        for client in clients:
            self._flush(client)

    def push(self, client: Client, body: bytes) -> None:
        """An answer, or what was asked of this client."""
        if client.push(body):
            asyncio.get_running_loop().call_soon(self._flush, client)

    def _flush(self, client: Client) -> None:
        waiting = client.flush()
        if waiting > self.options.most_waiting:
            self._cut_slow(client)
        elif waiting > self.options.most_of_account // MANY:
            account = client.identity.counts_for
            found = [one for one in self._clients.values() if one.identity.counts_for == account]
            if sum(one.sink.waiting() for one in found) > self.options.most_of_account:
                self._cut_slow(max(found, key=lambda one: one.sink.waiting()))

    def _cut_slow(self, client: Client) -> None:
        if not client.closed:
            client.sink.close("slow_reader")
            self.gone(client, "slow_reader")

    def _send(self, client: Client, type: str, payload: Any, reply_to: str = "") -> None:
        client.spoke_at = time.monotonic()
        body = Sent(type, message_id(), time.time(), SYSTEM, raw(payload), reply_to=reply_to)
        self.push(client, encode(body))

    def respond(self, client: Client, reply_to: str, data: Any) -> None:
        if reply_to:
            self._send(client, "response", {"status": "success", "data": data}, reply_to)

    def refuse(self, client: Client, error: CarrelError, reply_to: str) -> None:
        """Also what asked for no answer hears that it went wrong."""
        self._send(client, "error", problem(error, reply_to), reply_to)

    # Speaking

    def publish(self, client: Client, received: Received) -> None:
        type = types.look_up(received.type)
        if type.to is ClientKind.SYSTEM:
            self.requests.ask_system(client, received, type)
            return
        delivery.check(type, received.payload, received.reply_to)
        delivery.admit(self._spaces, client, type, received.space)
        to = received.to or (str(type.to) if type.to is not None else "")
        ours = to == type.to == ClientKind.AGENT
        if ours and self._clients.receiver(client, received, to) is None:
            # Agents that Carrel drives are no clients of the hub.
            self.requests.ask_system(client, received, type)
        elif to:
            self.requests.ask(client, received, to)
        elif is_kept(received.type):
            self._keep(client, received)
        else:
            id = received.id or message_id()
            count = self.spread(received.space, received.type, received.payload, client.sender, id)
            self.respond(client, received.id, {"delivered": count})

    def _keep(self, client: Client, received: Received) -> None:
        said = Said(received.type, received.payload, received.id or message_id(), received.reply_to)
        self._keep_all(client, received, [said], lambda one: {"seq": one.first})

    def publish_many(self, client: Client, received: Received, rate: Callable[[int], None]) -> None:
        """All that is in it, or nothing. `rate` is asked whether that many may be said."""
        said = delivery.many(self._spaces, client, received, received.id or message_id())
        rate(len(said))
        self._keep_all(client, received, said, lambda one: {"first": one.first, "last": one.last})

    def _keep_all(
        self,
        client: Client,
        received: Received,
        said: list[Said],
        places: Callable[[Pending], dict[str, object]],
    ) -> None:
        self._questions.check_answers(client.identity, received.space, said)
        asked = self._questions.ask(received.space, said)
        size = len(received.payload) + OVERHEAD * len(said)

        def done(one: Pending, error: CarrelError | None) -> None:
            client.settle(size)
            if error is not None:
                self._questions.take_back(received.space, asked)
                self.refuse(client, error, received.id)
            else:
                self.respond(client, received.id, {**places(one), "sync": self.options.sync})

        account = client.identity.counts_for
        self.keeper.keep(
            Pending(received.space, time.time(), client.sender, said, done=done, account=account)
        )
        client.unsettled += size

    async def _recall_questions(self) -> None:
        """What was asked before this daemon began."""
        place = 0
        while True:
            query = PlaceQuery(place, None, frozenset({QUESTION, ANSWER}), PAGE)
            found = await self.log.read(query)
            for one in found:
                self._questions.recall(one.space_id, one.type, envelope_in(one.body) or {})
                place = one.place
            if not found:
                return

    def tell(self, space: str, type: str, payload: object) -> None:
        """Keeps a word of Carrel's own, without waiting for it to be kept."""
        said = Said(type, raw(payload), message_id())
        self.keeper.keep(Pending(space, time.time(), SYSTEM, [said]))

    async def say(self, client: Client, space: str, type: str, payload: object) -> int:
        """Keeps a message from this client that it could not publish itself; its number."""
        said = Said(type, raw(payload), message_id())
        return await self._first_of(client.sender, space, [said], client.identity.counts_for)

    async def say_for(
        self, caller: Caller, space: str, payload: object, type: str, reply_to: str
    ) -> int:
        """Keeps a message of a person who came another way; its number."""
        sender = raw(sender_of(Identity(caller), caller.name, "app"))
        said = Said(type, raw(payload), message_id(), reply_to)
        return await self._first_of(sender, space, [said], caller.account)

    async def ask(self, space: str, payload: object, type: str, id: str) -> None:
        """Keeps a question of Carrel's own, by an id that the caller has chosen."""
        await self._first_of(SYSTEM, space, [Said(type, raw(payload), id)])

    async def record(self, space: str, said: Sequence[Said]) -> None:
        """Keeps words of Carrel's own, all of them or none; returns when they are kept."""
        await self._first_of(SYSTEM, space, said)

    async def _first_of(
        self, sender: Raw, space: str, said: Sequence[Said], account: str = LOCAL.name
    ) -> int:
        """The number of the first, when they are kept."""
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def settle(one: Pending, error: CarrelError | None) -> None:
            if error is None:
                done.set_result(one.first)
            else:
                done.set_exception(error)

        pending = Pending(space, time.time(), sender, said, done=settle, account=account)
        self.keeper.keep(pending)
        return await done

    # The log

    def take_over(self, client: Client, consumer: str) -> None:
        """A consumer that comes again is the same one: the older connection is a dead one."""
        before = self._consumers.get(consumer)
        if before is not None:
            self.cut_off(before, "replaced")
        client.consumer = consumer
        self._consumers[consumer] = client

    def wanted_spaces(self, client: Client) -> list[str]:
        """Those with a log that the client subscribed to."""
        if ALL not in client.spaces:
            return sorted(client.spaces)
        known = self.keeper.spaces()
        return sorted(s for s in known if access.may_see(self._spaces, client.identity, s))

    def replayed(self, starts: dict[str, int]) -> dict[str, object]:
        """From where to where: what comes after that is new."""
        ends = {space: self.keeper.last(space) for space in starts}
        return {"replay_from": starts, "replay_to": ends}

    def begin_reading(self, client: Client, spaces: Iterable[str]) -> None:
        """From now on these come to it from the log, up to what is told by then. What is being told
        comes after that, also if it has heard it."""
        client.reading.update(spaces)
        self._told.difference_update((space, client) for space in spaces)

    async def replay(self, client: Client, space: str, after: int) -> None:
        """All that is kept after `after`, in order; then what comes is live. The caller has
        called `begin_reading` before anything could be missed."""
        try:
            while not client.closed:
                # Not beyond what was told: the rest is on its way to the listeners. And not
                # what was said after the space has left the client's reach.
                behind = self.keeper.last(space) - after
                if behind <= 0 or not access.may_see(self._spaces, client.identity, space):
                    break
                asked = LogReplay(space, after, min(PAGE, behind))
                bodies, reached = await self.log.replay(asked)
                if reached == after or client.closed:
                    break
                after = reached
                client.sink.send([body for body in bodies if client.types.fit(_type_of(body))])
                await client.sink.drained()
        finally:
            client.reading.discard(space)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Looking

    def check_seen(self, client: Client, space: str) -> None:
        """Raises `SpaceNotFound`."""
        access.check_seen(self._spaces, client.identity, [space])

    def clients(self, viewer: Client, space: str) -> list[dict[str, object]]:
        return self._clients.seen_by(viewer, space)

    def status(self) -> dict[str, object]:
        return {
            "clients": len(self._clients),
            **self.requests.status(),
            "kept": self.keeper.count,
            "live": self._live,
            "cut_off": dict(self._cut),
            "sync": str(self.options.sync),
        }

    # Time

    async def _beats(self) -> None:
        step = min(1.0, self.options.heartbeat_s / 4, self.options.register_s / 4)
        while True:
            await asyncio.sleep(step)
            now = time.monotonic()
            for client in list(self._clients.values()):
                self._look_at(client, now)

    async def _compactions(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COMPACT_S):
                    await self._too_much.wait()
            self._too_much.clear()
            self._said.clear()
            self._questions.forget(lambda space: not self._spaces.exists(space))
            try:
                await compact(self.log, self.keeper, self._spaces, self.options.keep)
            except CarrelError as error:
                _log.error("the log of the hub cannot be made smaller: %s", error)

    def _look_at(self, client: Client, now: float) -> None:
        if client.kind is None:
            if now - client.connected_at > self.options.register_s:
                error = MessageInvalid(
                    "This client did not register in time.", hint="Send `client_register` first."
                )
                self.cut_off(client, "not_registered", error)
            return
        if now - client.heard_at > MISSED * self.options.heartbeat_s:
            self.cut_off(client, "connection_lost")
        elif now - client.spoke_at >= self.options.heartbeat_s:
            self._send(client, "heartbeat", {})


def _type_of(body: bytes) -> str:
    """It is the first field of every envelope that the hub wrote."""
    # Of a row that cannot be read: what was at that place, which no more than a `*` fits.
    return body[9 : body.find(b'"', 9)].decode("utf-8", "replace")
