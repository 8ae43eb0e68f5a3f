"""A client's side of the hub's protocol, over any number of connections: messages in, lines
out, no socket and no clock.

What is to reach the log is kept here until the hub says that it is there, and sent again after
a lost connection, with the same id. Of every space the last number that was heard is known:
what comes again is dropped, and after a lost connection a client without a cursor of its own
has the rest replayed. Until the hub says from where it replays, a space is *held*: what comes
of it would be out of order, and comes again.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from carrel.client.hub_inbox import LOW, MOST, Inbox
from carrel.client.hub_messages import (
    Envelope,
    HubMessage,
    Registration,
    Subscriptions,
    encode,
)
from carrel.client.hub_problems import ConnectionLost, error_in
from carrel.domain.errors import (
    AuthenticationFailed,
    CarrelError,
    Forbidden,
    MessageInvalid,
    RateLimited,
    SpaceNotFound,
    StateConflict,
)

HEARTBEAT_S = 15.0
"""Until the hub says how often."""
WINDOW = 500
"""Messages that may wait for the hub's answer: fewer than it takes to be cut off for flooding."""
WINDOW_BYTES = 8 << 20
LONGEST_PAUSE_S = 60.0
"""After the hub said that it is too much."""
ALL = "*"
FATAL = (AuthenticationFailed, Forbidden, SpaceNotFound, MessageInvalid, StateConflict)
"""Who is refused for these is refused the next time too."""

Settle = Callable[[Any, CarrelError | None], None]


class Call:
    """One that waits for its answer. `again`: sent again after a lost connection. `bound`: of
    no use on another one."""

    __slots__ = ("again", "body", "bound", "sent", "settle")

    def __init__(self, body: bytes, settle: Settle, again: bool, bound: bool) -> None:
        self.body = body
        self.again = again
        self.bound = bound
        self.settle = settle
        self.sent = False


class Session:
    def __init__(self, wanted: Registration) -> None:
        self.wanted = wanted
        self.client_id = ""
        self.space = ""
        """Which one this client speaks from, if it is inside one."""
        self.heartbeat_s = HEARTBEAT_S
        self.registered = False
        self.ending: CarrelError | None = None
        """Why this connection is of no use any more."""
        self.slow_down = False
        """The hub said that it is too much: nothing is sent until somebody calls `go_on`."""
        self.pause_s = 0.0
        """How long the hub wants that to be."""
        self.leaving = False
        self.inbox = Inbox()
        self.missed = 0
        """Live messages that came while too much was unread."""
        self._ids = secrets.token_hex(6)
        self._count = 0
        self._calls: dict[str, Call] = {}
        self._waiting: deque[str] = deque()
        self._refused: deque[str] = deque()
        """Before those that wait."""
        self._flying = 0
        self._flying_bytes = 0
        self._plain: list[bytes] = []
        self._register_id = ""
        self._seen: dict[str, int] = {}
        self.held: set[str] = set()
        """Spaces of which something has to be replayed first."""
        self._asked: set[str] = set()
        self._done: dict[str, int] = {}
        self._undone: set[str] = set()
        self._own: dict[str, Callable[[HubMessage], bool]] = {
            "response": self._response,
            "error": self._error,
            "heartbeat": lambda _: True,
            "client_disconnected": self._disconnected,
        }

    # Connections

    def begin(self) -> bytes:
        """The first line on a new connection."""
        self.registered, self.ending, self.slow_down = False, None, False
        self.client_id = ""
        self._flying = self._flying_bytes = 0
        self._plain, self._asked = [], set()
        # The hub itself replays to a consumer.
        self.held = set() if self.wanted.consumer else {s for s in self._seen if self._wants(s)}
        self._register_id = self._new_id()
        return encode(Envelope("client_register", self._register_id, payload=self.wanted))

    def lost(self) -> None:
        """The connection is gone."""
        self.registered = False
        error = ConnectionLost(
            "The connection to the hub was lost before the answer came.",
            hint="Look whether it was done before you try again.",
        )
        calls, self._calls = self._calls, {}
        for number, call in calls.items():
            if call.again or not (call.sent or call.bound):
                call.sent = False
                self._calls[number] = call
            else:
                call.settle(None, error)
        self._waiting, self._refused = deque(self._calls), deque()

    def end(self, error: CarrelError) -> None:
        """There will be no other connection."""
        self.registered = False
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.settle(None, error)

    # What goes

    def _new_id(self) -> str:
        self._count += 1
        return f"{self._ids}-{self._count}"

    def call(
        self, envelope: Envelope, settle: Settle, *, again: bool = False, bound: bool = False
    ) -> str:
        """Gives its number. Raises `MessageInvalid` and `TooLarge`."""
        number = envelope.id = self._new_id()
        self._calls[number] = Call(encode(envelope), settle, again, bound)
        (self._refused if bound else self._waiting).append(number)
        return number

    def abandon(self, number: str) -> bool:
        """Nobody waits for the answer any more, and it is not sent again. False when it was
        settled before."""
        call = self._calls.pop(number, None)
        if call is not None and call.sent:
            self._landed(call)
        return call is not None

    @property
    def awaits(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self._calls)

    def tell(self, envelope: Envelope) -> None:
        """One that nobody waits for; it is lost with the connection."""
        if self.registered:
            self._plain.append(encode(envelope))

    def take(self) -> list[bytes]:
        """What may go out now."""
        if not self.registered:
            return []
        out = [self._acknowledgement(space) for space in self._undone] + self._plain
        self._undone.clear()
        self._plain = []
        while not self.slow_down and self._flying < WINDOW and self._flying_bytes < WINDOW_BYTES:
            queue = self._refused or self._waiting
            if not queue:
                break
            call = self._calls.get(queue.popleft())
            if call is None:
                continue
            call.sent = True
            self._flying += 1
            self._flying_bytes += len(call.body)
            out.append(call.body)
        return out

    def _acknowledgement(self, space: str) -> bytes:
        payload = {"space": space, "seq": self._done[space]}
        return encode(Envelope("buffer_acknowledge", payload=payload))

    def go_on(self) -> None:
        self.slow_down = False
        self.pause_s = 0.0

    def leave(self) -> None:
        self.tell(Envelope("client_disconnect"))
        self.leaving = True

    def acknowledged(self, message: HubMessage) -> None:
        """To be told to the hub soon, with all before it."""
        if message.seq > self._done.get(message.space, 0):
            self._done[message.space] = message.seq
            self._undone.add(message.space)

    # What comes

    def receive(self, messages: list[HubMessage], size: int) -> None:
        """What came together, and how many bytes that were."""
        heard: list[HubMessage] = []
        seen, held, own = self._seen, self.held, self._own
        full = self.inbox.size > MOST
        for message in messages:
            if seq := message.seq:
                space = message.space
                if seq <= seen.get(space, 0) or space in held:
                    continue
                if full:
                    held.add(space)
                    continue
                seen[space] = seq
            elif message.type in own and own[message.type](message):
                continue
            elif full:
                self.missed += 1
                continue
            heard.append(message)
        if not self.leaving:
            self.inbox.put(heard, size)

    def _response(self, message: HubMessage) -> bool:
        payload = message.payload
        if message.reply_to == self._register_id:
            self._welcome(payload.get("data") or {})
            return True
        call = self._calls.pop(message.reply_to, None)
        if call is not None:
            self._landed(call)
            failed = payload.get("status") == "error"
            call.settle(payload.get("data"), error_in(payload.get("error")) if failed else None)
        return True

    def _error(self, message: HubMessage) -> bool:
        error = error_in(message.payload)
        number = message.reply_to
        call = self._calls.get(number)
        if call is None:
            # Nobody asked: it is why this connection is refused, or about to end.
            if not self.registered:
                self.ending = error
            return True
        self._landed(call)
        if isinstance(error, RateLimited) and call.again:
            call.sent = False
            self._refused.append(number)
            self.slow_down = True
            self.pause_s = max(self.pause_s, _pause_s(message))
        else:
            del self._calls[number]
            call.settle(None, error)
        return True

    def _landed(self, call: Call) -> None:
        self._flying -= 1
        self._flying_bytes -= len(call.body)

    def _disconnected(self, message: HubMessage) -> bool:
        payload = message.payload
        if "kind" in payload and payload.get("client_id") != self.client_id:
            # Of another client: that is for who listens.
            return False
        reason = str(payload.get("reason", ""))
        if reason == "replaced":
            self.ending = StateConflict(
                f"Another client came as the consumer {self.wanted.consumer!r}.",
                hint="Give each its own name.",
            )
        elif self.ending is None:
            self.ending = ConnectionLost(f"The hub ended the connection: {reason}.")
        return True

    def _welcome(self, data: dict[str, Any]) -> None:
        self.registered = True
        self.client_id = data.get("client_id", "")
        self.space = data.get("space", "")
        self.heartbeat_s = float(data.get("heartbeat_s") or HEARTBEAT_S)
        cursors = data.get("replay_from") or {}
        self._undone = {s for s, seq in self._done.items() if cursors.get(s, seq) < seq}
        self.refill()

    # Replays

    def refill(self) -> None:
        """Asks for what was lost or thrown away, when there is room for it."""
        if not self.registered or self.inbox.size > LOW:
            return
        for space in self.held - self._asked:
            self._asked.add(space)
            payload = {"space": space, "seq": self._seen.get(space, 0)}
            self.replay(payload, self._refilled(space), bound=True)

    def _refilled(self, space: str) -> Settle:
        def settle(_data: Any, error: CarrelError | None) -> None:
            self._asked.discard(space)
            if isinstance(error, SpaceNotFound):
                self.held.discard(space)
                self._seen.pop(space, None)
            elif error is not None and not isinstance(error, Forbidden | ConnectionLost):
                # `Forbidden`: an earlier replay still goes on; it is asked for again later.
                self.ending = error

        return settle

    def replay(self, payload: dict[str, Any], settle: Settle, *, bound: bool = False) -> str:
        """What comes after the answer is after the numbers in it."""

        def begin(data: Any, error: CarrelError | None) -> None:
            if error is None:
                for space, seq in data["replay_from"].items():
                    self._seen[space] = seq
                    self.held.discard(space)
            settle(data, error)

        return self.call(Envelope("buffer_replay", payload=payload), begin, bound=bound)

    def subscribed(self, wanted: Subscriptions) -> None:
        """From now on, and at every registration."""
        self.wanted = msgspec.structs.replace(self.wanted, subscriptions=wanted)
        for space in [s for s in self._seen if not self._wants(s)]:
            del self._seen[space]
            self.held.discard(space)

    def _wants(self, space: str) -> bool:
        spaces = self.wanted.subscriptions.spaces
        return ALL in spaces or space in spaces


def _pause_s(refusal: HubMessage) -> float:
    wanted = refusal.payload.get("retry_after_ms")
    return min(wanted / 1000, LONGEST_PAUSE_S) if isinstance(wanted, int | float) else 0.0
