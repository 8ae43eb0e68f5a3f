"""Listeners on the host's loopback, each for one port of a space.

Who connects is looked at first: only the owner's own processes get in, outside of spaces; all
others are reset. Then a connection into the space is made, and the pump has both. More connections
than one forward or one account may have wait in the kernel until one of theirs has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from carrel.domain.errors import CarrelError, PortUnavailable
from carrel.domain.ports import Connect, Forward
from carrel.ports.pump import RESET, CarriedPair, ConnectionPump

BACKLOG = 4096
"""Strangers can come, too, and who finds it full tries again after a second, then after three."""
MOST_OPEN = 1024
"""Connections of one forward; more wait in the kernel."""
MOST_OF_ACCOUNT = 2048
"""… and of all forwards of one account. Each has two descriptors."""
MOST_UNKNOWN = 256
"""Connections of one forward that are looked at, or being made, at the same time."""
AGAIN_S = 0.1
"""Until the next try when there was no descriptor for a connection."""
TRIES = 20
"""For a port that is free by IPv4 and by IPv6."""

Admits = Callable[[socket.socket], Awaitable[bool]]
"""Whether the other end of a connection is the owner's, outside of spaces."""


class LoopbackForwarder:
    """Implements `carrel.domain.ports.Forwarder`; for the loop that it was made in."""

    def __init__(self, admission: Callable[[], Admits]) -> None:
        """`admission` is called for the first forward. It raises OSError where the kernel does not
        tell who connects."""
        self._admission = admission
        self._admits: Admits | None = None
        self._pump = ConnectionPump()
        self._open: dict[str, _Listening] = {}
        self._of_account: Counter[str] = Counter()

    def open(self, forward: Forward, account: str, connect: Connect) -> Forward:
        try:
            self._admits = self._admits or self._admission()
        except OSError as error:
            raise PortUnavailable(
                f"The kernel does not tell whose a connection is: {error.strerror}.",
                hint="Have the kernel's inet_diag loaded: sudo modprobe inet_diag tcp_diag",
            ) from None
        listeners = listen(forward.local)
        made = replace(forward, local=listeners[0].getsockname()[1])
        self._open[made.key] = _Listening(self, listeners, account, connect)
        return made

    def end(self, forward: Forward) -> None:
        found = self._open.pop(forward.key, None)
        if found is not None:
            found.close()

    def connections(self, forward: Forward) -> int:
        found = self._open.get(forward.key)
        return 0 if found is None else len(found.pairs)

    def close(self) -> None:
        for found in self._open.values():
            found.close()
        self._open.clear()
        self._pump.close()

    # For its listeners

    async def admits(self, came: socket.socket) -> bool:
        assert self._admits is not None
        return await self._admits(came)

    @property
    def pump(self) -> ConnectionPump:
        return self._pump

    def has_room(self, account: str) -> bool:
        return self._of_account[account] < MOST_OF_ACCOUNT

    def count(self, account: str, more: int) -> None:
        """When there is room again, all that wait for it go on."""
        was_full = not self.has_room(account)
        self._of_account[account] += more
        if not self._of_account[account]:
            del self._of_account[account]
        if was_full and self.has_room(account):
            for one in self._open.values():
                one.listen()


class _Listening:
    """One forward, by both families."""

    def __init__(
        self,
        forwarder: LoopbackForwarder,
        listeners: list[socket.socket],
        account: str,
        connect: Connect,
    ) -> None:
        self._forwarder = forwarder
        self._listeners = listeners
        self._account = account
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self._coming: set[asyncio.Task[socket.socket | None]] = set()
        self.pairs: set[CarriedPair] = set()
        self._closed = False
        self._listens = False
        self.listen()

    def close(self) -> None:
        self._closed = True
        self._pause()
        for one in self._listeners:
            one.close()
        for task in self._coming:
            task.cancel()
        for pair in self.pairs:
            self._forwarder.pump.cut(pair)

    def listen(self) -> None:
        if not self._closed and not self._listens and self._has_room():
            self._listens = True
            for one in self._listeners:
                self._loop.add_reader(one, self._accept, one)

    def _pause(self) -> None:
        if self._listens:
            self._listens = False
            for one in self._listeners:
                self._loop.remove_reader(one)

    def _has_room(self) -> bool:
        open_now = len(self.pairs) + len(self._coming)
        few = len(self._coming) < MOST_UNKNOWN and open_now < MOST_OPEN
        return few and self._forwarder.has_room(self._account)

    def _accept(self, listener: socket.socket) -> None:
        """All who wait, so that one look is for many."""
        while self._has_room():
            try:
                came, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError:
                self._pause()
                self._loop.call_later(AGAIN_S, self.listen)
                return
            came.setblocking(False)
            self._forwarder.count(self._account, 1)
            task = self._loop.create_task(self._lead(came))
            self._coming.add(task)
            task.add_done_callback(partial(self._came, came))
        self._pause()

    async def _lead(self, came: socket.socket) -> socket.socket | None:
        """None: who came is a stranger, or nobody takes a connection in the space."""
        if await self._forwarder.admits(came):
            with contextlib.suppress(CarrelError):
                return await self._connect()
        return None

    def _came(self, came: socket.socket, task: asyncio.Task[socket.socket | None]) -> None:
        """Also of a task that never began. A connection that leads nowhere is reset, as it would
        be in the space."""
        self._coming.discard(task)
        failed = task.cancelled() or task.exception() is not None
        inner = None if failed else task.result()
        if inner is not None and not self._closed:
            self._carry(came, inner)
        else:
            if inner is not None:
                inner.close()
            _reset(came)
            self._forwarder.count(self._account, -1)
        self.listen()

    def _carry(self, came: socket.socket, inner: socket.socket) -> None:
        def over(pair: CarriedPair) -> None:
            with contextlib.suppress(RuntimeError):
                # The loop may have ended before the thread.
                self._loop.call_soon_threadsafe(self._over, pair)

        self.pairs.add(self._forwarder.pump.carry(came, inner, over))

    def _over(self, pair: CarriedPair) -> None:
        self.pairs.discard(pair)
        self._forwarder.count(self._account, -1)
        self.listen()


def _reset(came: socket.socket) -> None:
    with contextlib.suppress(OSError):
        came.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    came.close()


def listen(port: int) -> list[socket.socket]:
    """On the loopback alone. A name like `localhost` may mean either family, so it is both, or
    none, where the machine has both. Raises `PortUnavailable`."""
    for _ in range(TRIES):
        four = _bound(socket.AF_INET, "127.0.0.1", port)
        if isinstance(four, OSError):
            raise _unavailable(port, four)
        number = four.getsockname()[1]
        six = _bound(socket.AF_INET6, "::1", number)
        if not isinstance(six, OSError):
            return [four, six]
        if six.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return [four]
        four.close()
        if port:
            raise _unavailable(port, six)
    raise _unavailable(port, OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)))


def _bound(family: socket.AddressFamily, host: str, port: int) -> socket.socket | OSError:
    try:
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    except OSError as error:
        return error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        return error
    return listener


def _unavailable(port: int, error: OSError) -> PortUnavailable:
    if error.errno in (errno.EACCES, errno.EPERM):
        hint = "Ports below 1024 are the system's: choose another, or none for a free one."
    else:
        hint = "Choose another local port, or none for a free one."
    where = f"Port {port} of this machine" if port else "No port of this machine"
    told = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be had ({error.strerror})"
    return PortUnavailable(f"{where} {told}.", hint=hint, port=port)
