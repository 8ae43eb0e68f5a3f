"""The standard streams of a run: what the command gets, and what we keep."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from dataclasses import dataclass, field
from pathlib import Path

from carrel.domain.runtimes import Command, Output

_OUTPUT = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC


@dataclass
class Streams:
    """`given` are the command's 0, 1, 2; the others are ours, or paths."""

    given: list[int] = field(default_factory=list)
    stdin: int | None = None
    stdout: int | Path | None = None
    stderr: int | Path | None = None

    def close_given(self) -> None:
        for descriptor in set(self.given):
            os.close(descriptor)
        self.given.clear()

    def close_ours(self) -> None:
        ours = {end for end in (self.stdin, self.stdout, self.stderr) if isinstance(end, int)}
        for descriptor in ours:
            os.close(descriptor)
        self.stdin = None
        self.stdout = None if isinstance(self.stdout, int) else self.stdout
        self.stderr = None if isinstance(self.stderr, int) else self.stderr


def open_streams(command: Command, folder: Path) -> Streams:
    streams = Streams()
    try:
        _input(streams, command.stdin and command.output is not Output.PTY)
        if command.output is Output.PTY:
            # The sandbox makes the terminal itself, and the launcher hands it to us.
            streams.given += [os.dup(streams.given[0]), os.dup(streams.given[0])]
        else:
            _outputs(streams, command.output, folder)
    except OSError:
        streams.close_given()
        streams.close_ours()
        raise
    return streams


def resize(terminal: int, size: tuple[int, int]) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))


def _input(streams: Streams, wanted: bool) -> None:
    if wanted:
        theirs, streams.stdin = os.pipe2(os.O_CLOEXEC)
    else:
        theirs = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    streams.given.append(theirs)


def _outputs(streams: Streams, output: Output, folder: Path) -> None:
    if output is Output.FILES:
        streams.stdout, streams.stderr = folder / "stdout", folder / "stderr"
        for path in (streams.stdout, streams.stderr):
            streams.given.append(os.open(path, _OUTPUT, 0o600))
        return
    streams.stdout, theirs = os.pipe2(os.O_CLOEXEC)
    streams.given.append(theirs)
    streams.stderr, theirs = os.pipe2(os.O_CLOEXEC)
    streams.given.append(theirs)
