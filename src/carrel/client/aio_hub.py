"""`AsyncHub`: hears and says what goes on in spaces.

    async with carrel.AsyncHub(types=["buffer_*"]) as hub:
        await hub.publish("buffer_space_message", {"text": "hello"}, space=space.id)
        async for message in hub:
            print(message.space, message.type, message.payload)

A lost connection is made again, and the client goes on where it was: see `AsyncHub`.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from carrel.client import models
from carrel.client.address import find_hub, starter
from carrel.client.aio_link import AsyncLink
from carrel.client.http import ProtocolError
from carrel.client.hub_channel import Channel, open_channel
from carrel.client.hub_protocol import (
    FATAL,
    HIGH,
    KEPT,
    LOW,
    Delivered,
    Envelope,
    HubClient,
    HubMessage,
    HubOptions,
    HubSession,
    HubStatus,
    HubSubscriptions,
    Published,
    Replayed,
    Settle,
    pieces,
    registration,
)
from carrel.client.problems import broken, unreadable
from carrel.domain.errors import CarrelError, DaemonUnavailable, MessageInvalid

REGISTER_S = 10.0
"""For the hub to say that it knows us; it takes milliseconds."""
CLOSE_S = 2.0
"""For the hub to take leave; what was to be said has been sent before."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""Before connecting again: a daemon that was restarted is there in a second, and one that was
ended is not asked more often than that."""
TICKS = 4
"""Looks at the connection within one heartbeat."""
MISSED = 3
"""Heartbeats without a word from the hub after which the connection counts as lost."""
SLOWER_S = 0.1
"""After the hub said that it is too much: so that many may go again, not one."""
ACKNOWLEDGE_S = 0.02
"""Acknowledgements of that time are sent as one."""
MOST_CALLS = 10_000
"""That may wait to be sent or answered; who comes later waits before."""


@dataclass(frozen=True)
class Timing:
    """What time is for a client, and chance: `jitter` gives a number from 0 to 1."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    jitter: Callable[[], float] = random.random


class AsyncHub:
    """The hub of one daemon: of a data folder (`data`), on a `socket` of the hub, or at a
    `url` with a `token`; else of the space that this runs in (CARREL_HUB), or as `Client`
    finds it. For one event loop; may be used by several tasks.

    It connects again by itself, for as long as it is open. A consumer then goes on from what
    it acknowledged; any other client has replayed what came after the last message that it
    heard of a space. Nothing that is kept is missed or comes twice. What is live and comes
    meanwhile is missed. Who leaves messages unread for long misses live ones too; what is kept
    comes when there is room.

    Raises the errors of `carrel.errors` by the hub's codes, and `DaemonUnavailable` when it
    cannot be reached at first. When the hub will not have this client any more (its token was
    revoked, say) everything raises that error from then on.
    """

    def __init__(
        self,
        *,
        data: str | os.PathLike[str] | None = None,
        socket: str | os.PathLike[str] | None = None,
        url: str | None = None,
        token: str | None = None,
        autostart: bool = True,
        timing: Timing | None = None,
        **options: Unpack[HubOptions],
    ) -> None:
        self._where = find_hub(
            data=os.fspath(data or ""),
            socket=os.fspath(socket or ""),
            url=url or "",
            token=token or "",
        )
        place = self._where.place
        self._link = AsyncLink(place, start=starter(place, autostart))
        self._timing = timing or Timing()
        self._session = HubSession(registration(options, self._where.inside))
        self._auto_ack = bool(options.get("auto_ack")) and bool(options.get("consumer"))
        self._given: HubMessage | None = None
        self._channel: Channel | None = None
        self._staying: asyncio.Task[None] | None = None
        self._error: CarrelError | None = None
        self._closing = False
        self._flushing = False
        self._acknowledging: asyncio.TimerHandle | None = None
        self._slowing: asyncio.TimerHandle | None = None
        self._quiet_s = 0.0
        self._sent_at = 0.0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._calls = 0
        self._free = asyncio.Event()

    @property
    def client_id(self) -> str:
        """By which others may ask this client; a new one for every connection."""
        return self._session.client_id

    @property
    def space(self) -> str:
        """The space that this runs in; empty outside."""
        return self._session.space

    @property
    def connected(self) -> bool:
        return self._channel is not None

    async def __aenter__(self) -> AsyncHub:
        channel = await self._connect(start=True)
        self._staying = asyncio.create_task(self._stay(channel))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Says goodbye, and acknowledges what was to be acknowledged."""
        if self._closing:
            return
        self._closing = True
        task = self._staying
        if self._channel is not None:
            self._session.leave()
            self._flush()
            self._room.set()
            if task is not None:
                await asyncio.wait([task], timeout=CLOSE_S)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for timer in (self._acknowledging, self._slowing):
            if timer is not None:
                timer.cancel()
        await self._link.close()
        self._end(DaemonUnavailable("This client of the hub is closed.", hint="Open another."))

    # Saying

    async def publish(
        self, type: str, payload: Mapping[str, Any], *, space: str = "", reply_to: str = ""
    ) -> Published:
        """Returns when it is kept. At least once: when the connection breaks before the hub
        has said so, it is sent again with the same id, and may then be in the log twice."""
        if not type.startswith(KEPT):
            raise MessageInvalid(
                f"Messages of type {type} are live, so they cannot be published.",
                hint="Use `send`, or `request`.",
            )
        envelope = Envelope(type, "", self._about(space), payload, reply_to)
        return _published(await self._ask(envelope, again=True), envelope.id)

    async def publish_many(
        self, messages: Iterable[tuple[str, Mapping[str, Any]]], *, space: str = ""
    ) -> list[Published]:
        """Types and payloads, in this order, without waiting for one before the next. Up to
        500 of them (or 256 KiB) go as one piece, of which all are kept or none. Raises the
        first error, when all are answered. (Should the hub say that it is too much, those
        pieces are sent again that it refused, and may come after others.)"""
        waiting: list[tuple[str, asyncio.Future[Any], int]] = []
        found: list[Published] = []
        failure: CarrelError | None = None
        try:
            for piece in pieces(messages):
                payload = {"messages": piece.messages}
                envelope = Envelope("buffer_publish", "", self._about(space), payload)
                begun = await self._begin(_calling(self._session, envelope, True))
                waiting.append((*begun, piece.count))
            for number, future, count in waiting:
                try:
                    found += _published_all(await future, number, count)
                except CarrelError as error:
                    failure = failure or error
        except BaseException:
            for number, future, _ in waiting:
                self._abandon(number, future)
            raise
        if failure is not None:
            raise failure
        return found

    async def send(
        self, type: str, payload: Mapping[str, Any], *, space: str = "", reply_to: str = ""
    ) -> Delivered:
        """A live message: whoever listens now gets it, at most once. Raises `ConnectionLost`
        when nobody knows whether it was sent."""
        if type.startswith(KEPT):
            raise MessageInvalid(
                f"Messages of type {type} are kept, so they cannot be sent live.",
                hint="Use `publish`.",
            )
        envelope = Envelope(type, "", self._about(space), payload, reply_to)
        return Delivered((await self._ask(envelope))["delivered"])

    async def request(
        self,
        type: str,
        payload: Mapping[str, Any] | None = None,
        *,
        space: str = "",
        to: str = "",
        deadline_s: float | None = None,
    ) -> Any:
        """The answer's data. `to` is a kind or a client's id; types that are requests have
        their own. Raises what the other side answered, `NoReceiver`, `DeadlinePassed`, or
        `ConnectionLost`: a request is not repeated."""
        deadline_ms = 0 if deadline_s is None else max(1, round(deadline_s * 1000))
        envelope = Envelope(type, "", self._about(space), payload or {}, "", to, deadline_ms)
        return await self._ask(envelope)

    async def respond(
        self, message: HubMessage, data: Any = None, *, pending: bool = False
    ) -> bool:
        """Answers a request. False when it came too late. `pending`: the outcome will be a
        message of its own."""
        status = "pending" if pending else "success"
        return await self._answer(message, {"status": status, "data": data})

    async def fail(self, message: HubMessage, code: str, text: str, *, hint: str = "") -> bool:
        """Answers a request with an error."""
        error = {"code": code, "message": text, **({"hint": hint} if hint else {})}
        return await self._answer(message, {"status": "error", "error": error})

    async def _answer(self, message: HubMessage, payload: dict[str, Any]) -> bool:
        found = await self._ask(Envelope("response", payload=payload, reply_to=message.id))
        return not found.get("dropped")

    def _about(self, space: str) -> str:
        return space or self._session.space

    # Hearing

    def __aiter__(self) -> AsyncHub:
        return self

    async def __anext__(self) -> HubMessage:
        if self._given is not None:
            self.acknowledge_soon(self._given)
            self._given = None
        while (message := self._session.inbox.take()) is None:
            if not await self._more():
                raise StopAsyncIteration
        session = self._session
        if session.inbox.size <= LOW and (session.held or not self._room.is_set()):
            self._make_room()
        if self._auto_ack and message.seq:
            self._given = message
        return message

    async def batch(self) -> list[HubMessage]:
        """The next ones that came together; none when the client is closed. They are not
        acknowledged by themselves."""
        while not (messages := self._session.inbox.take_all()):
            if not await self._more():
                return []
        self._make_room()
        return messages

    async def _more(self) -> bool:
        """Waits until there is something; False when nothing will come. Raises why the hub
        will not have us any more."""
        if self._error is not None and not self._closing:
            raise self._error
        if self._closing:
            return False
        self._news.clear()
        await self._news.wait()
        return True

    def _make_room(self) -> None:
        self._room.set()
        self._session.refill()
        self._flush_soon()

    async def acknowledge(self, message: HubMessage) -> int:
        """Of a consumer: this one and all before it in its space are not sent again. Gives
        how far the consumer is."""
        payload = {"space": message.space, "seq": message.seq}
        envelope = Envelope("buffer_acknowledge", payload=payload)
        return int((await self._ask(envelope, again=True))["seq"])

    def acknowledge_soon(self, message: HubMessage) -> None:
        """As `acknowledge`, without waiting for the hub to say so."""
        self._session.acknowledged(message)
        if self._acknowledging is None:
            loop = asyncio.get_running_loop()
            self._acknowledging = loop.call_later(ACKNOWLEDGE_S, self._acknowledge_now)

    def _acknowledge_now(self) -> None:
        self._acknowledging = None
        self._flush()

    async def replay(
        self, space: str = "", *, seq: int | None = None, since: float | None = None
    ) -> Replayed:
        """Has all that is kept after a number or a time (seconds since 1970) sent, and then
        what comes; without a space of all that are subscribed."""
        payload = {"space": space or self._session.space, "seq": seq, "since": since}
        given = {name: value for name, value in payload.items() if value not in (None, "")}
        data = await self._ask_by(lambda settle: self._session.replay(given, settle))
        return Replayed(dict(data["replay_from"]), dict(data["replay_to"]))

    async def subscribe(
        self, *, types: Iterable[str] = ("*",), spaces: Iterable[str] = ("*",)
    ) -> None:
        """Instead of what was subscribed to before."""
        wanted = HubSubscriptions(tuple(types), tuple(spaces))
        await self._ask(Envelope("client_update", payload={"subscriptions": wanted}), again=True)
        self._session.subscribed(wanted)

    # Looking

    async def clients(self, space: str = "") -> list[HubClient]:
        """Who is connected, to this space or at all."""
        payload = {"space": space} if space else {}
        found = await self._ask(Envelope("client_list", payload=payload), again=True)
        return models.decode(found["clients"], list[HubClient])

    async def status(self) -> HubStatus:
        return models.decode(await self._ask(Envelope("system_status"), again=True), HubStatus)

    # Asking

    async def _ask(self, envelope: Envelope, *, again: bool = False) -> Any:
        return await self._ask_by(_calling(self._session, envelope, again))

    async def _ask_by(self, call: Callable[[Settle], str]) -> Any:
        number, future = await self._begin(call)
        try:
            return await future
        except asyncio.CancelledError:
            self._abandon(number, future)
            raise

    async def _begin(self, call: Callable[[Settle], str]) -> tuple[str, asyncio.Future[Any]]:
        while self._calls >= MOST_CALLS:
            self._free.clear()
            await self._free.wait()
        if self._error is not None:
            raise self._error
        if self._staying is None:
            raise DaemonUnavailable("This client of the hub is not open.", hint="Use `with`.")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        number = call(self._settling(future))
        self._calls += 1
        self._room.set()
        self._flush_soon()
        return number, future

    def _settling(self, future: asyncio.Future[Any]) -> Settle:
        def settle(data: Any, error: CarrelError | None) -> None:
            self._settled()
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(data)

        return settle

    def _settled(self) -> None:
        """Who waits is let in when there is room for many: they then share one write."""
        self._calls -= 1
        if self._calls <= MOST_CALLS // 2:
            self._free.set()

    def _abandon(self, number: str, future: asyncio.Future[Any]) -> None:
        if self._session.abandon(number):
            self._settled()
        if future.done() and not future.cancelled():
            future.exception()

    # The connection

    async def _connect(self, *, start: bool) -> Channel:
        """Registered. Raises `DaemonUnavailable`, or why the hub refuses."""
        try:
            async with asyncio.timeout(None if start else REGISTER_S):
                channel = await open_channel(self._link, self._where, start=start)
            try:
                async with asyncio.timeout(REGISTER_S):
                    channel.write([self._session.begin()])
                    while not self._session.registered:
                        await self._hear(channel)
            except BaseException:
                channel.abort()
                raise
        except (OSError, ProtocolError) as error:
            raise broken(error, REGISTER_S) from error
        self._channel = channel
        self._sent_at, self._quiet_s = self._timing.clock(), 0.0
        self._flush()
        return channel

    async def _hear(self, channel: Channel) -> None:
        """Raises why the connection has ended."""
        heard = await channel.receive()
        if heard is None:
            raise ConnectionResetError("the hub closed it")
        self._quiet_s = 0.0
        session = self._session
        session.receive(*heard)
        if session.inbox:
            self._news.set()
        if session.ending is not None:
            raise session.ending
        if session.slow_down and self._slowing is None:
            pause_s = max(SLOWER_S, session.pause_s)
            self._slowing = asyncio.get_running_loop().call_later(pause_s, self._go_on)
        self._flush_soon()

    async def _stay(self, channel: Channel) -> None:
        """For as long as the client is open."""
        while True:
            error = await self._serve(channel)
            self._channel = None
            channel.abort()
            self._session.lost()
            if self._closing:
                return
            if isinstance(error, FATAL):
                self._end(error)
                return
            found = await self._connect_again()
            if found is None:
                return
            channel = found

    async def _serve(self, channel: Channel) -> Exception:
        """Gives why it ended."""
        beating = asyncio.create_task(self._beat(channel))
        try:
            while True:
                await self._wait_for_room()
                await self._hear(channel)
        except (OSError, ProtocolError, CarrelError) as error:
            return error
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _wait_for_room(self) -> None:
        """Reading stops when nobody asks for what came; unless somebody waits for an answer,
        which is behind it."""
        if self._session.inbox.size <= HIGH or self._session.awaits or self._closing:
            return
        self._room.clear()
        await self._room.wait()
        self._quiet_s = 0.0

    async def _connect_again(self) -> Channel | None:
        """None when the hub will not have us any more."""
        pause_s = FIRST_PAUSE_S
        while True:
            await self._timing.sleep(pause_s * (0.5 + self._timing.jitter() / 2))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            try:
                return await self._connect(start=False)
            except FATAL as error:
                self._end(error)
                return None
            except CarrelError:
                # It is not there yet, or has no room; that may change.
                continue

    async def _beat(self, channel: Channel) -> None:
        """Says something now and then, and ends a connection on which nothing is heard. A
        loop that was blocked for long says nothing about the other side."""
        clock, session = self._timing.clock, self._session
        before = clock()
        while True:
            step_s = session.heartbeat_s / TICKS
            await self._timing.sleep(step_s)
            now = clock()
            self._quiet_s += min(now - before, 2 * step_s)
            before = now
            reading = self._room.is_set() or session.inbox.size <= HIGH
            if reading and self._quiet_s >= MISSED * session.heartbeat_s:
                channel.abort()
                return
            if now - self._sent_at >= session.heartbeat_s / 2:
                session.tell(Envelope("heartbeat"))
            session.refill()
            self._flush()

    def _flush_soon(self) -> None:
        """One write for all that is said in this turn of the loop."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._channel is not None and (envelopes := self._session.take()):
            self._channel.write(envelopes)
            self._sent_at = self._timing.clock()

    def _go_on(self) -> None:
        self._slowing = None
        self._session.go_on()
        self._flush()

    def _end(self, error: CarrelError) -> None:
        if self._error is None:
            self._error = error
        self._session.end(error)
        self._news.set()


def _calling(session: HubSession, envelope: Envelope, again: bool) -> Callable[[Settle], str]:
    return lambda settle: session.call(envelope, settle, again=again)


def _published(data: Any, number: str) -> Published:
    try:
        return Published(data["seq"], data["sync"], number)
    except (KeyError, TypeError):
        raise unreadable("it has no number") from None


def _published_all(data: Any, number: str, count: int) -> list[Published]:
    """The hub names those of one piece after it."""
    try:
        first, sync = int(data["first"]), data["sync"]
    except (KeyError, TypeError, ValueError):
        raise unreadable("it has no number") from None
    return [Published(first + n, sync, f"{number}.{n}") for n in range(count)]
