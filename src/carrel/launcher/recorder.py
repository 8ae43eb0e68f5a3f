"""The recorded output of runs, with or without a client, and after the command's own end.

A command holds its end of a pipe open for reading too: when we die it goes on, and whoever
comes after us finds the pipe among its descriptors and reads on. A terminal ends with us,
unless a client still has it.

What a command leaves running may hold its streams open. They are recorded until the last one
has closed them or the sandbox stops; a note in our own folder says so, for our successor.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

from carrel.launcher.loop import Loop, Timer
from carrel.launcher.records import read_record, write_record
from carrel.launcher.streams import KeptStream, PipeSource, TerminalSource

TURN_BYTES = 1 << 18
"""Of one stream in one turn of the loop, so that a command which floods its output keeps
nobody waiting."""
NOTE_S = 1.0
"""After its command's end a stream mostly closes at once; later it is worth a note."""
REOPENED_S = 0.25
"""A terminal that nobody has open on the other side says so all the time, but may be opened
again as long as its command lives: so often we look."""


@dataclass(frozen=True)
class Subject:
    """Whose streams: `names` is empty for a run that is not recorded."""

    run_id: str
    sandbox_id: str
    folder: str
    names: tuple[str, ...]
    keep: int

    def file(self, name: str) -> str:
        return f"{self.folder}/{name}"


class Recorded:
    """The streams of one run."""

    def __init__(self, loop: Loop, subject: Subject, on_end: Callable[[Recorded], None]) -> None:
        self.subject = subject
        self.left = False
        self._loop = loop
        self._on_end = on_end
        self._open: dict[str, KeptStream] = {}
        self._totals: dict[str, int] = {}
        self._again: Timer | None = None

    @property
    def ended(self) -> bool:
        return not self._open

    def begin(self, name: str, stream: KeptStream) -> None:
        self._open[name] = stream
        self._loop.watch(stream.source.descriptor, partial(self._readable, name, stream))

    def resume(self, name: str, stream: KeptStream) -> None:
        """Where an earlier launcher left off. Raises OSError when the file is gone."""
        try:
            stream.resume()
        except OSError:
            stream.close()
            raise
        self.begin(name, stream)
        # A pipe that no writer has open says nothing, unless it is read.
        self._readable(name, stream)

    def is_over(self, name: str) -> None:
        """It ended under an earlier launcher, which wrote all of it."""
        with contextlib.suppress(OSError):
            self._totals[f"{name}_bytes"] = os.stat(self.subject.file(name)).st_size

    def _readable(self, name: str, stream: KeptStream) -> None:
        try:
            moved = stream.take(TURN_BYTES)
        except BlockingIOError:
            return
        except OSError:
            moved = 0
        if moved:
            return
        if isinstance(stream.source, TerminalSource) and not self.left:
            self._pause(name, stream)
        else:
            self._finish(name, stream)

    def _pause(self, name: str, stream: KeptStream) -> None:
        self._loop.unwatch(stream.source.descriptor)

        def again() -> None:
            self._again = None
            self.begin(name, stream)

        self._again = self._loop.after(REOPENED_S, again)

    def _finish(self, name: str, stream: KeptStream) -> None:
        self._count(name, stream)
        del self._open[name]
        if self._again is not None:
            self._again.cancel()
        else:
            self._loop.unwatch(stream.source.descriptor)
        stream.close()
        if self.left and not self._open:
            self._on_end(self)

    def _count(self, name: str, stream: KeptStream) -> None:
        self._totals[f"{name}_bytes"] = stream.total
        if stream.dropped:
            self._totals[f"{name}_dropped"] = stream.dropped

    def settle(self) -> dict[str, int]:
        """Takes what is there now, that is, all that an ended command has written. Answers
        how much each stream was, and how much of it there was no room for."""
        for name, stream in self._open.items():
            with contextlib.suppress(OSError):
                stream.take_all()
            self._count(name, stream)
        return self._totals

    def leave(self) -> None:
        """The command has ended, and everybody was told."""
        self.left = True
        for name, stream in list(self._open.items()):
            # The terminal of a session whose leader is dead is dead too.
            if isinstance(stream.source, TerminalSource):
                self._finish(name, stream)
            else:
                self._readable(name, stream)

    def close(self) -> None:
        for name, stream in list(self._open.items()):
            self._finish(name, stream)


class Recorder:
    """All recordings. `folder` is for the notes."""

    def __init__(self, loop: Loop, folder: str) -> None:
        self._loop = loop
        self._folder = folder
        self._sink = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
        self._behind: dict[str, Recorded] = {}
        """Those whose command has ended."""
        os.makedirs(folder, mode=0o700, exist_ok=True)

    def __len__(self) -> int:
        return len(self._behind)

    def record(self, subject: Subject, pipes: list[int]) -> Recorded:
        """The descriptors, one for each name, become the recording's."""
        recorded = Recorded(self._loop, subject, self._ended)
        for name, pipe in zip(subject.names, pipes, strict=True):
            recorded.begin(name, self._from_pipe(subject, name, pipe))
        return recorded

    def record_terminal(self, subject: Subject, terminal: int) -> Recorded:
        """As `record`. All that share the descriptor find it non-blocking."""
        recorded = Recorded(self._loop, subject, self._ended)
        (name,) = subject.names
        recorded.begin(name, _from_terminal(subject, name, terminal))
        return recorded

    def take_up(self, subject: Subject, pipes: list[int | None], terminal: int | None) -> Recorded:
        """What an earlier launcher recorded: those of its pipes that were found again, or the
        terminal that a client kept."""
        recorded = Recorded(self._loop, subject, self._ended)
        for name, pipe in zip_longest(subject.names, pipes):
            try:
                if terminal is not None:
                    recorded.resume(name, _from_terminal(subject, name, terminal))
                elif pipe is not None:
                    recorded.resume(name, self._from_pipe(subject, name, pipe))
                else:
                    recorded.is_over(name)
            except OSError:
                recorded.is_over(name)
        return recorded

    def is_recording(self, run_id: str) -> bool:
        """After the end of its command."""
        return run_id in self._behind

    def _from_pipe(self, subject: Subject, name: str, pipe: int) -> KeptStream:
        return KeptStream(PipeSource(pipe, self._sink), subject.file(name), subject.keep)

    def leave(self, recorded: Recorded) -> None:
        """Its command has ended."""
        recorded.leave()
        if not recorded.ended:
            self._behind[recorded.subject.run_id] = recorded
            self._loop.after(NOTE_S, lambda: self._write_note(recorded))

    def stop(self, sandbox_id: str) -> None:
        """All its processes are gone: whoever else has a stream of theirs is not recorded."""
        for recorded in list(self._behind.values()):
            if recorded.subject.sandbox_id == sandbox_id:
                recorded.settle()
                recorded.close()

    def _ended(self, recorded: Recorded) -> None:
        run_id = recorded.subject.run_id
        if self._behind.pop(run_id, None) is not None:
            self.forget(run_id)

    # Notes

    def _write_note(self, recorded: Recorded) -> None:
        subject = recorded.subject
        if subject.run_id in self._behind:
            write_record(self._note(subject.run_id), {"folder": subject.folder})

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


def _from_terminal(subject: Subject, name: str, terminal: int) -> KeptStream:
    os.set_blocking(terminal, False)
    return KeptStream(TerminalSource(terminal), subject.file(name), subject.keep)
