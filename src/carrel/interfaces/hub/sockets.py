"""The sockets of the hub: one for this machine's user, and one in each space. Lines in, lines
out, and nobody waits for anybody.

Whoever comes through a space's socket is that space, and nobody else comes through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import cast
from weakref import WeakValueDictionary

from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import CarrelError, TooLarge
from carrel.domain.hub import HUB_SOCKET, MCP_SOCKET, SHELL_SOCKET, McpSession
from carrel.domain.trees import Owner
from carrel.hub.access import Identity
from carrel.hub.connection import Connection
from carrel.hub.envelopes import MAX_ENVELOPE, encode, problem
from carrel.hub.hub import HubServer
from carrel.hub.rates import READ_S, Intake, Pace
from carrel.interfaces.mcp import McpProcess

HIGH_WATER = 1 << 18
"""Bytes that wait for the client before a replay pauses."""
STALLED_S = 60.0
"""For a client to read so much that little waits; one that is alive and reads needs far less."""
FLUSH_S = 10.0
"""From the end of a connection to its abort, if the client does not read the rest: nobody counts
any more what waits for it."""


class LineConnection(asyncio.Protocol):
    """Implements `Sink`."""

    def __init__(self, hub: HubServer, identity: Identity, pace: Pace | None = None) -> None:
        """`pace`: of all connections of one space; None: nothing slows it down."""
        self._hub = hub
        self._identity = identity
        self._pace = pace
        self._transport: asyncio.Transport | None = None
        self._intake: Intake | None = None
        self._connection: Connection | None = None
        self._rest = bytearray()
        self._writable = asyncio.Event()
        self._writable.set()
        self._stall: asyncio.TimerHandle | None = None

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not say that they are asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(HIGH_WATER)
        self._intake = Intake(transport, self._take, lambda: self._pace, self._is_behind)
        try:
            self._connection = self._hub.connect(self._identity, self)
            self._connection.when_settled(self._go_on)
        except CarrelError as error:
            told = {"type": "error", "payload": problem(error, "")}
            transport.write(encode(told) + b"\n")
            transport.close()

    def data_received(self, data: bytes) -> None:
        if self._intake is not None:
            self._intake.came(data)

    def _is_behind(self) -> bool:
        return self._connection is not None and self._connection.is_behind

    def _go_on(self) -> None:
        if self._intake is not None and self._intake.is_paused:
            self._intake.go_on()

    def _take(self, data: bytes) -> None:
        if self._connection is None:
            return
        first, *lines = data.split(b"\n")
        self._rest += first
        if lines:
            lines.insert(0, bytes(self._rest))
            self._rest = bytearray(lines.pop())
        if len(self._rest) > MAX_ENVELOPE:
            lines.append(bytes(self._rest))
        for line in lines:
            if len(line) > MAX_ENVELOPE:
                self._refuse()
                return
            if line and not line.isspace():
                self._connection.received(line)

    def _refuse(self) -> None:
        assert self._connection is not None
        self._connection.refused(
            TooLarge(
                f"A line is at most {MAX_ENVELOPE} bytes long.",
                hint="Put the large part into a file of the space, and send its name.",
            )
        )
        self._connection = None

    def pause_writing(self) -> None:
        self._writable.clear()
        self._abort_in(STALLED_S)

    def resume_writing(self) -> None:
        self._writable.set()
        if self._stall is not None and self._transport and not self._transport.is_closing():
            self._stall.cancel()

    def _abort_in(self, seconds: float) -> None:
        if self._stall is not None:
            self._stall.cancel()
        self._stall = asyncio.get_running_loop().call_later(seconds, self._stalled)

    def _stalled(self) -> None:
        if self._connection is not None:
            self._connection.closed("slow_reader")
        if self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> bool:
        """Half a connection is none: who does not send heartbeats any more is gone."""
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        if self._stall is not None:
            self._stall.cancel()
        if self._intake is not None:
            self._intake.close()
        self._writable.set()
        if self._connection is not None:
            self._connection.closed()

    # Sink

    def send(self, envelopes: Sequence[bytes]) -> None:
        if self._transport is not None and envelopes:
            self._transport.write(b"\n".join(envelopes) + b"\n")

    def waiting(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    async def drained(self) -> None:
        await self._writable.wait()

    def close(self, reason: str) -> None:
        if self._transport is None:
            return
        if reason == "slow_reader":
            # It would never take what is still to be sent.
            self._transport.abort()
        else:
            self._transport.close()
            self._abort_in(FLUSH_S)


# The listener

BACKLOG = 64
SHARE, AT_ONCE_S = 0.2, 0.2
"""Of our time, for all connections of one account's spaces together, and new ones too."""
SESSION_S = 0.005
"""What the process for MCP has to do for one client, who can be gone again at once."""
SHELL_S = 0.003
"""To begin a command."""
EXHAUSTED_S = 1.0
"""Until the next try when there was no descriptor for a connection."""
_log = logging.getLogger("carrel.hub")


Enter = Callable[[socket.socket], None]


@dataclass(frozen=True)
class Door:
    """One socket of a folder."""

    listener: socket.socket
    enter: Enter
    """What is done with a connection that came."""
    pace: Pace | None
    """Of whose connections they are."""
    costs_s: float
    """For one of them, beside what is done here."""


class HubListener:
    """Sockets by the path of their folder: one of the hub, one for MCP, and one for
    the agent's shell where a space has an image."""

    def __init__(self, hub: HubServer, mcp: McpProcess) -> None:
        self._hub = hub
        self._mcp = mcp
        self._loop = asyncio.get_running_loop()
        self._sockets: dict[Path, dict[str, socket.socket]] = {}
        self._paces: WeakValueDictionary[str, Pace] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[object]] = set()

    def open_local(self, folder: Path) -> None:
        """For whoever may enter the folder: its user, and root."""
        self._open(folder, Identity(LOCAL), McpSession("", str(folder), ""), None)

    def open_space(
        self,
        folder: Path,
        space_id: str,
        owner: Owner,
        account: str = "",
        groups: Callable[[], Sequence[str]] = tuple,
        shell: Enter | None = None,
    ) -> None:
        """In a folder that the sandbox shows its commands, whose user is `owner`. Spaces of one
        account have one share of our time; without, each has its own. `groups` are the files of
        its control groups by which a process joins them."""
        account = account or space_id
        caller = Caller(f"space:{space_id}", Scope(ScopeKind.SPACE, space_id))
        session = McpSession(space_id, str(folder), account, True, uid=owner.uid, gid=owner.gid)
        pace = self._paces.setdefault(account, Pace(SHARE, AT_ONCE_S))
        identity = Identity(caller, inside=True, account=account)
        more = {} if shell is None else {SHELL_SOCKET: (shell, SHELL_S)}
        self._open(folder, identity, session, owner, pace, groups, more)

    def _open(
        self,
        folder: Path,
        identity: Identity,
        session: McpSession,
        owner: Owner | None,
        pace: Pace | None = None,
        groups: Callable[[], Sequence[str]] = tuple,
        more: Mapping[str, tuple[Enter, float]] = MappingProxyType({}),
    ) -> None:
        if folder in self._sockets:
            return

        def speak(connection: socket.socket) -> None:
            task = self._loop.create_task(self._let_in(connection, identity, pace))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        def serve(connection: socket.socket) -> None:
            self._mcp.serve(connection, replace(session, join=tuple(groups())))

        enters = {HUB_SOCKET: (speak, READ_S), MCP_SOCKET: (serve, SESSION_S), **more}
        self._sockets[folder] = found = {}
        for name, (enter, costs_s) in enters.items():
            found[name] = _bind(folder, name, owner)
            self._listen(Door(found[name], enter, pace, costs_s))

    def _listen(self, door: Door) -> None:
        if door.listener.fileno() >= 0:
            self._loop.add_reader(door.listener, self._accept, door)

    def _pause(self, wait_s: float, door: Door) -> None:
        self._loop.remove_reader(door.listener)
        self._loop.call_later(wait_s, self._listen, door)

    def _accept(self, door: Door) -> None:
        try:
            connection, _ = door.listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.error("A client of the hub cannot be let in: %s", error)
            self._pause(EXHAUSTED_S, door)
            return
        connection.setblocking(False)
        begun = time.thread_time()
        door.enter(connection)
        if door.pace is not None:
            now = time.monotonic()
            door.pace.spend(door.costs_s + time.thread_time() - begun, now)
            if wait_s := door.pace.wait(now):
                self._pause(wait_s, door)

    async def _let_in(
        self, connection: socket.socket, identity: Identity, pace: Pace | None
    ) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: LineConnection(self._hub, identity, pace), connection
            )
        except OSError:
            connection.close()

    def close(self, folder: Path) -> None:
        for name, listener in self._sockets.pop(folder, {}).items():
            self._loop.remove_reader(listener)
            listener.close()
            with contextlib.suppress(OSError):
                (folder / name).unlink()

    def close_all(self) -> None:
        for folder in list(self._sockets):
            self.close(folder)


def _bind(folder: Path, name: str, owner: Owner | None) -> socket.socket:
    """Raises OSError. By a descriptor of the folder: the path itself may be too long."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    above = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=above)
        listener.bind(f"/proc/self/fd/{above}/{name}")
        os.chmod(name, 0o600, dir_fd=above)
        if owner is not None and os.geteuid() == 0:
            os.chown(name, owner.uid, owner.gid, dir_fd=above, follow_symlinks=False)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(above)
    return listener
