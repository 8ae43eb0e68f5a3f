"""The standard streams of a run: what the command gets, and what we keep.

Recorded output goes through pipes that the launcher reads. The command's end is open for
reading too, so it never breaks: without a launcher the command waits for the next one. The
command's user owns the pipes, so that /dev/stdout can be opened in the sandbox.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios
from dataclasses import dataclass, field
from pathlib import Path

from carrel.domain.runtimes import Command, Output
from carrel.domain.trees import Owner
from carrel.runtimes.input_counts import InputCount, found_count, new_count

RECORDED = {Output.FILES: ("stdout", "stderr"), Output.PTY: ("stdout",), Output.PIPES: ()}
"""The names of the files, for each kind of output."""

_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@dataclass
class Streams:
    """`given` are the command's 0, 1, 2, and `sources` the launcher's ends of those that are
    recorded; the others are ours, or paths."""

    given: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    stdin: int | None = None
    stdout: int | Path | None = None
    stderr: int | Path | None = None
    terminal: bool = False
    """`stdin` is one."""
    held: bool = False
    """The launcher holds `stdin` as well, so that it stays open without us."""
    count: InputCount | None = None
    """Of what is given to `stdin`, when that may be somebody else's work later."""

    def give(self, data: bytes | memoryview) -> int:
        """Raises BlockingIOError. What a command does not want goes nowhere."""

        def write() -> int:
            if self.stdin is None:
                return len(data)
            try:
                return os.write(self.stdin, data)
            except BlockingIOError:
                raise
            except OSError:
                return len(data)

        return write() if self.count is None else self.count.count(len(data), write)

    def close_given(self) -> None:
        for descriptor in (*self.given, *self.sources):
            os.close(descriptor)
        self.given.clear()
        self.sources.clear()

    def close_stdin(self) -> None:
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None

    def close_ours(self) -> None:
        self.close_stdin()
        if self.count is not None:
            self.count.close()
            self.count = None
        for end in (self.stdout, self.stderr):
            if isinstance(end, int):
                os.close(end)
        self.stdout = None if isinstance(self.stdout, int) else self.stdout
        self.stderr = None if isinstance(self.stderr, int) else self.stderr

    def resize(self, rows: int, cols: int) -> None:
        if self.terminal and self.stdin is not None:
            # Nobody is left to whom its size would matter.
            with contextlib.suppress(OSError):
                size = struct.pack("HHHH", rows, cols, 0, 0)
                fcntl.ioctl(self.stdin, termios.TIOCSWINSZ, size)


def open_streams(command: Command, folder: Path, owner: Owner) -> Streams:
    """Raises OSError, and then nothing is open. `owner` is whom the command runs as."""
    streams = Streams()
    try:
        _input(streams, command, folder, owner)
        if command.output is Output.FILES:
            _recorded(streams, folder, owner)
        elif command.output is Output.PIPES:
            _raw(streams, owner)
        else:
            # The sandbox makes the terminal itself, and the launcher hands it to us.
            streams.given += [os.dup(streams.given[0]), os.dup(streams.given[0])]
            streams.stdout = folder / "stdout"
            _make_file(streams.stdout)
    except OSError:
        streams.close_given()
        streams.close_ours()
        raise
    return streams


def found_streams(folder: Path, stdin: int | None, terminal: bool) -> Streams:
    """Of a run that is taken up."""
    stdout, stderr = folder / "stdout", folder / "stderr"
    return Streams(
        stdin=stdin,
        stdout=stdout if stdout.exists() else None,
        stderr=stderr if stderr.exists() else None,
        terminal=terminal,
        held=stdin is not None and not terminal,
        count=None if terminal else found_count(folder),
    )


def _input(streams: Streams, command: Command, folder: Path, owner: Owner) -> None:
    if not command.stdin or command.output is Output.PTY:
        streams.given.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        return
    theirs, streams.stdin = os.pipe2(os.O_CLOEXEC)
    streams.given.append(theirs)
    _give(theirs, owner)
    if command.output is Output.FILES:
        # One flag for the launcher, which never writes, for us, and for whoever attaches.
        os.set_blocking(streams.stdin, False)
        streams.held = True
        streams.count = new_count(folder)


def _recorded(streams: Streams, folder: Path, owner: Owner) -> None:
    streams.stdout, streams.stderr = folder / "stdout", folder / "stderr"
    for path in (streams.stdout, streams.stderr):
        _make_file(path)
        source, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        streams.sources.append(source)
        try:
            streams.given.append(os.open(f"/proc/self/fd/{writing}", os.O_RDWR | os.O_CLOEXEC))
        finally:
            os.close(writing)
        _give(source, owner)


def _raw(streams: Streams, owner: Owner) -> None:
    streams.stdout, theirs = os.pipe2(os.O_CLOEXEC)
    streams.given.append(theirs)
    _give(theirs, owner)
    streams.stderr, theirs = os.pipe2(os.O_CLOEXEC)
    streams.given.append(theirs)
    _give(theirs, owner)


def _make_file(path: Path) -> None:
    os.close(os.open(path, _FILE, 0o600))


def _give(pipe: int, owner: Owner) -> None:
    """The command may open it by name, as /dev/stdout."""
    if owner.uid != os.geteuid():
        os.fchown(pipe, owner.uid, owner.gid)
