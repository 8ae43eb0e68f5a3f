"""One connected client: what it wants, and what waits to go out to it."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from carrel.domain.errors import MessageInvalid
from carrel.domain.hub import ClientKind
from carrel.hub.access import Identity, is_admin
from carrel.hub.envelopes import Sender, raw
from carrel.hub.rates import Bucket, Rate

ALL = "*"
MOST_UNSETTLED = 1 << 20
"""Bytes of what a client said that is not kept or answered yet: no more of it is read meanwhile.
A disk may be slower than whoever has something to say, and all that waits for it is in memory."""
OVERHEAD = 256
"""Of one message."""


class Sink(Protocol):
    """The transport's way out. Never waits, never raises: a connection that is gone takes
    everything."""

    def send(self, envelopes: Sequence[bytes]) -> None: ...

    def waiting(self) -> int:
        """Bytes that the other side has not taken yet."""
        ...

    async def drained(self) -> None:
        """Returns when little waits, or the connection is gone."""
        ...

    def close(self, reason: str) -> None:
        """What was sent goes out first, as far as that is possible at once."""
        ...


def sender_of(identity: Identity, client_id: str, kind: str = "") -> Sender:
    return Sender(client_id, kind, identity.space_id, is_admin(identity))


class Client:
    """`kind` is set when it has registered."""

    def __init__(self, client_id: str, identity: Identity, sink: Sink, rate: Rate, now: float):
        self.client_id = client_id
        self.identity = identity
        self.sink = sink
        self.kind: ClientKind | None = None
        self.name = ""
        self.consumer = ""
        """Under what it is kept: `Identity.consumer`."""
        self.capabilities: frozenset[str] = frozenset()
        self.types = Patterns(())
        self.tried = 0
        """Patterns with a `*` before their end, also of a subscription that is not in force yet."""
        self.spaces: frozenset[str] = frozenset()
        self.sender = raw(sender_of(identity, client_id))
        self.bucket = Bucket(rate, now)
        self.connected_at = now
        self.heard_at = now
        self.spoke_at = now
        self.refused = 0
        """Messages in a row that came too fast."""
        self.asking = 0
        """Requests to the system that are not answered yet."""
        self.unsettled = 0
        self.on_settled: Callable[[], None] = lambda: None
        """Called when more of it may be read."""
        self.closed = False
        self.reading: set[str] = set()
        """Spaces that are being replayed: what is kept there comes from the log, in order."""
        self._out: list[bytes] = []
        self._soon = self._later = False
        """Whether somebody will flush."""

    def register(self, kind: ClientKind, name: str) -> None:
        self.kind, self.name = kind, name
        self.sender = raw(sender_of(self.identity, self.client_id, str(kind)))

    def subscribe(self, types: Patterns, spaces: Iterable[str]) -> None:
        self.types, self.spaces = types, frozenset(spaces)

    def hears(self, space: str) -> bool:
        return not self.closed and (space in self.spaces or ALL in self.spaces)

    @property
    def is_behind(self) -> bool:
        return self.unsettled > MOST_UNSETTLED

    def settle(self, size: int) -> None:
        """So much of what it said is kept or answered, or never will be."""
        behind = self.is_behind
        self.unsettled -= size
        if behind and not self.is_behind:
            self.on_settled()

    def answers(self, type: str) -> bool:
        """Everybody in a space is an agent, also a script that says one word: of agents only
        those are asked that say what they answer."""
        if self.kind is ClientKind.AGENT:
            return type in self.capabilities
        return not self.capabilities or type in self.capabilities

    def push(self, envelope: bytes) -> bool:
        """True when somebody has to call `flush` soon."""
        self._out.append(envelope)
        if self._soon:
            return False
        self._soon = True
        return True

    def push_late(self, envelopes: Sequence[bytes]) -> bool:
        """True when somebody has to call `flush`, at the latest with all others."""
        self._out += envelopes
        if self._soon or self._later:
            return False
        self._later = True
        return True

    def flush(self) -> int:
        """Gives how many bytes wait afterwards."""
        self._soon = self._later = False
        out, self._out = self._out, []
        if self.closed or not out:
            return 0
        self.sink.send(out)
        return self.sink.waiting()


# Patterns for types: `*` stands for any characters, everything else for itself.

KNOWN = 1000
"""Types that are remembered; there are far fewer, unless somebody makes them up."""


MOST_STARS = 4
MOST_INNER, INNER_OF_ACCOUNT = 4, 100
"""Patterns of one subscription with a `*` before their end, and of all clients of an account that
is not the owner. Others cost next to nothing; each of these is tried for each client with each new
type, while all who have something to say wait."""


class Patterns:
    """Whether one of them fits; remembers what it has found."""

    def __init__(self, patterns: Iterable[str]) -> None:
        """Raises `MessageInvalid`."""
        self.patterns = tuple(dict.fromkeys(patterns))
        inner = [one for one in self.patterns if "*" in one[:-1]]
        if len(inner) > MOST_INNER or any(one.count("*") > MOST_STARS for one in inner):
            raise MessageInvalid(
                f"At most {MOST_INNER} types have a `*` before their end, {MOST_STARS} at most.",
                hint="Subscribe to whole types and to beginnings, such as `custom_*`.",
                field="types",
            )
        self._whole = frozenset(self.patterns)
        self._beginnings: list[str] = []
        """Sorted, and none is one of another."""
        for one in sorted(one[:-1] for one in self.patterns if one.find("*") == len(one) - 1):
            if not (self._beginnings and one.startswith(self._beginnings[-1])):
                self._beginnings.append(one)
        self._inner = [one.split("*") for one in inner]
        self.tried = len(inner)
        self._known: dict[str, bool] = {}

    def heard(self, lines: Sequence[tuple[str, bytes]]) -> list[bytes]:
        """Of messages with their types those that fit."""
        if self._beginnings == [""]:
            return [body for _, body in lines]
        return [body for type, body in lines if self.fit(type)]

    def fit(self, type: str) -> bool:
        known = self._known.get(type)
        if known is None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            known = type in self._whole or self._begins(type)
            known = known or any(_fits(one, type) for one in self._inner)
            self._known[type] = known
        return known

    def _begins(self, type: str) -> bool:
        """Between a beginning of it and itself, all that could stand has that beginning too."""
        place = bisect(self._beginnings, type)
        return place > 0 and type.startswith(self._beginnings[place - 1])


def _fits(pattern: list[str], type: str) -> bool:
    """What stands between two `*` is taken where it is first found, and not looked for again. By
    the library's own search: an expression takes fifty times as long."""
    first, *between, last = pattern
    at, end = len(first), len(type) - len(last)
    if end < at or not (type.startswith(first) and type.endswith(last)):
        return False
    for one in between:
        at = type.find(one, at, end)
        if at < 0:
            return False
        at += len(one)
    return True
