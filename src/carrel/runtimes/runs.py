"""A live run: its folder, its standard streams, and its end as the launcher tells it.

Recorded output goes through pipes that the launcher reads. The command's end is open for
reading too, so it never breaks: without a launcher the command waits for the next one. The
command's user owns the pipes, so that /dev/stdout can be opened in the sandbox.

How many bytes a command was given on its standard input is known also to who comes later: a file of
the run holds what was given, and what it will be at most when the write that is under way is done.
Whoever was killed within a write leaves two numbers that differ, and then nobody knows; that is a
matter of microseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import struct
import termios
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from carrel.domain.errors import (
    CarrelError,
    CommandInvalid,
    InsufficientDisk,
    LauncherUnavailable,
    SandboxUnavailable,
)
from carrel.domain.ids import is_id, new_id
from carrel.domain.runtimes import Command, Exit, ExitReason, Output, Sandbox
from carrel.domain.trees import Owner
from carrel.runtimes.threads import briefly, in_own_thread, unwaited

AGAIN_S = (0.05, 0.2, 1.0, 3.0, 10.0)
"""The pauses of who asks for the end of a run and gets no answer."""


@dataclass(frozen=True)
class Links:
    """What a live run asks of others."""

    find: Callable[[LiveRun], Awaitable[dict[str, Any] | None]]
    """Asks again how a run ended, when the launcher went away before it could tell."""
    end_input: Callable[[], Awaitable[None]]
    """Makes the launcher close its end of standard input."""
    on_exit: Callable[[Exit], None]


def parse_exit(record: dict[str, Any]) -> Exit:
    return Exit(
        reason=ExitReason(record["reason"]),
        code=record["code"],
        signal=record["signal"],
        started_at=record["started_at"],
        ended_at=record["ended_at"],
        cpu_seconds=record["cpu_seconds"],
        max_rss_bytes=record["max_rss_bytes"],
    )


class LiveRun:
    """Implements `LocalRun`. Made inside the running event loop, which hears of its end."""

    def __init__(self, run_id: str, streams: RunStreams, exit_pipe: int, links: Links) -> None:
        self.run_id = run_id
        self.pid = 0
        self._streams = streams
        self._exit_pipe = exit_pipe
        self._links = links
        self._told = b""
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Exit] = self._loop.create_future()
        self._search: asyncio.Task[None] | None = None

    @property
    def stdin(self) -> int | None:
        return self._streams.stdin

    @property
    def input_bytes(self) -> int | None:
        count = self._streams.count
        return None if count is None else count.given

    async def give(self, data: bytes | memoryview) -> int:
        return await self._streams.give(data)

    @property
    def stdout(self) -> Path | int | None:
        return self._streams.stdout

    @property
    def stderr(self) -> Path | int | None:
        return self._streams.stderr

    def begin(self, pid: int) -> None:
        self.pid = pid
        os.set_blocking(self._exit_pipe, False)
        self._loop.add_reader(self._exit_pipe, self._readable)

    def _readable(self) -> None:
        try:
            chunk = os.read(self._exit_pipe, 65536)
        except BlockingIOError:
            return
        self._told += chunk
        if chunk and not self._told.endswith(b"\n"):
            return
        self._close_pipe()
        if self._told.endswith(b"\n"):
            self._end(parse_exit(json.loads(self._told)))
        else:
            self._search = self._loop.create_task(self._look_for_end())

    async def _look_for_end(self) -> None:
        try:
            record = await self._find()
        except Exception as error:
            if not self._ended.done():
                self._ended.set_exception(error)
            return
        if record is not None:
            self._end(parse_exit(record))

    async def _find(self) -> dict[str, Any] | None:
        """The launcher that should know may be killed as well, or be slow to start."""
        for pause_s in AGAIN_S:
            try:
                return await self._links.find(self)
            except LauncherUnavailable:
                await asyncio.sleep(pause_s)
        return await self._links.find(self)

    def resume(self, exit_pipe: int) -> None:
        """Another launcher has taken the run up."""
        self._exit_pipe = exit_pipe
        self._told = b""
        self.begin(self.pid)

    def _end(self, ended: Exit) -> None:
        if self._ended.done():
            return
        self._ended.set_result(ended)
        self._links.on_exit(ended)

    async def writable(self) -> None:
        """Waits on a descriptor of its own: the run may close the other one meanwhile."""
        if self._streams.stdin is None:
            return
        own = os.dup(self._streams.stdin)
        ready = asyncio.Event()
        try:
            self._loop.add_writer(own, ready.set)
            await ready.wait()
        finally:
            self._loop.remove_writer(own)
            os.close(own)

    async def wait(self) -> Exit:
        return await asyncio.shield(self._ended)

    def _close_pipe(self) -> None:
        if self._exit_pipe >= 0:
            self._loop.remove_reader(self._exit_pipe)
            os.close(self._exit_pipe)
            self._exit_pipe = -1

    def still_held(self) -> tuple[str, list[int]]:
        """What a launcher that takes the run up cannot have from elsewhere, and its name."""
        stdin = self._streams.stdin
        if stdin is None or not (self._streams.terminal or self._streams.held):
            return "", []
        return "terminal" if self._streams.terminal else "input", [stdin]

    async def close_input(self) -> None:
        if self._streams.terminal:
            return
        self._streams.close_stdin()
        if self._streams.held:
            self._streams.held = False
            await self._links.end_input()

    def resize(self, rows: int, cols: int) -> None:
        self._streams.resize(rows, cols)

    def close(self) -> None:
        self._streams.close_ours()
        self._close_pipe()
        if self._search is not None:
            self._search.cancel()
        if not self._ended.done():
            self._ended.cancel()


# Standard streams

RECORDED = {
    Output.FILES: ("stdout", "stderr"),
    Output.PTY: ("stdout",),
    Output.PIPES: (),
    Output.GIVEN: (),
}
"""The names of the files, for each kind of output."""

_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@dataclass
class RunStreams:
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

    async def give(self, data: bytes | memoryview) -> int:
        """Raises BlockingIOError. What a command does not want goes nowhere."""

        async def write() -> int:
            if self.stdin is None:
                return len(data)
            try:
                return await _write(self.stdin, data)
            except BlockingIOError:
                raise
            except OSError:
                return len(data)

        return await (write() if self.count is None else self.count.count(len(data), write))

    def close_given(self) -> None:
        _close([*self.given, *self.sources])
        self.given.clear()
        self.sources.clear()

    def close_stdin(self) -> None:
        if self.stdin is not None:
            _close([self.stdin])
            self.stdin = None

    def close_ours(self) -> None:
        self.close_stdin()
        if self.count is not None:
            self.count.close()
            self.count = None
        _close([end for end in (self.stdout, self.stderr) if isinstance(end, int)])
        self.stdout = None if isinstance(self.stdout, int) else self.stdout
        self.stderr = None if isinstance(self.stderr, int) else self.stderr

    def resize(self, rows: int, cols: int) -> None:
        if not self.terminal or self.stdin is None:
            return
        own, size = os.dup(self.stdin), struct.pack("HHHH", rows, cols, 0, 0)

        def set_size() -> None:
            # Nobody is left to whom its size would matter.
            with contextlib.suppress(OSError):
                fcntl.ioctl(own, termios.TIOCSWINSZ, size)
            os.close(own)

        briefly(set_size)


async def _write(pipe: int, data: bytes | memoryview) -> int:
    """In a thread: a command that splices from its standard input into a full socket keeps the
    pipe's lock, and whoever writes waits for that, O_NONBLOCK or not. On a descriptor of its own,
    since the run may be closed meanwhile. Raises OSError."""
    own = os.dup(pipe)

    def write() -> int:
        try:
            return os.write(own, data)
        finally:
            os.close(own)

    return await in_own_thread(write)


def _close(pipes: list[int]) -> None:
    """In a thread: closing a pipe or a terminal may wait as writing does."""

    def close() -> None:
        for pipe in pipes:
            os.close(pipe)

    if pipes:
        unwaited(close)


def open_streams(command: Command, folder: Path, owner: Owner) -> RunStreams:
    """Raises OSError, and then nothing is open. `owner` is whom the command runs as."""
    streams = RunStreams()
    try:
        if command.output is Output.GIVEN:
            for stream in command.streams:
                streams.given.append(os.dup(stream))
            return streams
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


def found_streams(folder: Path, stdin: int | None, terminal: bool) -> RunStreams:
    """Of a run that is taken up."""
    stdout, stderr = folder / "stdout", folder / "stderr"
    return RunStreams(
        stdin=stdin,
        stdout=stdout if stdout.exists() else None,
        stderr=stderr if stderr.exists() else None,
        terminal=terminal,
        held=stdin is not None and not terminal,
        count=None if terminal else found_count(folder),
    )


def _input(streams: RunStreams, command: Command, folder: Path, owner: Owner) -> None:
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


def _recorded(streams: RunStreams, folder: Path, owner: Owner) -> None:
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


def _raw(streams: RunStreams, owner: Owner) -> None:
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


# The count of input bytes

FILE = "input"
_NUMBERS = struct.Struct("<QQ")


class InputCount:
    """Of one run, which one process at a time writes to."""

    def __init__(self, descriptor: int, given: int | None) -> None:
        self._descriptor = descriptor
        self.given = given
        """None when it cannot be known."""

    async def count(self, size: int, write: Callable[[], Awaitable[int]]) -> int:
        """Calls `write`, which gives at most `size` bytes and says how many. Nobody knows how many
        when it is cancelled."""
        if self.given is None:
            return await write()
        self._note(self.given + size)
        written = 0
        try:
            written = await write()
        except asyncio.CancelledError:
            self.given = None
            raise
        finally:
            if self.given is not None:
                self.given += written
                self._note(self.given)
        return written

    def _note(self, at_most: int) -> None:
        assert self.given is not None
        try:
            os.pwrite(self._descriptor, _NUMBERS.pack(self.given, at_most), 0)
        except OSError:
            # A full disk. An empty file says that nobody knows.
            self.given = None
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def new_count(folder: Path) -> InputCount:
    """Raises OSError."""
    descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, _NUMBERS.pack(0, 0), 0)
    except OSError:
        os.close(descriptor)
        raise
    return InputCount(descriptor, 0)


def found_count(folder: Path) -> InputCount | None:
    """Of a run that is taken up; None when it takes no input."""
    try:
        descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    content = os.pread(descriptor, _NUMBERS.size, 0)
    given, at_most = _NUMBERS.unpack(content) if len(content) == _NUMBERS.size else (0, 1)
    return InputCount(descriptor, given if given == at_most else None)


# The folder of a run


def checked_id(command: Command) -> str:
    if command.keep_bytes < 1:
        raise CommandInvalid("No output is to be kept.", hint="Give keep_bytes above 0.")
    if not command.run_id:
        return new_id("ru")
    if not is_id(command.run_id) or not command.run_id.startswith(("ru_", "sh_", "ss_")):
        raise CommandInvalid(
            f"{command.run_id!r} is no id of a run.", hint="Leave it out, and one is made."
        )
    return command.run_id


def make_folder(folder: Path, sandbox: Sandbox, command: Command) -> RunStreams:
    """The run's folder with its files in it, or nothing."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        raise CommandInvalid(
            f"There is a run {folder.name} already.", hint="Use a new id."
        ) from None
    except OSError as error:
        raise cannot_write(error) from None
    try:
        return open_streams(command, folder, sandbox.spec.owner)
    except OSError as error:
        remove_folder(folder)
        raise cannot_write(error) from None


def cannot_write(error: OSError) -> CarrelError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return InsufficientDisk(
            "There is no room on the disk for the record of a command.",
            hint="Make some: `carrel gc` removes what is not used.",
        )
    return SandboxUnavailable(
        f"A command's record cannot be written: {error}.",
        hint="Check the permissions of the data folder.",
    )


def remove_folder(folder: Path) -> None:
    """The sandbox may have been removed meanwhile, with all its runs."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            os.unlink(folder / name)
        os.rmdir(folder)
