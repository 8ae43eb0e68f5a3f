"""Ports of spaces that are brought to the host's loopback."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

MAX_PORT = 65535


@dataclass(frozen=True)
class Forward:
    """One port of a space, and the port of the host's loopback that leads there."""

    space_id: str
    port: int
    local: int
    created_at: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.space_id}:{self.port}"


Connect = Callable[[], Awaitable[socket.socket]]
"""Makes a connection to the port in the space. Raises `CarrelError`s."""


class Forwarder(Protocol):
    """The host's side of forwards. Only the owner's own processes, outside of spaces, get in."""

    def open(self, forward: Forward, account: str, connect: Connect) -> Forward:
        """Listens on the host's loopback, by IPv4 and IPv6, on `local`, or on one that the system
        chooses where it is 0; gives the forward as it is then. `account` is whose share of the
        connections it takes. Raises `PortUnavailable`."""
        ...

    def end(self, forward: Forward) -> None:
        """Nobody is let in any more, and its connections end; idempotent."""
        ...

    def connections(self, forward: Forward) -> int:
        """That are open now."""
        ...

    def close(self) -> None:
        """Ends all."""
        ...
