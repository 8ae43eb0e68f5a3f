"""Commands in spaces: started, watched to their end, taken up again after a restart.

The record of a run is written before it starts, when it started and when it ended. Its
output is in files that the launcher writes, so it is complete whether anybody listens or
not.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import posixpath
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from carrel.domain.errors import (
    CarrelError,
    CommandInvalid,
    RunNotFound,
    SandboxUnavailable,
    StateConflict,
)
from carrel.domain.events import EventType
from carrel.domain.ids import new_id
from carrel.domain.pauses import pauses
from carrel.domain.runs import Piece, Recordings, RunRecord, RunState, Stream
from carrel.domain.runtimes import Command, Exit, ExitReason, Output, Run, host_pid
from carrel.domain.spaces import Space, SpaceState
from carrel.domain.store import Forget, Record, Store
from carrel.domain.systems import CommandPlace, SpaceService
from carrel.lifecycle.table import LIVE
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpace, OpenSpaces, no_service
from carrel.service.shared import Shared

KEEP_RUNS = 500
"""Of each space so many are kept, the newest; older ones go with their output."""
PRUNE_EVERY = 50
"""Ended runs between two looks for those that are too many."""
MOST_NOTED = 4096
"""Characters of its words that the record of a command has. It may have 2 MiB of them, and hundreds
of records are kept of each space, and read for one list."""
LOST = Exit(ExitReason.LOST, None, None, 0.0, 0.0, 0.0, 0)


@dataclasses.dataclass
class WatchedRun:
    """A command that has not ended, as far as this daemon knows."""

    record: RunRecord
    run: Run
    ended: asyncio.Event
    task: asyncio.Task[None] | None = None


@dataclasses.dataclass(frozen=True)
class RunKeeping:
    """What is kept of commands: of each stream the last `stream_bytes`, of each space the
    last `runs`. `drop(folder, run_id)` removes what the sandbox in `folder` has of one;
    blocking."""

    drop: Callable[[Path, str], None]
    stream_bytes: int = 16 << 20
    runs: int = KEEP_RUNS


def _noted(argv: tuple[str, ...]) -> tuple[str, ...]:
    """As far as they are kept, and how many words were there if that is not all."""
    kept, left = list[str](), MOST_NOTED
    for word in argv:
        if len(word) >= left:
            cut = f"{word[:left]}… ({len(argv)} words, {sum(map(len, argv))} characters)"
            return (*kept, cut)
        kept.append(word)
        left -= len(word) + 1
    return argv


class Runs:
    def __init__(
        self,
        store: Store,
        journal: Journal,
        open_spaces: OpenSpaces,
        shared: Shared,
        recordings: Recordings,
        keeping: RunKeeping,
    ) -> None:
        self._store = store
        self._journal = journal
        self._open_spaces = open_spaces
        self._locks = shared.locks
        self._tasks = shared.tasks
        self._recordings = recordings
        self._keeping = keeping
        self._since_prune: dict[str, int] = {}
        self._live: dict[str, WatchedRun] = {}
        self._of_space: dict[str, set[str]] = {}

    # Starting

    async def start(
        self,
        space_id: str,
        command: Command,
        run_id: str = "",
        *,
        hangup: bool = False,
        place: CommandPlace | None = None,
        service: str = "",
    ) -> RunRecord:
        """In the sandbox of a `service`, or without a `place` where its image is, if it has one.
        `run_id` is from who has written it down already; for `hangup` see `Hangups`. Raises
        `StateConflict`, `CommandError`s and `SandboxUnavailable`."""
        if command.output is Output.PIPES:
            raise CommandInvalid("The output of a run is recorded.", hint="Ask for files or a pty.")
        command = dataclasses.replace(command, run_id=run_id or new_id("ru"))
        work = self._start(space_id, command, hangup, place, service)
        return await self._tasks.see_through(work)

    async def _start(
        self,
        space_id: str,
        command: Command,
        hangup: bool,
        place: CommandPlace | None,
        service: str,
    ) -> RunRecord:
        async with self._locks.shared(space_id):
            opened = await self._open_spaces.of(self._live_space(space_id))
            if service:
                command = _in_service(opened, service, command)
            record = self._record(space_id, command)
            place = _place(opened, place)
            record = dataclasses.replace(record, hangup=hangup, place=place, service=service)
            self._of_space.setdefault(space_id, set()).add(record.run_id)
            return await self._launch(opened, record, command, self._becomes_running(space_id))

    async def start_service(self, opened: OpenSpace, service: SpaceService) -> RunRecord:
        """The service itself, which is none of the commands that make a space `running`. Whoever
        calls sees to it that the space stays. Raises as `start` does."""
        command = Command(service.argv, cwd=service.folder, run_id=new_id("ru"))
        record = self._record(opened.space.space_id, command)
        record = dataclasses.replace(record, service=service.name, entry=True)
        return await self._tasks.see_through(self._launch(opened, record, command, ()))

    def _record(self, space_id: str, command: Command) -> RunRecord:
        return RunRecord(
            run_id=command.run_id,
            space_id=space_id,
            argv=_noted(command.argv),
            state=RunState.STARTING,
            created_at=self._journal.clock(),
            cwd=command.cwd,
            terminal=command.output is Output.PTY,
            stdin=command.stdin,
            timeout_s=command.timeout_s,
            display=command.display,
        )

    async def _launch(
        self, opened: OpenSpace, record: RunRecord, command: Command, records: tuple[Record, ...]
    ) -> RunRecord:
        await self._journal.write(record, *records)
        command = dataclasses.replace(command, keep_bytes=self._keeping.stream_bytes)
        try:
            run = await self._open_spaces.run(opened, command, record.place, record.service)
        except BaseException as error:
            await self._never_ran(record, error)
            raise
        return self._watch(record, run).record

    def _live_space(self, space_id: str) -> Space:
        space = self._journal.current(space_id)
        if space.state not in LIVE:
            raise StateConflict(
                f"{space.name} is {space.state}; commands run in a space that is ready.",
                hint=f"Start it: carrel start {space.name}",
                state=str(space.state),
            )
        return space

    def _becomes_running(self, space_id: str) -> tuple[Record, ...]:
        space = self._journal.current(space_id)
        if space.state is SpaceState.RUNNING:
            return ()
        return self._journal.moved(space_id, SpaceState.RUNNING, active_at=self._journal.clock())

    async def _never_ran(self, record: RunRecord, error: BaseException) -> None:
        code = error.code if isinstance(error, CarrelError) else "internal"
        failed = dataclasses.replace(
            record, state=RunState.FAILED, failure=str(error), failure_code=code
        )
        await self._journal.write(failed, *self._without(record))
        await self._prune(record.space_id)

    # Watching

    def _watch(self, record: RunRecord, run: Run) -> WatchedRun:
        known = dataclasses.replace(record, state=RunState.RUNNING, pid=host_pid(run))
        live = WatchedRun(known, run, asyncio.Event())
        self._live[record.run_id] = live
        if not record.entry:
            self._of_space.setdefault(record.space_id, set()).add(record.run_id)
        live.task = asyncio.create_task(self._see_to_end(live, new=record.pid == 0))
        return live

    async def _see_to_end(self, live: WatchedRun, *, new: bool) -> None:
        record = live.record
        try:
            if new:
                await self._write_start(record)
            ended = await self._exit_of(live.run)
            live.record = dataclasses.replace(record, state=RunState.ENDED, exit=ended)
            await self._write_end(live)
            await self._prune(record.space_id)
        finally:
            self._live.pop(record.run_id, None)
            live.ended.set()
            live.run.close()

    @staticmethod
    async def _exit_of(run: Run) -> Exit:
        try:
            return await run.wait()
        except SandboxUnavailable:
            return LOST

    async def _write_start(self, record: RunRecord) -> None:
        """It runs whether or not that can be written; its end will say the same and more."""
        argv = list(record.argv)
        event = self._journal.event(
            EventType.RUN_STARTED, record.space_id, run_id=record.run_id, argv=argv
        )
        with contextlib.suppress(CarrelError):
            await self._journal.write(record, event)

    async def _write_end(self, live: WatchedRun) -> None:
        """Until it is written: the disk may be full, or the store be locked, for a while. Who
        waits for the end need not wait for that."""
        record = live.record
        data = {"run_id": record.run_id, **_shown_exit(record.exit)}
        event = self._journal.event(EventType.RUN_ENDED, record.space_id, **data)
        for pause_s in pauses():
            try:
                await self._journal.write(record, event, *self._without(record))
                return
            except CarrelError:
                live.ended.set()
                await asyncio.sleep(pause_s)

    async def _prune(self, space_id: str) -> None:
        with contextlib.suppress(CarrelError, OSError):
            await self._drop_old(space_id)

    async def _drop_old(self, space_id: str) -> None:
        if self._journal.get(space_id) is None:
            self._since_prune.pop(space_id, None)
            return
        count = self._since_prune.get(space_id, 0) + 1
        self._since_prune[space_id] = count % PRUNE_EVERY
        if count < PRUNE_EVERY:
            return
        records = await self._store.runs(space_id, limit=self._keeping.runs + 10 * PRUNE_EVERY)
        folder = self._open_spaces.folder(space_id)
        for record in records[self._keeping.runs :]:
            if record.state in (RunState.ENDED, RunState.FAILED):
                await asyncio.to_thread(self._keeping.drop, folder, record.run_id)
                await self._journal.write(Forget(run_id=record.run_id))

    def _without(self, record: RunRecord) -> tuple[Record, ...]:
        """When that was the last command, the space becomes ready. An operation that moves
        it elsewhere says so itself."""
        if record.entry:
            return ()
        others = self._of_space.get(record.space_id, set())
        others.discard(record.run_id)
        if others:
            return ()
        self._of_space.pop(record.space_id, None)
        space = self._journal.get(record.space_id)
        if space is None or space.state is not SpaceState.RUNNING:
            return ()
        now = self._journal.clock()
        return self._journal.moved(record.space_id, SpaceState.READY, active_at=now)

    # Taking up

    async def take_up(self, record: RunRecord, opened: OpenSpace) -> None:
        """A run of an earlier daemon: one that goes on is watched again, of one that ended
        the end is written down."""
        try:
            sandbox = opened.at(record.place, record.service)
            run = await opened.runtime.attach(sandbox, record.run_id)
        except RunNotFound:
            unknown = record.state is RunState.STARTING
            failure = "It never started: the daemon ended before." if unknown else ""
            state = RunState.FAILED if unknown else RunState.ENDED
            lost = dataclasses.replace(
                record, state=state, failure=failure, exit=None if unknown else LOST
            )
            await self._journal.write(lost, *self._without(record))
            return
        self._watch(record, run)

    # Asking

    async def get(self, run_id: str) -> RunRecord:
        live = self._live.get(run_id)
        if live is not None:
            return live.record
        record = await self._store.run(run_id)
        if record is None:
            shown = run_id[:40]
            raise RunNotFound(f"There is no run {shown!r}.", hint="`carrel runs` lists them.")
        return record

    def alive(self) -> list[RunRecord]:
        return [live.record for live in self._live.values()]

    def live(self, run_id: str) -> WatchedRun | None:
        return self._live.get(run_id)

    def unenforced(self, record: RunRecord) -> list[str]:
        """The limits of its space that nothing holds now, each with the reason."""
        space = self._journal.get(record.space_id)
        enforced = space.enforced if space is not None else ()
        return [f"{one.kind}: {one.how}" for one in enforced if not one.enforced]

    def live_of(self, space_id: str) -> int:
        return len(self._of_space.get(space_id, ()))

    async def wait(self, run_id: str, timeout_s: float | None = None) -> RunRecord:
        """The record when it has ended, or as it is when the time is over."""
        live = self._live.get(run_id)
        if live is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    await live.ended.wait()
            except TimeoutError:
                pass
            return live.record
        return await self.get(run_id)

    async def settled(self, space_id: str) -> None:
        """When the ends of all that was stopped are written down."""
        for live in list(self._live.values()):
            if live.record.space_id == space_id:
                await live.ended.wait()

    async def signal(self, run_id: str, number: int) -> None:
        record = await self.get(run_id)
        if run_id not in self._live:
            return
        opened = await self._open_spaces.of(self._journal.current(record.space_id))
        await opened.runtime.signal(opened.sandbox, run_id, number)

    # Output

    async def read(self, record: RunRecord, stream: Stream, offset: int, limit: int) -> Piece:
        if record.state is RunState.FAILED:
            return Piece(stream, 0, b"")
        folder = self._open_spaces.folder(record.space_id)
        return await asyncio.to_thread(
            self._recordings.read, folder, record.run_id, stream, offset, limit
        )

    async def last(self, record: RunRecord, stream: Stream, limit: int) -> bytes:
        """The end of what it said."""
        if record.state is RunState.FAILED:
            return b""
        folder = self._open_spaces.folder(record.space_id)
        size = await asyncio.to_thread(self._recordings.size, folder, record.run_id, stream)
        return (await self.read(record, stream, max(0, size - limit), limit)).data

    def follow(
        self, record: RunRecord, stream: Stream, offset: int, reader: str = ""
    ) -> AsyncGenerator[Piece, None]:
        """What is there and what comes, to the end of the run. For `reader` see `Recordings`."""
        if record.state is RunState.FAILED:
            return _nothing()
        live = self._live.get(record.run_id)
        ended = live.ended if live is not None else _already()
        folder = self._open_spaces.folder(record.space_id)
        return self._recordings.follow(folder, record.run_id, stream, offset, ended, reader)

    def let_go(self, run_id: str, reader: str) -> None:
        """See `Recordings`."""
        self._recordings.let_go(run_id, reader)

    # Ending

    async def close(self) -> None:
        """The daemon ends; what runs goes on."""
        tasks = [live.task for live in self._live.values() if live.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _nothing() -> AsyncGenerator[Piece, None]:
    """The output of what never ran."""
    nothing: tuple[Piece, ...] = ()
    for piece in nothing:
        yield piece


def _already() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def _shown_exit(ended: Exit | None) -> dict[str, object]:
    if ended is None:
        return {}
    return {"reason": str(ended.reason), "code": ended.code, "signal": ended.signal}


# Commands that end with whoever watches them, as when a terminal hangs up.

WAIT_S = 10.0
"""For a client that lost its connection, or a daemon that was restarted, to be back."""
HANGUP = 1


class Hangups:
    """`begin` when the runs of an earlier daemon have been taken up."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._watchers: Counter[str] = Counter()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        for record in self._runs.alive():
            if record.hangup:
                self._wait(record.run_id)

    @contextlib.contextmanager
    def watching(self, record: RunRecord) -> Iterator[None]:
        if not record.hangup:
            yield
            return
        run_id = record.run_id
        self._watchers[run_id] += 1
        if (timer := self._timers.pop(run_id, None)) is not None:
            timer.cancel()
        try:
            yield
        finally:
            self._watchers[run_id] -= 1
            if not self._watchers[run_id]:
                del self._watchers[run_id]
                self._wait(run_id)

    def _wait(self, run_id: str) -> None:
        if self._runs.live(run_id) is not None:
            loop = asyncio.get_running_loop()
            self._timers[run_id] = loop.call_later(WAIT_S, self._hang_up, run_id)

    def _hang_up(self, run_id: str) -> None:
        self._timers.pop(run_id, None)
        task = asyncio.create_task(self._signal(run_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _signal(self, run_id: str) -> None:
        with contextlib.suppress(CarrelError):
            await self._runs.signal(run_id, HANGUP)

    async def close(self) -> None:
        """The daemon ends; its successor waits anew."""
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


# Standard input of commands, from clients that may send faster than a command reads.
#
# Whoever writes to a run writes through the same queue, so that what several clients send is
# not mixed up within a piece, and an end comes after all that was sent before it.

ROOM = 256 * 1024
"""So much waits for a command that does not read; then its client waits."""
END_OF_FILE = b"\x04"
"""A terminal has no end: one types it."""


class Input:
    """Of one run. Bytes for a command that has ended go nowhere, as with any pipe."""

    def __init__(self, live: WatchedRun) -> None:
        self._live = live
        self._waiting: deque[bytes | None] = deque()
        self._size = 0
        self._less = asyncio.Event()
        self._moved = asyncio.Event()
        self._pumping: asyncio.Task[None] | None = None

    @property
    def accepted(self) -> int | None:
        """Bytes that the command was given, or will be if the daemon lives."""
        given = self._live.run.input_bytes
        return None if given is None else given + self._size

    @property
    def is_full(self) -> bool:
        """So much waits that its client should, too."""
        return self._size > ROOM

    async def given(self) -> AsyncGenerator[int | None, None]:
        """How many bytes the command was given, whenever it is more, and None when that is no
        longer known. Without an end."""
        last: int | None = 0
        while True:
            moved = self._moved
            now = self._live.run.input_bytes
            if now != last:
                last = now
                yield now
            else:
                await moved.wait()

    async def put(self, data: bytes) -> None:
        """Returns when there is room for more."""
        if not data:
            return
        self.push(data)
        while self.is_full and self._pumping is not None and not self._pumping.done():
            self._less.clear()
            await self._less.wait()

    async def given_within(self, seconds: float) -> None:
        """Returns when the command has what was put, or after so long: it may not read."""
        if self._pumping is not None:
            await asyncio.wait({self._pumping}, timeout=seconds)

    def end(self) -> None:
        self.push(END_OF_FILE if self._live.record.terminal else None)

    def push(self, data: bytes | None) -> None:
        """Without waiting for room: for what has come as a whole."""
        self._waiting.append(data)
        self._size += len(data or b"")
        if self._pumping is None or self._pumping.done():
            self._pumping = asyncio.create_task(self._pump())

    async def _pump(self) -> None:
        try:
            while self._waiting:
                data = self._waiting.popleft()
                if data is None:
                    with contextlib.suppress(CarrelError):
                        # Without a launcher there is no command either.
                        await self._live.run.close_input()
                    continue
                await self._write(data)
                self._less.set()
        finally:
            self._waiting.clear()
            self._size = 0
            self._less.set()

    async def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            if self._live.ended.is_set():
                return
            giving = asyncio.ensure_future(self._live.run.give(rest))
            await self._or_ended(giving)
            try:
                given = giving.result()
            except BlockingIOError:
                await self._or_ended(asyncio.ensure_future(self._live.run.writable()))
                continue
            except asyncio.CancelledError:
                return
            rest = rest[given:]
            self._size -= given
            moved, self._moved = self._moved, asyncio.Event()
            moved.set()

    async def _or_ended(self, task: asyncio.Future[Any]) -> None:
        """Until it is done, or the command has ended: then it is cancelled."""
        ended = asyncio.ensure_future(self._live.ended.wait())
        try:
            await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})


class Inputs:
    """Those in use."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._known: WeakValueDictionary[str, Input] = WeakValueDictionary()

    def of(self, run_id: str) -> Input | None:
        """None when the command has ended, or takes no input."""
        live = self._runs.live(run_id)
        if live is None or not (live.record.stdin or live.record.terminal):
            return None
        known = self._known.get(run_id)
        if known is None:
            known = self._known[run_id] = Input(live)
        return known


def _in_service(opened: OpenSpace, name: str, command: Command) -> Command:
    """Where that begins itself: it need not see the tree. Raises `CommandInvalid`."""
    found = next((one for one in opened.space.services if one.name == name), None)
    if found is None:
        raise no_service(opened.space, name)
    return dataclasses.replace(command, cwd=posixpath.join(found.folder, command.cwd))


def _place(opened: OpenSpace, asked: CommandPlace | None) -> CommandPlace:
    if asked is CommandPlace.DEV and opened.dev is None:
        raise CommandInvalid(
            f"{opened.space.name} has no image.",
            hint="Leave the place out, or make a space with one: carrel new --image NAME",
        )
    return asked or (CommandPlace.AGENT if opened.dev is None else CommandPlace.DEV)
