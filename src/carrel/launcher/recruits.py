"""Children that were forked before they are needed, and wait to be told what to become.

A fork of an interpreter takes as long as all the rest of entering a sandbox; done
beforehand it costs nobody's time.
"""

from __future__ import annotations

import socket
from typing import Any

from carrel.launcher import child, wire
from carrel.launcher.loop import Loop

READY = 3
"""A new sandbox takes two at once, a further command one."""
REFILL_S = 0.002
"""After the work that used them up: forking must not compete with it for the processors."""


class Recruit:
    def __init__(self, loop: Loop) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = loop.fork(lambda: child.become_recruit(theirs.fileno()))
        theirs.close()

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
        recruit = Recruit(self._loop)
        recruit.tell(orders, descriptors)
        self._refill_soon()
        return recruit

    def _refill_soon(self) -> None:
        if not self._refilling:
            self._refilling = True
            self._loop.after(REFILL_S, self._refill)

    def _refill(self) -> None:
        self._refilling = False
        if len(self._waiting) < READY:
            self._waiting.append(Recruit(self._loop))
        if len(self._waiting) < READY:
            self._refill_soon()
