"""Reading what the launcher recorded, while it is being recorded or long after.

The file of a stream has its bytes at their own offsets. What was given up is a hole in it, so
`SEEK_DATA` finds what is left.

The launcher is told how far each reader has come. It keeps what a reader has not read, and lets a
command wait that is too far ahead. What it is told counts for a lease only, which is renewed here.
So a reader whose connection broke, or whose daemon was killed, has that long to come back under its
name and go on where it was; after that the command runs on without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carrel.domain.errors import LauncherUnavailable, RunNotFound
from carrel.domain.ids import is_id
from carrel.domain.launching import LauncherPort
from carrel.domain.runs import Piece, Stream
from carrel.linux import files
from carrel.runtimes.sandbox import SandboxFolders

if TYPE_CHECKING:
    from carrel.launcher.messages import PaceRequest

PIECE_BYTES = 256 * 1024
"""Of what is followed: small enough that one reader does not hold up the event loop."""
TRIES = 4
"""At the oldest byte that is kept, before one that will be kept for longer is read."""
POLL_S = 0.2
"""Between two looks at a file that the kernel does not watch for us, because the user has too
many watches already."""

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_NOT_NOW = frozenset({errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
"""Not in memory, or the file system cannot tell: a thread reads it."""


class FileRecordings:
    """Implements `carrel.domain.runs.Recordings`, for one event loop. Without `readers`
    nobody holds anything."""

    def __init__(self, readers: Readers | None = None) -> None:
        self._watches = FileWatches()
        self._readers = readers

    def size(self, folder: Path, run_id: str, stream: Stream) -> int:
        place = _folder_of(folder, run_id)
        with _opened(place, stream) as file:
            recorded = 0 if file is None else os.fstat(file).st_size
        return max(recorded, _written(_exit_record(place), stream))

    def read(self, folder: Path, run_id: str, stream: Stream, offset: int, limit: int) -> Piece:
        with _opened(_folder_of(folder, run_id), stream) as file:
            if file is None:
                return Piece(stream, offset, b"")
            return _read(file, stream, max(0, offset), limit, 0)

    async def follow(
        self,
        folder: Path,
        run_id: str,
        stream: Stream,
        offset: int,
        ended: asyncio.Event,
        reader: str = "",
    ) -> AsyncGenerator[Piece, None]:
        place = _folder_of(folder, run_id)
        with _opened(place, stream) as file:
            if file is None:
                await ended.wait()
                return
            async with self._held(run_id, stream, "" if ended.is_set() else reader, offset) as held:
                with self._waiting(place / stream, ended) as wait:
                    over = False
                    while not over:
                        # Before the look: all is there when the command is told to have ended.
                        over = ended.is_set()
                        while piece := await self._next(file, folder, run_id, stream, offset):
                            offset = piece.offset + len(piece.data)
                            yield piece
                            # Whoever comes for the next one has this.
                            if held is not None and self._readers is not None:
                                self._readers.move(held, offset)
                        if not over:
                            await wait()
                record = _exit_record(place)
                if held is not None and self._readers is not None and f"{stream}_closed" in record:
                    # Nothing comes any more that would have to be kept, or not.
                    self._readers.leave(held)
        written = _written(record, stream)
        if written > offset:
            yield Piece(stream, written, b"")

    @contextmanager
    def _waiting(
        self, path: Path, ended: asyncio.Event
    ) -> Iterator[Callable[[], Awaitable[object]]]:
        """Gives what waits until the file has changed since it was last asked, or the run has
        ended."""
        if ended.is_set():
            yield ended.wait
            return
        with self._watches.watch(path) as changed:
            wake = changed or asyncio.Event()
            ending = asyncio.ensure_future(ended.wait())
            ending.add_done_callback(lambda _: wake.set())

            async def wait() -> None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if changed is not None else POLL_S):
                        await wake.wait()
                wake.clear()

            try:
                yield wait
            finally:
                ending.cancel()

    @asynccontextmanager
    async def _held(
        self, run_id: str, stream: Stream, reader: str, offset: int
    ) -> AsyncIterator[ReaderHold | None]:
        """Until all was read. Who breaks off may come back."""
        if not reader or self._readers is None:
            yield None
            return
        hold = await self._readers.hold((run_id, stream, reader), offset)
        try:
            yield hold
        except BaseException:
            self._readers.leave(hold)
            raise
        self._readers.release(hold)

    def let_go(self, run_id: str, reader: str) -> None:
        if self._readers is not None:
            for stream in Stream:
                self._readers.forget(run_id, stream, reader)

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
        if self._readers is not None:
            self._readers.close()


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
        begin = files.next_data(file, offset)
        if begin is None:
            # Nothing but a hole up to the end, or the end itself.
            return Piece(stream, max(offset, size), b"")
        wanted = min(limit, files.end_of_data(file, begin) - begin)
        buffer = bytearray(max(0, wanted))
        count = os.preadv(file, [buffer], begin, flags) if buffer else 0
        if wanted > 0 and not count and flags:
            raise BlockingIOError(errno.EAGAIN, "not in memory")
        # What was given up meanwhile has been read as zeros.
        if files.next_data(file, begin) == begin:
            return Piece(stream, begin, bytes(memoryview(buffer)[:count]))
        tries += 1
        if tries >= TRIES:
            # The command writes faster than we read; what is newer is there for longer.
            offset = begin + (size - begin) // 2


def _exit_record(place: Path) -> dict[str, Any]:
    """The exit file of a run; empty when it is not there yet, or is none of ours."""
    with contextlib.suppress(OSError, ValueError):
        record = json.loads((place / "exit.json").read_bytes())
        return record if isinstance(record, dict) else {}
    return {}


def _written(record: dict[str, Any], stream: Stream) -> int:
    """How much its exit file says it wrote; 0 when that does not say."""
    with contextlib.suppress(ValueError, TypeError):
        return int(record.get(f"{stream}_bytes", 0))
    return 0


# Readers

LEASE_S = 60.0
"""As long as a client tries to come back."""
RENEWALS = 4
"""In the time of a lease: one that is late, or lost, does no harm."""
PACE_BYTES = 512 << 10
"""From one word to the launcher to the next; less than what it lets any command be ahead."""
PACE_SHARE = 4
"""Of what is kept of a stream: where we know how much that is, we tell after this part of it."""

Key = tuple[str, Stream, str]
"""A run, its stream, and the name of the reader."""


@dataclass(eq=False)
class ReaderHold:
    """One reader of one stream. `told` is what the launcher knows."""

    key: Key
    position: int
    told: int
    pace: int = PACE_BYTES
    """The bytes from one word to the next."""


class Readers:
    """For one event loop."""

    def __init__(self, launcher: LauncherPort, lease_s: float = LEASE_S) -> None:
        self.lease_s = lease_s
        self._launcher = launcher
        self._holds: dict[Key, ReaderHold] = {}
        self._news: dict[Key, int | None] = {}
        self._begun: dict[Key, tuple[float, int]] = {}
        """Of runs that the launcher holds from their first byte: until when it surely does, and
        the pace."""
        self._stirred = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begun(self, run_id: str, reader: str, keep_bytes: int = 0) -> None:
        """A run has started that the launcher was told to hold for that reader; so much of each
        stream is kept."""
        now = time.monotonic()
        self._begun = {key: one for key, one in self._begun.items() if one[0] > now}
        pace = max(PACE_BYTES, keep_bytes // PACE_SHARE)
        for stream in Stream:
            self._begun[run_id, stream, reader] = (now + self.lease_s / RENEWALS, pace)

    async def hold(self, key: Key, position: int) -> ReaderHold:
        """Returns when nothing from `position` on is given up. A hold of that name that is
        there already is replaced, and its `ReaderHold` means nothing any more."""
        until, pace = self._begun.pop(key, (0.0, PACE_BYTES))
        hold = self._holds[key] = ReaderHold(key, position, position, pace)
        self._news.pop(key, None)
        if position or time.monotonic() > until:
            await self._tell({key: position})
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_telling())
        return hold

    def move(self, hold: ReaderHold, position: int) -> None:
        hold.position = position
        if position - hold.told >= hold.pace and self._holds.get(hold.key) is hold:
            hold.told = position
            self._say(hold.key, position)

    def leave(self, hold: ReaderHold) -> None:
        """It may come back within the lease."""
        if self._holds.get(hold.key) is hold:
            del self._holds[hold.key]

    def release(self, hold: ReaderHold) -> None:
        """It does not come back."""
        if self._holds.get(hold.key) is hold:
            self.forget(*hold.key)

    def forget(self, run_id: str, stream: Stream, reader: str) -> None:
        """As `release`, also of a reader that has left."""
        key = (run_id, stream, reader)
        self._begun.pop(key, None)
        self._holds.pop(key, None)
        self._say(key, None)

    def of(self, run_id: str) -> list[tuple[str, str, int, float]]:
        """For a launcher that takes the run up."""
        found = [hold for key, hold in self._holds.items() if key[0] == run_id]
        return [(hold.key[1], hold.key[2], hold.told, self.lease_s) for hold in found]

    def _say(self, key: Key, position: int | None) -> None:
        self._news[key] = position
        self._stirred.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_telling())

    async def _keep_telling(self) -> None:
        """As long as there is anything to tell. What is new meanwhile is told together. Those
        who read nothing are told in time too, however much others read."""
        clock = asyncio.get_running_loop().time
        renewal = clock() + self.lease_s / RENEWALS
        while self._holds or self._news:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(renewal):
                    await self._stirred.wait()
            self._stirred.clear()
            news, self._news = self._news, {}
            if clock() >= renewal:
                news = {**{key: hold.told for key, hold in self._holds.items()}, **news}
                renewal = clock() + self.lease_s / RENEWALS
            if news:
                await self._tell(news)

    async def _tell(self, news: dict[Key, int | None]) -> None:
        holds: list[tuple[str, str, str, int | None]] = []
        holds += [(*key, position) for key, position in news.items()]
        # One that takes our runs up instead is told by that.
        with contextlib.suppress(LauncherUnavailable):
            fields: PaceRequest = {"holds": holds, "lease": self.lease_s}
            await self._launcher.ask("pace", fields, [])

    def close(self) -> None:
        """The daemon ends; its successor, or a reader's lease, sees to the rest."""
        if self._task is not None:
            self._task.cancel()


# Files that grow


class FileWatches:
    """A file is watched for as long as somebody waits for it."""

    def __init__(self) -> None:
        self._queue: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[int, set[asyncio.Event]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def watch(self, path: Path) -> Iterator[asyncio.Event | None]:
        """An event that is set when the file changes; None when the kernel watches no more."""
        try:
            queue = self._open()
            number = files.add_watch(queue, str(path), files.WATCH_MODIFY)
        except OSError:
            yield None
            return
        changed = asyncio.Event()
        self._waiting.setdefault(number, set()).add(changed)
        try:
            yield changed
        finally:
            self._leave(number, changed)

    def _leave(self, number: int, changed: asyncio.Event) -> None:
        """The file may be gone, and the number with it."""
        waiting = self._waiting.get(number, set())
        waiting.discard(changed)
        if waiting or self._queue is None:
            return
        self._waiting.pop(number, None)
        with contextlib.suppress(OSError):
            files.remove_watch(self._queue, number)

    def _open(self) -> int:
        if self._queue is None:
            self._queue = files.open_watch_queue()
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._queue, self._readable, self._queue)
        return self._queue

    def _readable(self, queue: int) -> None:
        try:
            events = files.read_watch_events(queue)
        except BlockingIOError:
            return
        for number, mask in events:
            if mask & files.WATCH_OVERFLOW:
                for waiting in self._waiting.values():
                    _wake(waiting)
            else:
                _wake(self._waiting.get(number, set()))

    def close(self) -> None:
        if self._queue is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._queue)
        os.close(self._queue)
        self._queue = self._loop = None
        for waiting in self._waiting.values():
            _wake(waiting)
        self._waiting.clear()


def _wake(waiting: set[asyncio.Event]) -> None:
    for changed in waiting:
        changed.set()
