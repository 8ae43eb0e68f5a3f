"""Clients of MCP sockets: their connections go to one process that serves them all.

That process has the SDK loaded, and is not the daemon: it takes most of a second to load, and as
much memory as the rest.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
from collections.abc import Sequence

import msgspec

from carrel.domain.hub import McpSession

SEND_S = 30.0
"""For the process to take a connection. It takes milliseconds, and a second while it loads."""
END_S = 5.0
"""For the process to end when it was told; its sessions go on."""
_log = logging.getLogger("carrel")


class McpProcess:
    """Started with the first session, or when one is expected."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = tuple(argv)
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._sending: set[asyncio.Task[None]] = set()

    def expect(self) -> None:
        """Begins to load it, unless it is there. From any thread."""
        self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._drop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                self._argv,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        self._control = ours
        self._reap_at_its_end(self._process)

    def _reap_at_its_end(self, process: subprocess.Popen[bytes]) -> None:
        descriptor = os.pidfd_open(process.pid)

        def ended() -> None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
            process.poll()

        self._loop.add_reader(descriptor, ended)

    def serve(self, connection: socket.socket, session: McpSession) -> None:
        """Takes the connection. Who cannot be served finds it closed."""
        task = self._loop.create_task(self._send(connection, session))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, connection: socket.socket, session: McpSession) -> None:
        data = msgspec.json.encode(session)
        try:
            async with asyncio.timeout(SEND_S):
                while not await self._sent(data, connection):
                    # It has died, and another one takes its place.
                    self._process = None
        except (OSError, TimeoutError) as error:
            _log.error("a client of MCP cannot be served: %s", error)
        finally:
            connection.close()

    async def _sent(self, data: bytes, connection: socket.socket) -> bool:
        self._start()
        control = self._control
        assert control is not None
        while True:
            try:
                socket.send_fds(control, [data], [connection.fileno()])
                return True
            except BlockingIOError:
                await _writable(control)
            except ConnectionError:
                return False

    def _drop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None

    async def close(self) -> None:
        for task in self._sending:
            task.cancel()
        self._drop()
        if self._process is not None:
            process = self._process
            try:
                await asyncio.to_thread(process.wait, END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def _writable(control: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    # By a descriptor of its own: several may wait.
    descriptor = os.dup(control.fileno())
    loop.add_writer(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(descriptor)
        os.close(descriptor)
