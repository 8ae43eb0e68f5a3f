"""The recorded output of runs, with or without a client, and after the command's own end.

A command holds its end of a pipe open for reading too: when we die it goes on, and whoever
comes after us finds the pipe among its descriptors and reads on. A terminal ends with us,
unless a client still has it.

What a command leaves running may hold its streams open. They are recorded until the last one
has closed them or the sandbox stops; a note in our own folder says so, for our successor.

Whoever reads a command's output as it comes holds it: what is after the reader's position is
not given up, and a command that is too far ahead waits. A hold is a lease that the reader's
daemon renews, so a reader that is gone for good does not stop the command for good.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from typing import NamedTuple, NoReturn, TypeVar

from carrel.launcher.loop import Answer, Loop, Timer, Workers
from carrel.launcher.messages import ReaderHolds
from carrel.launcher.streams import (
    TURN_BYTES,
    USUAL_PIPE,
    KeptStream,
    NoRoom,
    PipeSource,
    TerminalSource,
)
from carrel.launcher.wire import read_record, write_record
from carrel.linux.reserve import Reserve

T = TypeVar("T")

GATHER_S = 0.002
"""A command that fills its pipe is left alone for so long: a worker takes more at once then."""
NOTE_S = 1.0
"""After its command's end a stream mostly closes at once; later it is worth a note."""
REOPENED_S = 0.25
"""A terminal that nobody has open on the other side says so all the time, but may be opened
again as long as its command lives: so often we look."""
ROOM_S = 0.25
"""Between two looks whether a full disk has room again, while somebody reads."""
MOST_READERS = 64
"""Of one stream. More of them do not hold it, and are told what they miss."""


class RecordingSpec(NamedTuple):
    """Whose streams: `names` is empty for a run that is not recorded."""

    run_id: str
    sandbox_id: str
    folder: str
    names: tuple[str, ...]
    keep: int
    reader: str = ""
    """Who holds it from the first byte on, and for how long without being heard of again."""
    lease: float = 0.0
    account: str = ""

    def file(self, name: str) -> str:
        return f"{self.folder}/{name}"


class ReaderLease:
    """One reader of one stream."""

    def __init__(self, position: int, until: float) -> None:
        self.position = position
        self.until = until
        self.timer: Timer | None = None


class Recording:
    """The streams of one run. All that touches a stream's source is done by a worker, one thing
    after the other; meanwhile the stream is not watched."""

    def __init__(
        self,
        loop: Loop,
        workers: Workers,
        spec: RecordingSpec,
        on_end: Callable[[Recording], None],
    ) -> None:
        self.spec = spec
        self.left = False
        self.stopping = False
        """Its sandbox is gone, and it ends as soon as what is left in the pipes was taken."""
        self._loop = loop
        self._workers = workers
        self._on_end = on_end
        self._open: dict[str, KeptStream] = {}
        self._totals: dict[str, int] = {}
        self._holds: dict[str, dict[str, ReaderLease]] = {}
        self._resting: dict[str, Timer | None] = {}
        """Streams that are not read now: until then, or until a reader has caught up."""
        self._busy: dict[str, list[Callable[[], None]]] = {}
        """Streams that a worker has, and what is to be done then."""

    @property
    def ended(self) -> bool:
        return not self._open

    def begin(self, name: str, stream: KeptStream) -> None:
        self._open[name] = stream
        if self.spec.reader:
            self.hold(name, self.spec.reader, 0, self.spec.lease)
        self._watch(name, stream)

    def _watch(self, name: str, stream: KeptStream) -> None:
        self._loop.watch(stream.source.descriptor, partial(self._readable, name, stream))

    def resume(self, name: str, stream: KeptStream, holds: ReaderHolds | None) -> None:
        """Where an earlier launcher left off. Raises OSError when the file is gone. `holds`
        are known unless the daemon is a new one: then whoever began to read may be back."""
        try:
            stream.resume()
        except OSError:
            self._workers.close(self.spec.account, stream.close)
            raise
        self._open[name] = stream
        if holds is None and self.spec.reader:
            self.hold(name, self.spec.reader, 0, self.spec.lease)
        for held, reader, position, lease in holds or ():
            if held == name:
                self.hold(name, reader, position, lease)
        self._watch(name, stream)
        # A pipe that no writer has open says nothing, unless it is read.
        self._readable(name, stream)

    def is_over(self, name: str) -> None:
        """It ended under an earlier launcher, which wrote all of it."""
        with contextlib.suppress(OSError):
            self._totals[f"{name}_bytes"] = os.stat(self.spec.file(name)).st_size

    # Readers

    def hold(self, name: str, reader: str, position: int | None, lease: float) -> None:
        """So far the reader has come, and so long that counts; None: it reads no more."""
        if name not in self._open:
            return
        holds = self._holds.setdefault(name, {})
        known = holds.get(reader)
        if position is None:
            self._let_go(name, reader)
        elif known is not None:
            known.position, known.until = position, time.monotonic() + lease
        elif len(holds) < MOST_READERS:
            holds[reader] = ReaderLease(position, time.monotonic() + lease)
            self._expire_later(name, reader)
        self._held(name)

    def _held(self, name: str) -> None:
        stream = self._open[name]
        positions = [hold.position for hold in self._holds.get(name, {}).values()]
        stream.held = min(positions) if positions else None
        if name in self._resting and name not in self._busy and not stream.full:
            self._wake(name)

    def _expire_later(self, name: str, reader: str) -> None:
        hold = self._holds[name][reader]
        left_s = hold.until - time.monotonic()
        if left_s > 0:
            hold.timer = self._loop.after(left_s, lambda: self._expire_later(name, reader))
        else:
            self._let_go(name, reader)
            self._held(name)

    def _let_go(self, name: str, reader: str) -> None:
        hold = self._holds[name].pop(reader, None)
        if hold is not None and hold.timer is not None:
            hold.timer.cancel()

    # Reading

    def _do(
        self,
        name: str,
        stream: KeptStream,
        work: Callable[[], T],
        done: Callable[[Answer[T]], None],
    ) -> None:
        """When no worker has the stream. What was closed by then gives nothing more to do."""
        if name in self._busy:
            self._busy[name].append(lambda: self._do(name, stream, work, done))
            return
        if name not in self._open:
            done(_raise_closed)
            return
        self._busy[name] = []
        later = False

        def over(answer: Answer[T]) -> None:
            next_ones = self._busy.pop(name)
            if later and name in self._resting:
                self._wake(name)
            done(answer)
            for action in next_ones:
                action()

        later = not self._workers.do(self.spec.account, work, over)
        if later and name not in self._resting:
            self._rest(name, stream, None)

    def _readable(self, name: str, stream: KeptStream) -> None:
        if stream.full:
            self._rest(name, stream, None)
        elif stream.source.closed():
            self._took(name, stream, lambda: 0)
        else:
            taken = partial(self._took, name, stream)
            self._do(name, stream, partial(stream.take, TURN_BYTES), taken)

    def _took(self, name: str, stream: KeptStream, taken: Answer[int]) -> None:
        try:
            moved = taken()
        except BlockingIOError:
            return
        except NoRoom:
            self._rest(name, stream, ROOM_S)
            return
        except OSError:
            moved = 0
        if moved >= USUAL_PIPE and name in self._open and name not in self._resting:
            self._rest(name, stream, GATHER_S)
        if moved:
            return
        if isinstance(stream.source, TerminalSource) and not self.left:
            self._rest(name, stream, REOPENED_S)
        else:
            self._finish(name, stream)

    def _rest(self, name: str, stream: KeptStream, seconds: float | None) -> None:
        self._loop.unwatch(stream.source.descriptor)
        timer = None if seconds is None else self._loop.after(seconds, lambda: self._wake(name))
        self._resting[name] = timer

    def _wake(self, name: str) -> None:
        timer = self._resting.pop(name)
        if timer is not None:
            timer.cancel()
        if name in self._busy:
            # Until the worker is done.
            self._resting[name] = None
            return
        self._watch(name, self._open[name])

    def _finish(self, name: str, stream: KeptStream) -> None:
        self._count(name, stream)
        for reader in list(self._holds.get(name, {})):
            self._let_go(name, reader)
        if name in self._resting:
            self._wake(name)
        del self._open[name]
        self._loop.unwatch(stream.source.descriptor)
        if stream.source.closed():
            stream.close()
        else:
            self._workers.close(self.spec.account, stream.close)
        if self.left and not self._open:
            self._on_end(self)

    def _count(self, name: str, stream: KeptStream) -> None:
        self._totals[f"{name}_bytes"] = stream.total
        if stream.source.closed():
            self._totals[f"{name}_closed"] = True
        stream.mark_end()
        if stream.dropped:
            self._totals[f"{name}_dropped"] = stream.dropped

    def settle(self, done: Callable[[dict[str, int]], None]) -> None:
        """Takes what is there now, that is, all that an ended command has written. Tells how
        much each stream was, and how much of it there was no room for: at once, unless what the
        command left behind keeps us from reading."""
        waiting = list(self._open.items())
        left = len(waiting)

        def taken(name: str, stream: KeptStream, _answer: Answer[bool]) -> None:
            nonlocal left
            left -= 1
            if name in self._open:
                self._count(name, stream)
            if not left:
                done(self._totals)

        for name, stream in waiting:
            if name not in self._busy and stream.source.closed():
                taken(name, stream, lambda: True)
            else:
                self._do(name, stream, stream.take_all, partial(taken, name, stream))
        if not waiting:
            done(self._totals)

    def leave(self) -> None:
        """The command has ended, and everybody was told."""
        self.left = True
        for name, stream in list(self._open.items()):
            # The terminal of a session whose leader is dead is dead too.
            if isinstance(stream.source, TerminalSource):
                self._close(name, stream)
            elif name not in self._resting:
                self._readable(name, stream)
            elif stream.source.closed():
                self._close(name, stream)

    def stop(self) -> None:
        """Takes what is there, and ends."""
        self.stopping = True
        self.settle(lambda _totals: self.close())

    def close(self) -> None:
        for name, stream in list(self._open.items()):
            self._close(name, stream)

    def _close(self, name: str, stream: KeptStream) -> None:
        """When no worker has it."""
        if name in self._busy:
            self._busy[name].append(lambda: self._close(name, stream))
        elif name in self._open:
            self._finish(name, stream)


def _raise_closed() -> NoReturn:
    raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class Recorder:
    """All recordings. `folder` is for the notes; `reserve` is given up for a little output."""

    def __init__(self, loop: Loop, folder: str, reserve: Reserve | None = None) -> None:
        self._loop = loop
        self.workers = Workers(loop)
        self._reserve = reserve
        self._folder = folder
        self._sink = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
        self._behind: dict[str, Recording] = {}
        """Those whose command has ended."""
        os.makedirs(folder, mode=0o700, exist_ok=True)

    def __len__(self) -> int:
        return len(self._behind)

    def count(self, account: str) -> int:
        """Of those, the ones that take this share."""
        return sum(one.spec.account == account for one in self._behind.values())

    def record(self, spec: RecordingSpec, pipes: list[int]) -> Recording:
        """The descriptors, one for each name, become the recording's."""
        recorded = Recording(self._loop, self.workers, spec, self._ended)
        for name, pipe in zip(spec.names, pipes, strict=True):
            recorded.begin(name, self._from_pipe(spec, name, pipe))
        return recorded

    def record_terminal(self, spec: RecordingSpec, terminal: int) -> Recording:
        """As `record`. All that share the descriptor find it non-blocking."""
        recorded = Recording(self._loop, self.workers, spec, self._ended)
        (name,) = spec.names
        recorded.begin(name, self._from_terminal(spec, name, terminal))
        return recorded

    def take_up(
        self,
        spec: RecordingSpec,
        pipes: list[int | None],
        terminal: int | None,
        holds: ReaderHolds | None = None,
    ) -> Recording:
        """What an earlier launcher recorded: those of its pipes that were found again, or the
        terminal that a client kept."""
        recorded = Recording(self._loop, self.workers, spec, self._ended)
        for name, pipe in zip_longest(spec.names, pipes):
            try:
                if terminal is not None:
                    recorded.resume(name, self._from_terminal(spec, name, terminal), holds)
                elif pipe is not None:
                    recorded.resume(name, self._from_pipe(spec, name, pipe), holds)
                else:
                    recorded.is_over(name)
            except OSError:
                recorded.is_over(name)
        return recorded

    def behind(self, run_id: str) -> Recording | None:
        """What is recorded after the end of its command."""
        return self._behind.get(run_id)

    def _from_pipe(self, spec: RecordingSpec, name: str, pipe: int) -> KeptStream:
        source = PipeSource(pipe, self._sink)
        return KeptStream(source, spec.file(name), spec.keep, self._reserve)

    def _from_terminal(self, spec: RecordingSpec, name: str, terminal: int) -> KeptStream:
        os.set_blocking(terminal, False)
        return KeptStream(TerminalSource(terminal), spec.file(name), spec.keep, self._reserve)

    def leave(self, recorded: Recording) -> None:
        """Its command has ended."""
        recorded.leave()
        if not recorded.ended:
            self._behind[recorded.spec.run_id] = recorded
            self._loop.after(NOTE_S, lambda: self._write_note(recorded))

    def stop(self, sandbox_id: str) -> bool:
        """All its processes are gone: whoever else has a stream of theirs is not recorded. True
        when nothing of it is being recorded any more."""
        for recorded in list(self._behind.values()):
            if recorded.spec.sandbox_id == sandbox_id and not recorded.stopping:
                recorded.stop()
        return not any(one.spec.sandbox_id == sandbox_id for one in self._behind.values())

    def _ended(self, recorded: Recording) -> None:
        run_id = recorded.spec.run_id
        if self._behind.pop(run_id, None) is not None:
            self.forget(run_id)

    # Notes

    def _write_note(self, recorded: Recording) -> None:
        spec = recorded.spec
        if spec.run_id in self._behind:
            write_record(self._note(spec.run_id), {"folder": spec.folder})

    def noted(self) -> list[tuple[str, str]]:
        """The ids and folders of runs whose streams were open after their end."""
        names = [name.removesuffix(".json") for name in os.listdir(self._folder)]
        found = [(run_id, read_record(self._note(run_id))) for run_id in names]
        return [(run_id, "" if note is None else note["folder"]) for run_id, note in found]

    def forget(self, run_id: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._note(run_id))

    def _note(self, run_id: str) -> str:
        return os.path.join(self._folder, f"{run_id}.json")
