"""Children that were forked before they are needed, and wait to be told what to become.

A fork of an interpreter takes as long as all the rest of entering a sandbox; done
beforehand it costs nobody's time. And it is not we who fork: after a fork every page that we
touch is copied first, which costs more than the fork. A process that does little else makes
the children, and they are ours nevertheless.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from typing import Any

from carrel.launcher import child, wire
from carrel.launcher.loop import Loop

READY = 3
"""A new sandbox takes two at once, a further command one."""
LEAST = 1
"""While something is being started: forking must not compete with that for the processors."""
REFILL_S = 0.002
"""After the work that used them up, for the same reason."""


class Recruit:
    def __init__(self, channel: socket.socket, pid: int) -> None:
        self.channel = channel
        self.pid = pid

    def tell(self, orders: dict[str, Any], descriptors: list[int]) -> None:
        """Raises OSError when it has died meanwhile."""
        wire.send(self.channel, orders, descriptors)

    def forget(self) -> None:
        """It has all its orders; one that has none ends."""
        self.channel.close()


class Recruits:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: list[Recruit] = []
        self._awaited: deque[socket.socket] = deque()
        """Channels of those that are being made, in order."""
        self._forker: socket.socket | None = None
        self._refilling = False
        self._refill()

    def take(self, orders: dict[str, Any], descriptors: list[int]) -> Recruit:
        """One that has got its first orders."""
        while self._waiting:
            recruit = self._waiting.pop(0)
            try:
                recruit.tell(orders, descriptors)
            except OSError:
                recruit.forget()
                continue
            self._refill_soon()
            return recruit
        recruit = self._fork()
        recruit.tell(orders, descriptors)
        self._refill_soon()
        return recruit

    def _fork(self) -> Recruit:
        """At once, for one that cannot wait."""
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = self._loop.fork(lambda: child.become_recruit(theirs.fileno()))
        theirs.close()
        return Recruit(channel, pid)

    def _refill_soon(self) -> None:
        if not self._refilling:
            self._refilling = True
            self._loop.after(REFILL_S, self._refill)

    def _refill(self) -> None:
        self._refilling = False
        coming = len(self._waiting) + len(self._awaited)
        if coming < (LEAST if self._loop.urgent else READY):
            self._order()
        if len(self._waiting) + len(self._awaited) < READY:
            self._refill_soon()

    def _order(self) -> None:
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(self._open_forker(), [child.FORK], [theirs.fileno()])
            except OSError:
                # It is dead, or has more to do than it can: the next one is made at once.
                channel.close()
                return
        self._awaited.append(channel)

    def _open_forker(self) -> socket.socket:
        if self._forker is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            self._loop.fork(lambda: child.become_forker(theirs.fileno()))
            theirs.close()
            self._forker = ours
            self._loop.watch(ours.fileno(), self._on_forked)
        return self._forker

    def _on_forked(self) -> None:
        assert self._forker is not None
        try:
            answer = self._forker.recv(32)
        except BlockingIOError:
            return
        except OSError:
            answer = b""
        if not answer:
            self._lose_forker(self._forker)
            return
        channel, pid = self._awaited.popleft(), int(answer)
        if pid:
            self._waiting.append(Recruit(channel, pid))
        else:
            channel.close()

    def _lose_forker(self, forker: socket.socket) -> None:
        """The kernel killed it, for want of memory say. The next order makes another."""
        self._loop.unwatch(forker.fileno())
        forker.close()
        self._forker = None
        while self._awaited:
            with contextlib.suppress(OSError):
                self._awaited.popleft().close()
