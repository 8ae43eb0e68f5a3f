"""What the benchmark of the hub has done in processes of its own, and how both sides speak.

A process gets one job on its standard input, connects, says that it is ready, and begins when
it is told to. Its last line is what came of it.
"""

from __future__ import annotations

import sys
import time

import msgspec

TYPE = "buffer_custom_bench"
"""Of the messages: kept, and of any content."""
READY, GO = "ready", "go"


class Job(msgspec.Struct, frozen=True):
    """`role` is what to do, on whose `side`. `streams` has one entry for each client: the
    space, or the stream, that it speaks or listens to. `count` is how many messages each
    client sends or hears, `window` how many may wait for their answers."""

    side: str
    role: str
    socket: str
    streams: tuple[str, ...]
    count: int = 0
    window: int = 1
    size: int = 0
    """Of a payload, in bytes."""
    rate: int = 0
    """Of a pacer, messages a second."""
    consumer: str = ""


class Result(msgspec.Struct, frozen=True):
    """Nanoseconds on the clock that all processes share."""

    begun: int
    ended: int
    delays: list[int] = []
    """From when a message was given to its publisher until somebody had it."""


class Payload(msgspec.Struct, frozen=True):
    """As JSON on both sides."""

    sent: int
    text: str


def filler(size: int) -> str:
    """So that a payload is about so many bytes long."""
    return "x" * max(0, size - len(msgspec.json.encode(Payload(time.monotonic_ns(), ""))))


def await_go() -> None:
    """Tells that this process is ready; returns when all are."""
    print(READY, flush=True)
    if sys.stdin.readline().strip() != GO:
        # Whoever asked for it has gone.
        sys.exit(1)


def await_end() -> None:
    """Returns when nobody needs this process any more."""
    sys.stdin.read()
