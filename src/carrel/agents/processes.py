"""Programs that a driver starts: each in a group of its own, and ended with all that it started.

asyncio's own subprocesses are not used: they wait for whoever still holds a pipe, and one that
is cancelled while it starts is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from carrel.agents.frontends import lines
from carrel.domain.errors import AgentCrashed, FrontendNotInstalled
from carrel.domain.turns import Stage

END_S = 0.5
"""For an agent to go once its input is closed, and again once it is asked to: less than what
whoever stops the driver waits for."""

LINE_LIMIT = 64 * 1024 * 1024
"""A message is a line, and may hold a file."""

TAIL = 8192
"""Of what it said on its standard error: enough for the reason."""


UNUSABLE = (errno.ENOENT, errno.EACCES, errno.ENOEXEC)
"""What is at a program's path is none for this machine, or none at all."""

MAX_SAID = 4096
"""Of that, what goes into an error."""


class ChildProcess:
    """A running program; see `child`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        loop = asyncio.get_running_loop()
        self.pid = process.pid
        self.exited: asyncio.Future[int] = loop.create_future()
        """Its exit code, or the number of a signal below zero."""
        self.stdin: asyncio.StreamWriter
        self.stdout: asyncio.StreamReader
        self._process = process
        self._said = b""
        self._transports: list[asyncio.BaseTransport] = []
        self._hearing: asyncio.Future[None] | None = None
        self._pidfd = os.pidfd_open(process.pid)
        loop.add_reader(self._pidfd, self._ended)

    @property
    def said(self) -> str:
        """The end of what it said on its standard error."""
        return self._said.decode("utf-8", "replace").strip()

    async def open(self) -> None:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        self.stdin = await self._writer(process.stdin)
        self.stdout = await self._reader(process.stdout)
        if process.stderr is not None:
            self._hearing = asyncio.ensure_future(self._hear(await self._reader(process.stderr)))

    async def ending(self, who: str) -> AgentCrashed:
        """Why there is nothing more to read: it ended, or it lives on and closed its output."""
        wanted: list[asyncio.Future[Any]] = [self.exited]
        if self._hearing is not None:
            wanted.append(self._hearing)
        await asyncio.wait(wanted, timeout=END_S)
        code = self.exited.result() if self.exited.done() else None
        how = "closed its output" if code is None else f"ended with {code}"
        return AgentCrashed(f"{who} {how} before it was done.", stderr=self.said[-MAX_SAID:])

    async def end(self) -> None:
        """Closes its input, then asks it to end, then kills it. What is left of its group, and of
        what it started outside of that, is killed in any case. It is reaped only then, so that its
        number means nobody else."""
        tree = ProcessTree(self.pid)
        try:
            self._close_input()
            if not await self._gone():
                tree.look()
                tree.signal(signal.SIGTERM)
                await self._gone()
        finally:
            tree.end()
            asyncio.get_running_loop().remove_reader(self._pidfd)
            self._process.wait()
            os.close(self._pidfd)
            if not self.exited.done():
                self.exited.set_result(self._process.returncode)
        await self._close()

    async def _writer(self, pipe: IO[bytes]) -> asyncio.StreamWriter:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), pipe
        )
        self._transports.append(transport)
        return asyncio.StreamWriter(transport, protocol, None, loop)

    async def _reader(self, pipe: IO[bytes]) -> asyncio.StreamReader:
        reader = asyncio.StreamReader(LINE_LIMIT)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        self._transports.append(transport)
        return reader

    async def _hear(self, stderr: asyncio.StreamReader) -> None:
        while part := await stderr.read(65536):
            self._said = (self._said + part)[-TAIL:]

    def _ended(self) -> None:
        how = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOWAIT)
        asyncio.get_running_loop().remove_reader(self._pidfd)
        if how is not None and not self.exited.done():
            normal = how.si_code == os.CLD_EXITED
            self.exited.set_result(how.si_status if normal else -how.si_status)

    async def _gone(self) -> bool:
        await asyncio.wait({self.exited}, timeout=END_S)
        return self.exited.done()

    def _close_input(self) -> None:
        with contextlib.suppress(AttributeError):
            self.stdin.close()

    async def _close(self) -> None:
        if self._hearing is not None:
            # Whatever got away may hold the pipe for ever.
            await asyncio.wait({self._hearing}, timeout=END_S)
            self._hearing.cancel()
        for transport in self._transports:
            transport.close()
        # A start that was cancelled leaves some that no transport has.
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


@asynccontextmanager
async def child(
    argv: Sequence[str], cwd: str, env: Mapping[str, str], who: str = "", *, merged: bool = False
) -> AsyncIterator[ChildProcess]:
    """Runs a program while the block does. Raises `OSError` when it cannot be started, and
    `FrontendNotInstalled` when there is none to start and `who`, its name for people, is given.
    `merged`: standard error goes where its output goes."""
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
            bufsize=0,
        )
    except OSError as error:
        if who and error.errno in UNUSABLE:
            raise FrontendNotInstalled(f"{who} cannot be started: {error}") from error
        raise
    started = ChildProcess(process)
    try:
        await started.open()
        yield started
    finally:
        await started.end()


# A process with its group and what it started outside of that


class ProcessTree:
    """The processes seen so far, each with its start time: a number may come to mean another."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._below: set[tuple[int, str]] = set()
        self.look()

    def look(self) -> None:
        below = _children(self._pid)
        while below:
            one = below.pop()
            self._below.add((one, _started(one)))
            below += _children(one)

    def signal(self, number: int) -> None:
        """Sends it to the group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)

    def end(self) -> None:
        """Kills the group, and what was started outside of it."""
        self.look()
        self.signal(signal.SIGKILL)
        self.kill()

    def kill(self) -> None:
        """Kills what was started outside of the group."""
        for pid, started in self._below:
            if started and _started(pid) == started:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    return children


def _started(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


# JSON objects, one a line, over a program's standard streams


class JsonLines:
    """Messages to and from a program; `who` is its name for people."""

    def __init__(self, program: ChildProcess, stage: Stage, who: str) -> None:
        self._program = program
        self._stage = stage
        self._who = who

    async def send(self, message: Mapping[str, object]) -> None:
        """Sends it whole, also when several tasks send. Nothing happens when the program is gone:
        what it said last tells why."""
        self._program.stdin.write(json.dumps(message).encode() + b"\n")
        try:
            await self._program.stdin.drain()
        except ConnectionError:
            return

    async def line(self) -> bytes:
        """The next line without its end; blank ones are left out. Empty when there are no more."""
        while True:
            try:
                line = await self._program.stdout.readline()
            except ValueError as error:
                raise AgentCrashed(f"{self._who} wrote a line that is too long.") from error
            if not line or line.strip():
                return line.rstrip()

    async def next(self) -> lines.Object:
        """The next object; other lines are logged. Raises `AgentCrashed` when there are no more."""
        while line := await self.line():
            message = lines.decode(line)
            if message is not None:
                return message
            self._stage.tell(lines.raw(line))
        raise await self._program.ending(self._who)


# Questions of an agent that are answered while it goes on


class PendingAnswers:
    """Tasks that work out one answer each. None outlives the block; what goes wrong in one is
    raised at the end of the block, for nobody else waits for it."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._all: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> PendingAnswers:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        for task in self._all:
            task.cancel()
        for outcome in await asyncio.gather(*self._all, return_exceptions=True):
            if error is None and isinstance(outcome, Exception):
                raise outcome

    def begin(self, id: str, work: Coroutine[None, None, None]) -> None:
        self.drop(id)
        self._tasks[id] = asyncio.create_task(work)
        self._all.append(self._tasks[id])

    def drop(self, id: str) -> None:
        """The agent has taken the question back."""
        task = self._tasks.pop(id, None)
        if task is not None:
            task.cancel()
