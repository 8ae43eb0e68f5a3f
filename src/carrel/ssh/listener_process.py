"""The daemon's side of the listener's process.

The daemon binds the port, so that it can say at once when that is taken, and hands it to the
process. What that asks comes by the daemon's own socket. The process outlives the daemon with the
connections that it has; it takes no more of them then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from carrel.domain.errors import PortUnavailable, SshUnavailable

START_S = 30.0
"""Until it listens: it loads its libraries within one, and a busy machine is slow."""
BIND_S = 2.0
"""For a port that a killed daemon's listener is just letting go of."""
STEP_S = 0.05


class ListenerProcess:
    """Implements `carrel.domain.ssh.SshPort`."""

    def __init__(
        self,
        argv: Sequence[str],
        data: Path,
        daemon: Path,
        listen: Callable[[int], list[socket.socket]],
    ) -> None:
        """`argv` starts the listener, `daemon` is the folder with the daemon's socket, and `listen`
        makes the sockets of a port; it raises `PortUnavailable`."""
        self._argv = tuple(argv)
        self._data = data
        self._daemon = daemon
        self._listen = listen
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def is_open(self) -> bool:
        return self._control is not None

    async def open(self, port: int, ended: Callable[[], None]) -> int:
        # The one before goes when there is another.
        listeners = await self._bound(port)
        await self.close()
        try:
            found = int(listeners[0].getsockname()[1])
            self._control, theirs = socket.socketpair()
            self._control.setblocking(False)
            with theirs:
                self._process = self._start(listeners, theirs)
        except OSError as error:
            self._drop()
            raise SshUnavailable(
                f"The listener cannot be started: {error.strerror or error}.", hint="Try again."
            ) from None
        finally:
            for one in listeners:
                one.close()
        await self._wait_until_it_listens()
        self._watch(ended)
        return found

    async def _bound(self, port: int) -> list[socket.socket]:
        until = asyncio.get_running_loop().time() + BIND_S
        while True:
            try:
                return self._listen(port)
            except PortUnavailable:
                if not port or asyncio.get_running_loop().time() > until:
                    raise
            await asyncio.sleep(STEP_S)

    def _start(
        self, listeners: Sequence[socket.socket], control: socket.socket
    ) -> subprocess.Popen[bytes]:
        numbers = [one.fileno() for one in listeners]
        told = {
            "daemon": str(self._daemon),
            "keys": str(self._data / "ssh"),
            "listeners": numbers,
        }
        return subprocess.Popen(
            [*self._argv, json.dumps(told)],
            stdin=control.fileno(),
            stdout=subprocess.DEVNULL,
            pass_fds=numbers,
            cwd="/",
            # A terminal's Ctrl-C is not for it.
            start_new_session=True,
        )

    async def _wait_until_it_listens(self) -> None:
        assert self._control is not None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(START_S):
                if await loop.sock_recv(self._control, 1):
                    return
        except (OSError, TimeoutError):
            pass
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        self._drop()
        raise SshUnavailable("The listener did not start.", hint="Look at the daemon's log.")

    def _watch(self, ended: Callable[[], None]) -> None:
        control, process = self._control, self._process
        assert control is not None and process is not None
        loop = asyncio.get_running_loop()
        descriptor = os.pidfd_open(process.pid)

        def over() -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            process.poll()
            if self._control is control:
                self._drop()
                ended()

        loop.add_reader(descriptor, over)

    def _drop(self) -> None:
        if self._control is not None:
            self._control.close()
        self._control = None

    async def close(self) -> None:
        """It is reaped when its last connection has ended."""
        with contextlib.suppress(OSError):
            self._drop()
