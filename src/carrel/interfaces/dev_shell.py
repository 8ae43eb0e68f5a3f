"""The socket of the agent's shell in a space with an image: one connection for each command.

The first packet has the command's standard streams, and how long the request after it is. Then come
lines: signals from there, the run's id and its end from here. Who hangs up has no more use for the
command, which is killed; if this daemon ends, the command goes on, and is asked for by its id.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections import Counter
from typing import Any, NoReturn

import msgspec

from carrel.domain.errors import CarrelError, TooLarge
from carrel.domain.runtimes import Exit, Run
from carrel.service.dev_shells import MOST, DevShells, ShellCall

MOST_BYTES = 2 << 20
"""Of a request: what the kernel takes as arguments, about."""
ASK_S = 20.0
"""From the connection to the whole request."""
MOST_LINE = 256
MOST_OPEN = 4 * MOST
"""Connections of one space: each may bring a request of that size, or take up one that runs."""
_SIGNALS = frozenset({1, 2, 3, 9, 10, 12, 15, 18, 19, 20, 28})
_log = logging.getLogger("carrel")


class ShellRequest(msgspec.Struct):
    argv: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str = ""
    terminal: bool = False
    person: bool = False
    attach: str = ""
    """A run that an earlier daemon began; then the others are empty."""


class SentSignal(msgspec.Struct):
    signal: int


class DevShellListener:
    def __init__(self, shells: DevShells) -> None:
        self._shells = shells
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: Counter[str] = Counter()

    def enter(self, space_id: str, connection: socket.socket) -> None:
        """Serves a connection that came to the socket of this space."""
        if self._open[space_id] >= MOST_OPEN:
            refusal = {"code": None, "message": "Too many commands. Let some of them end."}
            with connection, contextlib.suppress(OSError):
                connection.send(_line(refusal))
            return
        self._open[space_id] += 1
        task = asyncio.get_running_loop().create_task(self._serve(space_id, connection))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._left(space_id, task))

    def _left(self, space_id: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._open[space_id] -= 1
        if not self._open[space_id]:
            del self._open[space_id]

    async def _serve(self, space_id: str, connection: socket.socket) -> None:
        streams: list[int] = []
        try:
            async with asyncio.timeout(ASK_S):
                size, streams = await _receive(connection)
                reader, writer = await asyncio.open_unix_connection(sock=connection)
            try:
                async with asyncio.timeout(ASK_S):
                    asked = msgspec.json.decode(await reader.readexactly(size), type=ShellRequest)
                await self._answer(space_id, asked, streams, reader, writer)
            except CarrelError as error:
                _say(writer, {"code": None, "message": f"{error.message} {error.hint}".strip()})
                await writer.drain()
            finally:
                writer.close()
        except (OSError, TimeoutError, EOFError, msgspec.MsgspecError, TooLarge):
            # Whatever came was no request of our own program's.
            connection.close()
        except Exception:
            _log.exception("a command of the agent in %s", space_id)
        finally:
            for stream in streams:
                os.close(stream)

    async def _answer(
        self,
        space_id: str,
        asked: ShellRequest,
        streams: list[int],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if asked.attach:
            begun = self._shells.taken_up(space_id, asked.attach)
        elif len(streams) == 3:
            call = ShellCall(asked.argv, asked.env, asked.cwd, asked.terminal, asked.person)
            begun = self._shells.running(space_id, call, (streams[0], streams[1], streams[2]))
        else:
            raise EOFError
        async with begun as run:
            # The command has its own copies: who reads what it writes hears of its end.
            while streams:
                os.close(streams.pop())
            _say(writer, {"run": run.run_id})
            ended = await self._follow(space_id, run, reader)
            with contextlib.suppress(OSError):
                # Who has hung up hears nothing, and leaves nothing.
                _say(writer, {"code": ended.code, "signal": ended.signal})
                await writer.drain()

    async def _follow(self, space_id: str, run: Run, reader: asyncio.StreamReader) -> Exit:
        ending = asyncio.ensure_future(run.wait())
        hearing = asyncio.ensure_future(self._hear(space_id, run, reader))
        try:
            await asyncio.wait({ending, hearing}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                await self._shells.kill(space_id, run.run_id)
            return await ending
        finally:
            ending.cancel()
            hearing.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await hearing

    async def _hear(self, space_id: str, run: Run, reader: asyncio.StreamReader) -> None:
        """Until it hangs up, or says what makes no sense."""
        while line := await reader.readline():
            if len(line) > MOST_LINE:
                return
            try:
                number = msgspec.json.decode(line, type=SentSignal).signal
            except msgspec.MsgspecError:
                return
            if number in _SIGNALS:
                await self._shells.signal(space_id, run.run_id, number)


async def _receive(connection: socket.socket) -> tuple[int, list[int]]:
    """The length of the request, and the streams."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)
    body, found, flags, _ = socket.recv_fds(connection, 4, 3, socket.MSG_CMSG_CLOEXEC)
    if len(body) != 4 or flags & socket.MSG_CTRUNC:
        _refuse(found)
    (size,) = struct.unpack("!I", body)
    if not 0 < size <= MOST_BYTES:
        _refuse(found)
    return size, found


def _refuse(streams: list[int]) -> NoReturn:
    for stream in streams:
        os.close(stream)
    raise EOFError("no request")


def _say(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    # Who has hung up hears nothing, and an agent does so as often as it likes.
    if not writer.is_closing():
        writer.write(_line(message))


def _line(message: dict[str, Any]) -> bytes:
    return msgspec.json.encode(message) + b"\n"
