"""Commands in spaces: started, watched to their end, taken up again after a restart.

The record of a run is written before it starts, when it started and when it ended. Its
output is in files that the launcher writes, so it is complete whether anybody listens or
not.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

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
from carrel.domain.runtimes import Command, Exit, ExitReason, Output, Run
from carrel.domain.spaces import Space, SpaceState
from carrel.domain.storing import Forget, Record, Store
from carrel.lifecycle.table import LIVE
from carrel.service.desk import Desk, Desks
from carrel.service.journal import Journal
from carrel.service.shared import Shared

KEEP_RUNS = 500
"""Of each space so many are kept, the newest; older ones go with their output."""
PRUNE_EVERY = 50
"""Ended runs between two looks for those that are too many."""
LOST = Exit(ExitReason.LOST, None, None, 0.0, 0.0, 0.0, 0)


@dataclasses.dataclass
class Live:
    """A command that has not ended, as far as this daemon knows."""

    record: RunRecord
    run: Run
    ended: asyncio.Event
    task: asyncio.Task[None] | None = None


@dataclasses.dataclass(frozen=True)
class Keeping:
    """What is kept of commands: of each stream the last `stream_bytes`, of each space the
    last `runs`. `drop(folder, run_id)` removes what the sandbox in `folder` has of one;
    blocking."""

    drop: Callable[[Path, str], None]
    stream_bytes: int = 16 << 20
    runs: int = KEEP_RUNS


class Runs:
    def __init__(
        self,
        store: Store,
        journal: Journal,
        desks: Desks,
        shared: Shared,
        recordings: Recordings,
        keeping: Keeping,
    ) -> None:
        self._store = store
        self._journal = journal
        self._desks = desks
        self._locks = shared.locks
        self._tasks = shared.tasks
        self._recordings = recordings
        self._keeping = keeping
        self._since_prune: dict[str, int] = {}
        self._live: dict[str, Live] = {}
        self._of_space: dict[str, set[str]] = {}

    # Starting

    async def start(
        self, space_id: str, command: Command, run_id: str = "", *, hangup: bool = False
    ) -> RunRecord:
        """`run_id` is from who has written it down already; for `hangup` see `Hangups`.
        Raises `StateConflict`, `CommandError`s and `SandboxUnavailable`."""
        if command.output is Output.PIPES:
            raise CommandInvalid("The output of a run is recorded.", hint="Ask for files or a pty.")
        return await self._tasks.see_through(self._start(space_id, command, run_id, hangup))

    async def _start(self, space_id: str, command: Command, run_id: str, hangup: bool) -> RunRecord:
        async with self._locks.shared(space_id):
            desk = await self._desks.of(self._live_space(space_id))
            run_id = run_id or new_id("ru")
            record = RunRecord(
                run_id=run_id,
                space_id=space_id,
                argv=command.argv,
                state=RunState.STARTING,
                created_at=self._journal.clock(),
                cwd=command.cwd,
                terminal=command.output is Output.PTY,
                stdin=command.stdin,
                timeout_s=command.timeout_s,
                hangup=hangup,
                display=command.display,
            )
            self._of_space.setdefault(space_id, set()).add(run_id)
            await self._journal.write(record, *self._becomes_running(space_id))
            command = dataclasses.replace(
                command, run_id=run_id, keep_bytes=self._keeping.stream_bytes
            )
            try:
                async with self._desks.mounted(desk) as mount:
                    run = await desk.runtime.run(desk.sandbox, mount, command)
            except BaseException as error:
                await self._never_ran(record, error)
                raise
            return self._watch(record, run).record

    def _live_space(self, space_id: str) -> Space:
        space = self._journal.current(space_id)
        if space.state not in LIVE:
            raise StateConflict(
                f"{space_id} is {space.state}; commands run in a space that is ready.",
                hint=f"Start it: carrel start {space_id}",
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

    # Watching

    def _watch(self, record: RunRecord, run: Run) -> Live:
        known = dataclasses.replace(record, state=RunState.RUNNING, pid=run.pid)
        live = Live(known, run, asyncio.Event())
        self._live[record.run_id] = live
        self._of_space.setdefault(record.space_id, set()).add(record.run_id)
        live.task = asyncio.create_task(self._see_to_end(live, new=record.pid == 0))
        return live

    async def _see_to_end(self, live: Live, *, new: bool) -> None:
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

    async def _write_end(self, live: Live) -> None:
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
        folder = self._desks.folder(space_id)
        for record in records[self._keeping.runs :]:
            if record.state in (RunState.ENDED, RunState.FAILED):
                await asyncio.to_thread(self._keeping.drop, folder, record.run_id)
                await self._journal.write(Forget(run_id=record.run_id))

    def _without(self, record: RunRecord) -> tuple[Record, ...]:
        """When that was the last command, the space becomes ready. An operation that moves
        it elsewhere says so itself."""
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

    async def take_up(self, record: RunRecord, desk: Desk) -> None:
        """A run of an earlier daemon: one that goes on is watched again, of one that ended
        the end is written down."""
        try:
            run = await desk.runtime.attach(desk.sandbox, record.run_id)
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

    def live(self, run_id: str) -> Live | None:
        return self._live.get(run_id)

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
        for run_id in list(self._of_space.get(space_id, ())):
            live = self._live.get(run_id)
            if live is not None:
                await live.ended.wait()

    async def signal(self, run_id: str, number: int) -> None:
        record = await self.get(run_id)
        if run_id not in self._live:
            return
        desk = await self._desks.of(self._journal.current(record.space_id))
        await desk.runtime.signal(desk.sandbox, run_id, number)

    # Output

    async def read(self, record: RunRecord, stream: Stream, offset: int, limit: int) -> Piece:
        if record.state is RunState.FAILED:
            return Piece(stream, 0, b"")
        folder = self._desks.folder(record.space_id)
        return await asyncio.to_thread(
            self._recordings.read, folder, record.run_id, stream, offset, limit
        )

    def follow(self, record: RunRecord, stream: Stream, offset: int) -> AsyncGenerator[Piece, None]:
        """What is there and what comes, to the end of the run."""
        if record.state is RunState.FAILED:
            return _nothing()
        live = self._live.get(record.run_id)
        ended = live.ended if live is not None else _already()
        folder = self._desks.folder(record.space_id)
        return self._recordings.follow(folder, record.run_id, stream, offset, ended)

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
