"""What goes to and comes from the hub, as records; docs/hub.md has the words."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from carrel.domain.errors import MessageInvalid, TooLarge

KEPT = "buffer_"
"""Types that begin so are kept; all others are live."""
MAX_ENVELOPE = 1 << 20
"""The hub cuts off who sends more."""
PIECE, PIECE_BYTES = 500, 1 << 18
"""Messages that are published at once, and about how many bytes."""


class Sender(msgspec.Struct, frozen=True, omit_defaults=True):
    """As the hub knows it. `space` is set for who speaks from inside one."""

    client_id: str = ""
    kind: str = ""
    space: str = ""


class HubMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One that was heard. `seq` is its number in the log of its space; 0 for a live one."""

    type: str
    id: str = ""
    ts: float = 0.0
    sender: Sender = Sender()
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


class Piece(msgspec.Struct, frozen=True):
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


class Subscriptions(msgspec.Struct, frozen=True):
    types: tuple[str, ...]
    spaces: tuple[str, ...]


class Registration(msgspec.Struct, frozen=True):
    """The payload of `client_register`."""

    kind: str
    name: str
    subscriptions: Subscriptions
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
        subscriptions=Subscriptions(
            tuple(options.get("types", ("*",))), tuple(options.get("spaces", ("*",)))
        ),
        capabilities=tuple(options.get("capabilities", ())),
        consumer=options.get("consumer", ""),
    )


def encode(envelope: Envelope) -> bytes:
    """Without the line break. Raises `MessageInvalid` and `TooLarge`."""
    return _bounded(_encoded(envelope))


def pieces(messages: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[Piece]:
    """Types and payloads as they are published: many at once. Raises as `encode`."""
    left = iter(messages)
    while some := list(itertools.islice(left, PIECE)):
        for type, _ in some:
            if not type.startswith(KEPT):
                raise MessageInvalid(f"{type} is live.", hint="Use `send`, or `request`.")
        yield from _fitting([{"type": type, "payload": payload} for type, payload in some])


def _fitting(some: list[dict[str, Any]]) -> Iterator[Piece]:
    """As one, or by halves."""
    body = _encoded(some)
    if len(body) <= PIECE_BYTES or len(some) == 1:
        yield Piece(msgspec.Raw(_bounded(body)), len(some))
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
            hint="Put what is large into a file of the space, and name it.",
        )
    return body


def decode(envelope: bytes) -> HubMessage:
    """Raises `msgspec.MsgspecError` or `UnicodeDecodeError`."""
    return _decoder.decode(envelope)


def decode_lines(lines: bytes) -> list[HubMessage]:
    """As `decode`, of whole lines."""
    return _decoder.decode_lines(lines)
