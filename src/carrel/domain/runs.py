"""The record of a command, and what of its output is kept."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from carrel.domain.runtimes import Exit
from carrel.domain.systems import CommandPlace

if TYPE_CHECKING:
    # Half of the time that a short command of the program takes.
    import asyncio


class RunState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    """`RunRecord.exit` says how."""
    FAILED = "failed"
    """It never ran: `RunRecord.failure` says why."""


class Stream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True)
class RunRecord:
    """Written before the command starts, and when it started and ended."""

    run_id: str
    space_id: str
    argv: tuple[str, ...]
    state: RunState
    created_at: float
    cwd: str = "."
    terminal: bool = False
    """One terminal instead of three streams: all output is `stdout`."""
    stdin: bool = False
    timeout_s: float | None = None
    hangup: bool = False
    """It ends when nobody has watched it for a while, as with a terminal that hangs up."""
    display: str = ""
    """What people are shown instead of `argv`, where that says little."""
    place: CommandPlace = CommandPlace.AGENT
    service: str = ""
    """The service in whose sandbox it runs, instead."""
    entry: bool = False
    """It is that service itself."""
    pid: int = 0
    exit: Exit | None = None
    failure: str = ""
    failure_code: str = ""


@dataclass(frozen=True)
class Piece:
    """A piece of one stream. Offsets count all bytes the command ever wrote: bytes before
    `offset` that a reader has not seen were dropped to keep the record small."""

    stream: Stream
    offset: int
    data: bytes


class Recordings(Protocol):
    """What is recorded of runs. `folder` is the sandbox's. All raise `RunNotFound` for a run
    that has no folder there; a stream that the run does not have is empty."""

    def size(self, folder: Path, run_id: str, stream: Stream) -> int:
        """How many bytes the command has written, kept or not. Reads two small files."""
        ...

    def read(self, folder: Path, run_id: str, stream: Stream, offset: int, limit: int) -> Piece:
        """From `offset`, or from the first byte after it that is still there; no more than
        `limit` bytes, none at the end. Blocks for as long as a disk does."""
        ...

    def follow(
        self,
        folder: Path,
        run_id: str,
        stream: Stream,
        offset: int,
        ended: asyncio.Event,
        reader: str = "",
    ) -> AsyncGenerator[Piece, None]:
        """What is there and what comes, until `ended` is set (when the run has ended) and all
        was read. An empty piece at the end says by its offset that the last bytes were
        dropped. Wrap it in `contextlib.aclosing`.

        With the name of a `reader` nothing is dropped before it was read: a command that is
        too far ahead waits. One that is closed before the end may follow again under its name,
        for a while; `let_go` ends that."""
        ...

    def let_go(self, run_id: str, reader: str) -> None:
        """A reader that was closed before the end does not come back."""
        ...
