"""One connected client: what it wants, and what waits to go out to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from carrel.domain.hub import ClientKind
from carrel.hub.access import Identity
from carrel.hub.envelopes import Sender, raw
from carrel.hub.patterns import Patterns
from carrel.hub.rates import Bucket, Rate
from carrel.hub.types import Subscriptions

ALL = "*"


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


class Client:
    """`kind` is set when it has registered."""

    def __init__(self, client_id: str, identity: Identity, sink: Sink, rate: Rate, now: float):
        self.client_id = client_id
        self.identity = identity
        self.sink = sink
        self.kind: ClientKind | None = None
        self.name = ""
        self.consumer = ""
        self.capabilities: frozenset[str] = frozenset()
        self.types = Patterns(())
        self.spaces: frozenset[str] = frozenset()
        self.sender = raw(Sender(client_id, "", identity.space_id))
        self.bucket = Bucket(rate, now)
        self.connected_at = now
        self.heard_at = now
        self.spoke_at = now
        self.refused = 0
        """Messages in a row that came too fast."""
        self.asking = 0
        """Requests to the system that are not answered yet."""
        self.closed = False
        self.reading: set[str] = set()
        """Spaces that are being replayed: what is kept there comes from the log, in order."""
        self._out: list[bytes] = []
        self._soon = self._later = False
        """Whether somebody will flush."""

    def register(self, kind: ClientKind, name: str) -> None:
        self.kind, self.name = kind, name
        self.sender = raw(Sender(self.client_id, str(kind), self.identity.space_id))

    def subscribe(self, wanted: Subscriptions) -> None:
        self.types, self.spaces = Patterns(wanted.types), frozenset(wanted.spaces)

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

    def push_late(self, envelope: bytes) -> bool:
        """True when somebody has to call `flush`, at the latest with all others."""
        self._out.append(envelope)
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
