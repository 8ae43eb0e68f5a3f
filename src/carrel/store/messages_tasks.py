"""What the thread that writes the log is asked to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carrel.domain.hub import Message

DROP_MOST = 1000
"""Messages in one transaction, about ten milliseconds, which an append may have to wait."""


@dataclass(frozen=True)
class Append:
    messages: Sequence[Message]
    sync: bool


@dataclass(frozen=True)
class Acknowledge:
    consumer: str
    space_id: str
    seq: int


@dataclass(frozen=True)
class Piece:
    """A stretch of one space's messages."""

    space_id: str
    first: int
    last: int


@dataclass(frozen=True)
class Drop:
    """At most `DROP_MOST` messages in all."""

    pieces: Sequence[Piece]


@dataclass(frozen=True)
class Forget:
    """Everything of a space if that is little, else its oldest messages. Answers whether
    that was all."""

    space_id: str


@dataclass(frozen=True)
class ForgetConsumer:
    consumer: str


@dataclass(frozen=True)
class GiveBack:
    """Some free room, to the disk. Answers whether there is more."""


Grouped = Append | Acknowledge
Task = Grouped | Drop | Forget | ForgetConsumer | GiveBack
