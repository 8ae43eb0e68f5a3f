"""A program that a driver starts: in a group of its own, and ended with all that it started.

The loop's own subprocesses are not used: they wait for whoever still holds a pipe, and one that
is cancelled while it starts is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import IO, Any

from carrel.agents.family import Family
from carrel.domain.errors import AgentCrashed

END_S = 0.5
"""For an agent to go once its input is closed, and again once it is asked to: less than what
whoever stops the driver waits for."""

LINE_LIMIT = 64 * 1024 * 1024
"""A message is a line, and may hold a file."""

TAIL = 8192
"""Of what it said on its standard error: enough for the reason."""


MAX_SAID = 4096
"""Of that, what goes into an error."""


class Child:
    """A program that runs; see `child`."""

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
        """Its input is closed; then it is asked, then killed. What is left of its group, and
        of what it started outside of that, is killed in any case. Until then it is not reaped,
        so that its number means nobody else."""
        family = Family(self.pid)
        try:
            self._close_input()
            if not await self._gone():
                family.look()
                family.signal(signal.SIGTERM)
                await self._gone()
        finally:
            family.look()
            family.signal(signal.SIGKILL)
            family.kill()
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
    argv: Sequence[str], cwd: str, env: Mapping[str, str], *, merged: bool = False
) -> AsyncIterator[Child]:
    """Raises `OSError` when it cannot be started. `merged`: standard error goes where its
    output goes."""
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
    started = Child(process)
    try:
        await started.open()
        yield started
    finally:
        await started.end()
