"""One run of an engine's program: its lines are heard as they come, and it ends in time.

It ends early when the one who waits gives up, when the disk is nearly full, and when its time is
over. Killing is enough: the sandbox takes all of its processes along (see `sandbox.py`).
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from carrel.domain.engines import UNWATCHED, EngineWatch
from carrel.domain.errors import EngineTimeout, EngineUnavailable, InsufficientDisk

TICK_S = 0.2
"""How often the disk and the watch are asked: a fast disk takes half a gigabyte meanwhile."""
END_S = 10.0
"""A killed program is gone at once, unless a disk holds it up."""
KEEP_FREE = 1 << 30
"""So much of a disk is left to everybody else."""
LAST_LINES = 30
LONGEST_LINE = 1000
LINES_A_SECOND = 100
"""More than a person reads, and less than a daemon minds."""
_CHUNK = 1 << 16
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class EngineBounds:
    """How long it may take, and the disks on which so much stays free."""

    most_s: float
    disks: tuple[Path, ...] = ()
    keep_free: int = KEEP_FREE


@dataclass(frozen=True)
class EngineSaid:
    """How it ended, and its last lines."""

    code: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@dataclass
class _Lines:
    """Turns bytes into lines, and lets so many of them through."""

    hear: Callable[[str], None]
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    _rest: bytes = b""
    _second: int = 0
    _heard: int = 0
    _left_out: int = 0

    def take(self, data: bytes) -> None:
        *lines, self._rest = re.split(rb"[\r\n]+", self._rest + data)
        for line in lines:
            self._line(line)
        if len(self._rest) > LONGEST_LINE:
            self._line(self._rest)
            self._rest = b""

    def end(self) -> None:
        self._line(self._rest)
        self._rest = b""
        self._say_left_out()

    def _line(self, raw: bytes) -> None:
        text = _CONTROL.sub("", raw[: LONGEST_LINE * 4].decode("utf-8", "replace"))
        text = text[:LONGEST_LINE].rstrip()
        if not text:
            return
        self.last.append(text)
        second = int(time.monotonic())
        if second != self._second:
            self._say_left_out()
            self._second, self._heard = second, 0
        self._heard += 1
        if self._heard > LINES_A_SECOND:
            self._left_out += 1
        else:
            self.hear(text)

    def _say_left_out(self) -> None:
        if self._left_out:
            self.hear(f"({self._left_out} further lines are left out.)")
            self._left_out = 0


def run_engine(
    argv: Sequence[str],
    env: Mapping[str, str],
    bounds: EngineBounds,
    watch: EngineWatch = UNWATCHED,
) -> EngineSaid:
    """Raises `EngineTimeout`, `InsufficientDisk`, `EngineUnavailable`, and what the watch raises;
    then the process is gone."""
    watch.check()
    check_room(bounds)
    lines = _Lines(watch.line)
    process = _start(argv, env)
    try:
        _follow(process, lines, bounds, watch)
        code = process.wait(END_S)
    except subprocess.TimeoutExpired:
        raise _late(bounds) from None
    finally:
        _end(process)
    lines.end()
    return EngineSaid(code, tuple(lines.last))


def _start(argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o022,
        )
    except OSError as error:
        raise EngineUnavailable(
            f"{argv[0]} cannot be started: {error.strerror}.", hint="Run `carrel doctor`."
        ) from None


def _follow(
    process: subprocess.Popen[bytes], lines: _Lines, bounds: EngineBounds, watch: EngineWatch
) -> None:
    assert process.stdout is not None
    looked = time.monotonic()
    deadline = looked + bounds.most_s
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if selector.select(TICK_S):
                data = os.read(process.stdout.fileno(), _CHUNK)
                if not data:
                    return
                lines.take(data)
            now = time.monotonic()
            if now - looked >= TICK_S:
                looked = now
                watch.check()
                check_room(bounds)
            if now > deadline:
                raise _late(bounds)


def check_room(bounds: EngineBounds) -> None:
    """Raises `InsufficientDisk`."""
    for disk in bounds.disks:
        with contextlib.suppress(OSError):
            status = os.statvfs(disk)
            if status.f_bavail * status.f_frsize < bounds.keep_free:
                raise InsufficientDisk(
                    f"There is less than {bounds.keep_free >> 20} MiB free at {disk}, "
                    "so the engine was stopped.",
                    hint="Run `carrel gc --bases`, or let the build write less.",
                )


def _late(bounds: EngineBounds) -> EngineTimeout:
    return EngineTimeout(
        f"The engine did not finish within {bounds.most_s:.0f} s, and was stopped.",
        hint="See what its last step waits for; a longer time can be asked for.",
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all of its group; it may have ended long ago."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.stdout is not None:
        process.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
