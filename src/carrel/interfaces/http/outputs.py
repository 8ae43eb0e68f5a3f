"""The end of what a command wrote, for answers that hold all of it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from carrel.domain.runs import Piece, RunRecord, RunState, Stream
from carrel.service.runs import Runs


@dataclass(frozen=True)
class Tail:
    data: bytes
    truncated: bool


async def tail(runs: Runs, record: RunRecord, most: int) -> tuple[Tail, Tail]:
    """The last `most` bytes of both streams of a run that has ended."""
    if record.terminal:
        return await _tail(runs, record, Stream.STDOUT, most), Tail(b"", False)
    out, err = await asyncio.gather(
        _tail(runs, record, Stream.STDOUT, most), _tail(runs, record, Stream.STDERR, most)
    )
    return out, err


async def _tail(runs: Runs, record: RunRecord, stream: Stream, most: int) -> Tail:
    """What is beyond is let go while it is read. An empty piece at the end says that the last
    bytes were dropped."""
    offset, kept, truncated = 0, bytearray(), False
    async with contextlib.aclosing(runs.follow(record, stream, 0)) as pieces:
        async for piece in pieces:
            truncated = truncated or piece.offset > offset
            offset = piece.offset + len(piece.data)
            kept += piece.data
            if len(kept) > most:
                del kept[: len(kept) - most]
                truncated = True
    return Tail(bytes(kept), truncated)


async def read_on(
    runs: Runs, record: RunRecord, stream: Stream, offset: int, limit: int
) -> tuple[Piece, bool]:
    """A piece, and whether it is the last of a run whose `record` said that it has ended."""
    piece = await runs.read(record, stream, offset, limit)
    if record.state not in (RunState.ENDED, RunState.FAILED):
        return piece, False
    if not piece.data:
        return piece, True
    after = await runs.read(record, stream, piece.offset + len(piece.data), 1)
    return piece, not after.data
