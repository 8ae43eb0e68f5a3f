"""Messages for the tests of the log."""

from __future__ import annotations

from collections.abc import Sequence

from carrel.domain.hub import Message, Replay
from carrel.store.messages import SqliteLog

DESK = "sp_desk"
OTHER = "sp_other"
AT = 1_700_000_000.123456

ALL = 1 << 40


def message(
    seq: int,
    space_id: str = DESK,
    *,
    type: str = "buffer_note",
    at: float = AT,
    size: int = 0,
    origin: int = 0,
) -> Message:
    """At least of `size`, and no two of them the same."""
    body = f'{{"space": "{space_id}", "seq": {seq}, "text": "'.encode()
    return Message(space_id, seq, type, at, body.ljust(size - 2, b"x") + b'"}', origin)


def some(first: int, last: int, space_id: str = DESK, *, size: int = 0) -> list[Message]:
    return [message(seq, space_id, size=size) for seq in range(first, last + 1)]


def bodies(messages: Sequence[Message]) -> list[bytes]:
    return [one.body for one in messages]


async def everything(log: SqliteLog, space_id: str = DESK) -> list[bytes]:
    found, _last = await log.replay(Replay(space_id, 0, ALL, ALL))
    return list(found)
