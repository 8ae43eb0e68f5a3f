"""The client's side of the hub's protocol, over any number of connections: messages in, lines
out, no socket and no clock. docs/hub.md has the words.

What is to reach the log is kept here until the hub says that it is there, and sent again after
a lost connection, with the same id. Of every space the last number that was heard is known:
what comes again is dropped, and after a lost connection a client without a cursor of its own
has the rest replayed. Until the hub says from where it replays, a space is *held*: what comes
of it would be out of order, and comes again.
"""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from carrel.client.problems import ConnectionLost, error_in
from carrel.domain.errors import (
    AuthenticationFailed,
    CarrelError,
    Forbidden,
    MessageInvalid,
    RateLimited,
    SpaceNotFound,
    StateConflict,
    TooLarge,
)

KEPT = "buffer_"
"""Types that begin so are kept; all others are live."""
MAX_ENVELOPE = 1 << 20
"""The hub cuts off who sends more."""
PIECE, PIECE_BYTES = 500, 1 << 18
"""Messages that are published at once, and about how many bytes."""


class MessageSender(msgspec.Struct, frozen=True, omit_defaults=True):
    """As the hub knows it. `space` is set for who speaks from inside one."""

    client_id: str = ""
    kind: str = ""
    space: str = ""
    owner: bool = False
    """It has all the rights of the daemon's user."""


class HubMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One that was heard. `seq` is its number in the log of its space; 0 for a live one."""

    type: str
    id: str = ""
    ts: float = 0.0
    sender: MessageSender = MessageSender()
    payload: dict[str, Any] = {}
    space: str = ""
    seq: int = 0
    reply_to: str = ""
    deadline_ms: int = 0

    @property
    def is_request(self) -> bool:
        """Somebody waits for `respond` or `fail`, for `deadline_ms`."""
        return self.deadline_ms > 0


class Published(msgspec.Struct, frozen=True):
    """It is kept. With `sync` `disk` it outlives a loss of power, with `process` every end of
    the daemon."""

    seq: int
    sync: str
    id: str = ""
    """Of the message, as those hear it who listen."""


class Delivered(msgspec.Struct, frozen=True):
    """A live message reached so many."""

    count: int


class Replayed(msgspec.Struct, frozen=True):
    """What is replayed of each space: after one number, up to another; what comes after that
    is new."""

    after: dict[str, int]
    last: dict[str, int]


class PublishBatch(msgspec.Struct, frozen=True):
    """The payload of `buffer_publish`, and how many messages are in it."""

    messages: msgspec.Raw
    count: int


class HubClient(msgspec.Struct, frozen=True):
    """One that is connected."""

    client_id: str
    kind: str
    name: str = ""
    space: str = ""
    capabilities: tuple[str, ...] = ()
    consumer: str = ""
    types: tuple[str, ...] = ()
    spaces: tuple[str, ...] = ()
    waiting: int = 0
    """Bytes that it has not read yet."""


class HubStatus(msgspec.Struct, frozen=True):
    clients: int
    requests: int
    """That wait for an answer."""
    late_answers: int
    kept: int
    live: int
    cut_off: dict[str, int]
    """Connections that ended, by reason."""
    sync: str


class HubOptions(TypedDict, total=False):
    """Who a client is and what it wants to hear; see docs/hub.md."""

    kind: str
    """`app`, `ide` or `cli`; inside a space it is `agent`, whatever is said."""
    name: str
    types: Sequence[str]
    """Of messages, with `*` for any characters; all unless said."""
    spaces: Sequence[str]
    """Ids; all unless said."""
    consumer: str
    """A name, for one that is to miss nothing."""
    capabilities: Sequence[str]
    """Types of requests that are answered; none: all for the kind."""
    auto_ack: bool
    """Of a consumer: a message is acknowledged when the next one is asked for."""


class HubSubscriptions(msgspec.Struct, frozen=True):
    types: tuple[str, ...]
    spaces: tuple[str, ...]


class Registration(msgspec.Struct, frozen=True):
    """The payload of `client_register`."""

    kind: str
    name: str
    subscriptions: HubSubscriptions
    capabilities: tuple[str, ...]
    consumer: str


class Envelope(msgspec.Struct, omit_defaults=True):
    """One that goes out."""

    type: str
    id: str = ""
    space: str = ""
    payload: Any = None
    reply_to: str = ""
    to: str = ""
    deadline_ms: int = 0


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(HubMessage)


def registration(options: HubOptions, inside: bool) -> Registration:
    return Registration(
        kind="agent" if inside else options.get("kind", "app"),
        name=options.get("name", ""),
        subscriptions=HubSubscriptions(
            tuple(options.get("types", ("*",))), tuple(options.get("spaces", ("*",)))
        ),
        capabilities=tuple(options.get("capabilities", ())),
        consumer=options.get("consumer", ""),
    )


def encode(envelope: Envelope) -> bytes:
    """Without the line break. Raises `MessageInvalid` and `TooLarge`."""
    return _bounded(_encoded(envelope))


def pieces(messages: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[PublishBatch]:
    """Types and payloads as they are published: many at once. Raises as `encode`."""
    left = iter(messages)
    while some := list(itertools.islice(left, PIECE)):
        for type, _ in some:
            if not type.startswith(KEPT):
                raise MessageInvalid(
                    f"Messages of type {type} are live, so they cannot be published.",
                    hint="Use `send`, or `request`.",
                )
        yield from _fitting([{"type": type, "payload": payload} for type, payload in some])


def _fitting(some: list[dict[str, Any]]) -> Iterator[PublishBatch]:
    """As one, or by halves."""
    body = _encoded(some)
    if len(body) <= PIECE_BYTES or len(some) == 1:
        yield PublishBatch(msgspec.Raw(_bounded(body)), len(some))
        return
    half = len(some) // 2
    yield from _fitting(some[:half])
    yield from _fitting(some[half:])


def _encoded(value: object) -> bytes:
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise MessageInvalid(f"The payload is no JSON: {error}.") from error


def _bounded(body: bytes) -> bytes:
    if len(body) > MAX_ENVELOPE:
        raise TooLarge(
            f"A message is at most {MAX_ENVELOPE} bytes long.",
            hint="Put the large part into a file of the space, and send its name.",
        )
    return body


UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def decode(envelope: bytes) -> HubMessage:
    """Raises one of `UNREADABLE`."""
    return _decoder.decode(envelope)


def decode_lines(lines: bytes) -> list[HubMessage]:
    """As `decode`, of whole lines."""
    return _decoder.decode_lines(lines)


# Messages that were heard and not yet asked for: bounded by bytes, and cheap for each of them

HIGH = 4 << 20
"""Bytes after which nothing more is read, as long as nobody waits for an answer."""
LOW = 1 << 20
"""… and reading goes on below that."""
MOST = 64 << 20
"""Bytes after which more is thrown away: what is kept is replayed later."""


class MessageInbox:
    """Bytes are counted by the pieces in which they came: `size` is without the piece that is
    being taken out."""

    def __init__(self) -> None:
        self.size = 0
        self._current: list[HubMessage] = []
        self._more: deque[tuple[list[HubMessage], int]] = deque()

    def __bool__(self) -> bool:
        return bool(self._current or self._more)

    def put(self, messages: list[HubMessage], size: int) -> None:
        if messages:
            self._more.append((messages, size))
            self.size += size

    def take(self) -> HubMessage | None:
        if not self._current and not self._turn():
            return None
        return self._current.pop()

    def take_all(self) -> list[HubMessage]:
        """Those that came together."""
        if not self._current and not self._turn():
            return []
        messages, self._current = self._current, []
        messages.reverse()
        return messages

    def _turn(self) -> bool:
        if not self._more:
            return False
        self._current, size = self._more.popleft()
        self._current.reverse()
        self.size -= size
        return True


# The session

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


class PendingCall:
    """One that waits for its answer. `again`: sent again after a lost connection. `bound`: of
    no use on another one."""

    __slots__ = ("again", "body", "bound", "sent", "settle")

    def __init__(self, body: bytes, settle: Settle, again: bool, bound: bool) -> None:
        self.body = body
        self.again = again
        self.bound = bound
        self.settle = settle
        self.sent = False


class HubSession:
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
        self.inbox = MessageInbox()
        self.missed = 0
        """Live messages that came while too much was unread."""
        self._ids = secrets.token_hex(6)
        self._count = 0
        self._calls: dict[str, PendingCall] = {}
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
            hint="Check whether it was done before you try again.",
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
        self._calls[number] = PendingCall(encode(envelope), settle, again, bound)
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

    def _landed(self, call: PendingCall) -> None:
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
                f"Another client connected as the consumer {self.wanted.consumer!r}.",
                hint="Give each client a consumer name of its own.",
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

    def subscribed(self, wanted: HubSubscriptions) -> None:
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
