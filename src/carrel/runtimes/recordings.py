"""Reading what the launcher recorded, while it is being recorded or long after.

The file of a stream has its bytes at their own offsets. What was given up is a hole in it, so
`SEEK_DATA` finds what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path

from carrel.domain.errors import RunNotFound
from carrel.domain.ids import is_id
from carrel.domain.runs import Piece, Stream
from carrel.linux import sparse
from carrel.runtimes.file_watches import FileWatches
from carrel.runtimes.layout import SandboxFolders

PIECE_BYTES = 64 * 1024
"""Of what is followed: small enough that one reader does not hold up the event loop."""
TRIES = 4
"""At the oldest byte that is kept, before one that will be kept for longer is read."""
POLL_S = 0.2
"""Between two looks at a file that the kernel does not watch for us, because the user has too
many watches already."""

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_NOT_NOW = frozenset({errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
"""Not in memory, or the file system cannot tell: a thread reads it."""


class Recordings:
    """Implements `carrel.domain.runs.Recordings`, for one event loop."""

    def __init__(self) -> None:
        self._watches = FileWatches()

    def size(self, folder: Path, run_id: str, stream: Stream) -> int:
        place = _folder_of(folder, run_id)
        with _opened(place, stream) as file:
            recorded = 0 if file is None else os.fstat(file).st_size
        return max(recorded, _written(place, stream))

    def read(self, folder: Path, run_id: str, stream: Stream, offset: int, limit: int) -> Piece:
        with _opened(_folder_of(folder, run_id), stream) as file:
            if file is None:
                return Piece(stream, offset, b"")
            return _read(file, stream, max(0, offset), limit, 0)

    async def follow(
        self, folder: Path, run_id: str, stream: Stream, offset: int, ended: asyncio.Event
    ) -> AsyncGenerator[Piece, None]:
        place = _folder_of(folder, run_id)
        with _opened(place, stream) as file:
            if file is None:
                await ended.wait()
                return
            with self._watches.watch(place / stream) as changed, _woken(changed, ended) as wake:
                over = False
                while not over:
                    wake.clear()
                    # Before the look: all is there when the command is told to have ended.
                    over = ended.is_set()
                    while piece := await self._next(file, folder, run_id, stream, offset):
                        offset = piece.offset + len(piece.data)
                        yield piece
                    if not over:
                        await _wait(wake, None if changed is not None else POLL_S)
        written = await asyncio.to_thread(_written, place, stream)
        if written > offset:
            yield Piece(stream, written, b"")

    async def _next(
        self, file: int, folder: Path, run_id: str, stream: Stream, offset: int
    ) -> Piece | None:
        """At once when it is in memory, as what was just written is. None at the end."""
        try:
            piece = _read(file, stream, offset, PIECE_BYTES, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno not in _NOT_NOW:
                raise
            # By its name: the thread may outlive this follower and its descriptor.
            read = asyncio.to_thread(self.read, folder, run_id, stream, offset, PIECE_BYTES)
            piece = await read
        return piece if piece.data or piece.offset > offset else None

    def close(self) -> None:
        self._watches.close()


@contextmanager
def _woken(changed: asyncio.Event | None, ended: asyncio.Event) -> Iterator[asyncio.Event]:
    """An event that is set when the file has changed, and when the run has ended."""
    wake = changed or asyncio.Event()
    ending = asyncio.ensure_future(ended.wait())
    ending.add_done_callback(lambda _: wake.set())
    try:
        yield wake
    finally:
        ending.cancel()


async def _wait(wake: asyncio.Event, timeout_s: float | None) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await wake.wait()


def _folder_of(folder: Path, run_id: str) -> Path:
    place = SandboxFolders(folder).run(run_id)
    if not is_id(run_id) or not run_id.startswith("ru_") or not place.is_dir():
        raise RunNotFound(f"There is no run {run_id!r}.", hint="`carrel runs` lists them.")
    return place


@contextmanager
def _opened(place: Path, stream: Stream) -> Iterator[int | None]:
    """None where the run has no such stream: a terminal shows errors too."""
    try:
        file = os.open(place / stream, _FLAGS)
    except FileNotFoundError:
        yield None
        return
    try:
        yield file
    finally:
        os.close(file)


def _read(file: int, stream: Stream, offset: int, limit: int, flags: int) -> Piece:
    tries = 0
    while True:
        # Before the look: what is written meanwhile is for the next one, and not a hole.
        size = os.fstat(file).st_size
        begin = sparse.next_data(file, offset)
        if begin is None:
            # Nothing but a hole up to the end, or the end itself.
            return Piece(stream, max(offset, size), b"")
        wanted = min(limit, sparse.end_of_data(file, begin) - begin)
        buffer = bytearray(max(0, wanted))
        count = os.preadv(file, [buffer], begin, flags) if buffer else 0
        if wanted > 0 and not count and flags:
            raise BlockingIOError(errno.EAGAIN, "not in memory")
        # What was given up meanwhile has been read as zeros.
        if sparse.next_data(file, begin) == begin:
            return Piece(stream, begin, bytes(memoryview(buffer)[:count]))
        tries += 1
        if tries >= TRIES:
            # The command writes faster than we read; what is newer is there for longer.
            offset = begin + (size - begin) // 2


def _written(place: Path, stream: Stream) -> int:
    """How much its exit file says it wrote; 0 when that does not say, or is not there yet."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        record = json.loads((place / "exit.json").read_bytes())
        return int(record.get(f"{stream}_bytes", 0))
    return 0
