"""The other side of the launcher: starts it when it is not there, and asks it.

`Launcher` serves blocking callers (trees, in worker threads) and asyncio ones (runtimes).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from carrel import __version__
from carrel.domain.errors import LauncherUnavailable, TreeUnavailable
from carrel.domain.launching import OverlayMount
from carrel.launcher import wire
from carrel.linux.descriptors import is_readable

START_S = 30.0
"""An interpreter starts in a tenth of a second. A starved machine has needed more than ten seconds,
and then nothing can run on it."""
LOOK_S = 0.01
"""Between two tries to connect to a launcher that another process is just starting."""
ANSWER_S = 30.0
"""The launcher answers every request within its own bounds, the longest being a stop; only
one that hangs takes longer."""

Reply = dict[str, Any]


class Launcher:
    """Talks to the launcher of one data folder. Also a `MountHelper`."""

    def __init__(self, data: Path, python: str = sys.executable) -> None:
        self._folder = data / "launcher"
        self._python = python
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._retired = False
        self._blocking: socket.socket | None = None
        self._async: dict[asyncio.AbstractEventLoop, _AsyncConnection] = {}
        self._connecting: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}

    # Blocking

    def call(
        self,
        op: str,
        fields: Mapping[str, object],
        descriptors: list[int],
        timeout_s: float = ANSWER_S,
    ) -> tuple[Reply, list[int]]:
        """One request and its answer; the caller owns the descriptors of both."""
        with self._lock:
            for attempt in (1, 2):
                connection = self._blocking or self._connect()
                self._blocking = connection
                connection.settimeout(timeout_s)
                try:
                    wire.send(connection, {"op": op, "id": 0, **fields}, descriptors)
                    received = wire.receive(connection)
                except (OSError, wire.PacketError) as error:
                    received = None
                    if isinstance(error, TimeoutError) or attempt == 2:
                        self._forget_blocking()
                        raise LauncherUnavailable(
                            f"The launcher does not answer: {error}"
                        ) from None
                if received is not None:
                    return received
                # It went away since the last request; another takes its place once.
                self._forget_blocking()
        raise LauncherUnavailable("The launcher ended in the middle of a request.")

    def _forget_blocking(self) -> None:
        if self._blocking is not None:
            self._blocking.close()
            self._blocking = None

    def close(self) -> None:
        """Lets go of the connections; the launcher goes on."""
        with self._lock:
            self._forget_blocking()
        for connection in list(self._async.values()):
            connection.close()
        self._async.clear()
        self._connecting.clear()

    def retire(self) -> None:
        """Our own process is told to end: from now on no launcher is started. One that runs
        can still be asked."""
        self._retired = True

    def shutdown(self, force: bool = False) -> int:
        """Asks it to end; answers how many things kept it from that (0: it ends). It ends
        with the last of them then, unless somebody asks it for something before."""
        try:
            # One that is just being started would otherwise be there, for nobody, a minute long.
            with self._starting:
                connection = self._try_connect()
        except OSError:
            return 0
        with connection:
            connection.settimeout(ANSWER_S)
            end = self._process_end(connection)
            wire.send(connection, {"op": "shutdown", "id": 0, "force": force}, [])
            received = wire.receive(connection)
            busy = int(received[0]["busy"]) if received is not None else 0
            if not busy and end is not None:
                is_readable(end, START_S)
            if end is not None:
                os.close(end)
        self.close()
        return busy

    @staticmethod
    def _process_end(connection: socket.socket) -> int | None:
        wire.send(connection, {"op": "hello", "id": 0}, [])
        received = wire.receive(connection)
        if received is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            return os.pidfd_open(received[0]["pid"])
        return None

    def about(self) -> tuple[str, int]:
        """Its version and its process, which may be older than ours. `LauncherUnavailable`."""
        reply, _ = self.call("hello", {}, [])
        return reply["version"], reply["pid"]

    # MountHelper

    def mount_overlay(self, key: str, mount: OverlayMount) -> None:
        fields: dict[str, object] = {"key": key, "lowers": [str(path) for path in mount.lowers]}
        fields |= {"upper": str(mount.upper), "work": str(mount.work), "target": str(mount.target)}
        fields |= {"beside": mount.beside} if mount.beside else {}
        fields |= {"ranged": True} if mount.ranged else {}
        reply, _ = self.call("hold", fields, [])
        _raise_tree_problem(reply)

    def open_in(self, key: str, path: Path) -> int:
        reply, descriptors = self.call("open", {"key": key, "path": str(path)}, [])
        _raise_tree_problem(reply)
        return descriptors[0]

    def held(self) -> frozenset[str]:
        reply, _ = self.call("held", {}, [])
        return frozenset(reply["keys"])

    def release(self, key: str) -> None:
        self.call("release", {"key": key}, [])

    # asyncio

    async def ask(
        self,
        op: str,
        fields: Mapping[str, object],
        descriptors: list[int],
        timeout_s: float = ANSWER_S,
    ) -> tuple[Reply, list[int]]:
        """As `call`, on the running loop; many at once share a connection."""
        loop = asyncio.get_running_loop()
        for attempt in (1, 2):
            connection = self._async.get(loop)
            if connection is None or connection.closed:
                connection = await self._reconnect(loop)
            # The clock of the machine: what is read later is refused, as its caller was told.
            bounded = {**fields, "until": time.monotonic() + timeout_s} if op == "run" else fields
            try:
                async with asyncio.timeout(timeout_s):
                    return await connection.ask(op, bounded, descriptors)
            except TimeoutError:
                raise LauncherUnavailable("The launcher does not answer.") from None
            except ConnectionError as error:
                # A command might run twice; everything else may be asked again.
                if attempt == 2 or op == "run":
                    raise LauncherUnavailable(f"The launcher went away: {error}") from None
        raise AssertionError("unreachable")

    async def _reconnect(self, loop: asyncio.AbstractEventLoop) -> _AsyncConnection:
        """One for all that ask at once, as every live run does when its launcher died."""
        async with self._connecting.setdefault(loop, asyncio.Lock()):
            connection = self._async.get(loop)
            if connection is None or connection.closed:
                work = asyncio.ensure_future(asyncio.to_thread(self._connect))
                try:
                    sock = await asyncio.shield(work)
                except asyncio.CancelledError:
                    # The thread goes on, and nobody would have what it gives.
                    work.add_done_callback(_close_made)
                    raise
                connection = self._async[loop] = _AsyncConnection(loop, sock)
            return connection

    # Starting

    def _try_connect(self) -> socket.socket:
        folder = os.open(self._folder, os.O_PATH | os.O_CLOEXEC)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # Through the descriptor: the path itself may be too long for an address.
            connection.settimeout(ANSWER_S)
            connection.connect(f"/proc/self/fd/{folder}/socket")
            _greet(connection)
        except BaseException:
            connection.close()
            raise
        finally:
            os.close(folder)
        return connection

    def _connect(self) -> socket.socket:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return self._try_connect()
        except OSError:
            with self._starting:
                return self._start_and_connect()

    def _start_and_connect(self) -> socket.socket:
        if self._retired:
            raise LauncherUnavailable("No launcher runs, and none is started: the daemon ends.")
        deadline = time.monotonic() + START_S
        self._start()
        while True:
            try:
                return self._try_connect()
            except OSError as error:
                if time.monotonic() > deadline:
                    raise LauncherUnavailable(
                        f"The launcher did not start: {error}.", hint=f"See {self._folder / 'log'}."
                    ) from None
            # Somebody else starts one at the same time, and it does not listen yet.
            time.sleep(LOOK_S)

    def _start(self) -> None:
        done, ready = os.pipe2(os.O_CLOEXEC)
        package = str(Path(__file__).resolve().parent.parent.parent)
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]);"
            "from carrel.launcher.start import main;"
            "main(sys.argv[2], int(sys.argv[3]), sys.argv[4])"
        )
        argv = [self._python, "-I", "-S", "-c", code, package, str(self._folder.resolve())]
        try:
            with open(self._folder / "log", "ab") as log:
                starting = subprocess.Popen(
                    [*argv, str(ready), __version__],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(ready,),
                    cwd="/",
                    env={"PATH": "/usr/bin:/bin"},
                )
            os.close(ready)
            ready = -1
            # First for the pipe, which tells at once: a bounded wait for a process only looks
            # now and then, up to a twentieth of a second too late.
            with starting:
                until = time.monotonic() + START_S
                is_readable(done, START_S)
                _end(starting, until)
        except (subprocess.SubprocessError, OSError) as error:
            raise LauncherUnavailable(f"The launcher cannot be started: {error}") from None
        finally:
            os.close(done)
            if ready >= 0:
                os.close(ready)


class _AsyncConnection:
    """Requests by number on one socket, answers as they come."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._loop = loop
        self._socket = connection
        self._waiting: dict[int, asyncio.Future[tuple[Reply, list[int]]]] = {}
        self._last = 0
        # A loop calls one writer only for a descriptor, so only one may wait for its turn.
        self._sending = asyncio.Lock()
        self.closed = False
        loop.add_reader(connection.fileno(), self._readable)

    async def ask(
        self, op: str, fields: Mapping[str, object], descriptors: list[int]
    ) -> tuple[Reply, list[int]]:
        self._last += 1
        number = self._last
        future: asyncio.Future[tuple[Reply, list[int]]] = self._loop.create_future()
        self._waiting[number] = future
        try:
            async with self._sending:
                await self._send({"op": op, "id": number, **fields}, descriptors)
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                # The answer came, but nobody is there to own it.
                wire.close_all(future.result()[1])
            raise
        finally:
            self._waiting.pop(number, None)

    async def _send(self, message: Mapping[str, object], descriptors: list[int]) -> None:
        while True:
            if self.closed:
                raise ConnectionError("the connection is closed")
            try:
                wire.send(self._socket, message, descriptors)
                return
            except BlockingIOError:
                await self._writable()
            except OSError as error:
                self.close()
                raise ConnectionError(str(error)) from None

    async def _writable(self) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(self._socket.fileno(), _set_once, future)
        try:
            await future
        finally:
            self._loop.remove_writer(self._socket.fileno())

    def _readable(self) -> None:
        try:
            received = wire.receive(self._socket)
        except BlockingIOError:
            return
        except (OSError, wire.PacketError):
            received = None
        if received is None:
            self.close()
            return
        future = self._waiting.get(received[0].get("id", 0))
        if future is not None and not future.done():
            future.set_result(received)
        else:
            wire.close_all(received[1])

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for future in self._waiting.values():
            if not future.done() and not self._loop.is_closed():
                future.set_exception(ConnectionError("the launcher closed the connection"))


def _greet(connection: socket.socket) -> None:
    """A child of a dead launcher can hold its socket open for a moment: only an answer says
    that somebody is there. Raises OSError when not."""
    wire.send(connection, {"op": "hello", "id": 0}, [])
    received = wire.receive(connection)
    if received is None:
        raise ConnectionResetError("the launcher is gone")
    protocol = received[0]["protocol"]
    if protocol != wire.PROTOCOL:
        raise LauncherUnavailable(
            f"A launcher of version {received[0]['version']} runs, which speaks another protocol.",
            hint=f"Stop its spaces, and end it: kill {received[0]['pid']}",
        )


def _end(starting: subprocess.Popen[bytes], until: float) -> None:
    """Of the process whose child the launcher is. Raises `SubprocessError` if it failed."""
    try:
        code = starting.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        starting.kill()
        raise
    if code:
        raise subprocess.CalledProcessError(code, starting.args)


def _close_made(work: asyncio.Future[socket.socket]) -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().close()


def _set_once(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _raise_tree_problem(reply: Reply) -> None:
    problem = reply.get("problem")
    if problem is not None:
        raise TreeUnavailable(
            f"The kernel refused a mount: {problem['text']}.",
            hint="`carrel doctor` says what this machine can do.",
        )
